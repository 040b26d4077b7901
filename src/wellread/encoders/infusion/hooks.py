"""Interface of infusions: the three places where knowledge may enter an encoder, and the state of one forward pass.

1. *extra tokens*: `Infusion.extra_tokens` adds positions after the tokens of each text. They enter every layer with the
   same states and are dropped after it (KAM's auxiliary terms), or they persist through all layers (LUKE's entities).
2. *attention scores*: `Infusion.scores` changes the score of each pair of positions before the softmax. An infusion
   that is alone there may compute the whole attention itself (`Infusion.attend`).
3. *between layers*: `Infusion.between` maps the hidden states after a layer to those that the next layer gets.

Attention is computed in chunks: a few texts of similar length at a time, so that their scores stay in the processor's
cache. Everywhere else the tokens of all texts are one sequence (`encoders.packing`), followed by the persistent extra
tokens of all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from wellread.encoders.attention import attend_with_scores
from wellread.encoders.infusion.entity_attention import EntityAwareQueries, entity_attention
from wellread.encoders.packing import Packing

_CACHE_BYTES = 1 << 21
"""Approximate memory of the scores of one chunk."""
_SHORT = 64
"""Mean sequence length below which multi-threaded training uses chunked attention for entities."""


QueryFunction = Callable[
    [int, Float[Tensor, "token dim"], Float[Tensor, "extra dim"], Float[Tensor, "token head dim"]],
    EntityAwareQueries,
]
"""Maps a layer's number, the states of tokens and extra tokens, and the layer's own token queries to the queries."""


@dataclass(frozen=True, slots=True)
class ExtraTokens:
    """Additional positions after the tokens of each text: their states and their packing."""

    states: Float[Tensor, "extra dim"]
    packing: Packing
    output_name: str | None = None
    """Extra tokens with a name persist through all layers, and their last states are the output of that name; without
    one they enter every layer with the same states."""
    queries: QueryFunction | None = None
    """Computes the entity-aware queries; None: the encoder's own queries. Only for persistent extra tokens."""
    visible: bool = True
    """Tokens attend to persistent extra tokens; these attend to tokens and to each other in any case."""
    padded_mask: Bool[Tensor, "text place"] | None = None
    """Positions of the extra tokens in the padded batch that they were given in, used to pad the output again."""

    def spread(self, states: Float[Tensor, "extra dim"]) -> Float[Tensor, "text place dim"]:
        """Return packed states as a padded batch, with zeros as padding."""
        mask = self.padded_mask
        if mask is None:
            return self.packing.spread(states)
        return states.new_zeros(*mask.shape, states.shape[1]).masked_scatter(mask[..., None], states)


