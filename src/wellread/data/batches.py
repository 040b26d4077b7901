"""Which examples are read together: those of like length, in an order of their own for every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from wellread.text.batching import gather

_T = TypeVar("_T")


def by_length(
    lengths: ArrayLike, draw: np.random.Generator, *, tokens: int | None = None, examples: int | None = None
) -> list[list[int]]:
    """Groups of numbers of examples, each with so many `pieces` or `examples` at most (at least one), shuffled."""
    sizes = np.asarray(lengths)
    order = np.lexsort((draw.random(len(sizes)), sizes + draw.integers(0, 4, len(sizes))))
    groups = split_groups(sizes, order.tolist(), tokens=tokens, examples=examples)
    return [groups[place] for place in draw.permutation(len(groups)).tolist()]


def split_groups(
    lengths: ArrayLike, order: Sequence[int], *, tokens: int | None = None, examples: int | None = None
) -> list[list[int]]:
    """An order of examples cut into groups of at most so many pieces or examples."""
    sizes = np.asarray(lengths)
    return list(gather(order, largest=tokens, most=examples, size=lambda place: int(sizes[place])))


class Lazy(Sequence[_T]):
    """Batches that are put together when they are asked for."""

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
