"""Unlabelled texts about the toy KB, and a scorer that knows nothing of names: what tests of `adapt` need."""

import random
import shutil

import numpy as np

from tests.toy_models import FRAMES
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.features import FEATURES
from wellread.linking.link_scorer import SCORER, LinkScorer


def stumps(*rules, shift=0.0, scale=1.0, threshold=0.5):
    """A scorer of trees with one decision: (feature, border, below, above)."""
    return LinkScorer(
        np.array([[FEATURES.index(name)] for name, *_ in rules], np.int16),
        np.array([[border] for _, border, _, _ in rules], np.float32),
        np.array([[below, above] for *_, below, above in rules], np.float32),
        scale=scale,
        shift=shift,
        threshold=threshold,
    )


DOUBTING = stumps(("mention_logit", 0.0, -2.0, -1.0))
"""Links nothing."""


NAMES = "zorbla quimny vextor plimsk brakot druvex yontil gwarpe snolfi tebrix ulmazo khopte fwenda jisbor".split()
"""Names that are not in the table of English words."""
CITIES = [Entity(f"c{n}", name, f"a city near the river {name}", "city", 1, {name: 3}) for n, name in enumerate(NAMES)]


def unlabelled(count, seed=0):
    """Different texts with names of `CITIES`, which only one entity has."""
    rng = random.Random(seed)
    return [f"{rng.choice(FRAMES).format(rng.choice(NAMES))} {number}" for number in range(count)]


def copy_toy(toy, folder, scorer=DOUBTING):
    """Copy the toy KB, with `CITIES`, and its linker, with a scorer."""
    shutil.copytree(toy, folder)
    with KnowledgeBase.open(folder / "toy.kb", writable=True) as kb:
        kb.add(CITIES)
    scorer.save(folder / "model" / SCORER)
    return folder