@dataclass(frozen=True, slots=True)
class AttentionChunk:
    """Texts whose attention is computed together, padded to the longest of them.

    Rows are queries, columns are keys: the text's tokens, then its extra tokens.
    """

    texts: Int[Tensor, " text"]
    tokens: int
    """Maximum number of tokens (and persistent extra tokens) of a text: the rows with an output. Rows after them only
    have scores, for a convolution over neighbouring rows."""
    rows: int
    columns: int
    row_mask: Bool[Tensor, "text row"]
    column_mask: Bool[Tensor, "text column"]
    full: bool
    """The chunk has no padding."""

    @property
    def pair_mask(self) -> Bool[Tensor, "text one row column"]:
        """True where neither the row nor the column is padding."""
        return (self.row_mask[:, :, None] & self.column_mask[:, None, :])[:, None]


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Order of the rows (or of the columns) of all chunks, as indices into the tokens and the extra tokens."""

    tokens: Packing
    extra_tokens: Packing | None
    selected: Int[Tensor, " extra"] | None
    """Indices of the extra tokens that are part of it; None: all."""
    order: Int[Tensor, " position"] | None
    """Index of each position in (all tokens, selected extra tokens, one zero); None: texts of equal length in order."""

    def arrange(
        self, tokens: Float[Tensor, "token head dim"], extra_tokens: Float[Tensor, "extra head dim"] | None
    ) -> Float[Tensor, "position head dim"]:
        """Return queries, keys or values in the order of the chunks, padded with zeros."""
        if self.order is None:
            if extra_tokens is None or self.extra_tokens is None or not self.extra_tokens.width:
                return tokens
            texts = len(self.tokens.lengths)
            both = (part.view(texts, -1, *part.shape[1:]) for part in (tokens, extra_tokens))
            return torch.cat(tuple(both), 1).flatten(0, 1)
        more = () if extra_tokens is None else (extra_tokens,)
        return torch.cat((tokens, *more, tokens.new_zeros(1, *tokens.shape[1:]))).index_select(0, self.order)


@dataclass
class Flow:
    """State of one forward pass of a batch through an infused encoder."""

    packing: Packing
    infusions: Sequence[Infusion]
    knowledge: dict[str, Any] = field(default_factory=dict)
    types: Int[Tensor, " token"] | None = None
    embed: Callable[[Tensor, Tensor, Tensor | None], Float[Tensor, "token dim"]] | None = None
    """Maps token ids, their positions in their texts (from 0) and their types to embeddings."""
    keep_attention: bool = False
    extra_tokens: ExtraTokens | None = None
    memory: dict[Any, Any] = field(default_factory=dict)
    """Values that an infusion keeps for later layers, by a key of its own. A layer may be computed twice (gradient
    checkpointing): never overwrite the value of another layer."""
    attentions: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    """Outputs of infusions besides the states, by name, e.g. candidate scores ("links")."""

    def attending(self, layer: int) -> list[Infusion]:
        """Return the infusions that take part in the attention of a layer."""
        return [infusion for infusion in self.infusions if infusion.attends(layer)]

    @cached_property
    def plan(self) -> tuple[list[AttentionChunk], ChunkLayout, ChunkLayout]:
        """Chunks of the batch, and the layouts of their rows and columns."""
        needed = [infusion.extra_rows() for infusion in self.infusions]
        most = None if None in needed or self.has_persistent_tokens else max((rows or 0 for rows in needed), default=0)
        extra = self.extra_tokens.packing if self.extra_tokens else None
        return plan_chunks(self.packing, extra, most, output_extra_tokens=self.has_persistent_tokens)

    @property
    def has_persistent_tokens(self) -> bool:
        """True if there are extra tokens that persist through all layers."""
        return self.extra_tokens is not None and self.extra_tokens.output_name is not None

    @cached_property
    def output_order(self) -> Int[Tensor, " position"] | None:
        """Index of each token (and persistent extra token) in the chunks' outputs; None: they are in order."""
        chunks, rows, _ = self.plan
        if rows.order is None and not self.has_persistent_tokens:
            return None
        first, begins = 0, torch.zeros_like(self.packing.starts)
        for chunk in chunks:
            begins[chunk.texts] = first + torch.arange(len(chunk.texts), device=begins.device) * chunk.tokens
            first += len(chunk.texts) * chunk.tokens
        found = begins[self.packing.text_of] + self.packing.places
        if self.extra_tokens is None or not self.has_persistent_tokens:
            return found
        extra = self.extra_tokens.packing
        return torch.cat((found, (begins + self.packing.lengths)[extra.text_of] + extra.places))


