"""Linking accuracy over all development sets in one table: `python -m benchmarks.accuracy [MODEL ...]`.

MODEL is "elq" (the packaged linker, the default), "prior", or the folder of a run. A row is a set (`linkingsets`), with
precision, recall and F1 of links by overlapping spans whose entity is in the KB:

- `prior F1`: names alone, the lower limit for every model.
- `P`, `R`, `F1`: at the model's default threshold.
- `best F1`: at the best threshold for this set; `gap` is the difference to the default [at most .03].
- `ECE`: expected calibration error of links with a score of .02 and more, ten bins of equal width [at most .08].
- `vs prior`: F1 less the prior's [at least -.01].
- `bar`: the F1 that the set asks for.

Figures that miss their limit end with "!". Sets with "*" mark only some entities: precision is over the marked spans
(or, for the schools text, over names that are linked or not in the KB).

`--typos` adds short texts with one typo in each mention [at most .15 below as written], `--lower` running text in lower
case. No threshold is chosen on products_test or gsc_dev: leave both out with `--sets` while developing, and look at
them once per version. `best F1` is an upper limit, its threshold is chosen on the set itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.linkingsets import KBS, LinkingSet, choose_sets, missing
from benchmarks.variants import lowercase, misspell
from wellread.assets import home
from wellread.document import Document
from wellread.errors import UsageError
from wellread.evaluation.calibration import Predictions, calibrate
from wellread.evaluation.linking import right_links, score_linking
from wellread.evaluation.partial_annotation import keep_judged
from wellread.kb.packaged import open_kb
from wellread.linking.linker import Linker

Variant = Literal["as written", "typo", "lower case"]

LOWEST = 0.02
"""Links with a lower score are not looked at for the best threshold and the calibration error."""
BELOW_PRIOR, GAP, CALIBRATION, TYPO = 0.01, 0.03, 0.08, 0.15
"""Largest allowed loss against prior, gap to the best threshold, calibration error, loss by one typo per mention."""
_QUICK = 20


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one model on one set."""

    set: str
    kind: str
    kb: str
    model: str
    variant: Variant
    complete: bool
    bar: float | None
    documents: int
    gold: int
    prior_f1: float
    precision: float
    recall: float
    f1: float
    best_f1: float
    best_threshold: float | None
    calibration_error: float

    @property
    def gap(self) -> float:
        """F1 that the default threshold costs."""
        return self.best_f1 - self.f1

    @property
    def over_prior(self) -> float:
        """F1 above names alone."""
        return self.f1 - self.prior_f1


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["elq"], metavar="MODEL")
    parser.add_argument("--sets", type=lambda names: names.split(","), help="only these, with commas between them")
    parser.add_argument("--limit", type=int, help="only the first N documents of each set")
    parser.add_argument("--precision", choices=["auto", "int8", "fp32"], default="auto")
    parser.add_argument("--typos", action="store_true", help="also short texts with one typo in each mention")
    parser.add_argument("--lower", action="store_true", help="also running text in lower case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--folder", type=Path, default=home() / "bench", help="where knowledge bases are kept")
    parser.add_argument("--quick", action="store_true", help=f"the same as --limit {_QUICK}")
    options = parser.parse_args(given)
    sets = choose_sets(options.sets)
    if note := missing(sets):
        print(f"accuracy: {note}", file=sys.stderr)
    variants: list[Variant] = ["as written"]
    if options.typos:
        variants.append("typo")
    if options.lower:
        variants.append("lower case")
    results = []
    for result in measure(
        [one for one in sets if one.is_here],
        options.models,
        variants,
        options.folder,
        precision=options.precision,
        limit=_QUICK if options.quick else options.limit,
    ):
        print(f"accuracy: {result.set}, {result.model}, {result.variant}: F1 {result.f1:.3f}", file=sys.stderr)
        results.append(result)
    print("\n".join(report(results)))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


def measure(
    sets: Sequence[LinkingSet],
    models: Sequence[str],
    variants: Sequence[Variant],
    folder: Path,
    *,
    precision: Literal["auto", "int8", "fp32"] = "auto",
    limit: int | None = None,
) -> Iterator[Result]:
    """Measure KB by KB, so that a model and its index are loaded once for each."""
    for kb_name in dict.fromkeys(one.kb for one in sets):
        with open_kb(KBS[kb_name](folder)) as kb:
            prior = Linker.load(kb, "prior")
            linkers = {model: Linker.load(kb, model, precision=precision) for model in models}
            for chosen in (one for one in sets if one.kb == kb_name):
                written = chosen.documents(limit)
                for variant in variants:
                    if (make := _maker(variant, chosen)) is None:
                        continue
                    gold = make(written)
                    prior_f1 = _f1(prior, gold)
                    for model, linker in linkers.items():
                        yield _result(chosen, variant, model, linker, gold, prior_f1)


