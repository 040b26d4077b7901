"""`wellread adapt`: adapt a linker to a knowledge base and texts without labels."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wellread.training.adaptation.adapt import AdaptReport, Known
    from wellread.training.adaptation.corrections import Corrected
    from wellread.training.adaptation.judgements import Marked


@click.command("adapt")
@click.option("--kb", required=True, help="Knowledge base: a path, or a name in wellread's home.")
@click.option(
    "--texts",
    multiple=True,
    type=click.Path(),
    metavar="PATH",
    help="Text, JSONL, CSV or Parquet files, or a folder of these; repeatable.",
)
@click.option("--to", "folder", required=True, type=click.Path(), metavar="FOLDER", help="Run folder.")
@click.option("--marks", type=click.Path(), metavar="FILE", help="Marked sample.csv of the run.")
@click.option("--corrections", type=click.Path(), metavar="FILE", help="Corrected links, from wellread kb corrections.")
@click.option("--model", default="elq", show_default=True, help="Linker to adapt: elq, or a folder.")
@click.option("--field", default="text", show_default=True, help="Field or column of the texts.")
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "file"]),
    default="line",
    show_default=True,
    help="Unit of a text in a text file.",
)
@click.option(
    "--most", type=click.IntRange(1), default=2000, show_default=True, help="Maximum texts to read, chosen at random."
)
@click.option("--sample", type=click.IntRange(1), default=50, show_default=True, help="Number of links to mark.")
@click.option("--anew", is_flag=True, help="Delete the run in the folder instead of resuming it.")
@click.option("--json", "as_json", is_flag=True, help="Write the results as JSON.")
def command(
    kb: str,
    texts: tuple[str, ...],
    folder: str,
    marks: str | None,
    corrections: str | None,
    as_json: bool,
    anew: bool,
    **options: Any,
) -> None:
    """Adapt a linker to a knowledge base and to texts like those it will link; no labels are needed.

    Names that only one entity has and that are rare in English show what right links look like in these texts. The
    linker is in FOLDER/model. FOLDER/sample.csv has links to mark: write 1 (right) or 0 (wrong) in the column "right",
    and give the file with --marks to calibrate scores and threshold, and to know the precision. Corrections made on the
    page of wellread serve do the same, after --texts or without; with 100 of them the scorer is fitted to them, too.

    \b
    Examples:
      wellread adapt --kb my.kb --texts my_texts/ --to runs/my
      wellread adapt --kb my.kb --texts tickets.csv --field body --to runs/my
      wellread adapt --kb my.kb --to runs/my --marks runs/my/sample.csv
      wellread kb corrections my.kb --to corrections.jsonl
      wellread adapt --kb my.kb --to runs/my --corrections corrections.jsonl
      wellread link --kb my.kb --model runs/my/model "a text"
    """
    from wellread.errors import UsageError
    from wellread.io import console
    from wellread.training.adaptation.adapt import MODEL, SAMPLE, adapt, apply_corrections, apply_marks

    if marks is not None and texts:
        raise UsageError("--texts and --marks cannot be combined; adapt to texts first, then give the marks")
    if corrections is not None and (texts or marks):
        raise UsageError("--corrections cannot be combined with --texts or --marks; give them one after the other")
    if corrections is not None:
        _show_corrections(apply_corrections(folder, corrections, kb=kb, model=options["model"]), as_json)
    elif marks is not None:
        marked = apply_marks(folder, marks, kb=kb)
        _show_marks(marked, as_json)
    elif not texts:
        raise UsageError(
            "no data to adapt to; give --texts PATH, --corrections FILE, or --marks FILE once the sample is marked"
        )
    else:
        report = adapt(kb, texts, folder, resume=not anew, **options)
        _show_report(report, as_json)
        console.note(
            f"to know the precision of all links, mark {folder}/{SAMPLE} (column right: 1 or 0) and run: "
            f"wellread adapt --kb {kb} --to {folder} --marks {folder}/{SAMPLE}"
        )
    console.note(f"the linker is in {folder}/{MODEL}; use it with: wellread link --kb {kb} --model {folder}/{MODEL}")


def _show_report(report: AdaptReport, as_json: bool) -> None:
    from wellread.io import console

    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=2))
        return

    def share(known: Known, count: int) -> str:
        return f"{count / known.spans:.2f}" if known.spans else "-"

    def on_known(which: int) -> str:
        right, linked = report.known_precision(which)
        return f"{right / linked:.2f}" if linked else "-"

    rows: list[tuple[str, object, str, str]] = []
    for name, known in (
        ("unambiguous rare names that it was not fitted to: linked (should be)", report.right),
        ("the same, as if the KB lacked them: linked to another (should not be)", report.impostors),
        ("spans inside these names: linked (should not be)", report.nested),
    ):
        rows.append((name, f"{known.spans:,}", share(known, known.before), share(known, known.after)))
    rows.append(("precision on these three: an upper limit for that of all links", "", on_known(0), on_known(1)))
    rows.append(("links in all texts", f"{report.texts:,} texts", *(f"{count:,}" for count in report.links)))  # type: ignore[arg-type]
    rows.append(("mean score of these links: the precision it expects", "", *(f"{p:.2f}" for p in report.mean_score)))  # type: ignore[arg-type]
    console.print_table(("measured without labels", "of", "before", "after"), rows)
    if not report.adapted:
        console.note(f"the scorer is kept as it was: {report.reason}")
    console.note(
        f"no label was used: names of one entity, rare in English, count as right ({report.names:,} in the texts; "
        "one in five was held out). They are easier than other mentions, so all links together are less precise"
    )


def _show_marks(marked: Marked, as_json: bool) -> None:
    from wellread.io import console

    after, before = marked.after, marked.before
    if as_json:
        content = {
            "before": dataclasses.asdict(before),
            "after": dataclasses.asdict(after),
            "strata": [{"scores": name, **dataclasses.asdict(own)} for name, own in marked.strata],
            "threshold": marked.scorer.threshold,
        }
        click.echo(json.dumps(content, indent=2))
        return
    rows = [(f"score {name}", str(own), own.right, own.marked, own.links) for name, own in marked.strata]
    rows.append(("all links before", str(before), before.right, before.marked, before.links))
    rows.append((f"all links now (threshold {marked.scorer.threshold:.2f})", *_cells(after)))
    console.print_table(("links", "precision (95 %)", "right", "marked", "links in the texts"), rows)
    share = 100 * after.marked / after.links if after.links else 0.0
    console.note(
        f"from your marks of {after.marked} of {after.links:,} links ({share:.1f} %), weighted by score group; "
        "the threshold was chosen with the same marks. Recall is not measured: mentions without a link were not shown"
    )


def _show_corrections(done: Corrected, as_json: bool) -> None:
    from wellread.io import console

    marked, before, after = done.marked, done.marked.before, done.marked.after
    if as_json:
        content = {name: value for name, value in dataclasses.asdict(done).items() if name != "marked"}
        content |= {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
        click.echo(json.dumps({**content, "threshold": marked.scorer.threshold}, indent=2))
        return
    rows = [("links before", *_cells(before))]
    rows.append((f"links now (threshold {marked.scorer.threshold:.2f})", *_cells(after)))
    console.print_table(("in the corrected texts", "precision (95 %)", "right", "judged", "links"), rows)
    if done.reason:
        console.note(f"the scorer's trees are as they were: {done.reason}")
    elif done.loss is not None:
        losses = " to ".join(f"{loss:.3f}" for loss in done.loss)
        console.note(f"added {done.trees} trees; log loss on held-out texts changed from {losses}")
    if missing := done.right - done.found:
        console.note(
            f"{missing} of {done.right} right links are not proposed by the linker with that entity first: scores "
            "cannot change that; make their names aliases, or train the linker"
        )
    console.note(
        f"from {done.corrections:,} corrections in {done.texts:,} texts. Mark right links, too, not only wrong ones: "
        "links that people choose to judge are not a random sample, so this precision is not that of all links"
    )


def _cells(own: Any) -> tuple[str, int, int, int]:
    return str(own), own.right, own.marked, own.links