class Infusion(nn.Module):
    """One kind of knowledge in one encoder; a subclass overrides the hooks that it needs.

    With its initial weights it must not change the encoder's output. `on = False` switches it off.
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    """Keywords of the encoder's `forward` that this infusion takes."""
    on: bool = True

    def init_weights(self) -> None:
        """Set the initial weights, by `transformers.initialization` (which skips weights that were loaded)."""

    def copy_from_encoder(
        self, encoder: nn.Module, layers: Sequence[nn.Module], projections: tuple[str, str, str]
    ) -> None:
        """Initialize weights that start as a copy of the encoder's; called once, by `infuse`."""

    def extra_tokens(self, flow: Flow) -> ExtraTokens | None:
        """Return the positions to add to each text; called once, before the first layer."""
        return None

    def extra_rows(self) -> int | None:
        """Return how many extra tokens of each text need scores as queries, not only as keys; None: all."""
        return 0

    def attends(self, layer: int) -> bool:
        """Return True if it takes part in a layer's attention."""
        return False

    def scores(
        self, flow: Flow, layer: int, chunk: AttentionChunk, scores: Float[Tensor, "text head row column"]
    ) -> Float[Tensor, "text head row column"]:
        """Return the attention scores to use before the softmax. Padding must stay zero."""
        return scores

    attend: Callable[..., Float[Tensor, "text head row dim"]] | None = None
    """Computes a chunk's attention in one step, if no other infusion attends:
    `attend(flow, layer, chunk, query, key, value, scaling=, dropout=)` -> weighted values."""

    def between(self, flow: Flow, layer: int, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        """Return the states that the next layer gets, from those after `layer`."""
        return states

    def losses(self, flow: Flow) -> dict[str, Tensor]:
        """Return the infusion's own training losses of this pass, besides the task's: means over the batch, by name."""
        return {}


def plan_chunks(
    packing: Packing, extra_tokens: Packing | None, extra_rows: int | None, *, output_extra_tokens: bool = False
) -> tuple[list[AttentionChunk], ChunkLayout, ChunkLayout]:
    """Return chunks of texts of similar length, and the layouts of their rows and columns.

    The first `extra_rows` extra tokens of each text are rows (None: all), and all of them are columns.
    """
    device = packing.starts.device
    querying, selected = extra_tokens, None
    if extra_tokens is not None and extra_rows is not None:
        querying = Packing.of(extra_tokens.lengths.clamp(max=extra_rows), device)
        selected = extra_tokens.starts[querying.text_of] + querying.places
        querying = querying if extra_rows else None
    rows, columns = (packing.lengths + (0 if more is None else more.lengths) for more in (querying, extra_tokens))
    even = packing.is_even and (extra_tokens is None or extra_tokens.is_even)
    by_length = torch.arange(len(rows), device=device) if even else torch.argsort(columns, stable=True)
    sizes = columns[by_length].tolist()
    chunks: list[AttentionChunk] = []
    orders: tuple[list[Tensor], list[Tensor]] = ([], [])
    first = 0
    while first < len(sizes):
        last = first + 1
        while last < len(sizes) and (last - first + 1) * sizes[last] ** 2 * 48 <= _CACHE_BYTES:
            last += 1
        texts = by_length[first:last]
        masks = []
        for counts, more, order in ((rows, querying, orders[0]), (columns, extra_tokens, orders[1])):
            indices, mask = _padded_indices(packing, more, texts, counts)
            order.append(indices.flatten())
            masks.append(mask)
        row_mask, column_mask = masks
        height, width = row_mask.shape[1], column_mask.shape[1]
        most = height if output_extra_tokens else int(packing.lengths[texts].max())
        full = even or bool(row_mask.all() & column_mask.all())
        chunks.append(AttentionChunk(texts, most, height, width, row_mask, column_mask, full))
        first = last
    row_order, column_order = (None, None) if even else (torch.cat(orders[0]), torch.cat(orders[1]))
    row_layout = ChunkLayout(packing, querying, selected, row_order)
    return chunks, row_layout, ChunkLayout(packing, extra_tokens, None, column_order)


def _padded_indices(
    packing: Packing, extra_tokens: Packing | None, texts: Int[Tensor, " text"], counts: Int[Tensor, " batch"]
) -> tuple[Int[Tensor, "text place"], Bool[Tensor, "text place"]]:
    """Return the index of each text's first `counts` positions, in (tokens, extra tokens, one zero), and their mask."""
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
    """Return True if products of single texts are too small to be shared by several threads in training."""
    return torch.is_grad_enabled() and torch.get_num_threads() > 1 and positions < _SHORT * texts


def _split_chunks(
    packed: Float[Tensor, "position head dim"], masks: Sequence[Bool[Tensor, "text place"]]
) -> list[Tensor]:
    """Return the part of each chunk, by one split, so that the gradient is put together only once."""
    parts = packed.split_with_sizes([mask.numel() for mask in masks]) if len(masks) > 1 else [packed]
    return [part.view(*mask.shape, *packed.shape[1:]).transpose(1, 2) for part, mask in zip(parts, masks, strict=True)]


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention of one layer with infusions; passed through transformers' layers to the attention function."""

    flow: Flow
    layer: int
    projections: tuple[str, str, str]
    """Names of the query, key and value projections in the self-attention module."""
    states: Float[Tensor, "position dim"] | None = None
    """Input of the layer, if there are persistent extra tokens."""

    @property
    def is_needed(self) -> bool:
        """True if this attention differs from the encoder's own, or its weights are an output."""
        return self.flow.keep_attention or self.flow.extra_tokens is not None or bool(self.flow.attending(self.layer))

    @property
    def has_entity_queries(self) -> bool:
        """True if the extra tokens come with entity-aware queries."""
        return self.flow.extra_tokens is not None and self.flow.extra_tokens.queries is not None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over texts, and has gradients of its own
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
        """Return the weighted values of all positions, each text with its extra tokens and the infusions' scores."""
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        packed = [part.squeeze(0).transpose(0, 1) for part in (query, key, value)]
        queries = None
        if self.flow.has_persistent_tokens:
            own, extra = self.split(packed[0])
            if self.has_entity_queries:
                queries = self._entity_queries(*self.split(cast(Tensor, self.states)), own)
            else:
                queries = EntityAwareQueries(own, extra)
        return self._attend(module, queries, packed, scaling, dropout)[None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend_entity_aware(
        self,
        states: tuple[Float[Tensor, "token dim"], Float[Tensor, "extra dim"]],
        query: Float[Tensor, "token head dim"],
        key: Float[Tensor, "position head dim"],
        value: Float[Tensor, "position head dim"],
        *,
        scaling: float,
        dropout: float,
    ) -> Float[Tensor, "position head dim"]:
        """Do the same with entity-aware queries; `query` has the layer's own queries of the tokens alone."""
        return self._attend(None, self._entity_queries(*states, query), [query, key, value], scaling, dropout)

    def _entity_queries(
        self,
        tokens: Float[Tensor, "token dim"],
        extra_tokens: Float[Tensor, "extra dim"],
        query: Float[Tensor, "token head dim"],
    ) -> EntityAwareQueries:
        compute = cast(QueryFunction, cast(ExtraTokens, self.flow.extra_tokens).queries)
        return compute(self.layer, tokens, extra_tokens, query)

    def split(self, states: Float[Tensor, "position ..."]) -> tuple[Tensor, Tensor]:
        """Return the states of tokens and of extra tokens, by one split: the gradient is put together only once."""
        count = len(self.flow.packing.text_of)
        tokens, extra_tokens = states.split_with_sizes((count, len(states) - count))
        return tokens, extra_tokens

    def _attend(
        self,
        module: nn.Module | None,
        queries: EntityAwareQueries | None,
        packed: list[Float[Tensor, "position head dim"]],
        scaling: float,
        dropout: float,
    ) -> Float[Tensor, "position head dim"]:
        flow, (heads, dim), extra = self.flow, packed[1].shape[1:], self.flow.extra_tokens
        infusions = flow.attending(self.layer)
        to_extra = None
        if queries is not None and extra is not None:
            if not infusions and not flow.keep_attention and not _is_short(len(packed[1]), len(flow.packing.lengths)):
                words, entities = (packing.lengths.tolist() for packing in (flow.packing, extra.packing))
                options: Any = {"scaling": scaling, "drop": dropout, "entities_visible": extra.visible}
                return entity_attention(queries, packed[1], packed[2], words, entities, **options)
            packed[0], to_extra = queries.packed()
        alone = infusions[0].attend if len(infusions) == 1 and not flow.keep_attention and to_extra is None else None
        chunks, outputs = flow.plan[0], []
        masks = [[getattr(chunk, mask) for chunk in chunks] for mask in ("row_mask", "column_mask", "column_mask")]
        parts = [_split_chunks(part, mask) for part, mask in zip(self._arranged(module, *packed), masks, strict=True)]
        to_extra_parts = None
        if to_extra is not None:
            to_extra_parts = _split_chunks(self._arrange(flow.plan[1], to_extra), masks[0])
        for number, (chunk, rows, columns, values) in enumerate(zip(chunks, *parts, strict=True)):
            if alone is not None:
                output = alone(flow, self.layer, chunk, rows, columns, values, scaling=scaling, dropout=dropout)
            else:
                scores = (rows * scaling) @ columns.transpose(2, 3)
                if to_extra_parts is not None:
                    extra_scores = (to_extra_parts[number] * scaling) @ columns.transpose(2, 3)
                    scores = torch.where(self._extra_mask(chunk, chunk.columns)[:, None, None], extra_scores, scores)
                for infusion in infusions:
                    scores = infusion.scores(flow, self.layer, chunk, scores)
                if queries is not None and extra is not None and not extra.visible:
                    of_extra, to_extra_mask = (self._extra_mask(chunk, size) for size in (chunk.rows, chunk.columns))
                    hidden = to_extra_mask[:, None, None] & ~of_extra[:, None, :, None]
                    scores = scores.masked_fill(hidden, float("-inf"))
                mask = None if chunk.full else chunk.column_mask
                output, weights = attend_with_scores(scores[:, :, : chunk.tokens], values, mask, dropout)
                if flow.keep_attention:
                    self._keep(chunk, weights)
            outputs.append(output.transpose(1, 2).reshape(-1, heads, dim))
        joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        return joined if flow.output_order is None else joined.index_select(0, flow.output_order)

    def _arranged(self, module: nn.Module | None, *parts: Float[Tensor, "position head dim"]) -> Iterator[Tensor]:
        """Yield queries, keys and values in the order of the chunks.

        Extra tokens that do not persist are projected here, by the layer's own projections.
        """
        extra_tokens, (_, rows, columns) = self.flow.extra_tokens, self.flow.plan
        for part, name, layout in zip(parts, self.projections, (rows, columns, columns), strict=True):
            if extra_tokens is None or module is None or self.flow.has_persistent_tokens:
                yield self._arrange(layout, part)
            else:
                states = extra_tokens.states if layout.selected is None else extra_tokens.states[layout.selected]
                yield layout.arrange(part, module.get_submodule(name)(states).view(-1, *part.shape[1:]))

    def _arrange(
        self, layout: ChunkLayout, part: Float[Tensor, "position head dim"]
    ) -> Float[Tensor, "place head dim"]:
        return layout.arrange(*self.split(part)) if self.flow.has_persistent_tokens else layout.arrange(part, None)

    def _extra_mask(self, chunk: AttentionChunk, size: int) -> Bool[Tensor, "text place"]:
        """Return the mask of extra tokens (and of padding) among the first `size` positions."""
        return torch.arange(size, device=chunk.texts.device) >= self.flow.packing.lengths[chunk.texts, None]

    def _keep(self, chunk: AttentionChunk, weights: Float[Tensor, "text head row column"]) -> None:
        flow = self.flow
        total = max(chunk.columns for chunk in flow.plan[0])
        height = total if flow.has_persistent_tokens else flow.packing.width
        shape = (len(flow.packing.lengths), weights.shape[1], height, total)
        kept = flow.attentions.setdefault(self.layer, weights.new_zeros(shape))
        lengths = flow.packing.lengths
        if flow.has_persistent_tokens and flow.extra_tokens is not None:
            lengths = lengths + flow.extra_tokens.packing.lengths
        row_mask = torch.arange(chunk.tokens, device=weights.device) < lengths[chunk.texts, None]
        kept[chunk.texts, :, : chunk.tokens, : chunk.columns] = weights.detach() * row_mask[:, None, :, None]
