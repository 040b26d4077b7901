"""Entity-aware attention against a plain implementation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wellread.encoders.infusion.entity_attention import EntityAwareQueries, entity_attention

WORDS, ENTITIES = (3, 1, 4), (2, 0, 1)


def draw(*, aware: bool = True, learns: bool = True, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    words, entities = sum(WORDS), sum(ENTITIES)
    counts = (words, entities, words, entities) if aware else (words, entities)
    shapes = [(count, 2, 3) for count in (*counts, words + entities, words + entities)]
    return [torch.randn(shape, dtype=dtype, requires_grad=learns) for shape in shapes]


def plain(
    queries: EntityAwareQueries, key: Tensor, value: Tensor, scaling: float, *, entities_visible: bool = True
) -> Tensor:
    """Score by score, text by text."""
    count, mixed = sum(WORDS), torch.zeros_like(value)
    first, second = queries.packed()
    second = first if second is None else second
    begin, behind = 0, count
    for words, entities in zip(WORDS, ENTITIES, strict=True):
        own = [*range(begin, begin + words), *range(behind, behind + entities)]
        is_entity = torch.tensor([place >= count for place in own])
        scores = [torch.einsum("rhd,chd->hrc", query[own], key[own]) * scaling for query in (first, second)]
        met = torch.where(is_entity, scores[1], scores[0])
        if not entities_visible:
            met = met.masked_fill(~is_entity[:, None] & is_entity, float("-inf"))
        weights = met.softmax(-1)
        mixed = mixed.index_copy(0, torch.tensor(own), torch.einsum("hrc,chd->rhd", weights, value[own]))
        begin, behind = begin + words, behind + entities
    return mixed


SEEN = pytest.mark.parametrize("seen", [True, False], ids=["words look at all", "words look at words"])


@SEEN
@pytest.mark.parametrize("aware", [True, False], ids=["own queries", "the same queries"])
@pytest.mark.parametrize("learns", [True, False], ids=["to learn", "not to learn"])
def test_it_agrees_with_a_plain_implementation(aware: bool, learns: bool, seen: bool) -> None:
    *asks, key, value = draw(aware=aware, learns=learns)
    found = entity_attention(EntityAwareQueries(*asks), key, value, WORDS, ENTITIES, scaling=0.3, entities_visible=seen)
    torch.testing.assert_close(found, plain(EntityAwareQueries(*asks), key, value, 0.3, entities_visible=seen))


@SEEN
@pytest.mark.parametrize("aware", [True, False], ids=["own queries", "the same queries"])
def test_its_gradients_agree_with_a_plain_implementation(aware: bool, seen: bool) -> None:
    parts, gradients = draw(aware=aware), []
    weigh = torch.randn_like(parts[-1])
    for attend in (
        lambda queries, key, value: entity_attention(
            queries, key, value, WORDS, ENTITIES, scaling=0.3, entities_visible=seen
        ),
        lambda queries, key, value: plain(queries, key, value, 0.3, entities_visible=seen),
    ):
        made = attend(EntityAwareQueries(*parts[:-2]), *parts[-2:])
        gradients.append(torch.autograd.grad((made * weigh).sum(), parts))
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("drop", [0.0, 0.3], ids=["eval", "train"])
@pytest.mark.parametrize(
    "place",
    range(6),
    ids=["words", "entities", "words to entities", "entities to entities", "keys", "values"],
)
def test_each_input_alone_gets_its_gradient(place: int, drop: float) -> None:
    gradients = []
    for learning in ([place], range(6)):
        parts = draw(learns=False)
        for at in learning:
            parts[at].requires_grad_()
        torch.manual_seed(1)  # the same are dropped
        made = entity_attention(EntityAwareQueries(*parts[:4]), *parts[4:], WORDS, ENTITIES, scaling=0.3, drop=drop)
        gradients.append(torch.autograd.grad(made.square().sum(), parts[place])[0])
    torch.testing.assert_close(*gradients)


def test_dropout_keeps_the_mean_and_its_gradient() -> None:
    *asks, key, value = draw()
    wanted = entity_attention(EntityAwareQueries(*asks), key, value, WORDS, ENTITIES, scaling=0.3)
    torch.manual_seed(1)
    made = [
        entity_attention(EntityAwareQueries(*asks), key, value, WORDS, ENTITIES, scaling=0.3, drop=0.3)
        for _ in range(300)
    ]
    assert not torch.allclose(made[0], wanted)
    torch.testing.assert_close(torch.stack(made).mean(0), wanted, atol=0.35, rtol=0)
    torch.manual_seed(2)
    mean = torch.stack([torch.autograd.grad(one.sum(), value, retain_graph=True)[0] for one in made]).mean(0)
    torch.testing.assert_close(mean, torch.autograd.grad(wanted.sum(), value)[0], atol=0.35, rtol=0)


def test_the_gradient_uses_the_dropout_of_the_forward_pass() -> None:
    parts = draw()

    def attend(*parts: Tensor) -> Tensor:
        torch.manual_seed(3)  # the same are dropped whenever it is called
        *asks, key, value = parts
        return entity_attention(EntityAwareQueries(*asks), key, value, WORDS, ENTITIES, scaling=0.3, drop=0.4)

    assert torch.autograd.gradcheck(attend, parts)


def test_half_precision_is_close() -> None:
    wanted = [part.detach() for part in draw()]
    halves = [part.to(torch.bfloat16) for part in wanted]
    found, exact = (
        entity_attention(EntityAwareQueries(*asks), key, value, WORDS, ENTITIES, scaling=0.3)
        for *asks, key, value in (halves, wanted)
    )
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, atol=0.05, rtol=0.05)


def test_dropout_keeps_one_byte_per_weight() -> None:
    *asks, key, value = draw(dtype=torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part) or part, lambda part: part):
        entity_attention(EntityAwareQueries(*asks), key, value, WORDS, ENTITIES, scaling=0.3, drop=0.3)
    scores = sum(2 * (words + entities) ** 2 for words, entities in zip(WORDS, ENTITIES, strict=True))
    lines = 4 * value.numel()
    assert sum(part.nbytes for part in kept) <= 4 * (lines + scores) + scores
