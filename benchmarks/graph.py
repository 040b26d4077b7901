"""How well and how fast are facts learned: `python -m benchmarks.graph [--kb …] [--model …] [--epochs N] [--loss …]`.

Filtered MRR and hits on facts that were held out, for each model, and the processor time of an epoch. The shared KB has
the split of FB15k-237 (98 % of its facts: those between entities that the KB holds). WordNet has a split of our own (by
pairs of entities, see docs/vectors.md), which WN18RR is not: published figures stand beside it for orientation only.

| published, MRR (hits@10) | WN18RR | FB15k-237 | of |
|---|---|---|---|
| DistMult | .43 (.49) | .241 (.419) | Dettmers et al. 2018 |
| ComplEx | .44 (.51) | .247 (.428) | Dettmers et al. 2018 |
| TuckER | .470 (.526) | .358 (.544) | Balažević et al. 2019 |
| DistMult, tuned | .452 (.531) | .343 (.531) | Ruffinelli et al. 2020 |
| ComplEx, tuned | .475 (.547) | .348 (.536) | Ruffinelli et al. 2020 |
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.report import Report, arguments

SPLIT = Path("../shared/data/linking/triples.tsv.xz")
PUBLISHED = {
    ("wordnet", "distmult"): 0.43,
    ("wordnet", "complex"): 0.44,
    ("wordnet", "tucker"): 0.470,
    ("shared", "distmult"): 0.241,
    ("shared", "complex"): 0.247,
    ("shared", "tucker"): 0.358,
}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--kb", nargs="+", default=["shared", "wordnet"])
    parser.add_argument("--model", nargs="+", default=["distmult", "complex", "tucker"])
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--negatives", type=int)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--loss", choices=["bce", "softmax"], help="instead of each model's usual one")
    own, rest = parser.parse_known_args(given)
    options = arguments(__doc__, rest)

    from wellread.kb.packaged import kb_path

    report = Report("graph", options.quick)
    for kb in own.kb:
        if not kb_path(kb).exists():
            report.add(f"{kb}: facts", "no such KB; build it with wellread kb build")
            continue
        for model in own.model[:1] if options.quick else own.model:
            _measure(report, kb, model, own, options)
    return report.show()


def _measure(report: Report, name: str, model: str, own: argparse.Namespace, options: argparse.Namespace) -> None:
    from wellread.kb.packaged import open_kb
    from wellread.training.graph_vectors import train_graph, usual
    from wellread.training.schedule import Schedule

    epochs = own.epochs or (0.02 if options.quick else 50)
    schedule = Schedule(epochs=epochs, learning_rate=own.rate, weight_decay=0.0, warmup=0.02, clip=1e6)
    recipe = replace(usual(model), schedule=schedule, batch=own.batch, negatives=own.negatives)  # type: ignore[arg-type]
    if own.loss:
        recipe = replace(recipe, loss=own.loss)
    if name == "shared" and SPLIT.exists():
        recipe = replace(recipe, split=str(SPLIT))
    folder = options.folder / f"graph-{name}-{model}"
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.process_time()
    with open_kb(name) as kb:
        _, scores = train_graph(kb, recipe, folder)
    report.add(f"{name}, {model}: processor time, evaluations included", time.process_time() - begin, "s")
    test = scores["test"]
    report.add(f"{name}, {model}: filtered MRR of {test.queries:,} queries after {epochs:g} epochs", test.mrr)
    for k, share in test.hits.items():
        report.add(f"{name}, {model}: hits@{k}", share)
    split = "nearly the same split" if recipe.split else "another split"
    report.add(f"{name}, {model}: MRR published ({split})", PUBLISHED.get((name, model), "none"))


if __name__ == "__main__":
    sys.exit(main())
