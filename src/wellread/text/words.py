"""Words of names and texts: tokenization into words, equality of words, and the 64-bit key of a name.

Names in a knowledge base and spans of a text are compared word by word, never character by character, so that
"Bill" is not found in "Billing". The rules, in one place for the whole library:

1. A word is a run of letters and digits with their marks ("Āryabhaṭa"). Scripts written without spaces (Han, kana,
   Thai, …) give one word a character, and so does every other sign: "C++" has three words, "U.S." four.
2. Blanks between words are ignored: white space, underscores, and hyphens between two letters ("well-known").
3. Words are compared under one of three policies. `exact`: the same letters. `title`: the first letter of each word may
   differ in case ("May" = "may", but "US" is not "us"). `folded`: case, diacritics and compatibility forms are ignored
   ("Beyoncé" = "BEYONCE", "ﬁsh" = "fish"). Composed and decomposed spelling (NFC, NFD) are the same under all three.

The key of a name is a hash of its folded words, built word by word. SQLite indexes it (`names.key`) and the matcher
follows it, so that a span found in a text leads to its candidates without a string in between. Keys are computed in
two ways, for one name (`key`) and for a whole text or list (`split`, `keys`); tests check that both agree.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Case = Literal["exact", "title", "folded"]
CASES: tuple[Case, ...] = get_args(Case)

Keys = NDArray[np.uint64]
Offsets = NDArray[np.int64]

# Classes of characters. Zero means "not classified yet" in the tables below.
_BLANK, _WORD, _JOIN, _ALONE, _HYPHEN = 1, 2, 3, 4, 5

_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai, Lao; Myanmar; Khmer
    *((0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x30FF), (0x31F0, 0x31FF)),  # Han radicals, kana
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF)),
)
_DIACRITICS = (
    (0x0300, 0x036F),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
)
_JOINER = 0x200D
_SAME = str.maketrans(
    {"’": "'", "‘": "'", "ʼ": "'", "`": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "−": "-"}
)
# The same rules as a pattern for plain ASCII: words, hyphens that are not inner, other signs.
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|(?<![A-Za-z0-9])-|-(?![A-Za-z0-9])|[^A-Za-z0-9_\-\x00-\x20\x7f]")

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # from one word to the next
_RADIX = 0x2545F4914F6CDD1D  # from one letter to the next; odd, so that it has an inverse modulo 2**64
_UNRADIX = pow(_RADIX, -1, 1 << 64)

_KEPT = 1 << 13
"""Characters kept by each cache below: more than a corpus uses often, of the 1.1 million that exist."""


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _mix(value: int) -> int:
    """Finalise a hash (SplitMix64): every bit of the result depends on every bit of `value`."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(_KEPT)
def _class_of(letter: str) -> int:
    code, category = ord(letter), unicodedata.category(letter)
    if letter in "-\u2010\u2011":
        return _HYPHEN
    if letter == "_" or category[0] == "Z" or category == "Cc":
        return _BLANK
    if category[0] == "M" or code in (0x00AD, 0x200C, _JOINER) or 0x1F3FB <= code <= 0x1F3FF:
        return _JOIN
    if category[0] in "LN" and not _within(code, _UNSPACED):
        return _WORD
    return _BLANK if category == "Cf" else _ALONE


