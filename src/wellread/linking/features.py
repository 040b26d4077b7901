"""Features of spans for the link scorer: the encoder's evidence, the name, its context, and the KB.

Features are computed for all spans of a call at once. A feature has the same meaning for every KB and text; differences
between KBs and between texts are features too (`KbProfile`; the text's length and case).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.linking.decoding import FOUND_BY, Floats, Ints
from wellread.linking.evidence import Evidence
from wellread.linking.kb_profile import STATISTICS, KbProfile
from wellread.text.frequency import FLOOR, packaged
from wellread.text.key_table import is_among
from wellread.text.words import Keys, follow, split

Matrix = NDArray[np.float32]
Columns = dict[str, NDArray[np.generic] | float]
Pairs = Sequence[tuple[Ints, Ints]]

_ENCODER = (
    "mention_logit",
    "best_log_p",
    "nil_log_p",
    "over_nil",
    "margin",
    "similarity",
    "context",
    "overlap_logit",
    "overlap_log_p",
)
_NAME = ("prior", "log_candidates", "edits", "rarest", "mean_frequency", "lower_share", "own_name")
_TITLE = ("is_title", "is_bare_title", "has_disambiguation", "title_words", "popularity")
_CASE = ("capital", "upper", "capital_words", "digits")
_SHAPE = ("chars", "words", "one_char_words", "text_share")
_AROUND = (
    "sentence_start",
    "capital_before",
    "capital_after",
    "in_longer_name",
    "has_shorter_name",
    "crosses_name",
    "same_entity",
    "same_name",
    "frequency_before",
    "frequency_after",
)
_TEXT = ("text_words", "text_capitals", "text_question", "text_ends", "name_density", "mean_logit", "best_logit")
_PROFILE = tuple(f"kb_{name}" for name in STATISTICS)
FEATURES = (
    *_ENCODER,
    *_NAME,
    *_TITLE,
    *(f"by_{way.replace(' ', '_')}" for way in FOUND_BY),
    *_CASE,
    *_SHAPE,
    *_AROUND,
    *_TEXT,
)
FEATURES = (*FEATURES, *_PROFILE)
"""Names of the columns of the matrix that `features` returns."""

_SEPARATOR = "\n"
_TEXT_STRIDE = 1 << 40
"""Larger than any offset in a text: orders (text, offset) pairs as one number."""
_MAX_DISTANCE = 24
"""Maximum number of following spans that are examined for overlaps with a span."""
_MIN_LOG_P = -12.0
"""Lower bound of log probabilities."""
_ENDS = np.array(sorted(map(ord, '.!?:;\n"“”•')), np.uint32)
_QUESTION = ord("?")
_EDGE_FREQUENCY = 6.0
"""Frequency used where a text has no word before or after a span: higher than that of any word."""


def features(texts: Sequence[str], evidence: Evidence, profile: KbProfile) -> Matrix:
    """Return one row of `FEATURES` for each span."""
    columns: dict[str, NDArray[np.generic] | float] = dict(zip(_PROFILE, profile.numbers(), strict=True))
    words = _TextWords(texts)
    ranges = words.ranges(evidence)
    pairs = _overlapping_pairs(evidence)
    _add_encoder(columns, evidence, pairs)
    _add_name(columns, evidence, words, ranges)
    _add_around(columns, evidence, words, ranges, pairs)
    _add_text(columns, evidence, words, len(texts))
    matrix = np.empty((len(evidence), len(FEATURES)), np.float32)
    for place, name in enumerate(FEATURES):
        matrix[:, place] = columns[name]
    return matrix


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Characters and words of spans in the joined text."""

    starts: Ints
    ends: Ints
    first: Ints
    """Index of the first word of each span."""
    after: Ints
    """Index after the last word; equal to `first` for a span without words, e.g. a control character."""


