"""KnowBERT's mention linker for inference, in numpy: pooled mentions, attention between them, scored candidates.

Steps 1 to 5 of `models.knowbert.model`, whose torch form for training is `models.knowbert.mention_linker`. Products are
computed in double precision and rounded: the order in which BLAS sums depends on the number of rows, and the scores of
a text must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError
from wellread.models.elq.inference import StateEncoder
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.inputs import CandidateArrays
from wellread.models.knowbert.linker_vectors import NORM_EPSILON, EntityLookup, layer_norm
from wellread.runtime.session import equal_runs
from wellread.runtime.weights import Floats, Norm
from wellread.text.windows import TextWindow

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]

ScoreFunction = Callable[[CandidateArrays], Floats]
"""Scores (mention, candidate) the candidates of an encoded batch, or those that a restriction left of them; minus
infinity where there is no candidate."""

_BLOCK_EPSILON = 1e-12
_LINEAR = ("narrow", "pooling.score", "scorer.wide", "scorer.narrow")
_BLOCK = ("query", "key", "value", "mixed", "wide", "narrow")
_MENTIONS = 8192
"""Maximum number of mentions whose attention is computed together."""
_PAIRS = 8192
"""Maximum number of candidates that are scored together."""


class LayerInference(Protocol):
    """Protocol of encoders with a knowledge layer."""

    def __call__(self, windows: Sequence[TextWindow], candidates: Mapping[str, CandidateArrays]) -> ScoreFunction:
        """Encode windows with the mentions in their candidates by KB."""


@dataclass(frozen=True, slots=True)
class _Product:
    """Projection in double precision, rounded to single."""

    weight: Doubles
    """(in, out)."""
    bias: Floats

    def __call__(self, rows: NDArray[np.floating[Any]]) -> Floats:
        return np.asarray((rows @ self.weight + self.bias).astype(np.float32))


class MentionScorer:
    """Pools mentions, lets those of a text attend to each other, and scores their candidates."""

    def __init__(self, config: KnowBertConfig, weights: Mapping[str, Floats]) -> None:
        self.heads = config.heads
        try:
            self._products = {name: _product(weights, name) for name in _LINEAR}
            self._block = {name: _product(weights, f"block.{name}") for name in _BLOCK}
            self._norms = {
                name: Norm(weights[f"{name}.weight"], weights[f"{name}.bias"])
                for name in ("mention_norm", "block.mixed_norm", "block.norm")
            }
        except KeyError as error:
            raise InputError(f"the knowledge layer lacks the weight {error}; copy the linker again") from None

    def contextualize(self, states: Floats, firsts: Ints, lasts: Ints, text_of: Ints) -> Floats:
        """Return the mentions (mention, dim) after attention to the others of their text.

        `states` are of all tokens, `firsts` and `lasts` each mention's first and last token, sorted by text.
        """
        pooled = self._pool(self._products["narrow"](states), firsts, lasts)
        mentions = layer_norm(pooled, self._norms["mention_norm"], NORM_EPSILON)
        block = self._block
        query, key, value = (block[name](mentions) for name in ("query", "key", "value"))
        mixed = block["mixed"](self._attend(query, key, value, text_of))
        middle = layer_norm(mentions + mixed, self._norms["block.mixed_norm"], _BLOCK_EPSILON)
        wide = np.concatenate(
            [block["narrow"](gelu(block["wide"](some))) for some in _parts(middle, _MENTIONS)] or [middle]
        )
        return layer_norm(middle + wide, self._norms["block.norm"], _BLOCK_EPSILON)

    def _pool(self, tokens: Floats, firsts: Ints, lasts: Ints) -> Floats:
        """Return the mean of each mention's tokens, weighted by the softmax of their scores."""
        widths = lasts - firsts + 1
        begins = np.cumsum(widths) - widths
        rows = np.arange(int(widths.sum())) + np.repeat(firsts - begins, widths)
        spans = tokens[rows]
        scores = self._products["pooling.score"](spans)[:, 0].astype(np.float64)
        weights = np.exp(scores - np.repeat(np.maximum.reduceat(scores, begins), widths))
        weights /= np.repeat(np.add.reduceat(weights, begins), widths)
        return np.asarray(np.add.reduceat(spans * weights[:, None], begins, axis=0).astype(np.float32))

    def _attend(self, query: Floats, key: Floats, value: Floats, text_of: Ints) -> Floats:
        """Attend from every mention to every mention of its text; texts with equally many are computed together."""
        mixed = np.empty_like(query)
        counts = np.bincount(text_of)
        begins = np.cumsum(counts) - counts
        for texts in equal_runs(counts, _MENTIONS):
            rows = begins[texts][:, None] + np.arange(counts[texts[0]])
            heads = (*rows.shape, self.heads, -1)
            wide = (part[rows].reshape(heads).swapaxes(1, 2).astype(np.float64) for part in (query, key, value))
            queries, keys, values = wide
            scores = queries @ keys.swapaxes(2, 3) / np.sqrt(queries.shape[-1])
            scores -= scores.max(-1, keepdims=True)
            weights = np.exp(scores)
            weights /= weights.sum(-1, keepdims=True)
            mixed[rows] = (weights @ values).swapaxes(1, 2).reshape(*rows.shape, -1)
        return mixed

    def score(self, mentions: Floats, vectors: Floats, rows: Ints, priors: Floats) -> Floats:
        """Return the score (mention, candidate) of each candidate, given as `rows` of `vectors` (negative: none)."""
        scores = np.full(rows.shape, -np.inf, np.float32)
        mention_of, column = np.nonzero(rows >= 0)
        scale = np.float32(mentions.shape[1] ** -0.5)
        for some in _parts(np.arange(len(mention_of)), _PAIRS):
            at = mention_of[some], column[some]
            similarity = np.einsum("pd,pd->p", mentions[at[0]], vectors[rows[at]]) * scale
            wide = self._products["scorer.wide"](np.stack((similarity, priors[at]), 1))
            scores[at] = self._products["scorer.narrow"](np.maximum(wide, 0, out=wide))[:, 0]
        return scores