@lru_cache(_KEPT)
def fold(letter: str) -> str:
    """Return a letter under the `folded` policy: "É" -> "e", "ß" -> "ss", a diacritic -> ""."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", letter).casefold()).translate(_SAME)
    return "".join(part for part in plain if not (part.isspace() or _within(ord(part), _DIACRITICS)))


class _Weights(dict[str, tuple[int, int]]):
    """Weight of each letter in its word's hash under a policy, and the factor for the letters after it.

    At most `_KEPT` letters are kept; a hit is as fast as in a plain dict, unlike one of `lru_cache`.
    """

    def __init__(self, case: Case) -> None:
        self.case = case

    def __missing__(self, letter: str) -> tuple[int, int]:
        letters = _letters(letter, self.case)
        found = _weight(letters), pow(_RADIX, len(letters), 1 << 64)
        if len(self) >= _KEPT:
            self.clear()
        self[letter] = found
        return found


def _weight(letters: str) -> int:
    """Return the contribution of the first letters of a word to its hash."""
    return sum(_mix(ord(part) + _STEP) * pow(_RADIX, place, 1 << 64) for place, part in enumerate(letters)) & _MASK


_weights: dict[Case, _Weights] = {case: _Weights(case) for case in CASES}
_POWERS = tuple(pow(_RADIX, place, 1 << 64) for place in range(32))


def _letters(letter: str, case: Case) -> str:
    if case == "folded":
        return fold(letter)
    return unicodedata.normalize("NFD", letter.casefold() if case == "title" else letter)


_ascii: dict[Case, dict[str, int]] = {
    case: {letter: weights[letter][0] for letter in map(chr, range(128))} for case, weights in _weights.items()
}


def words(text: str) -> list[str]:
    """Return the words of a text as written: "Jean-Paul's C++" -> ["Jean", "Paul", "'", "s", "C", "+", "+"]."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    return [text[start:end] for start, end in word_spans(text)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of the words of a text; `split` is faster for more than some hundred characters."""
    if text.isascii():
        return [match.span() for match in _ASCII_WORD.finditer(text)]
    found: list[tuple[int, int]] = []
    begin, last, before = -1, _BLANK, ""  # start of the open word (-1: none), its class, the previous letter
    for place, letter in enumerate(text):
        kind = _class_of(letter)
        if kind == _HYPHEN:
            inner = last == _WORD and place + 1 < len(text) and _class_of(text[place + 1]) == _WORD
            kind = _BLANK if inner else _ALONE
        goes_on = begin >= 0 and (
            kind == _JOIN or (kind == last == _WORD) or (kind == last == _ALONE and before == chr(_JOINER))
        )
        if not goes_on:
            if begin >= 0:
                found.append((begin, place))
            last = _BLANK if kind == _JOIN else kind  # a mark without a base letter is ignored
            begin = place if last != _BLANK else -1
        before = letter
    if begin >= 0:
        found.append((begin, len(text)))
    return found


def is_blank(letter: str) -> bool:
    """Return whether a letter after a break is ignored: a blank, or a mark without a base letter."""
    return _class_of(letter) in (_BLANK, _JOIN)


def next_break(text: str, place: int) -> int:
    """Return the first position from `place` on where a text can be split without changing its words."""
    while 0 < place < len(text):
        kind = _class_of(text[place])
        if kind == _BLANK or (kind == _ALONE and ord(text[place - 1]) != _JOINER):
            break
        place += 1
    return place


def word_hash(word: str, case: Case = "folded") -> int:
    """Return the hash of a word under a policy; equal words have equal hashes."""
    inner: Case = "exact" if case == "title" else case
    if word.isascii() and len(word) <= len(_POWERS):  # each letter folds to one: no loop in Python
        total: int = sum(map(mul, map(_ascii[inner].__getitem__, word), _POWERS))
        if case != inner:
            total += _ascii[case][word[0]] - _ascii[inner][word[0]]
        return total & _MASK
    total = 0
    for letter in word[:0:-1]:
        weight, factor = _weights[inner][letter]
        total = (total * factor + weight) & _MASK
    weight, factor = _weights[case][word[0]]
    return (total * factor + weight) & _MASK


def key(name: str, case: Case = "folded") -> int:
    """Return the key of a name, 0 for a name without words; the same for "New York" and "new  york"."""
    node = 0
    for word in words(name):
        node = longer(node, word_hash(word, case))
    return node


def as_signed(key: int) -> int:
    """Return a key as SQLite stores it (signed 64 bits)."""
    return key - (1 << 64) if key >> 63 else key


@dataclass(frozen=True, slots=True)
class Words:
    """Words of a text: start and end in characters, and hash of each; `codes` are the code points of the text.

    `sizes` are numbers of letters after folding, for the arithmetic of hashes (`glued`, `with_ending`, …).
    """

    codes: NDArray[np.unsignedinteger]
    starts: Offsets
    ends: Offsets
    hashes: Keys
    sizes: Offsets


