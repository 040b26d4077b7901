"""Batches: groups of examples of similar length, shuffled for every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

_T = TypeVar("_T")


def gather(
    items: Iterable[_T], *, largest: int | None = None, most: int | None = None, size: Callable[[_T], int] | None = None
) -> Iterator[list[_T]]:
    """Yield groups of at most `most` items with a total size of at most `largest`; a larger item is a group alone.

    >>> list(gather(["a", "bb", "cc", "dddd", "e"], largest=3))
    [['a', 'bb'], ['cc'], ['dddd'], ['e']]
    """
    measure: Callable[[Any], int] = len if size is None else size
    group: list[_T] = []
    total = 0
    for item in items:
        own = measure(item)
        if group and ((largest is not None and total + own > largest) or len(group) == most):
            yield group
            group, total = [], 0
        group.append(item)
        total += own
    if group:
        yield group


def by_length(
    lengths: ArrayLike, draw: np.random.Generator, *, tokens: int | None = None, examples: int | None = None
) -> list[list[int]]:
    """Return shuffled groups of example numbers, each of at most `tokens` tokens or `examples` examples."""
    sizes = np.asarray(lengths)
    order = np.lexsort((draw.random(len(sizes)), sizes + draw.integers(0, 4, len(sizes))))
    groups = split_groups(sizes, order.tolist(), tokens=tokens, examples=examples)
    return [groups[place] for place in draw.permutation(len(groups)).tolist()]


def split_groups(
    lengths: ArrayLike, order: Sequence[int], *, tokens: int | None = None, examples: int | None = None
) -> list[list[int]]:
    """Split an order of examples into groups of at most `tokens` tokens or `examples` examples."""
    sizes = np.asarray(lengths)
    return list(gather(order, largest=tokens, most=examples, size=lambda place: int(sizes[place])))


class Lazy(Sequence[_T]):
    """Sequence of batches that are collated on access."""

    def __init__(self, groups: Sequence[Sequence[int]], collate: Callable[[Sequence[int]], _T]) -> None:
        self.groups, self.collate = groups, collate

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, place: int) -> _T: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[_T]: ...

    def __getitem__(self, place: int | slice) -> _T | Sequence[_T]:
        if isinstance(place, slice):
            return Lazy(self.groups[place], self.collate)
        return self.collate(self.groups[place])
