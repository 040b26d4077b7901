"""What flows through an infused encoder, and the three places where knowledge may enter it.

1. *sequence*: `guests` are more positions behind the pieces of each text. They enter every layer anew and are cut off
   after it (KAM's auxiliary terms), or they stay and go through all layers (LUKE's entities).
2. *attention*: `scores` changes the score of each pair of positions before the softmax; an infusion that is alone there
   may do the whole attention its own way (`attend`).
3. *between layers*: `between` takes hidden states and gives hidden states.

The attention sees texts in chunks: a few at a time, of like length, so that their scores stay in the processor's cache.
Everywhere else the pieces of all texts are one sequence (`encoders.packing`); behind it, guests that stay are another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from wellread.encoders.attention import mix
from wellread.encoders.infusion.entity_attention import Queries, entity_attention
from wellread.encoders.packing import Packing

_CACHE_BYTES = 1 << 21
"""About how much of scores is worked on at a time."""
_SHORT = 64
"""Positions of a text on average, below which several threads learn texts with entities in chunks."""


Asks = Callable[
    [int, Float[Tensor, "token dim"], Float[Tensor, "extra dim"], Float[Tensor, "token head dim"]],
    Queries,
]
"""A layer, the states of pieces and of guests, and the layer's own queries of pieces -> how they ask each other."""


