"""The mention linker in numpy computes what torch's does, whatever else is in the batch."""

import math

import numpy as np
import pytest
import torch

from tests.infused_models import shake
from wellread.encoders.packing import Packing
from wellread.errors import InputError
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.inference import MentionScorer, gelu
from wellread.models.knowbert.linker_vectors import EntityProjector
from wellread.models.knowbert.mention_linker import CandidateTensors, MentionLinker, MentionPacking

LENGTHS = np.array([9, 4, 30, 9, 12])


@pytest.fixture(scope="module")
def linker():
    torch.manual_seed(0)
    config = KnowBertConfig(layer=0, raw=6, dim=8, heads=2, inner=12, prior_width=5, kinds=3, kind_width=2)
    made = MentionLinker(config, 16)
    torch.nn.init.normal_(made.entities.mask)
    shake(made, 0.6)
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def batch():
    """Mentions of five texts, the second of which has none."""
    draw = np.random.default_rng(0)
    text_of = np.sort(draw.choice([0, 2, 3, 4], 40))
    starts = (np.cumsum(LENGTHS) - LENGTHS)[text_of]
    firsts = draw.integers(0, LENGTHS[text_of])
    lasts = np.minimum(firsts + draw.integers(0, 4, 40), LENGTHS[text_of] - 1)
    entities = np.where(draw.random((40, 7)) < 0.6, draw.integers(0, 50, (40, 7)), -1)
    entities[3] = -2
    states = draw.normal(size=(LENGTHS.sum(), 16)).astype(np.float32)
    return states, starts + firsts, starts + lasts, text_of, entities, draw.random((40, 7)).astype(np.float32)


def weights_of(module):
    return {name: weight.numpy() for name, weight in module.state_dict().items()}


def test_scores_are_those_of_torch(linker, batch):
    states, firsts, lasts, text_of, entities, priors = batch
    draw = np.random.default_rng(1)
    vectors, kinds = draw.normal(size=(50, 6)).astype(np.float16), draw.integers(0, 3, 50)
    linker.entities.take(EntityTable(vectors, kinds))
    given = CandidateTensors(*(torch.from_numpy(part) for part in (text_of, firsts, lasts, entities, priors)))
    mentions = MentionPacking.of(given.text_of, len(LENGTHS))
    contextual = mentions.drop_empty(linker.contextualize(linker.narrow(torch.from_numpy(states)), given, mentions))
    scorer = MentionScorer(KnowBertConfig(layer=0, dim=8, heads=2), weights_of(linker))
    found = scorer.contextualize(states, firsts, lasts, text_of)
    np.testing.assert_allclose(found, contextual, atol=1e-5)
    projector = EntityProjector.of(weights_of(linker.entities))
    table = np.concatenate((projector(vectors, kinds), projector.masked))
    rows = np.where(entities == -2, 50, entities)
    wanted = linker.score(contextual, given).scores.numpy()
    np.testing.assert_allclose(scorer.score(found, table, rows, priors), wanted, atol=1e-5)
    assert Packing.of(LENGTHS.tolist()).starts.tolist() == [0, 9, 13, 43, 52]


def test_neighbours_change_no_bit(linker, batch):
    states, firsts, lasts, text_of, entities, priors = batch
    scorer = MentionScorer(KnowBertConfig(layer=0, dim=8, heads=2), weights_of(linker))
    table = np.random.default_rng(2).normal(size=(50, 8)).astype(np.float32)
    rows = np.maximum(entities, -1)
    together = scorer.score(scorer.contextualize(states, firsts, lasts, text_of), table, rows, priors)
    starts = np.cumsum(LENGTHS) - LENGTHS
    for text in (0, 2, 3, 4):
        own, begin = text_of == text, starts[text]
        alone = scorer.contextualize(
            states[begin : begin + LENGTHS[text]], firsts[own] - begin, lasts[own] - begin, text_of[own] * 0
        )
        assert np.array_equal(scorer.score(alone, table, rows[own], priors[own]), together[own])


def test_a_missing_weight_is_named(linker):
    weights = weights_of(linker)
    del weights["block.key.bias"]
    with pytest.raises(InputError, match=r"lacks the weight 'block.key.bias'"):
        MentionScorer(KnowBertConfig(layer=0, dim=8, heads=2), weights)


def test_gelu_is_exact_to_single_precision():
    values = np.linspace(-9, 9, 2001, dtype=np.float32)
    wanted = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in values.tolist()]
    np.testing.assert_allclose(gelu(values), wanted, atol=1e-6)
