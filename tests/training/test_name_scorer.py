"""The scorer learns from the names of a KB which candidates are right."""

from random import Random

import numpy as np
import pytest

from tests.mapping.conftest import ENTITIES, ToyEncoder
from wellread.data.synthetic import name_noise
from wellread.index.entity_index import build_index
from wellread.kb.build import Origin, build
from wellread.kb.store import KnowledgeBase
from wellread.mapping.features import FEATURES
from wellread.mapping.mapper import Meaning, NameMapper
from wellread.training.name_scorer import collect, first_scorer, sample_strings, train


@pytest.fixture
def kb(tmp_path):
    build(lambda tally: iter(ENTITIES), tmp_path / "names.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "names.kb") as opened:
        yield opened


def test_a_sample_holds_entities_and_aliases_out(kb):
    sample = sample_strings(kb, 200, removed=0.3, context=lambda id, rng: id)
    there = {id for id, _ in sample.index.entities}
    assert len(there) == len(ENTITIES) - int(0.3 * len(ENTITIES))
    absent = [one for one in sample.strings if one.entity is None]
    assert 10 < len(absent) < 100
    assert all(one.context not in there for one in absent)
    assert all(one.entity in there for one in sample.strings if one.entity is not None)
    assert sample.strings == sample_strings(kb, 200, removed=0.3, context=lambda id, rng: id).strings


def test_a_trained_scorer_is_better_than_the_first(kb):
    encoder = ToyEncoder()
    meaning = Meaning(build_index(kb, encoder), encoder)
    sample = sample_strings(kb, 150, context=lambda id, rng: rng.choice(("", "boots")))
    scorer = train([sample], [meaning], rounds=1)
    assert scorer.weights["names"][FEATURES.index("by_meaning")] == 0
    assert scorer.weights["context"][FEATURES.index("by_context")] != 0

    def loss(chosen):
        found = collect(NameMapper(sample.index, None, chosen), sample.strings)["names"]
        utilities = chosen.utilities(found.rows, "names")
        left = np.ones(found.count)
        np.add.at(left, found.groups, np.exp(utilities))
        right = np.zeros(found.count)
        np.add.at(right, found.groups, found.right_mask * np.exp(utilities))
        return -np.log(np.where(right > 0, right, 1) / left).mean()

    assert loss(scorer) < 0.8 * loss(first_scorer())


@pytest.mark.parametrize("kind", sorted(name_noise.NOISE))
def test_noise_changes_names_and_never_fails(kind):
    noise, _ = name_noise.NOISE[kind]
    rng = Random(1)
    names = ["Robert Bosch GmbH", "Köln", "C++", "x", "", "  ", "Dr. Martens", "東京"]
    made = [noise(name, rng) for name in names * 20]
    assert (kind == "as written") == (made == names * 20)
    assert all(isinstance(one, str) for one in made)


def test_words_are_added():
    rng = Random(1)
    found = {name_noise.add_words(["Inc."])("Bosch", rng) for _ in range(50)}
    assert found == {"Bosch Inc.", "Inc. Bosch"}