class _Tables:
    """Class and weight of every character seen so far, as arrays for vectorised look-up.

    The arrays have an element for every code point, but take memory only where touched: 31 MB if all were.
    """

    def __init__(self) -> None:
        self.classes = np.zeros(0x110000, np.uint8)
        self.weights = {case: np.zeros(0x110000, np.uint64) for case in CASES}
        self.lengths = {case: np.zeros(0x110000, np.uint8) for case in CASES}
        self.powers = np.ones(1, np.uint64)
        self.inverses = np.ones(1, np.uint64)
        self._growing = threading.Lock()

    def classify(self, codes: NDArray[np.unsignedinteger]) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self.classes[codes]
        if not found.all():
            for code in set(codes[found == 0].tolist()):
                self._learn(code)
            found = self.classes[codes]
        return found

    def _learn(self, code: int) -> None:
        letter = chr(code)
        for case in CASES:
            letters = _letters(letter, case)
            self.weights[case][code] = _weight(letters)
            self.lengths[case][code] = len(letters)
        self.classes[code] = _class_of(letter)  # last: another thread may use the row once it is set

    def need_powers(self, count: int) -> None:
        if count <= len(self.powers):
            return
        with self._growing:  # or a thread with a shorter text might replace longer arrays by shorter ones
            if count <= len(self.powers):
                return
            size = max(count, 1 << 12)
            for name, radix in (("inverses", _UNRADIX), ("powers", _RADIX)):  # `powers`, read without lock, comes last
                steps = np.full(size, radix, np.uint64)
                steps[0] = 1
                setattr(self, name, np.multiply.accumulate(steps))


_tables = _Tables()


