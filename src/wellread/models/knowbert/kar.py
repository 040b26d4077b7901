"""Bricks of a knowledge layer with its own linker: pooled mentions, blocks of attention, scored and mixed candidates.

The mentions of a batch lie end to end, as its pieces do, and so nothing is computed for mentions that are not there;
only the attention fills texts up to the one with the most mentions. Candidates are looked up a few mentions at a time,
those with like many together, so that their vectors stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, relu, scaled_dot_product_attention

from wellread.encoders.packing import Packing

_AT_ONCE = 2048
"""Candidates whose vectors are looked at together."""


@dataclass(frozen=True, slots=True)
class Mentions:
    """How mentions lie end to end, text by text; a text that has none has one that is empty."""

    packing: Packing
    places: Int[Tensor, " mention"] | None
    """Where each mention lies among those and the empty ones; None: no text is without a mention."""

    @classmethod
    def of(cls, text_of: Int[Tensor, " mention"], texts: int) -> Mentions:
        """The mentions of texts, in the order of these."""
        counts = torch.bincount(text_of, minlength=texts)
        packing = Packing.of(counts.clamp(min=1), text_of.device)
        if len(packing.text_of) == len(text_of):
            return cls(packing, None)
        begins = packing.starts - (counts.cumsum(0) - counts)
        return cls(packing, torch.arange(len(text_of), device=text_of.device) + begins[text_of])

    def lay(self, of_mentions: Float[Tensor, "mention dim"], empty: Float[Tensor, " dim"]) -> Float[Tensor, "all dim"]:
        """What mentions have, and what the empty ones have, as they lie."""
        if self.places is None:
            return of_mentions
        line = empty.to(of_mentions.dtype).expand(len(self.packing.text_of), -1)
        return line.index_copy(0, self.places, of_mentions)

    def pick(self, line: Float[Tensor, "all dim"]) -> Float[Tensor, "mention dim"]:
        """What mentions have, without the empty ones."""
        return line if self.places is None else line.index_select(0, self.places)


class SpanPooling(nn.Module):
    """A mention's pieces as one vector: each has a score, their softmax within the span weighs them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(
        self, states: Float[Tensor, "token dim"], firsts: Int[Tensor, " mention"], lasts: Int[Tensor, " mention"]
    ) -> Float[Tensor, "mention dim"]:
        """The vectors of pieces first … last of each mention."""
        widths = lasts - firsts + 1
        place = torch.arange(int(widths.max()) if len(widths) else 0, device=widths.device)
        there = place < widths[:, None]
        tokens = torch.where(there, firsts[:, None] + place, 0)
        scores = self.score(states)[:, 0][tokens].masked_fill(~there, float("-inf"))
        weights = torch.softmax(scores, 1) if len(place) else scores
        mention_of = there.nonzero()[:, 0]
        shares = states.index_select(0, tokens[there]) * weights[there][:, None]
        return shares.new_zeros(len(firsts), states.shape[1]).index_add(0, mention_of, shares)


class Block(nn.Module):
    """A post-norm transformer block: positions look at others of their text, or of another line with the same texts."""

    def __init__(self, dim: int, heads: int, inner: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.query, self.key, self.value, self.mixed = (nn.Linear(dim, dim) for _ in range(4))
        self.mixed_norm = nn.LayerNorm(dim, eps=1e-12)
        self.wide, self.narrow = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(
        self,
        asking: Float[Tensor, "row dim"],
        packing: Packing,
        asked: Float[Tensor, "column dim"],
        asked_packing: Packing,
    ) -> Float[Tensor, "row dim"]:
        """What those who ask have become; they keep their own states, and those who are asked have keys and values."""
        query = self._heads(self.query(asking), packing)
        key, value = (self._heads(part(asked), asked_packing) for part in (self.key, self.value))
        mask = None if asked_packing.is_even else asked_packing.there_mask()[:, None, None, :]
        drop = self.drop if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=drop)
        mixed = self.mixed(packing.gather(mixed.transpose(1, 2)).flatten(1))
        middle = self.mixed_norm(asking + dropout(mixed, self.drop, self.training))
        wide = self.narrow(gelu(self.wide(middle)))
        states: Tensor = self.norm(middle + dropout(wide, self.drop, self.training))
        return states

    def _heads(self, line: Float[Tensor, "position dim"], packing: Packing) -> Float[Tensor, "text head place part"]:
        return packing.spread(line.view(len(line), self.heads, -1)).transpose(1, 2)


