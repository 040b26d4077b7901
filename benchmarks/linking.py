"""How good is linking by name, the baseline of every model, on the shared data, and how fast?

Bar: ≤ 0.15 ms for one text a call; the rest are figures for the record. Scores are micro averages over links whose
entity is in the KB; `weak` counts spans that overlap, as ELQ does. Candidate recall and top-1 accuracy are given the
gold spans: is the right entity among the candidates of the span's text, and is it the first of them?
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.data import SHARED, has_shared, shared_kb
from benchmarks.report import Report, arguments, interleaved
from wellread.data.formats import read_linked
from wellread.document import Document
from wellread.evaluation.linking import score_linking
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker

_DATASETS = ("webqsp_train", "conel22_train", "simplequestions_valid", "gerdaq_devel")


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    if not has_shared():
        print(f"linking: there is no {SHARED.name} data at ../shared/data; nothing to measure")
        return 0
    report = Report("linking", options.quick)
    with KnowledgeBase.open(shared_kb(options.folder)) as kb:
        linker = Linker.load(kb, "prior")
        for name in _DATASETS:
            skipped: list[str] = []
            gold = list(read_linked(SHARED / f"{name}.jsonl", skipped=skipped))
            if options.quick:
                gold = gold[:200]
            _measure(report, name, gold, linker)
            if skipped:
                report.add(f"{name}: broken lines passed over", len(skipped))
    return report.show()


def _measure(report: Report, name: str, gold: list[Document], linker: Linker) -> None:
    texts = [document.text for document in gold]
    predicted = list(linker.link_many(texts))
    scores = score_linking(gold, predicted, known=linker.kb.__contains__, bootstrap=0)
    for title, match in (("weak", "overlap"), ("exact", "exact")):
        score = scores.get(match=match).linking
        for what, value in (("P", score.precision), ("R", score.recall), ("F1", score.f1)):
            report.add(f"{name}: {title} {what}", value.value)
    asked = [
        (document.text[link.start : link.end], link.entity)
        for document in gold
        for link in document.links
        if link.entity is not None and link.entity in linker.kb
    ]
    found = [[candidate.entity for candidate in linker.backend.finder.candidates(text)] for text, _ in asked]
    recall = sum(entity in among for (_, entity), among in zip(asked, found, strict=True)) / len(asked)
    first = sum(among[:1] == [entity] for (_, entity), among in zip(asked, found, strict=True)) / len(asked)
    report.add(f"{name}: candidate recall given gold spans ({len(asked):,} in KB)", recall)
    report.add(f"{name}: top-1 accuracy given gold spans", first)
    work = {"together": lambda: list(linker.link_many(texts)), "alone": lambda: [linker.link(text) for text in texts]}
    seconds = interleaved(work, 5, clock=time.process_time)
    report.add(f"{name}: speed, {len(texts):,} texts, warm", len(texts) / seconds["together"], "texts/s")
    report.add(f"{name}: one text a call, warm", seconds["alone"] / len(texts) * 1000, "ms", at_most=0.15)


if __name__ == "__main__":
    sys.exit(main())
