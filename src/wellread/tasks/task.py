"""Task interface: from examples to inputs, and from encoder states to answers.

A task works with any encoder, plain or infused: it only sees packed hidden states. One example may be several inputs
(the choices of a question, the windows of a passage).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from accelerate.utils import send_to_device  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from wellread.encoders.infusion.infuse import InfusedEncoder, InfusedOutput
from wellread.encoders.packing import Packing, first_position
from wellread.errors import UsageError
from wellread.tasks.data_options import Pooling
from wellread.text.tokenization import TextTokenizer, Tokenization

E_contra = TypeVar("E_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of several examples, packed end to end, with their knowledge inputs."""

    ids: Int[Tensor, " token"]
    types: Int[Tensor, " token"]
    packing: Packing
    inputs: tuple[Tokenization, ...]
    example_of: Int[Tensor, " input"]
    """Index of the batch's example that each input belongs to."""
    examples: tuple[Any, ...]
    knowledge: Mapping[str, Tensor] = field(default_factory=dict)
    """Arguments of the encoder's infusions, by keyword."""
    target: Any = None
    """Training target of the task (`Task.prepare`)."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """Extra outputs of the encoder's infusions by name, set by the forward pass."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        """Return a copy on the device."""
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
        """Return one row of input values per example, padded with -inf."""
        counts = torch.bincount(self.example_of, minlength=len(self.examples))
        rows = Packing.of(counts, counts.device)
        return rows.spread(values).masked_fill(~rows.there_mask(), -math.inf)


class Task(Protocol[E_contra]):
    """Task on top of an encoder; `score` names its main score."""

    score: str

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[E_contra], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return the inputs of each example; in training, none for examples that cannot be trained on."""
        ...

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build the head that is trained with the encoder."""
        ...

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Return the batch with its `target`; called with seeded random state, so it may sample."""
        ...

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the parts of the loss by name, each a mean over the batch."""
        ...

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return one answer per input of the batch: plain numbers, strings or arrays."""
        ...

    def scores(self, examples: Sequence[E_contra], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return scores of the answers, given one list per example; higher is better."""
        ...


@runtime_checkable
class Draws(Protocol):
    """Task that samples or masks the inputs of an example each time they are read."""

    def draw(self, example: Any, inputs: Sequence[Tokenization], *, learning: bool) -> Sequence[Tokenization]:
        """Return the inputs to read this time, before knowledge is added; called with seeded random state."""
        ...


class EncoderWithHead(nn.Module):
    """Encoder with a task's head."""

    def __init__(self, encoder: InfusedEncoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head = head

    def read(self, batch: Batch) -> tuple[Float[Tensor, "token dim"], Batch, dict[str, Tensor]]:
        """Return the hidden states of the tokens, the batch with the infusions' outputs, and the infusions' losses."""
        read: InfusedOutput = self.encoder.read(batch.ids, batch.packing, batch.types, **batch.knowledge)
        return read.states, replace(batch, outputs=read.outputs), read.losses

    def states(self, batch: Batch) -> Float[Tensor, "token dim"]:
        """Return the hidden states alone."""
        return self.read(batch)[0]


class TextHead(nn.Module):
    """Scores of a whole input: a dense layer, then a linear one.

    The input is represented by the `mean` of its tokens, its `first` token, or a comparison of `both` texts of a pair:
    with normalized means u and v of their tokens, |u - v| and u v (Reimers and Gurevych 2019). The cosine of u and v
    has a weight of its own (`agree`), since it is informative in sentence encoders before any training. A single text
    is compared with itself.
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
        """Return one row of scores per packed input."""
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
    """Return |u - v| and u v of the normalized means of both segments."""
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
    """Pack examples with their inputs into one batch."""
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


def as_tensors(values: Any) -> Any:
    """Convert arrays to tensors, also inside mappings."""
    if isinstance(values, Mapping):
        return {name: as_tensors(part) for name, part in values.items()}
    return torch.from_numpy(values)


def check_positions(encoder: InfusedEncoder, longest: int) -> None:
    """Raise `UsageError` if the encoder has fewer positions than `longest`."""
    positions = int(encoder.config.max_position_embeddings) - first_position(cast(nn.Module, encoder))
    if longest > positions:
        raise UsageError(
            f"inputs have {longest} tokens, but the encoder has {positions} positions; lower encoder.longest"
        )


def in_full(scores: Tensor) -> Tensor:
    """Return scores in at least single precision, for numerically stable softmax sums."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
