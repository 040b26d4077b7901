"""A development part of a file that has none: chosen by what examples say, never by their order or by chance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def split_by(examples: Sequence[_T], count: int, text: Callable[[_T], str]) -> tuple[list[_T], list[_T]]:
    """(the rest, at least `count` for development), by the digest of each one's text.

    Examples with the same text (but for case and blanks around) stay on one side, so a `text` that gives the query of
    an example keeps queries whole. Every run, in any order of the file, splits off the same.
    """

    def place(example: _T) -> bytes:
        return hashlib.sha256(text(example).casefold().strip().encode(errors="surrogatepass")).digest()

    order = sorted(((place(example), number) for number, example in enumerate(examples)), key=lambda pair: pair[0])
    while 0 < count < len(order) and order[count][0] == order[count - 1][0]:
        count += 1
    chosen = [examples[number] for _, number in order]
    return chosen[count:], chosen[:count]
