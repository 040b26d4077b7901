"""Train the packaged scorer of `wellread map`: `python -m benchmarks.mapping_scorer --to FILE`.

The strings are names of five knowledge bases, changed as people change names (`training.name_scorer`): the shared KB,
HPO, the products, the vital articles and WordNet (names only). Each KB is left out in turn, and the scorer of the
others is measured on it: how often the first entity is right, and the calibration error of its score. Printed beside
it are the figures of the scorer trained on all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.data import has_shared, hpo_kb, products_kb, shared_kb, wordnet_kb
from wellread import __version__, assets
from wellread.evaluation.calibration import reliability
from wellread.kb.packaged import kb_path
from wellread.kb.store import KnowledgeBase
from wellread.mapping.mapper import Meaning
from wellread.mapping.scorer import Evidence, NameScorer, choice_probabilities
from wellread.models.elq.load import load_tower, open_index
from wellread.training.name_scorer import Choices, collect_all, fit_all, sample_strings, train

_STRINGS = {"products": 1500}


def main(given: Sequence[str] | None = None) -> int:
    """Train on all, measure on each left out, and write the scorer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, help="where the scorer trained on all is written")
    parser.add_argument("--folder", type=Path, default=assets.home() / "bench", help="where the KBs are kept")
    parser.add_argument("--strings", type=int, default=2000, help="strings of a KB")
    options = parser.parse_args(given)
    if not has_shared():
        print("mapping_scorer: needs the shared data", file=sys.stderr)
        return 0
    folder = options.folder
    paths = {
        "shared": shared_kb(folder),
        "hpo": hpo_kb(folder),
        "products": products_kb(folder),
        "vital": kb_path("vital"),
        "wordnet": wordnet_kb(),
    }
    tower = load_tower()
    samples, meanings = [], []
    for name, path in paths.items():
        kb = KnowledgeBase.open(path)
        senses = name == "wordnet"  # 117,659 glosses are not encoded for this
        context = _no_context if senses else _context(kb)
        samples.append(sample_strings(kb, min(options.strings, _STRINGS.get(name, 1 << 30)), context=context))
        meanings.append(None if senses else Meaning(open_index(kb, tower.config, tower), tower))
    scorer = train(samples, meanings)
    found = collect_all(samples, meanings, scorer)
    rows = []
    for at, name in enumerate(paths):
        others = fit_all([one for place, one in enumerate(found) if place != at], scorer)
        for evidence, choices in found[at].items():
            row = {"kb": name, "evidence": evidence, "strings": choices.count}
            row |= {f"left out {key}": value for key, value in measure(others, evidence, choices).items()}
            row |= {f"all {key}": value for key, value in measure(scorer, evidence, choices).items()}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.to is not None:
        about = {"wellread": __version__, "strings": options.strings, "seed": 1, "measured": rows}
        NameScorer(scorer.weights, about).save(options.to)
    return 0


def measure(scorer: NameScorer, evidence: Evidence, choices: Choices) -> dict[str, float]:
    """Accuracy among strings whose entity is in the KB, and calibration of the first entity over all strings."""
    scores = choice_probabilities(scorer.utilities(choices.rows, evidence), choices.groups, choices.count)
    top = np.full(choices.count, -1)
    best = np.zeros(choices.count)
    for at, (group, score) in enumerate(zip(choices.groups.tolist(), scores.tolist(), strict=True)):
        if score > best[group]:
            best[group], top[group] = score, at
    right = np.array([at >= 0 and bool(choices.right_mask[at]) for at in top])
    known = np.array([one.entity is not None for one in choices.strings])
    taken = best >= 0.5
    return {
        "accuracy": round(float(right[known].mean()), 3),
        "error": round(float(reliability(best, right, by="mass").error), 3),
        "precision": round(float(right[taken].mean()), 3),
        "matched": round(float(taken[known].mean()), 3),
        "matched without entity": round(float(taken[~known].mean()), 3),
    }


def _no_context(id: str, rng: Random) -> str:
    return ""


def _context(kb: KnowledgeBase) -> Callable[[str, Random], str]:
    """Half of the strings have a context: the kind of their entity, or the titles of two neighbours."""

    def context(id: str, rng: Random) -> str:
        if rng.random() < 0.5:
            return ""
        if rng.random() < 0.5:
            return kb.get(id).kind
        neighbours = kb.neighbours(id)
        return ", ".join(one.title for one in rng.sample(neighbours, min(2, len(neighbours))))

    return context


if __name__ == "__main__":
    sys.exit(main())