@dataclass(frozen=True, slots=True)
class SingleLayer:
    """A plain encoder, whose states one mention linker reads."""

    encoder: StateEncoder
    scorer: MentionScorer
    entities: EntityLookup
    kb: str

    def __call__(self, windows: Sequence[TextWindow], candidates: Mapping[str, CandidateArrays]) -> ScoreFunction:
        """Encode the windows now: contextual mentions do not depend on their candidates."""
        own = candidates[self.kb]
        states = self.encoder.states([window.input.ids for window in windows])
        lengths = np.array([len(window) for window in windows], np.int64)
        firsts, lasts = ((np.cumsum(lengths) - lengths)[own.text_of][:, None] + own.spans).T
        return partial(self._scores, self.scorer.contextualize(states, firsts, lasts, own.text_of))

    def _scores(self, mentions: Floats, candidates: CandidateArrays) -> Floats:
        return self.scorer.score(mentions, *self.entities.look_up(candidates.entities), candidates.priors)


def gelu(values: Floats) -> Floats:
    """Return x · Φ(x), with the error function by Abramowitz and Stegun 7.1.26 (error below 2e-7)."""
    scaled = np.abs(values) * np.float32(0.5**0.5)
    share = 1 / (1 + np.float32(0.3275911) * scaled)
    tail = np.zeros_like(share)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(coefficient)
        tail *= share
    tail *= np.exp(-scaled * scaled)  # 1 - erf(|x| / sqrt 2)
    tail *= np.float32(0.5)
    return np.asarray(values * np.where(values < 0, tail, 1 - tail))


def _product(weights: Mapping[str, Floats], name: str) -> _Product:
    return _Product(np.ascontiguousarray(weights[f"{name}.weight"].T, np.float64), weights[f"{name}.bias"])


def _parts(array: NDArray[Any], size: int) -> Iterable[NDArray[Any]]:
    return (array[begin : begin + size] for begin in range(0, len(array), size))