class _TextWords:
    """Words of all texts as one sequence, with their frequency, case and hash."""

    def __init__(self, texts: Sequence[str]) -> None:
        joined = _SEPARATOR.join(texts)
        found = split(joined)
        self.bases = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + len(_SEPARATOR), out=self.bases[1:])
        self.starts, self.ends, self.codes = found.starts, found.ends, found.codes
        self.frequency, self.lower = packaged().find(found.hashes)
        self.hashes = found.hashes
        first = self.codes[self.starts] if len(self.starts) else np.zeros(0, np.uint32)
        self.is_word = _is_letter(first)
        self.capital = _is_upper(first)
        self.borders = np.searchsorted(self.starts, self.bases)
        """Index of the first word of each text."""
        upper = np.zeros(len(self.codes) + 1, np.int64)
        np.cumsum(_is_upper(self.codes), out=upper[1:])
        digit = np.zeros(len(self.codes) + 1, np.int64)
        np.cumsum((self.codes >= ord("0")) & (self.codes <= ord("9")), out=digit[1:])
        self.upper_before, self.digits_before = upper, digit

    def ranges(self, evidence: Evidence) -> _Ranges:
        """Return the offsets and words of each span in the joined text."""
        base = self.bases[evidence.text_of]
        starts, ends = evidence.starts + base, evidence.ends + base
        first = np.searchsorted(self.ends, starts, "right")
        return _Ranges(starts, ends, first, np.maximum(np.searchsorted(self.starts, ends, "left"), first))

    def keys(self, ranges: _Ranges) -> Keys:
        """Return the key of the name that each span would be (`text.words.key`); 0 for a span without words."""
        found = np.zeros(len(ranges.first), np.uint64)
        lengths = ranges.after - ranges.first
        for step in range(int(lengths.max(initial=0))):
            going = np.flatnonzero(lengths > step)
            found[going] = follow(found[going], self.hashes[ranges.first[going] + step])
        return found

    def lowest(self, values: NDArray[np.float32], ranges: _Ranges, nothing: float) -> Floats:
        """Return the lowest value of the words of each range; `nothing` for a range without words."""
        found = np.full(len(ranges.first), nothing)
        some = np.flatnonzero(ranges.after > ranges.first)
        if len(some):
            # reduceat reduces from each index to the next: every second result belongs to a range.
            pairs = np.stack((ranges.first[some], ranges.after[some]), 1).ravel()
            found[some] = np.minimum.reduceat(np.append(values, values[-1]), pairs)[::2]
        return found

    def total(self, values: NDArray[np.generic], ranges: _Ranges) -> Floats:
        """Return the sums of a column over the words of each range; 0 for a range without words."""
        found = np.zeros(len(ranges.first))
        some = np.flatnonzero(ranges.after > ranges.first)
        if len(some):
            pairs = np.stack((ranges.first[some], ranges.after[some]), 1).ravel()
            found[some] = np.add.reduceat(np.append(values, values[-1]), pairs)[::2]
        return found


def _add_encoder(columns: Columns, evidence: Evidence, pairs: Pairs) -> None:
    logits = evidence.mention_logits
    best = evidence.log_p[:, 0] if evidence.log_p.shape[1] else np.full(len(evidence), -np.inf)
    second = evidence.log_p[:, 1] if evidence.log_p.shape[1] > 1 else np.full(len(evidence), -np.inf)
    best, second, nil = (np.maximum(column, _MIN_LOG_P) for column in (best, second, evidence.nil_log_p))
    overlap_logit = _max_of_overlapping(logits, -15.0, pairs)
    overlap_best = _max_of_overlapping(best, _MIN_LOG_P, pairs)
    columns |= {
        "mention_logit": np.clip(logits, -15, 15),
        "best_log_p": best,
        "nil_log_p": nil,
        "over_nil": best - nil,
        "margin": best - second,
        "similarity": evidence.similarity,
        "context": evidence.context[:, 0] if evidence.context.shape[1] else 0.0,
        "overlap_logit": np.clip(logits - overlap_logit, -15, 15),
        "overlap_log_p": np.clip(best - overlap_best, _MIN_LOG_P, -_MIN_LOG_P),
    }