@dataclass(frozen=True, slots=True)
class ExtraTokens:
    """More positions behind the pieces of each text: their states, and how they lie."""

    states: Float[Tensor, "extra dim"]
    packing: Packing
    stay: str | None = None
    """They go through all layers, and their last states are told by this name; None: they enter every layer anew."""
    ask: Asks | None = None
    """How pieces and guests that stay ask for each other, if not as pieces do."""
    seen: bool = True
    """Whether pieces look at guests that stay; these look at pieces and at each other in any case."""
    laid: Bool[Tensor, "text place"] | None = None
    """Where they are in a batch that they were given in filled up, as their last states come back."""

    def spread(self, states: Float[Tensor, "extra dim"]) -> Float[Tensor, "text place dim"]:
        """Text by text, filled up with zeros."""
        if self.laid is None:
            return self.packing.spread(states)
        return states.new_zeros(*self.laid.shape, states.shape[1]).masked_scatter(self.laid[..., None], states)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Texts whose attention is computed together, filled up to the longest of them.

    Rows ask, columns are asked: the text's own pieces, then its guests.
    """

    texts: Int[Tensor, " text"]
    tokens: int
    """The most own pieces of a text (with its guests, if they stay): the rows that are mixed; rows behind them only
    have scores."""
    rows: int
    columns: int
    row_mask: Bool[Tensor, "text row"]
    column_mask: Bool[Tensor, "text column"]
    full: bool
    """Nothing had to be filled up."""

    @property
    def there_mask(self) -> Bool[Tensor, "text one row column"]:
        """Pairs of positions that are both there."""
        return (self.row_mask[:, :, None] & self.column_mask[:, None, :])[:, None]


@dataclass(frozen=True, slots=True)
class Line:
    """How the rows (or the columns) of all chunks are laid end to end, from the sequences of pieces and of guests."""

    tokens: Packing
    extra_tokens: Packing | None
    taken: Int[Tensor, " extra"] | None
    """The guests that are there, if not all."""
    where: Int[Tensor, " position"] | None
    """Where each position lies in (all pieces, all guests taken, a zero); None: texts are even, in their order."""

    def lay(
        self, tokens: Float[Tensor, "token head dim"], extra_tokens: Float[Tensor, "extra head dim"] | None
    ) -> Float[Tensor, "position head dim"]:
        """Queries, keys or values as the chunks take them."""
        if self.where is None:
            if extra_tokens is None or self.extra_tokens is None or not self.extra_tokens.width:
                return tokens
            texts = len(self.tokens.lengths)
            both = (part.view(texts, -1, *part.shape[1:]) for part in (tokens, extra_tokens))
            return torch.cat(tuple(both), 1).flatten(0, 1)
        more = () if extra_tokens is None else (extra_tokens,)
        return torch.cat((tokens, *more, tokens.new_zeros(1, *tokens.shape[1:]))).index_select(0, self.where)


@dataclass
class Flow:
    """One pass of a batch through an encoder."""

    packing: Packing
    infusions: Sequence[Infusion]
    knowledge: dict[str, Any] = field(default_factory=dict)
    types: Int[Tensor, " token"] | None = None
    embed: Callable[[Tensor, Tensor, Tensor | None], Float[Tensor, "token dim"]] | None = None
    """Pieces, their places in their texts (from 0) and their types -> what the embedding layer makes of them."""
    keep_attention: bool = False
    extra_tokens: ExtraTokens | None = None
    memory: dict[Any, Any] = field(default_factory=dict)
    """What an infusion keeps for later layers, by a key of its own. A layer may be computed twice (gradient
    checkpointing): never overwrite what another layer wrote."""
    attentions: dict[int, Tensor] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    """What infusions say besides the states, for whoever asked: links, for one."""

    def attending(self, layer: int) -> list[Infusion]:
        """The infusions that have a say in the attention of a layer."""
        return [infusion for infusion in self.infusions if infusion.attends(layer)]

    @cached_property
    def paths(self) -> tuple[list[Chunk], Line, Line]:
        """How the attention goes through the texts: the chunks, and how their rows and columns are laid out."""
        asked = [infusion.extra_rows() for infusion in self.infusions]
        most = None if None in asked or self.stays else max((rows or 0 for rows in asked), default=0)
        return make_paths(
            self.packing, self.extra_tokens.packing if self.extra_tokens else None, most, mixes_extra_tokens=self.stays
        )

    @property
    def stays(self) -> bool:
        """Whether there are guests that go through all layers."""
        return self.extra_tokens is not None and self.extra_tokens.stay is not None

    @cached_property
    def back(self) -> Int[Tensor, " position"] | None:
        """Where each piece (and guest that stays) lies among what the chunks have mixed; None: all in their order."""
        chunks, rows, _ = self.paths
        if rows.where is None and not self.stays:
            return None
        first, begins = 0, torch.zeros_like(self.packing.starts)
        for chunk in chunks:
            begins[chunk.texts] = first + torch.arange(len(chunk.texts), device=begins.device) * chunk.tokens
            first += len(chunk.texts) * chunk.tokens
        found = begins[self.packing.text_of] + self.packing.places
        if self.extra_tokens is None or not self.stays:
            return found
        extra_tokens = self.extra_tokens.packing
        return torch.cat((found, (begins + self.packing.lengths)[extra_tokens.text_of] + extra_tokens.places))


class Infusion(nn.Module):
    """One kind of knowledge in one encoder; a subclass uses the places that it needs.

    At its start it must leave the encoder's answers as they are. `on = False` switches it off.
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    """What it takes as keywords of the encoder's `forward`."""
    on: bool = True

    def start(self) -> None:
        """Set all weights to what they start with, by `transformers.initialization` (which spares loaded ones)."""

    def adopt(self, encoder: nn.Module, layers: Sequence[nn.Module], projections: tuple[str, str, str]) -> None:
        """Take over what starts as a copy of the encoder's weights; asked once, when it is infused."""

    def extra_tokens(self, flow: Flow) -> ExtraTokens | None:
        """The sequence: positions to add to each text; asked once, before the first layer."""
        return None

    def extra_rows(self) -> int | None:
        """How many guests of each text ask, besides being asked; None: all."""
        return 0

    def attends(self, layer: int) -> bool:
        """Whether it has a say in a layer's attention."""
        return False

    def scores(
        self, flow: Flow, layer: int, chunk: Chunk, scores: Float[Tensor, "text head row column"]
    ) -> Float[Tensor, "text head row column"]:
        """The attention: scores before the softmax, as this infusion would have them. Zero where nothing is."""
        return scores

    attend: Callable[..., Float[Tensor, "text head row dim"]] | None = None
    """The same as one step, where no other infusion attends:
    `attend(flow, layer, chunk, query, key, value, scaling=, dropout=)` -> mixed values."""

    def between(self, flow: Flow, layer: int, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        """Between layers: the states after a layer, as the next one shall see them."""
        return states

    def losses(self, flow: Flow) -> dict[str, Tensor]:
        """What it is to learn by itself from this pass, beside what a task asks: means over the batch, by name."""
        return {}


def make_paths(
    packing: Packing, extra_tokens: Packing | None, extra_rows: int | None, *, mixes_extra_tokens: bool = False
) -> tuple[list[Chunk], Line, Line]:
    """Texts of like length, a few at a time; the first `extra_rows` of each text's guests are rows, all are columns."""
    device = packing.starts.device
    asking, taken = extra_tokens, None
    if extra_tokens is not None and extra_rows is not None:
        asking = Packing.of(extra_tokens.lengths.clamp(max=extra_rows), device)
        taken = extra_tokens.starts[asking.text_of] + asking.places
        asking = asking if extra_rows else None
    rows, columns = (packing.lengths + (0 if more is None else more.lengths) for more in (asking, extra_tokens))
    even = packing.is_even and (extra_tokens is None or extra_tokens.is_even)
    order = torch.arange(len(rows), device=device) if even else torch.argsort(columns, stable=True)
    sizes = columns[order].tolist()
    chunks: list[Chunk] = []
    places: tuple[list[Tensor], list[Tensor]] = ([], [])
    first = 0
    while first < len(sizes):
        last = first + 1
        while last < len(sizes) and (last - first + 1) * sizes[last] ** 2 * 48 <= _CACHE_BYTES:
            last += 1
        texts = order[first:last]
        masks = []
        for counts, more, found in ((rows, asking, places[0]), (columns, extra_tokens, places[1])):
            there, mask = _places(packing, more, texts, counts)
            found.append(there.flatten())
            masks.append(mask)
        row_mask, column_mask = masks
        height, width = row_mask.shape[1], column_mask.shape[1]
        most = height if mixes_extra_tokens else int(packing.lengths[texts].max())
        full = even or bool(row_mask.all() & column_mask.all())
        chunks.append(Chunk(texts, most, height, width, row_mask, column_mask, full))
        first = last
    where = (None, None) if even else (torch.cat(places[0]), torch.cat(places[1]))
    return chunks, Line(packing, asking, taken, where[0]), Line(packing, extra_tokens, None, where[1])


def _places(
    packing: Packing, extra_tokens: Packing | None, texts: Int[Tensor, " text"], counts: Int[Tensor, " batch"]
) -> tuple[Int[Tensor, "text place"], Bool[Tensor, "text place"]]:
    """Where the first `counts` positions of each text lie: own pieces, guests behind all pieces, then the zero."""
    place = torch.arange(int(counts[texts].max()), device=texts.device)
    own = packing.lengths[texts, None]
    end = len(packing.text_of)
    found = packing.starts[texts, None] + place
    if extra_tokens is not None:
        found = torch.where(place < own, found, end + extra_tokens.starts[texts, None] + place - own)
        end += len(extra_tokens.text_of)
    mask = place < counts[texts, None]
    return torch.where(mask, found, end), mask


def _is_short(positions: int, texts: int) -> bool:
    """Whether, text by text, threads would wait for each other longer than they learn: products are small, and many."""
    return torch.is_grad_enabled() and torch.get_num_threads() > 1 and positions < _SHORT * texts


def _cut(line: Float[Tensor, "position head dim"], masks: Sequence[Bool[Tensor, "text place"]]) -> list[Tensor]:
    """Each chunk's part of a line; all at once, so that its gradient is put together once."""
    parts = line.split_with_sizes([mask.numel() for mask in masks]) if len(masks) > 1 else [line]
    return [part.view(*mask.shape, *line.shape[1:]).transpose(1, 2) for part, mask in zip(parts, masks, strict=True)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the flow an attention is asked for: the joint between a layer and what is infused."""

    flow: Flow
    layer: int
    projections: tuple[str, str, str]
    """What a layer calls its queries, keys and values."""
    states: Float[Tensor, "position dim"] | None = None
    """What the layer is given, where guests stay."""

    @property
    def concerns(self) -> bool:
        """Whether this attention is not simply the encoder's own."""
        return self.flow.keep_attention or self.flow.extra_tokens is not None or bool(self.flow.attending(self.layer))

    @property
    def asks(self) -> bool:
        """Whether guests say how pieces and they ask each other."""
        return self.flow.extra_tokens is not None and self.flow.extra_tokens.ask is not None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it goes text by text, with its own gradients
    def attend(
        self,
        module: nn.Module,
        query: Float[Tensor, "one head position dim"],
        key: Float[Tensor, "one head position dim"],
        value: Float[Tensor, "one head position dim"],
        *,
        scaling: float | None,
        dropout: float,
    ) -> Float[Tensor, "one position head dim"]:
        """Attention within each text, with its guests and by the scores that infusions make of it."""
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        lines = [part.squeeze(0).transpose(0, 1) for part in (query, key, value)]
        asks = None
        if self.flow.stays:
            own, rest = self.split(lines[0])
            asks = self._ask(*self.split(cast(Tensor, self.states)), own) if self.asks else Queries(own, rest)
        return self._attend(module, asks, lines, scaling, dropout)[None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend_as_asked(
        self,
        states: tuple[Float[Tensor, "token dim"], Float[Tensor, "extra dim"]],
        query: Float[Tensor, "token head dim"],
        key: Float[Tensor, "position head dim"],
        value: Float[Tensor, "position head dim"],
        *,
        scaling: float,
        dropout: float,
    ) -> Float[Tensor, "position head dim"]:
        """The same, where guests say how they ask; then the layer's own queries are needed of pieces alone."""
        return self._attend(None, self._ask(*states, query), [query, key, value], scaling, dropout)

    def _ask(
        self,
        tokens: Float[Tensor, "token dim"],
        extra_tokens: Float[Tensor, "extra dim"],
        query: Float[Tensor, "token head dim"],
    ) -> Queries:
        ask = cast(Asks, cast(ExtraTokens, self.flow.extra_tokens).ask)
        return ask(self.layer, tokens, extra_tokens, query)

    def split(self, states: Float[Tensor, "position ..."]) -> tuple[Tensor, Tensor]:
        """The states of pieces, and of guests that stay; cut at once, so that their gradient is put together once."""
        count = len(self.flow.packing.text_of)
        tokens, extra_tokens = states.split_with_sizes((count, len(states) - count))
        return tokens, extra_tokens

    def _attend(
        self,
        module: nn.Module | None,
        asks: Queries | None,
        lines: list[Float[Tensor, "position head dim"]],
        scaling: float,
        dropout: float,
    ) -> Float[Tensor, "position head dim"]:
        flow, (heads, dim) = self.flow, lines[1].shape[1:]
        asked = flow.attending(self.layer)
        second = None
        if asks is not None and flow.extra_tokens is not None:
            if not asked and not flow.keep_attention and not _is_short(len(lines[1]), len(flow.packing.lengths)):
                words, entities = (packing.lengths.tolist() for packing in (flow.packing, flow.extra_tokens.packing))
                seen = flow.extra_tokens.seen
                return entity_attention(
                    asks, lines[1], lines[2], words, entities, scaling=scaling, drop=dropout, seen=seen
                )
            lines[0], second = asks.lines()
        alone = asked[0].attend if len(asked) == 1 and not flow.keep_attention and second is None else None
        chunks, mixed = flow.paths[0], []
        masks = [[getattr(chunk, mask) for chunk in chunks] for mask in ("row_mask", "column_mask", "column_mask")]
        parts = [_cut(line, mask) for line, mask in zip(self._laid(module, *lines), masks, strict=True)]
        others = None if second is None else _cut(self._lay(flow.paths[1], second), masks[0])
        for number, (chunk, rows, columns, values) in enumerate(zip(chunks, *parts, strict=True)):
            if alone is not None:
                made = alone(flow, self.layer, chunk, rows, columns, values, scaling=scaling, dropout=dropout)
            else:
                scores = (rows * scaling) @ columns.transpose(2, 3)
                if others is not None:
                    of_extra_tokens = (others[number] * scaling) @ columns.transpose(2, 3)
                    scores = torch.where(self._extra_mask(chunk), of_extra_tokens, scores)
                for infusion in asked:
                    scores = infusion.scores(flow, self.layer, chunk, scores)
                if asks is not None and flow.extra_tokens is not None and not flow.extra_tokens.seen:
                    scores = scores.masked_fill(self._extra_mask(chunk) & ~self._extra_rows(chunk), float("-inf"))
                mask = None if chunk.full else chunk.column_mask
                made, weights = mix(scores[:, :, : chunk.tokens], values, mask, dropout)
                if flow.keep_attention:
                    self._keep(chunk, weights)
            mixed.append(made.transpose(1, 2).reshape(-1, heads, dim))
        joined = torch.cat(mixed) if len(mixed) > 1 else mixed[0]
        return joined if flow.back is None else joined.index_select(0, flow.back)

    def _laid(self, module: nn.Module | None, *parts: Float[Tensor, "position head dim"]) -> Iterator[Tensor]:
        """Queries, keys and values as the chunks take them; those of passing guests by the layer's own projections."""
        extra_tokens, (_, rows, columns) = self.flow.extra_tokens, self.flow.paths
        for part, name, line in zip(parts, self.projections, (rows, columns, columns), strict=True):
            if extra_tokens is None or module is None or self.flow.stays:
                yield self._lay(line, part)
            else:
                states = extra_tokens.states if line.taken is None else extra_tokens.states[line.taken]
                yield line.lay(part, module.get_submodule(name)(states).view(-1, *part.shape[1:]))

    def _lay(self, line: Line, part: Float[Tensor, "position head dim"]) -> Float[Tensor, "place head dim"]:
        if not self.flow.stays:
            return line.lay(part, None)
        return line.lay(*self.split(part))

    def _extra_mask(self, chunk: Chunk) -> Bool[Tensor, "text one one column"]:
        """The columns of guests."""
        place = torch.arange(chunk.columns, device=chunk.texts.device)
        return (place >= self.flow.packing.lengths[chunk.texts, None])[:, None, None]

    def _extra_rows(self, chunk: Chunk) -> Bool[Tensor, "text one row one"]:
        place = torch.arange(chunk.rows, device=chunk.texts.device)
        return (place >= self.flow.packing.lengths[chunk.texts, None])[:, None, :, None]

    def _keep(self, chunk: Chunk, weights: Float[Tensor, "text head row column"]) -> None:
        flow = self.flow
        total = max(chunk.columns for chunk in flow.paths[0])
        shape = (len(flow.packing.lengths), weights.shape[1], total if flow.stays else flow.packing.width, total)
        kept = flow.attentions.setdefault(self.layer, weights.new_zeros(shape))
        lengths = flow.packing.lengths
        if flow.stays and flow.extra_tokens is not None:
            lengths = lengths + flow.extra_tokens.packing.lengths
        own = torch.arange(chunk.tokens, device=weights.device) < lengths[chunk.texts, None]
        kept[chunk.texts, :, : chunk.tokens, : chunk.columns] = weights.detach() * own[:, None, :, None]
