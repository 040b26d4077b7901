"""A name mapper that follows the changes of its KB."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from wellread.kb.store import KnowledgeBase

if TYPE_CHECKING:
    from wellread.mapping.mapper import Meaning, NameMapper


class CurrentMapper:
    """Makes the mapper of a KB when it is first asked for, and again after a change of the KB; threads may share it.

    `meaning` returns the vectors of the KB's current revision, or None for names only. `among` restricts the entities.
    """

    def __init__(
        self,
        kb: KnowledgeBase,
        meaning: Callable[[], Meaning | None] = lambda: None,
        among: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        self.kb, self._meaning, self._among = kb, meaning, among
        self._made: tuple[int, NameMapper] | None = None
        self._lock = Lock()

    def get(self) -> NameMapper:
        """Return the mapper of the KB's current revision."""
        from wellread.mapping.mapper import NameMapper  # here: linkers that map nothing start without scipy
        from wellread.mapping.name_index import NameIndex

        with self._lock:
            revision = self.kb.revision
            if self._made is None or self._made[0] != revision:
                self._made = revision, NameMapper(NameIndex.of_kb(self.kb, self._among()), self._meaning())
            return self._made[1]