class CandidateScorer(nn.Module):
    """How well a candidate fits: a small network over its similarity with the mention, and its prior."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(2, inner), nn.Linear(inner, 1)

    def forward(
        self, similarity: Float[Tensor, "mention cand"], prior: Float[Tensor, "mention cand"]
    ) -> Float[Tensor, "mention cand"]:
        """A score for each."""
        both = torch.stack((similarity, prior.to(similarity.dtype)), -1)
        scores: Tensor = self.narrow(relu(self.wide(both), inplace=True))[..., 0]
        return scores


@dataclass(frozen=True, slots=True)
class Chosen:
    """What became of the candidates of mentions."""

    scores: Float[Tensor, "mention cand"]
    """Minus infinity where there is no candidate."""
    mixed: Float[Tensor, "mention dim"]
    """The candidates' vectors, weighed by the softmax of their scores; a number without meaning where none is left."""
    left_mask: Bool[Tensor, " mention"]
    """True where a candidate is left."""


def choose(
    scorer: CandidateScorer,
    mentions: Float[Tensor, "mention dim"],
    vectors: Float[Tensor, "row dim"],
    rows: Int[Tensor, "mention cand"],
    priors: Float[Tensor, "mention cand"],
    threshold: float | None,
) -> Chosen:
    """Score the candidates, whose vectors are `rows` of `vectors` (negative: none), and mix those that are left.

    Candidates with a score below the threshold are left out.
    """
    count, width = rows.shape
    mentions = mentions.to(vectors.dtype)
    blocks = _blocks(rows)
    lines = [rows[block.mentions, : block.width] for block in blocks]
    scores, mixed, left = [], [], []
    for block, line, found in zip(blocks, lines, _look_up(vectors, lines), strict=True):
        there = line >= 0
        asking = mentions.index_select(0, block.mentions)
        similarity = torch.bmm(found, asking[:, :, None])[..., 0] * found.shape[-1] ** -0.5
        scored = scorer(similarity, priors[block.mentions, : block.width])
        kept = there if threshold is None else there & (scored >= threshold)
        lowest = torch.finfo(scored.dtype).min  # not minus infinity: where none is left, weights are still numbers
        weights = torch.softmax(scored.masked_fill(~kept, lowest), 1)
        mixed.append(torch.bmm(weights.to(found.dtype)[:, None, :], found)[:, 0])
        left.append(kept.any(1))
        scores.append(scored.masked_fill(~there, float("-inf")).flatten())
    if not blocks:
        nothing = mentions.new_full((count, width), float("-inf"))
        return Chosen(nothing, torch.zeros_like(mentions), rows.new_zeros(count, dtype=torch.bool))
    order = torch.cat([block.mentions for block in blocks])
    place = torch.arange(width, device=rows.device)
    where = torch.cat([(block.mentions[:, None] * width + place[: block.width]).flatten() for block in blocks])
    all_scores = torch.cat(scores)
    return Chosen(
        all_scores.new_full((count * width,), float("-inf")).index_copy(0, where, all_scores).view(count, width),
        mixed[0].new_zeros(mentions.shape).index_copy(0, order, torch.cat(mixed)),
        left[0].new_zeros(count).index_copy(0, order, torch.cat(left)),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Mentions that are looked at together: none has more than `width` candidates, and few have much less."""

    mentions: Int[Tensor, " mention"]
    width: int


def _blocks(rows: Int[Tensor, "mention cand"]) -> list[_Block]:
    """All mentions that have a candidate, by how many."""
    behind = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    widths, order = ((rows >= 0) * behind).amax(1).sort(stable=True) if rows.numel() else (behind[:0], behind[:0])
    known = widths.tolist()
    first, blocks = sum(width == 0 for width in known), []
    while first < len(known):
        last = first + 1
        while last < len(known) and known[last] <= 2 * known[first] and (last - first + 1) * known[last] <= _AT_ONCE:
            last += 1
        blocks.append(_Block(order[first:last], known[last - 1]))
        first = last
    return blocks


def _look_up(
    vectors: Float[Tensor, "row dim"], lines: list[Int[Tensor, "mention cand"]]
) -> Iterator[Float[Tensor, "mention cand dim"]]:
    """The vectors of candidates, block by block: with gradients all at once, else each when it is asked for."""
    flat = [line.clamp(min=0).flatten() for line in lines]
    found: Iterator[Tensor]
    if lines and vectors.requires_grad:
        found = iter(torch.split(vectors.index_select(0, torch.cat(flat)), [len(line) for line in flat]))
    else:
        found = (vectors.index_select(0, line) for line in flat)
    for line, part in zip(lines, found, strict=True):
        yield part.view(*line.shape, -1)