def split(text: str, case: Case = "folded") -> Words:
    """Return all words of a text with their hashes, in a few passes over the whole text.

    The hash of a word is a difference of running sums, so there is no loop over words. Meant for texts of up to some
    hundred thousand characters; longer ones are split at a blank first (`mentions.matcher` does).
    """
    if text.isascii():
        codes: NDArray[np.unsignedinteger] = np.frombuffer(text.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    classes = _tables.classify(codes)
    starts, ends = _borders(codes, classes)
    return _hashed(codes, starts, ends, case)


def rehashed(words: Words, case: Case) -> Words:
    """Return the same words under another policy; cheaper than splitting the text again."""
    return _hashed(words.codes, words.starts, words.ends, case)


def _hashed(codes: NDArray[np.unsignedinteger], starts: Offsets, ends: Offsets, case: Case) -> Words:
    _tables.need_powers(len(codes) + 1)
    weights = _tables.weights[case][codes] if case != "title" else _title_weights(codes, starts)
    if codes.dtype == np.uint8:
        places = None
        weights *= _tables.powers[: len(codes)]
    else:
        lengths = _tables.lengths[case][codes] if case != "title" else _title_lengths(codes, starts)
        places = np.zeros(len(codes) + 1, np.int64)
        np.cumsum(lengths, out=places[1:])
        _tables.need_powers(int(places[-1]) + 1)
        weights *= _tables.powers[places[:-1]]
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(weights, out=sums[1:])
    hashes: Keys = sums[ends]
    hashes -= sums[starts]
    hashes *= _tables.inverses[starts if places is None else places[starts]]
    sizes = ends - starts if places is None else places[ends] - places[starts]
    return Words(codes, starts, ends, hashes, sizes)


def _borders(codes: NDArray[np.unsignedinteger], classes: NDArray[np.uint8]) -> tuple[Offsets, Offsets]:
    """Return starts and ends of words by rules 1 and 2 of the module, as `words` does for one letter at a time."""
    count = len(codes)
    if not count:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing
    based = classes
    if codes.dtype != np.uint8 and (classes == _JOIN).any():
        base = np.maximum.accumulate(np.where(classes != _JOIN, np.arange(count), 0))
        based = classes[base]
        based[based == _JOIN] = _BLANK
    hyphens = np.flatnonzero(classes == _HYPHEN)
    if len(hyphens):
        after = np.minimum(hyphens + 1, count - 1)
        inner = (hyphens > 0) & (based[hyphens - 1] == _WORD) & (classes[after] == _WORD)
        based = np.where(based == _HYPHEN, np.uint8(_ALONE), based)
        based[hyphens[inner]] = _BLANK
    in_word = based == _WORD
    there = based != _BLANK
    begins = there.copy()
    begins[1:] &= ~(in_word[1:] & in_word[:-1])
    if codes.dtype != np.uint8:
        goes_on = (classes[1:] == _JOIN) & there[:-1]
        goes_on |= (based[1:] == _ALONE) & (based[:-1] == _ALONE) & (codes[:-1] == _JOINER)
        begins[1:] &= ~goes_on
    finishes = there.copy()
    finishes[:-1] &= begins[1:] | ~there[1:]
    return np.flatnonzero(begins), np.flatnonzero(finishes) + 1


def _title_weights(codes: NDArray[np.unsignedinteger], starts: Offsets) -> Keys:
    weights: Keys = _tables.weights["exact"][codes]
    weights[starts] = _tables.weights["title"][codes[starts]]
    return weights


def _title_lengths(codes: NDArray[np.unsignedinteger], starts: Offsets) -> NDArray[np.uint8]:
    lengths: NDArray[np.uint8] = _tables.lengths["exact"][codes]
    lengths[starts] = _tables.lengths["title"][codes[starts]]
    return lengths


def longer(node: int, hash: int) -> int:
    """Return the key of a name that is one word longer, as `follow` does for arrays."""
    return _mix((node * _STEP + hash) & _MASK)


def mix(values: Keys) -> Keys:
    """Apply `_mix` to an array, in place."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def follow(nodes: Keys, hashes: Keys) -> Keys:
    """Return the keys of names that are one word longer: `nodes` are the keys so far, `hashes` the next words."""
    return mix(nodes * np.uint64(_STEP) + hashes)


def glued(left: Keys, sizes: Offsets, right: Keys) -> Keys:
    """Return hashes of pairs of words as one word ("wi", "fi" -> "wifi"); `sizes` are the letters of the left ones."""
    _tables.need_powers(int(sizes.max(initial=0)) + 1)
    return left + _tables.powers[sizes] * right


def with_ending(hashes: Keys, sizes: Offsets, ending: str) -> Keys:
    """Return hashes of words with an (ASCII) ending added."""
    return glued(hashes, sizes, np.full(len(hashes), word_hash(ending), np.uint64))


def without_ending(hashes: Keys, sizes: Offsets, ending: str) -> Keys:
    """Return hashes of words with an (ASCII) ending removed, which all of them must have."""
    _tables.need_powers(int(sizes.max(initial=0)) + 1)
    return hashes - _tables.powers[sizes - len(ending)] * np.uint64(word_hash(ending))


def keys(names: Sequence[str], case: Case = "folded") -> Keys:
    """Return `key` of many names at once."""
    return prefix_keys(names, case)[0]


def prefix_keys(names: Sequence[str], case: Case = "folded") -> tuple[Keys, list[Keys]]:
    """Return the keys of names, and per number of words the keys of their prefixes (inner nodes of their trie)."""
    if not names:
        return np.zeros(0, np.uint64), []
    _, found, first = split_names(names, case)
    return walk(found.hashes, first, np.diff(np.append(first, len(found.starts))))


def split_names(names: Sequence[str], case: Case = "folded") -> tuple[str, Words, Offsets]:
    """Return the names as one text, its words, and the number of each name's first word."""
    text = "\n".join(name.replace("\n", " ") for name in names)
    found = split(text, case)
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    return text, found, np.searchsorted(found.starts, np.cumsum(lengths + 1) - (lengths + 1))


def walk(hashes: Keys, first: Offsets, counts: Offsets) -> tuple[Keys, list[Keys]]:
    """Return keys of runs of words, given by first word and number of words, and the inner nodes at each length."""
    result = np.zeros(len(first), np.uint64)
    inner: list[Keys] = []
    alive = np.flatnonzero(counts > 0)
    level = 0
    while len(alive):
        result[alive] = follow(result[alive], hashes[first[alive] + level])
        level += 1
        alive = alive[counts[alive] > level]
        inner.append(result[alive])
    return result, inner
