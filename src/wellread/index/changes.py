"""Changes of a KB since its index was built: vectors of new entities, and rows that were removed.

A small file next to the index, rewritten by every refresh. All of its vectors are compared in every search, until the
next build merges them into the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wellread.io.arrays import Strings, map_arrays, save_arrays


@dataclass(frozen=True)
class Changes:
    """Entities that were added after the build; a changed entity is removed and added again."""

    ids: Sequence[str]
    titles: Sequence[str]
    texts: NDArray[np.uint64]
    vectors: NDArray[np.float32]
    gone: NDArray[np.int64]
    """Rows of the index that were removed, sorted."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def none(cls, dim: int) -> Changes:
        """Return an empty set of changes."""
        return cls([], [], np.zeros(0, np.uint64), np.zeros((0, dim), np.float32), np.zeros(0, np.int64))

    @cached_property
    def places(self) -> dict[str, int]:
        """Position of each id in `ids`."""
        return {id: place for place, id in enumerate(self.ids)}

    def with_changes(
        self,
        out: Iterable[str],
        gone: NDArray[np.int64],
        entities: Sequence[tuple[str, str]],
        texts: Sequence[int],
        vectors: NDArray[np.float32],
    ) -> Changes:
        """Return the changes without the ids in `out`, with more rows removed and (id, title) entities added."""
        leaving = set(out)
        stay = [place for place, id in enumerate(self.ids) if id not in leaving]
        return Changes(
            [self.ids[place] for place in stay] + [id for id, _ in entities],
            [self.titles[place] for place in stay] + [title for _, title in entities],
            np.append(self.texts[stay], np.array(texts, np.uint64)),
            np.concatenate([self.vectors[stay], vectors]),
            np.union1d(self.gone, gone),
        )

    def save(self, path: Path) -> None:
        """Write all changes to a file."""
        strings = Strings.pack(map(str.encode, self.ids), "ids") | Strings.pack(map(str.encode, self.titles), "titles")
        vectors = self.vectors.astype(np.float16)
        save_arrays(path, {**strings, "texts": self.texts, "vectors": vectors, "gone": self.gone}, {})

    @classmethod
    def load(cls, path: Path) -> Changes:
        """Read changes from a file; raise ValueError or KeyError if it is damaged."""
        found = map_arrays(path)
        ids, titles = Strings(found, "ids"), Strings(found, "titles")
        every = range(len(ids))
        vectors = found["vectors"].astype(np.float32)
        if not len(ids) == len(titles) == len(vectors) == len(found["texts"]):
            raise ValueError("its parts do not fit together")
        return cls(ids.take(every), titles.take(every), found["texts"].copy(), vectors, found["gone"].copy())
