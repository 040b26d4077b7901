"""KnowBERT's mention linker: pooled mentions, attention between them, scored and mixed candidates (steps 1 to 5).

The mentions of a batch are packed end to end, as its tokens are, so nothing is computed for missing mentions; only
attention pads each text to the largest number of mentions. Candidate vectors are looked up for a few mentions at a
time, grouped by number of candidates, so that the vectors stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, relu, scaled_dot_product_attention

from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityProjection

_BLOCK_CANDIDATES = 2048
"""Maximum number of candidates whose vectors are looked up together."""


@dataclass(frozen=True, slots=True)
class CandidateTensors:
    """Mentions of a batch and their candidates; tokens are numbered over the whole packed batch."""

    text_of: Int[Tensor, " mention"]
    firsts: Int[Tensor, " mention"]
    lasts: Int[Tensor, " mention"]
    entities: Int[Tensor, "mention cand"]
    priors: Float[Tensor, "mention cand"]

    @classmethod
    def of(cls, given: Mapping[str, Tensor] | None, packing: Packing, kb: str) -> CandidateTensors:
        """Check the candidates of one KB as `KnowBert` is given them; None stands for no mentions."""
        starts = packing.starts
        if given is None:
            none, no_candidates = starts[:0], starts.new_zeros(0, 0)
            return cls(none, none, none, no_candidates, no_candidates.float())
        try:
            tensors = [given[name].to(starts.device) for name in ("text_of", "spans", "entities", "priors")]
        except KeyError as missing:
            raise UsageError(
                f"the candidates of {kb} lack {missing}; give text_of, spans, entities and priors"
            ) from None
        text_of, spans, entities, priors = tensors
        count = len(text_of)
        if spans.shape != (count, 2) or entities.dim() != 2 or len(entities) != count or priors.shape != entities.shape:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise UsageError(
                f"the candidates of {kb} do not fit together: text_of, spans, entities and priors are {shapes}; "
                "expected (mentions), (mentions, 2) and twice (mentions, candidates)"
            )
        if count:
            if bool((text_of.diff() < 0).any()) or int(text_of[0]) < 0 or int(text_of[-1]) >= len(starts):
                raise UsageError(f"mentions of {kb} must be in the order of the batch's {len(starts)} texts, from 0")
            wrong = (spans[:, 0] < 0) | (spans[:, 1] < spans[:, 0]) | (spans[:, 1] >= packing.lengths[text_of])
            if bool(wrong.any()):
                mention = int(wrong.nonzero()[0, 0])
                length = int(packing.lengths[text_of[mention]])
                raise UsageError(
                    f"mention {mention} of {kb} has the span {spans[mention].tolist()} in a text of {length} tokens; "
                    "give its first and last token, from 0"
                )
        firsts, lasts = (starts[text_of][:, None] + spans).unbind(1)
        return cls(text_of, firsts, lasts, entities, priors)


@dataclass(frozen=True, slots=True)
class MentionPacking:
    """Layout of a batch's mentions end to end; a text without mentions gets one empty mention."""

    packing: Packing
    positions: Int[Tensor, " mention"] | None
    """Position of each mention in the packed sequence; None if every text has a mention."""

    @classmethod
    def of(cls, text_of: Int[Tensor, " mention"], texts: int) -> MentionPacking:
        """Pack mentions that are sorted by text."""
        counts = torch.bincount(text_of, minlength=texts)
        packing = Packing.of(counts.clamp(min=1), text_of.device)
        if len(packing.text_of) == len(text_of):
            return cls(packing, None)
        shifts = packing.starts - (counts.cumsum(0) - counts)
        return cls(packing, torch.arange(len(text_of), device=text_of.device) + shifts[text_of])

    def add_empty(
        self, mentions: Float[Tensor, "mention dim"], empty: Float[Tensor, " dim"]
    ) -> Float[Tensor, "all dim"]:
        """Return the packed sequence: the given rows, and `empty` for texts without mentions."""
        if self.positions is None:
            return mentions
        packed = empty.to(mentions.dtype).expand(len(self.packing.text_of), -1)
        return packed.index_copy(0, self.positions, mentions)

    def drop_empty(self, packed: Float[Tensor, "all dim"]) -> Float[Tensor, "mention dim"]:
        """Return the rows of real mentions."""
        return packed if self.positions is None else packed.index_select(0, self.positions)