def _max_of_overlapping(values: Floats, least: float, pairs: Pairs) -> Floats:
    """Return for each span the highest value of the other spans that overlap it, at least `least`."""
    high = np.full(len(values), least)
    for one, other in pairs:  # each array has a span at most once, so that assignment by index is safe
        high[one] = np.maximum(high[one], values[other])
        high[other] = np.maximum(high[other], values[one])
    return high


def _overlapping_pairs(evidence: Evidence) -> Pairs:
    """Return pairs of overlapping spans of the same text, grouped by the distance of their indices.

    Spans are sorted: a span that overlaps a later one overlaps all spans between the two.
    """
    keys = evidence.text_of * _TEXT_STRIDE
    reach = np.searchsorted(keys + evidence.starts, keys + evidence.ends, "left") - np.arange(len(evidence))
    pairs = []
    one = np.arange(len(evidence))
    for step in range(1, _MAX_DISTANCE + 1):
        one = one[reach[one] > step]
        if not len(one):
            break
        pairs.append((one, one + step))
    return pairs


def _add_name(columns: Columns, evidence: Evidence, words: _TextWords, ranges: _Ranges) -> None:
    starts, ends = ranges.starts, ranges.ends
    count = np.maximum(ranges.after - ranges.first, 1)
    mean = words.total(words.frequency, ranges) / count
    length = np.maximum(ends - starts, 1)
    upper = words.upper_before[ends] - words.upper_before[starts]
    digits = words.digits_before[ends] - words.digits_before[starts]
    named = evidence.priors > 0
    columns |= {
        "prior": evidence.priors[:, 0] if evidence.priors.shape[1] else 0.0,
        "log_candidates": np.log1p(named.sum(1)),
        "own_name": named[:, 0] if named.shape[1] else 0.0,
        "edits": evidence.edits,
        "rarest": words.lowest(words.frequency, ranges, FLOOR),
        "mean_frequency": np.where(ranges.after > ranges.first, mean, FLOOR),
        "lower_share": words.total(words.lower, ranges) / count,
        "capital": words.upper_before[starts + 1] - words.upper_before[starts],
        "upper": (upper == length) & (length > 1),
        "capital_words": words.total(words.capital.astype(np.float32), ranges) / count,
        "digits": digits / length,
        "chars": np.log1p(length),
        "words": np.minimum(count, 8),
        "text_share": length / np.maximum(np.diff(words.bases)[evidence.text_of], 1),
        "one_char_words": words.total((words.ends - words.starts == 1).astype(np.float32), ranges),
    }
    span_keys = words.keys(ranges)
    columns |= {
        "is_title": evidence.title_keys == span_keys,
        "is_bare_title": evidence.bare_keys == span_keys,
        "has_disambiguation": evidence.title_keys != evidence.bare_keys,
        "title_words": np.clip(evidence.title_words - count, -4, 4),
        "popularity": evidence.popularity,
    }
    for place, way in enumerate(FOUND_BY):
        columns[f"by_{way.replace(' ', '_')}"] = evidence.ways == place


