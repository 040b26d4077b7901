"""Token positions and masked words by character spans, for all texts of a batch at once.

The texts of a batch, one or two for each input, are numbered as its *units*. A unit and a character are combined in
one integer, so that the characters of all texts have one order and are searched together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wellread.text.tokenization import Tokenization
from wellread.text.words import Offsets, is_blank

if TYPE_CHECKING:
    from jaxtyping import Bool, Int8, Int64

STAYS, OTHER, MASKED = 0, 1, 2
"""Treatment of the candidates of a mention with masked words: keep them, take those of another mention, or none."""

_UNIT_AT = 32


@dataclass(frozen=True, slots=True)
class TokenPositions:
    """Tokens of a batch by the characters that they cover."""

    texts: tuple[str, ...]
    """One text per unit."""
    input_of: Int64[np.ndarray, " unit"]
    first_unit: Int64[np.ndarray, " input"]
    lows: Int64[np.ndarray, " unit"]
    highs: Int64[np.ndarray, " unit"]
    """First character of a text that is in its input, and the one after the last; both 0 for a text without tokens."""
    _starts: Int64[np.ndarray, " solid"]
    _ends: Int64[np.ndarray, " solid"]
    _positions: Int64[np.ndarray, " solid"]
    _omitted: tuple[tuple[int, int, int], ...] = ()
    """(unit, start, end) of characters left out of the middle of a text."""

    @classmethod
    def of(cls, tokenized: Sequence[Tokenization]) -> TokenPositions:
        """Index the tokens of inputs."""
        counts = np.array([len(one.texts) for one in tokenized], np.int64)
        lengths = np.array([len(one) for one in tokenized], np.int64)
        first_unit = np.cumsum(counts) - counts
        units = int(counts.sum())
        segment_of = _joined([one.segment_of for one in tokenized])
        solid = np.flatnonzero(segment_of >= 0)  # special tokens cover nothing
        positions = np.arange(len(segment_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        unit_of = segment_of[solid] + np.repeat(first_unit, lengths)[solid]
        spans = (
            np.concatenate([one.spans for one in tokenized])[solid] if len(tokenized) else np.zeros((0, 2), np.int64)
        )
        # An empty token takes the position of the one before it, so that starts and ends ascend.
        starts = np.maximum.accumulate(spans[:, 0] + (unit_of << _UNIT_AT))
        ends = np.maximum.accumulate(spans[:, 1] + (unit_of << _UNIT_AT))
        borders = np.searchsorted(unit_of, np.arange(units + 1))
        lows, highs = np.zeros(units, np.int64), np.zeros(units, np.int64)
        there = np.flatnonzero(np.diff(borders))
        lows[there] = starts[borders[there]] - (there << _UNIT_AT)
        highs[there] = ends[borders[there + 1] - 1] - (there << _UNIT_AT)
        texts = tuple(text for one in tokenized for text in one.texts)
        input_of = np.repeat(np.arange(len(tokenized)), counts)
        omitted = tuple(
            (unit, hole.start, hole.end)
            for unit, one in zip(first_unit.tolist(), tokenized, strict=True)
            for hole in one.omitted
        )
        return cls(texts, input_of, first_unit, lows, highs, starts, ends, positions[solid], omitted)

    def tokens(
        self, units: Offsets, starts: Offsets, ends: Offsets
    ) -> tuple[Int64[np.ndarray, "mention 2"], Bool[np.ndarray, " mention"]]:
        """Return the first and last token, as positions in its input, of each span; and whether all of it is there.

        A span without a token is not in the input.
        """
        bases = units << _UNIT_AT
        first = np.searchsorted(self._ends, bases + starts, side="right")
        last = np.searchsorted(self._starts, bases + ends, side="left") - 1
        whole = (first <= last) & (starts >= self.lows[units])
        for place in np.flatnonzero(whole & (ends > self.highs[units])).tolist():
            # Combining marks after the last letter ("é" in two) may be in no token: they were left out, not truncated.
            beyond = self.texts[units[place]][self.highs[units[place]] : ends[place]]
            whole[place] = all(map(is_blank, beyond))
        for unit, low, high in self._omitted:
            for place in np.flatnonzero(whole & (units == unit) & (starts < high) & (ends > low)).tolist():
                within = self.texts[unit][max(low, starts[place]) : min(high, ends[place])]
                whole[place] = all(map(is_blank, within))
        if not len(self._positions):
            return np.zeros((len(units), 2), np.int64), whole
        most = len(self._positions) - 1
        found = np.stack((self._positions[np.minimum(first, most)], self._positions[np.maximum(last, 0)]), axis=1)
        return found, whole


@dataclass(frozen=True, slots=True)
class MaskedSpans:
    """Masked words of a batch, and masked tokens without a word, as spans."""

    _starts: Offsets
    _ends: Offsets
    _masked: Offsets
    """Number of `MASKED` ones before each."""
    _other: Offsets

    @classmethod
    def of(
        cls, tokenized: Sequence[Tokenization], positions: TokenPositions, draw: np.random.Generator | None
    ) -> MaskedSpans | None:
        """Treat masked spans as `MASKED`; with `draw`, 80 % of them, and 10 % as `STAYS`, 10 % as `OTHER`."""
        found = [np.zeros((0, 2), np.int64)]
        for one, first in zip(tokenized, positions.first_unit.tolist(), strict=True):
            words = [number for number, word in enumerate(one.words) if not word]
            tokens = list(one.hidden)
            for spans, segment_of, there in (
                (one.word_spans, one.word_segment, words),
                (one.spans, one.segment_of, tokens),
            ):
                if there:
                    found.append(spans[there] + ((segment_of[there] + first) << _UNIT_AT)[:, None])
        hidden = np.concatenate(found)
        if not len(hidden):
            return None
        # Words and the tokens between them do not overlap: sorted by start, ends ascend too.
        hidden = hidden[np.lexsort((hidden[:, 1], hidden[:, 0]))]
        dice = draw.random(len(hidden)) if draw is not None else np.zeros(len(hidden))
        return cls(hidden[:, 0], hidden[:, 1], _running(dice < 0.8), _running((dice >= 0.8) & (dice < 0.9)))

    def fates(self, units: Offsets, starts: Offsets, ends: Offsets) -> Int8[np.ndarray, " mention"]:
        """Return the treatment of spans: the strictest of the masked words in them, `STAYS` without any."""
        bases = units << _UNIT_AT
        low = np.searchsorted(self._ends, bases + starts, side="right")
        high = np.maximum(np.searchsorted(self._starts, bases + ends, side="left"), low)
        fates = np.where(self._other[high] > self._other[low], np.int8(OTHER), np.int8(STAYS))
        fates[self._masked[high] > self._masked[low]] = MASKED
        return fates


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _running(mask: NDArray[np.bool_]) -> Offsets:
    sums = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=sums[1:])
    return sums