class SpanPooling(nn.Module):
    """Attention pooling of a mention's tokens: s_m = sum of softmax(w · p_i + b) p_i over its span."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(
        self, states: Float[Tensor, "token dim"], firsts: Int[Tensor, " mention"], lasts: Int[Tensor, " mention"]
    ) -> Float[Tensor, "mention dim"]:
        """Pool the tokens first … last of each mention."""
        widths = lasts - firsts + 1
        offsets = torch.arange(int(widths.max()) if len(widths) else 0, device=widths.device)
        span_mask = offsets < widths[:, None]
        tokens = torch.where(span_mask, firsts[:, None] + offsets, 0)
        scores = self.score(states)[:, 0][tokens].masked_fill(~span_mask, float("-inf"))
        weights = torch.softmax(scores, 1) if len(offsets) else scores
        mention_of = span_mask.nonzero()[:, 0]
        weighted = states.index_select(0, tokens[span_mask]) * weights[span_mask][:, None]
        return weighted.new_zeros(len(firsts), states.shape[1]).index_add(0, mention_of, weighted)


class TransformerBlock(nn.Module):
    """Post-norm transformer block with attention within each text, over the same or another packed sequence."""

    def __init__(self, dim: int, heads: int, inner: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.query, self.key, self.value, self.mixed = (nn.Linear(dim, dim) for _ in range(4))
        self.mixed_norm = nn.LayerNorm(dim, eps=1e-12)
        self.wide, self.narrow = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(
        self,
        states: Float[Tensor, "row dim"],
        packing: Packing,
        context: Float[Tensor, "column dim"],
        context_packing: Packing,
    ) -> Float[Tensor, "row dim"]:
        """Attend with queries (and residual) of `states` to keys and values of `context`."""
        query = self._heads(self.query(states), packing)
        key, value = (self._heads(linear(context), context_packing) for linear in (self.key, self.value))
        mask = None if context_packing.is_even else context_packing.there_mask()[:, None, None, :]
        drop = self.drop if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=drop)
        mixed = self.mixed(packing.gather(mixed.transpose(1, 2)).flatten(1))
        middle = self.mixed_norm(states + dropout(mixed, self.drop, self.training))
        wide = self.narrow(gelu(self.wide(middle)))
        output: Tensor = self.norm(middle + dropout(wide, self.drop, self.training))
        return output

    def _heads(self, packed: Float[Tensor, "row dim"], packing: Packing) -> Float[Tensor, "text head position part"]:
        return packing.spread(packed.view(len(packed), self.heads, -1)).transpose(1, 2)


class CandidateScorer(nn.Module):
    """Two-layer network that scores a candidate by its similarity to the mention and its prior."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(2, inner), nn.Linear(inner, 1)

    def forward(
        self, similarity: Float[Tensor, "mention cand"], prior: Float[Tensor, "mention cand"]
    ) -> Float[Tensor, "mention cand"]:
        """Return psi of every candidate."""
        features = torch.stack((similarity, prior.to(similarity.dtype)), -1)
        scores: Tensor = self.narrow(relu(self.wide(features), inplace=True))[..., 0]
        return scores


class MentionLinker(nn.Module):
    """Steps 1 to 5 of a knowledge layer: from hidden states to contextual mentions and scored candidates."""

    def __init__(self, config: KnowBertConfig, hidden: int) -> None:
        super().__init__()
        dim = config.dim
        self.threshold = config.threshold if config.mode == "margin" else None
        self.narrow = nn.Linear(hidden, dim)
        self.pooling = SpanPooling(dim)
        self.mention_norm = nn.LayerNorm(dim, eps=1e-5)
        self.block = TransformerBlock(dim, config.heads, config.inner, config.dropout)
        self.entities = EntityProjection(
            config.raw,
            dim,
            project=config.project,
            kinds=config.kinds,
            kind_width=config.kind_width,
            drop=config.dropout,
        )
        self.scorer = CandidateScorer(config.prior_width)

    def contextualize(
        self, narrow: Float[Tensor, "token dim"], candidates: CandidateTensors, mentions: MentionPacking
    ) -> Float[Tensor, "all dim"]:
        """Return S^e: pooled mentions after attention to the other mentions of their text (steps 2 and 3)."""
        pooled = self.pooling(narrow, candidates.firsts, candidates.lasts)
        packed = self.mention_norm(mentions.add_empty(pooled, pooled.new_zeros(pooled.shape[1])))
        states: Tensor = self.block(packed, mentions.packing, packed, mentions.packing)
        return states

    def score(
        self,
        mentions: Float[Tensor, "mention dim"],
        candidates: CandidateTensors,
        defined: tuple[Tensor, Tensor] | None = None,
    ) -> ScoredCandidates:
        """Score each mention's candidates and mix their vectors (steps 4 and 5).

        `defined` are rows of the entity table and vectors that replace theirs.
        """
        if defined is None:
            vectors, rows = self.entities.look_up(candidates.entities)
        else:
            vectors, rows = self.entities.look_up_defined(candidates.entities, *defined)
        return score_candidates(self.scorer, mentions, vectors, rows, candidates.priors, self.threshold)


