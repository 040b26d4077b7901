"""Models of facts against loops that follow the papers' formulas, one number after the other, in float64."""

import math

import numpy as np
import pytest
import torch

from wellread.errors import UsageError
from wellread.models.graph_vectors import KINDS, Factors, FactorsConfig
from wellread.training.graph_vectors import FactBatch, bce, drawn_bce, drawn_softmax, softmax, wrong_mask_of

ENTITIES, RELATIONS, DIM = 7, 4, 6
SUBJECTS, ASKED = torch.tensor([0, 5, 5, 2, 6]), torch.tensor([3, 0, 3, 1, 0])


def made(kind, **options):
    torch.manual_seed(1)
    none = {"input_dropout": 0.0, "core_dropout": 0.0, "query_dropout": 0.0}
    config = FactorsConfig(kind, DIM, 3, **{**none, **options})
    model = Factors.build(config, ENTITIES, RELATIONS).double()
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, dtype=torch.float64)
    return model


def normed(rows, norm, training):
    """A batch norm by hand, over a list of rows."""
    out = [[0.0] * DIM for _ in rows]
    for d in range(DIM):
        column = [row[d] for row in rows]
        mean, variance = norm.running_mean[d].item(), norm.running_var[d].item()
        if training:
            mean = sum(column) / len(column)
            variance = sum((value - mean) ** 2 for value in column) / len(column)
        for place, value in enumerate(column):
            scaled = (value - mean) / math.sqrt(variance + norm.eps)
            out[place][d] = scaled * norm.weight[d].item() + norm.bias[d].item()
    return out


