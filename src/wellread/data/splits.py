"""Split of a file into training and validation data by content, independent of order and chance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def split_by(examples: Sequence[_T], count: int, text: Callable[[_T], str]) -> tuple[list[_T], list[_T]]:
    """Return (the rest, at least `count` validation examples), chosen by the digest of each example's text.

    Examples with the same text (ignoring case and surrounding blanks) stay on one side, so a `text` that returns the
    query of an example keeps queries together. The result does not depend on the order of the file.
    """

    def place(example: _T) -> bytes:
        return hashlib.sha256(text(example).casefold().strip().encode(errors="surrogatepass")).digest()

    order = sorted(((place(example), number) for number, example in enumerate(examples)), key=lambda pair: pair[0])
    while 0 < count < len(order) and order[count][0] == order[count - 1][0]:
        count += 1
    chosen = [examples[number] for _, number in order]
    return chosen[count:], chosen[:count]
