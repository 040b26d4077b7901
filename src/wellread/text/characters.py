"""Classes of code points and spans of words, vectorised over whole texts."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from wellread.text.words import Offsets, Words


@cache
def _capitals() -> NDArray[np.bool_]:
    return np.array([chr(code).isupper() for code in range(1 << 16)])


def is_capital(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return which code points are capital letters (of the first 65,536)."""
    if codes.dtype != np.uint8:
        codes = np.minimum(codes, (1 << 16) - 1)
    capital: NDArray[np.bool_] = _capitals()[codes]
    return capital


@cache
def _letters_and_digits() -> NDArray[np.bool_]:
    return np.array([chr(code).isalnum() for code in range(1 << 16)])


def is_letter_or_digit(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return which code points are letters or digits (of the first 65,536)."""
    if codes.dtype != np.uint8:
        codes = np.minimum(codes, (1 << 16) - 1)
    found: NDArray[np.bool_] = _letters_and_digits()[codes]
    return found


def is_digit(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return which code points are digits 0 to 9."""
    digits: NDArray[np.bool_] = (codes >= ord("0")) & (codes <= ord("9"))
    return digits


def is_blank(codes: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return which code points are white space or underscores."""
    blank: NDArray[np.bool_] = (codes <= 32) | (codes == 0xA0) | (codes == ord("_"))
    return blank


def text_of(words: Words, place: int) -> str:
    """Return a word as written in the text."""
    codes = words.codes[words.starts[place] : words.ends[place]]
    return codes.tobytes().decode("ascii" if codes.dtype == np.uint8 else "utf-32-le", "surrogatepass")


def all_upper(words: Words, first: Offsets, last: Offsets) -> NDArray[np.bool_]:
    """Return which spans have no lower-case letter."""
    if not len(first):
        return np.zeros(0, np.bool_)
    small = (words.codes >= ord("a")) & (words.codes <= ord("z"))
    before = np.zeros(len(small) + 1, np.int64)
    np.cumsum(small, out=before[1:])
    none: NDArray[np.bool_] = before[words.ends[last]] == before[words.starts[first]]
    return none
