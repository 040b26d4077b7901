"""What is read together: things in their order, as many at a time as are not too large together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def gather(
    things: Iterable[T], *, largest: int | None = None, most: int | None = None, size: Callable[[T], int] | None = None
) -> Iterator[list[T]]:
    """Groups of at most `most` things that are not larger than `largest` together; one that is larger is alone.

    >>> list(gather(["a", "bb", "cc", "dddd", "e"], largest=3))
    [['a', 'bb'], ['cc'], ['dddd'], ['e']]
    """
    measure: Callable[[Any], int] = len if size is None else size
    group: list[T] = []
    total = 0
    for thing in things:
        own = measure(thing)
        if group and ((largest is not None and total + own > largest) or len(group) == most):
            yield group
            group, total = [], 0
        group.append(thing)
        total += own
    if group:
        yield group
