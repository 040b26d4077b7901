"""How good is the linker that reads, against linking by name: `python -m benchmarks.accuracy [MODEL...]`.

MODEL is "elq" (the packaged one) or the `model` folder of a run; of several (seeds) the mean and the spread are told.
Weak-match F1 (right entity, overlapping span) over links whose entity is in the shared KB, on the development part of
WebQSP, which no model learned from, and on the validation and development files of others: at the threshold that each
model keeps from its development data (the union's, so for dense or names alone it is not the best one), and at the best
threshold. Bars: on WebQSP 0.85, and 10 points above names alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev

from benchmarks.data import SHARED, has_shared, shared_kb
from benchmarks.report import Report
from wellread.assets import home
from wellread.evaluation.calibration import Predictions, calibrate
from wellread.evaluation.linking import right_links, score_linking
from wellread.formats import read_linked
from wellread.kb.packaged import open_kb
from wellread.linker import Linker
from wellread.tasks.linking import split_off
from wellread.text import Document

_WEBQSP = "WebQSP, development part"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["elq"])
    parser.add_argument("--folder", type=Path, default=home() / "bench", help="where knowledge bases are kept")
    parser.add_argument("--kb", help="the shared KB, already built")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(given)
    if not has_shared():
        print(f"accuracy: there is no {SHARED.name} data at ../shared/data; nothing to measure")
        return 0
    report = Report("accuracy", options.quick)
    data = _data(100 if options.quick else None)
    with open_kb(options.kb or shared_kb(options.folder)) as kb:
        prior = Linker.load(kb, "prior")
        by_name = {name: _f1(prior, gold) for name, gold in data.items()}
        for name, value in by_name.items():
            report.add(f"{name}: prior F1", value)
        for sources, precision in (("union", "fp32"), ("union", "int8"), ("dense", "fp32"), ("names", "fp32")):
            linkers = [Linker.load(kb, model, sources=sources, precision=precision) for model in options.models]
            for name, gold in data.items():
                told = f"{name}: {sources}, {precision}"
                bar = (
                    max(0.85, by_name[name] + 0.1) if (name, sources, precision) == (_WEBQSP, "union", "fp32") else None
                )
                _tell(report, f"{told}, F1", [_f1(linker, gold) for linker in linkers], bar)
                figures = [calibrate(_predictions(linker, gold)) for linker in linkers]
                _tell(report, f"{told}, F1 at the best threshold", [figure["best_f1"] for figure in figures])
                if sources == "union" and precision == "fp32":
                    _tell(report, f"{told}, calibration error", [figure["error_by_width"] for figure in figures])
    return report.show()


def _tell(report: Report, what: str, values: Sequence[float], bar: float | None = None) -> None:
    report.add(what, mean(values), at_least=bar)
    if len(values) > 1:
        report.add(f"{what}, standard deviation of {len(values)}", pstdev(values))


def _data(most: int | None) -> dict[str, list[Document]]:
    read = {
        name: list(read_linked(SHARED / f"{name}.jsonl", skipped=[]))
        for name in ("webqsp_train", "simplequestions_valid", "gerdaq_devel")
    }
    data = {
        _WEBQSP: split_off(read["webqsp_train"], 600)[1],
        "SimpleQuestions, valid": read["simplequestions_valid"],
        "GERDAQ, devel": read["gerdaq_devel"],
    }
    return {name: documents[:most] for name, documents in data.items()}


def _f1(linker: Linker, gold: Sequence[Document]) -> float:
    predicted = list(linker.link_many([document.text for document in gold]))
    scores = score_linking(gold, predicted, known=linker.kb.__contains__, bootstrap=0)
    return float(scores.get(match="overlap").linking.f1.value)


def _predictions(linker: Linker, gold: Sequence[Document]) -> Predictions:
    """Every link of a score of 0.02 and more."""
    known = linker.kb.__contains__
    scores: list[float] = []
    right: list[bool] = []
    for document, scored in zip(gold, linker.score_many([one.text for one in gold]), strict=True):
        found = scored.document(threshold=0.02)
        scores += [link.score for link in found.links if link.entity is not None]
        right += right_links(document, found, known)
    asked = sum(link.entity is not None and known(link.entity) for document in gold for link in document.links)
    return Predictions(scores, right, asked)


if __name__ == "__main__":
    sys.exit(main())