def _add_around(columns: Columns, evidence: Evidence, words: _TextWords, ranges: _Ranges, pairs: Pairs) -> None:
    first, after = ranges.first, ranges.after
    begins, stops = words.borders[evidence.text_of], words.borders[evidence.text_of + 1]
    last = max(len(words.starts) - 1, 0)
    before, behind = np.clip(first - 1, 0, last), np.clip(after, 0, last)
    has_before, has_behind = first > begins, after < stops
    codes = words.codes[words.starts] if len(words.starts) else np.zeros(1, np.uint32)
    sentence = ~has_before | is_among(codes[before], _ENDS)
    capital = words.capital if len(words.capital) else np.zeros(1, np.bool_)
    frequency = words.frequency if len(words.frequency) else np.zeros(1, np.float32)
    inside, holds, crosses = np.zeros((3, len(evidence)), np.bool_)
    named = evidence.ways < len(FOUND_BY) - 1
    for one, other in pairs:
        both = named[one] & named[other]
        one, other = one[both], other[both]
        nested = evidence.ends[other] <= evidence.ends[one]  # sorted spans: only the earlier can contain the later
        inside[other[nested]] = holds[one[nested]] = True
        crosses[one[~nested]] = crosses[other[~nested]] = True
    entity = evidence.rows[:, 0] if evidence.rows.shape[1] else np.full(len(evidence), -1)
    distinct = np.where(entity >= 0, entity, -np.arange(len(entity)) - 9)  # spans without an entity are all different
    sums = np.zeros(len(words.hashes) + 1, np.uint64)  # sums wrap around, their differences are still right
    np.cumsum(words.hashes, out=sums[1:])
    surface = sums[after] - sums[first]
    columns |= {
        "sentence_start": sentence,
        "capital_before": has_before & capital[before] & ~sentence,
        "capital_after": has_behind & capital[behind],
        "in_longer_name": inside,
        "has_shorter_name": holds,
        "crosses_name": crosses,
        "same_entity": np.log1p(_count_in_text(evidence.text_of, distinct)),
        "frequency_before": np.where(has_before, frequency[before], _EDGE_FREQUENCY),
        "frequency_after": np.where(has_behind, frequency[behind], _EDGE_FREQUENCY),
        "same_name": np.log1p(_count_in_text(evidence.text_of, surface)),
    }


def _count_in_text(text_of: Ints, values: NDArray[np.generic]) -> Ints:
    """Return the number of occurrences of each value in its text."""
    if not len(values):
        return np.zeros(0, np.int64)
    _, number = np.unique(values, return_inverse=True)
    _, back, counts = np.unique(text_of * (len(values) + 1) + number, return_inverse=True, return_counts=True)
    return np.asarray(counts[back])


def _add_text(columns: Columns, evidence: Evidence, words: _TextWords, texts: int) -> None:
    count = np.diff(words.borders).astype(np.float64)
    full = np.zeros(len(words.starts) + 1)
    np.cumsum(words.capital, out=full[1:])
    lettered = np.zeros(len(words.starts) + 1)
    np.cumsum(words.is_word, out=lettered[1:])
    letters = np.maximum(lettered[words.borders[1:]] - lettered[words.borders[:-1]], 1)
    capitals = (full[words.borders[1:]] - full[words.borders[:-1]]) / letters
    last = np.maximum(words.borders[1:] - 1, 0)
    codes = words.codes[words.starts[last]] if len(words.starts) else np.zeros(texts, np.uint32)
    codes = np.where(count > 0, codes, 0)
    named = np.bincount(evidence.text_of, evidence.ways < len(FOUND_BY) - 1, texts) / np.maximum(count, 1)
    logits = np.clip(evidence.mention_logits, -15, 15)
    mean = np.bincount(evidence.text_of, logits, texts) / np.maximum(np.bincount(evidence.text_of, minlength=texts), 1)
    best = np.full(texts, -15.0)
    np.maximum.at(best, evidence.text_of, logits)
    per_text = {
        "text_words": np.log1p(count),
        "text_capitals": capitals,
        "text_question": codes == _QUESTION,
        "text_ends": is_among(codes, _ENDS),
        "name_density": named,
        "mean_logit": mean,
        "best_logit": best,
    }
    columns |= {name: np.asarray(values)[evidence.text_of] for name, values in per_text.items()}


def _is_upper(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    return _by_code(codes, _UPPER, str.isupper)


def _is_letter(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    return _by_code(codes, _LETTER, str.isalpha)


def _by_code(
    codes: NDArray[np.unsignedinteger], ascii: NDArray[np.bool_], test: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Test code points by a table for ASCII, and the distinct others by calling `test`."""
    found: NDArray[np.bool_] = ascii[np.minimum(codes, 127)]
    others = np.flatnonzero(codes > 127)
    if len(others):
        distinct, back = np.unique(codes[others], return_inverse=True)
        found[others] = np.array([test(chr(code)) for code in distinct.tolist()])[back]
    return found


_UPPER = np.array([chr(code).isupper() for code in range(128)])
_LETTER = np.array([chr(code).isalpha() for code in range(128)])