def naive(model, kind, training):
    e, r = model.entities.detach().numpy(), model.relations.detach().numpy()
    queries = list(zip(SUBJECTS.tolist(), ASKED.tolist(), strict=True))
    if kind == "tucker":
        core = model.core.detach().numpy()
        states = normed([list(e[s]) for s, _ in queries], model.before, training)
        seen = [
            [sum(state[i] * r[p, k] * core[k, i, j] for k in range(3) for i in range(DIM)) for j in range(DIM)]
            for state, (_, p) in zip(states, queries, strict=True)
        ]
        seen = normed(seen, model.behind, training)
        return [[sum(row[j] * e[o, j] for j in range(DIM)) for o in range(ENTITIES)] for row in seen]
    if kind == "distmult":
        return [[sum(e[s, d] * r[p, d] * e[o, d] for d in range(DIM)) for o in range(ENTITIES)] for s, p in queries]
    half = DIM // 2

    def number(row, d):
        return complex(row[d], row[half + d])

    return [
        [
            sum(number(e[s], d) * number(r[p], d) * number(e[o], d).conjugate() for d in range(half)).real
            for o in range(ENTITIES)
        ]
        for s, p in queries
    ]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_scores_are_those_of_the_formula(kind, training):
    model = made(kind).train(training)
    if kind == "tucker":
        model.before.running_mean.uniform_(-1, 1)
        model.behind.running_var.uniform_(0.5, 2)
    wanted = naive(model, kind, training)
    np.testing.assert_allclose(model(SUBJECTS, ASKED).detach().numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_gradients_are_those_of_small_steps(kind, training):
    model = made(kind).train(training)
    weights = dict(model.named_parameters())

    def scores(*values):
        return torch.func.functional_call(model, dict(zip(weights, values, strict=True)), (SUBJECTS, ASKED))

    if kind == "tucker":
        model.before.momentum = model.behind.momentum = 0.0  # averages stand still, or each call would differ
    assert torch.autograd.gradcheck(scores, tuple(weights.values()))


@pytest.mark.parametrize("kind", list(KINDS))
def test_dropout_is_of_training_alone(kind):
    model = made(kind, input_dropout=0.5, core_dropout=0.5, query_dropout=0.5)
    model.eval()
    torch.testing.assert_close(model(SUBJECTS, ASKED), model(SUBJECTS, ASKED))
    model.train()
    assert not torch.allclose(model(SUBJECTS, ASKED), model(SUBJECTS, ASKED))
    model(SUBJECTS, ASKED).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_only_complex_and_tucker_tell_the_two_ways_round_apart():
    everyone = torch.arange(ENTITIES)
    for kind in KINDS:
        model = made(kind).eval()
        scores = model(everyone, torch.full((ENTITIES,), 2))
        assert torch.allclose(scores, scores.T) == (kind == "distmult"), kind


def test_what_cannot_be_is_refused():
    for options, says in (
        ({"kind": "complex", "entity_dim": 5}, "even"),
        ({"entity_dim": 0}, "entity_dim is 0"),
        ({"query_dropout": 1.0}, "query_dropout is 1.0"),
    ):
        with pytest.raises(UsageError, match=says):
            FactorsConfig(**options)


# losses

FACTS = [(0, 1), (0, 4), (1, 2), (2, 0)]
"""(query, object)"""
QUERY_OF, OBJECTS = (torch.tensor(column) for column in zip(*FACTS, strict=True))


@pytest.fixture
def scores():
    torch.manual_seed(3)
    return torch.randn(3, 6, dtype=torch.float64, requires_grad=True)


def naive_bce(scores, smoothing):
    total = 0.0
    for query, row in enumerate(scores.tolist()):
        for entity, score in enumerate(row):
            label = (1 - smoothing) * ((query, entity) in FACTS) + min(smoothing, 1 / len(row))
            p = 1 / (1 + math.exp(-score))
            total -= label * math.log(p) + (1 - label) * math.log(1 - p)
    return total / len(scores)


def naive_softmax(scores):
    total = 0.0
    for query, object in FACTS:
        row = scores[query].tolist()
        against = [score for entity, score in enumerate(row) if entity == object or (query, entity) not in FACTS]
        total -= math.log(math.exp(row[object]) / sum(map(math.exp, against)))
    return total / len(FACTS)


def test_losses_over_all_entities_are_those_of_loops(scores):
    right = scores[QUERY_OF, OBJECTS]
    for smoothing in (0.0, 0.1, 0.3):
        assert bce(scores, right, smoothing).item() == pytest.approx(naive_bce(scores, smoothing), abs=1e-12)
    assert softmax(scores, right, QUERY_OF, OBJECTS).item() == pytest.approx(naive_softmax(scores), abs=1e-12)


def test_gradients_of_losses_are_those_of_small_steps(scores):
    drawn = torch.tensor([5, 1, 3])
    mask = wrong_mask_of(drawn, FactBatch(torch.arange(3), torch.arange(3), OBJECTS, QUERY_OF))
    for loss in (
        lambda s: bce(s, s[QUERY_OF, OBJECTS], 0.1),
        lambda s: softmax(s, s[QUERY_OF, OBJECTS], QUERY_OF, OBJECTS),
        lambda s: drawn_bce(s[:, drawn], mask, s[QUERY_OF, OBJECTS], QUERY_OF, 6, 0.1),
        lambda s: drawn_softmax(s[:, drawn], mask, s[QUERY_OF, OBJECTS], QUERY_OF, 6),
    ):
        assert torch.autograd.gradcheck(loss, (scores,))


def test_with_every_entity_drawn_once_the_losses_are_those_over_all(scores):
    drawn, right = torch.tensor([3, 0, 5, 1, 2, 4]), scores[QUERY_OF, OBJECTS]
    mask = wrong_mask_of(drawn, FactBatch(torch.arange(3), torch.arange(3), OBJECTS, QUERY_OF))
    wanted = [[((query, entity) not in FACTS) for entity in drawn.tolist()] for query in range(3)]
    assert mask.tolist() == wanted
    for smoothing in (0.0, 0.1, 0.3):
        ours = drawn_bce(scores[:, drawn], mask, right, QUERY_OF, 6, smoothing)
        torch.testing.assert_close(ours, bce(scores, right, smoothing))
    ours = drawn_softmax(scores[:, drawn], mask, right, QUERY_OF, 6)
    torch.testing.assert_close(ours, softmax(scores, right, QUERY_OF, OBJECTS))


def test_the_loss_of_drawn_entities_is_on_average_that_over_all():
    torch.manual_seed(5)
    scores = torch.randn(3, 40, dtype=torch.float64)
    right, batch = scores[QUERY_OF, OBJECTS], FactBatch(torch.arange(3), torch.arange(3), OBJECTS, QUERY_OF)
    found = []
    for _ in range(1000):
        drawn = torch.randint(40, (10,))
        found.append(drawn_bce(scores[:, drawn], wrong_mask_of(drawn, batch), right, QUERY_OF, 40, 0.1).item())
    spread = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - bce(scores, right, 0.1).item()) < 4 * spread < 0.4


@pytest.mark.parametrize("smoothing", [0.0, 0.01, 0.1])
def test_the_loss_of_surer_and_surer_scores_has_a_bound(smoothing):
    sure = torch.full((3, 6), -1.0, dtype=torch.float64)
    sure[QUERY_OF, OBJECTS] = 1.0
    drawn = torch.arange(6)
    mask = wrong_mask_of(drawn, FactBatch(torch.arange(3), torch.arange(3), OBJECTS, QUERY_OF))
    for size in (10.0, 100.0, 1000.0):
        scores = size * sure
        right = scores[QUERY_OF, OBJECTS]
        assert bce(scores, right, smoothing) >= 0
        assert drawn_bce(scores, mask, right, QUERY_OF, 6, smoothing) >= 0


def test_a_draw_of_right_entities_only_is_no_nan():
    scores = torch.randn(1, 2, requires_grad=True)
    query_of, objects = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1])
    mask = torch.zeros(1, 2, dtype=torch.bool)
    for loss in (
        drawn_bce(scores, mask, scores[query_of, objects], query_of, 5, 0.1),
        drawn_softmax(scores, mask, scores[query_of, objects], query_of, 5),
    ):
        (gradient,) = torch.autograd.grad(loss, scores)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()