def _maker(variant: Variant, chosen: LinkingSet) -> Callable[[Sequence[Document]], list[Document]] | None:
    """Return the function that makes a variant, None where the set has no such variant."""
    long = chosen.kind in ("running text", "abstracts")
    if variant == "typo":
        return None if long else misspell
    if variant == "lower case":
        return lowercase if long else None
    return list


def _result(
    chosen: LinkingSet, variant: Variant, model: str, linker: Linker, gold: Sequence[Document], prior_f1: float
) -> Result:
    known = linker.kb.__contains__
    linked, possible = link_twice(linker, [document.text for document in gold])
    score = score_linking(gold, linked, known=known, bootstrap=0).get(match="overlap")
    found = calibrate(predictions(gold, possible, known))
    return Result(
        chosen.name,
        chosen.kind,
        chosen.kb,
        model,
        variant,
        chosen.complete,
        chosen.bar,
        len(gold),
        score.gold,
        prior_f1,
        score.linking.precision.value,
        score.linking.recall.value,
        score.linking.f1.value,
        max(found["best_f1"], score.linking.f1.value),
        found["best_threshold"],
        found["error_by_width"],
    )


def _f1(linker: Linker, gold: Sequence[Document]) -> float:
    linked = list(linker.link_many([document.text for document in gold]))
    return float(score_linking(gold, linked, known=linker.kb.__contains__, bootstrap=0).get().linking.f1.value)


def link_twice(linker: Linker, texts: Sequence[str]) -> tuple[list[Document], list[Document]]:
    """Return the links at the default threshold and at `LOWEST`, from one run of the model."""
    try:
        pairs = [(one.document(), one.document(threshold=LOWEST)) for one in linker.score_many(texts)]
    except UsageError:  # prior has no scores to decide anew
        linked = list(linker.link_many(texts))
        return linked, linked
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def predictions(gold: Sequence[Document], linked: Sequence[Document], known: Callable[[str], bool]) -> Predictions:
    """Collect scores and rightness of all links that the gold annotation can judge."""
    scores: list[float] = []
    right: list[bool] = []
    asked = 0
    for document, guess in zip(gold, linked, strict=True):
        judged, guess = keep_judged(document, guess)
        scores += [link.score for link in guess.links if link.entity is not None]
        right += right_links(judged, guess, known)
        asked += sum(link.entity is not None and known(link.entity) for link in judged.links)
    return Predictions(scores, right, asked)


# tables


def report(results: Sequence[Result]) -> list[str]:
    """Return the lines of the main table and of one for each variant."""
    written = [result for result in results if result.variant == "as written"]
    lines = _table(_COLUMNS, [_row(result) for result in written])
    by_key = {(result.set, result.model): result for result in written}
    for variant, limit in (("typo", TYPO), ("lower case", None)):
        varied = [result for result in results if result.variant == variant]
        if varied:
            header = ("set", "model", "prior", f"prior, {variant}", "F1", f"F1, {variant}", "difference")
            rows = [_variant_row(by_key[result.set, result.model], result, limit) for result in varied]
            lines += ["", *_table(header, rows)]
    return lines


_COLUMNS = (
    *("set", "kind", "KB", "documents", "gold in KB", "model", "prior F1", "P", "R", "F1", "vs prior"),
    *("best F1", "gap", "ECE", "bar"),
)


def _row(result: Result) -> tuple[str, ...]:
    bar = "" if result.bar is None else f"{_figure(result.bar)}{_mark(result.f1 < result.bar)}"
    return (
        result.set + "*" * (not result.complete),
        result.kind,
        result.kb,
        f"{result.documents:,}",
        f"{result.gold:,}",
        _model_name(result.model),
        *map(_figure, (result.prior_f1, result.precision, result.recall, result.f1)),
        f"{_signed(result.over_prior)}{_mark(result.over_prior < -BELOW_PRIOR)}",
        _figure(result.best_f1),
        f"{_figure(result.gap)}{_mark(result.gap > GAP)}",
        f"{_figure(result.calibration_error)}{_mark(result.calibration_error > CALIBRATION)}",
        bar,
    )


def _variant_row(written: Result, varied: Result, limit: float | None) -> tuple[str, ...]:
    change = varied.f1 - written.f1
    mark = _mark(limit is not None and change < -limit)
    figures = (written.prior_f1, varied.prior_f1, written.f1, varied.f1)
    return (written.set, _model_name(written.model), *map(_figure, figures), f"{_signed(change)}{mark}")


def _model_name(model: str) -> str:
    """Name a run by its folder: "runs/seed1/model" -> "seed1"."""
    path = Path(model)
    return path.parent.name if path.name == "model" else path.name


def _figure(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1)


def _mark(missed: bool) -> str:
    return "!" if missed else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table whose columns also line up as plain text."""
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return [f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
