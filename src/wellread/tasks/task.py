"""What a task is to the learner: how examples become inputs, and what states of an encoder become answers.

A task takes any encoder, plain or infused: it sees packed hidden states and nothing of where they come from. One
example may be several inputs (the choices of a question, the windows of a passage).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from accelerate.utils import send_to_device  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from wellread.encoders.infusion.infuse import InfusedEncoder, InfusedOutput
from wellread.encoders.packing import Packing, first_position
from wellread.errors import UsageError
from wellread.text.tokenization import TextTokenizer, Tokenization

Pooling = Literal["mean", "first", "both"]
E_contra = TypeVar("E_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of some examples, packed end to end, with what they are lent."""

    ids: Int[Tensor, " token"]
    types: Int[Tensor, " token"]
    packing: Packing
    inputs: tuple[Tokenization, ...]
    example_of: Int[Tensor, " input"]
    """Which of the batch's examples each input belongs to."""
    examples: tuple[Any, ...]
    knowledge: Mapping[str, Tensor] = field(default_factory=dict)
    """What the encoder's infusions are given, by its keyword."""
    target: Any = None
    """What the task wants of these examples (`Task.prepare`)."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the encoder's infusions said besides the states, once it is read."""

    @property
    def tokens(self) -> int:
        """How many pieces it has."""
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        parts = {part.name: getattr(self.packing, part.name) for part in fields(self.packing)}
        return replace(
            self,
            packing=replace(self.packing, **send_to_device(parts, device)),
            **{
                name: send_to_device(getattr(self, name), device)
                for name in ("ids", "types", "example_of", "knowledge", "target")
            },
        )

    def in_rows(self, values: Float[Tensor, " input"]) -> Float[Tensor, "example most"]:
        """The values of inputs in a row for each example; -inf where it has no more of them."""
        counts = torch.bincount(self.example_of, minlength=len(self.examples))
        rows = Packing.of(counts, counts.device)
        return rows.spread(values).masked_fill(~rows.there_mask(), -math.inf)


class Task(Protocol[E_contra]):
    """What is asked of a text. `score` is the name of the score that counts most."""

    score: str

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[E_contra], *, learning: bool
    ) -> list[list[Tokenization]]:
        """The inputs of each example; where one is `learning`, none if there is nothing to learn from it."""
        ...

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """What is learned beside the encoder."""
        ...

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """A batch with its `target`, ready to be read; called with chance seeded, so it may draw."""
        ...

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """The parts of the loss by name, each a mean over the batch."""
        ...

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """What is answered, one for each input of the batch; plain numbers, strings, arrays."""
        ...

    def scores(self, examples: Sequence[E_contra], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """How good the answers are, given for each example those to its inputs; more is better."""
        ...


@runtime_checkable
class Draws(Protocol):
    """A task that does not read all of an example as it was cut: but some of its inputs, or with pieces masked."""

    def draw(self, example: Any, inputs: Sequence[Tokenization], *, learning: bool) -> Sequence[Tokenization]:
        """The inputs as they are read this time, before knowledge is lent to them; called with chance seeded."""
        ...


class EncoderWithHead(nn.Module):
    """An encoder and a task's head on it."""

    def __init__(self, encoder: InfusedEncoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head = head

    def read(self, batch: Batch) -> tuple[Float[Tensor, "token dim"], Batch, dict[str, Tensor]]:
        """The hidden states of a batch's pieces, the batch with what was told besides, and losses of infusions."""
        read: InfusedOutput = self.encoder.read(batch.ids, batch.packing, batch.types, **batch.knowledge)
        return read.states, replace(batch, told=read.outputs), read.losses

    def states(self, batch: Batch) -> Float[Tensor, "token dim"]:
        """The hidden states alone."""
        return self.read(batch)[0]


class TextHead(nn.Module):
    """Scores of a whole input: a dense layer, then a linear one.

    They see the `mean` of its pieces, its `first` piece, or how `both` texts of a pair differ and agree: of the means u
    and v of their pieces, normed, |u - v| and u v, as sentence encoders are compared (Reimers and Gurevych 2019). The
    cosine of u and v is also weighed by itself (`agree`): such encoders know much by it before they learn anything. A
    text alone is held against itself.
    """

    def __init__(self, width: int, count: int, *, pooling: Pooling = "mean", dropout: float = 0.1) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(2 * width if pooling == "both" else width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, count)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.agree = nn.Linear(1, count, bias=False) if pooling == "both" else None
        if self.agree is not None:
            nn.init.zeros_(self.agree.weight)

    def forward(
        self, states: Float[Tensor, "token dim"], inputs: Sequence[Tokenization], packing: Packing
    ) -> Float[Tensor, "input count"]:
        """One row of scores for each packed input."""
        if self.pooling == "both":
            pooled = _both(states, inputs, packing)
        else:
            pooled = packing.mean(states) if self.pooling == "mean" else states[packing.starts]
        scores: Tensor = self.out(self.dropout(gelu(self.dense(self.dropout(pooled)))))
        if self.agree is not None:
            cosine = pooled[:, pooled.shape[1] // 2 :].mean(1, keepdim=True)
            scores = scores + self.agree(cosine)
        return scores


def _both(
    states: Float[Tensor, "token dim"], inputs: Sequence[Tokenization], packing: Packing
) -> Float[Tensor, "input features"]:
    """How the means of both segments, normed, differ and agree."""
    segment = torch.cat([torch.from_numpy(one.segment_of) for one in inputs]).to(states.device)
    own = segment >= 0
    place = 2 * packing.text_of[own] + segment[own]
    total = states.new_zeros(2 * len(inputs), states.shape[-1]).index_add(0, place, states[own])
    count = torch.bincount(place, minlength=2 * len(inputs))
    mean = layer_norm(total / count.clamp(min=1)[:, None], states.shape[-1:]).view(len(inputs), 2, -1)
    one, other = mean.unbind(1)
    other = torch.where(count.view(-1, 2)[:, 1:] > 0, other, one)
    return torch.cat(((one - other).abs(), one * other), 1)


def make_batch(
    examples: Sequence[Any], tokenized: Sequence[Sequence[Tokenization]], knowledge: Mapping[str, Tensor]
) -> Batch:
    """Examples with their inputs as one packed batch."""
    inputs = tuple(one for some in tokenized for one in some)
    counts = torch.tensor([len(some) for some in tokenized])
    return Batch(
        torch.cat([torch.from_numpy(one.ids) for one in inputs]),
        torch.cat([torch.from_numpy(one.types) for one in inputs]),
        Packing.of([len(one) for one in inputs]),
        inputs,
        torch.repeat_interleave(torch.arange(len(examples)), counts),
        tuple(examples),
        knowledge,
    )


def as_tensors(told: Any) -> Any:
    """Arrays as tensors, also in dicts: what a lender tells, as an encoder takes it."""
    if isinstance(told, Mapping):
        return {name: as_tensors(part) for name, part in told.items()}
    return torch.from_numpy(told)


def check_positions(encoder: InfusedEncoder, longest: int) -> None:
    """Refuse inputs that an encoder has not the positions for."""
    positions = int(encoder.config.max_position_embeddings) - first_position(cast(nn.Module, encoder))
    if longest > positions:
        raise UsageError(
            f"inputs of {longest} pieces are asked for, but the encoder has {positions} positions; cut them shorter"
        )


def in_full(scores: Tensor) -> Tensor:
    """Scores in single precision at least, for sums of many chances."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