@dataclass(frozen=True, slots=True)
class ScoredCandidates:
    """Scores of the candidates of a batch's mentions, and the mixture of their vectors."""

    scores: Float[Tensor, "mention cand"]
    """psi; minus infinity where there is no candidate."""
    mixed: Float[Tensor, "mention dim"]
    """Candidate vectors weighted by the softmax of psi; undefined where no candidate is kept."""
    kept_mask: Bool[Tensor, " mention"]
    """True where a candidate reaches the threshold."""


def score_candidates(
    scorer: CandidateScorer,
    mentions: Float[Tensor, "mention dim"],
    vectors: Float[Tensor, "row dim"],
    rows: Int[Tensor, "mention cand"],
    priors: Float[Tensor, "mention cand"],
    threshold: float | None,
) -> ScoredCandidates:
    """Score candidates, given as `rows` of `vectors` (negative: none), and mix those that reach the threshold."""
    count, width = rows.shape
    mentions = mentions.to(vectors.dtype)
    blocks = _blocks(rows)
    block_rows = [rows[block.mentions, : block.width] for block in blocks]
    scores, mixed, kept = [], [], []
    for block, here, found in zip(blocks, block_rows, _look_up(vectors, block_rows), strict=True):
        candidate_mask = here >= 0
        queries = mentions.index_select(0, block.mentions)
        similarity = torch.bmm(found, queries[:, :, None])[..., 0] * found.shape[-1] ** -0.5
        scored = scorer(similarity, priors[block.mentions, : block.width])
        kept_mask = candidate_mask if threshold is None else candidate_mask & (scored >= threshold)
        lowest = torch.finfo(scored.dtype).min  # minus infinity would give NaN weights where no candidate is kept
        weights = torch.softmax(scored.masked_fill(~kept_mask, lowest), 1)
        mixed.append(torch.bmm(weights.to(found.dtype)[:, None, :], found)[:, 0])
        kept.append(kept_mask.any(1))
        scores.append(scored.masked_fill(~candidate_mask, float("-inf")).flatten())
    if not blocks:
        nothing = mentions.new_full((count, width), float("-inf"))
        return ScoredCandidates(nothing, torch.zeros_like(mentions), rows.new_zeros(count, dtype=torch.bool))
    order = torch.cat([block.mentions for block in blocks])
    columns = torch.arange(width, device=rows.device)
    cells = torch.cat([(block.mentions[:, None] * width + columns[: block.width]).flatten() for block in blocks])
    all_scores = torch.cat(scores)
    return ScoredCandidates(
        all_scores.new_full((count * width,), float("-inf")).index_copy(0, cells, all_scores).view(count, width),
        mixed[0].new_zeros(mentions.shape).index_copy(0, order, torch.cat(mixed)),
        kept[0].new_zeros(count).index_copy(0, order, torch.cat(kept)),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Mentions scored together: each has at most `width` candidates and at least half as many."""

    mentions: Int[Tensor, " mention"]
    width: int


def _blocks(rows: Int[Tensor, "mention cand"]) -> list[_Block]:
    """Group the mentions that have candidates by number of candidates."""
    numbers = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    widths, order = ((rows >= 0) * numbers).amax(1).sort(stable=True) if rows.numel() else (numbers[:0], numbers[:0])
    sizes = widths.tolist()
    first, blocks = sum(width == 0 for width in sizes), []
    while first < len(sizes):
        last, most = first + 1, 2 * sizes[first]
        while last < len(sizes) and sizes[last] <= most and (last - first + 1) * sizes[last] <= _BLOCK_CANDIDATES:
            last += 1
        blocks.append(_Block(order[first:last], sizes[last - 1]))
        first = last
    return blocks


def _look_up(
    vectors: Float[Tensor, "row dim"], block_rows: list[Int[Tensor, "mention cand"]]
) -> Iterator[Float[Tensor, "mention cand dim"]]:
    """Yield the candidate vectors of each block; with gradients one lookup serves all blocks."""
    flat = [rows.clamp(min=0).flatten() for rows in block_rows]
    found: Iterator[Tensor]
    if block_rows and vectors.requires_grad:
        found = iter(torch.split(vectors.index_select(0, torch.cat(flat)), [len(rows) for rows in flat]))
    else:
        found = (vectors.index_select(0, rows) for rows in flat)
    for rows, block in zip(block_rows, found, strict=True):
        yield block.view(*rows.shape, -1)
