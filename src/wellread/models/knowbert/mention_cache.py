"""Cache of the mentions of a dataset's texts in one KB: found once, kept in a memory-mapped file.

A mention is a span of characters with the number of its candidate list. Each distinct list is stored once in a
`CandidateTable`, as rows of the KB's vectors. The file (safetensors layout) is named by a digest of the texts, the
state of the KB, the options and the vectors. It can be deleted: it is then made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from wellread.document import Candidate, short
from wellread.errors import InputError
from wellread.io import console
from wellread.io.arrays import Blocks, map_arrays, save_arrays
from wellread.io.files import storage
from wellread.kb.store import KnowledgeBase
from wellread.mentions.annotation_cache import digest_of
from wellread.mentions.candidate_lists import NONE, CandidateLists
from wellread.mentions.candidates import CandidateFinder, has_senses
from wellread.models.knowbert.config import NO_ENTITY, CandidateConfig
from wellread.text.tokenization import Mark
from wellread.text.words import Offsets

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64

OTHER_KB = -2
"""List number of a mark that belongs to another KB."""

_FORMAT = "wellread offers 1"
_PROGRESS_TEXTS = 10_000
"""Number of texts from which a progress bar is shown."""

MarkKey = tuple[str, str | None, Literal["text", "lemma", "name"]]
"""Lookup key of a mark: a word, the required kind, and the source of the word: the text, a lemma, or the class of a
name (see `NAME_LEMMAS`)."""

NAME_LEMMAS = ("person", "location", "group")
"""Lemmas that SemCor and similar data sets give to names ("Fulton County" is a location). The only candidate of such a
name is the first sense of its class (KnowBERT: allenai/kb)."""


class EntityRows(Protocol):
    """Row numbers of entities, as in `EntityVectors`; `file` changes whenever the rows may change."""

    @property
    def file(self) -> str: ...  # noqa: D102

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """Candidate lists end to end: list n has the rows and priors from `offsets[n]` up to `offsets[n + 1]`."""

    offsets: Offsets
    rows: NDArray[np.uint32]
    priors: NDArray[np.float32]

    @classmethod
    def of(cls, lists: Sequence[Sequence[Candidate]], vectors: EntityRows) -> CandidateTable:
        """Build a table; candidates without a vector are left out, and the remaining priors sum to 1."""
        owner = np.repeat(np.arange(len(lists)), [len(candidates) for candidates in lists])
        rows = vectors.rows_of([candidate.entity for candidates in lists for candidate in candidates])
        priors = np.array([candidate.prior for candidates in lists for candidate in candidates])
        known = np.flatnonzero(rows >= 0)
        owner, rows, priors = owner[known], rows[known], priors[known]
        totals = np.bincount(owner, priors, len(lists))[owner]
        counts = np.bincount(owner, minlength=len(lists))
        # Lists whose priors are all 0 get equal priors.
        priors = np.where(totals > 0, priors / np.where(totals > 0, totals, 1), 1 / counts[owner])
        return cls(np.append(0, np.cumsum(counts)), rows.astype(np.uint32), priors.astype(np.float32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Offsets:
        """Number of candidates in each list."""
        return np.diff(self.offsets)

    def joined(self, other: CandidateTable) -> CandidateTable:
        """Return these lists followed by the other ones."""
        offsets = np.append(self.offsets, other.offsets[1:] + self.offsets[-1])
        return CandidateTable(offsets, np.append(self.rows, other.rows), np.append(self.priors, other.priors))

    def take(self, numbers: Offsets) -> tuple[Int64[np.ndarray, "list cand"], Float32[np.ndarray, "list cand"]]:
        """Return rows and priors of some lists, padded to the longest of them."""
        table = self.only(numbers)
        counts = table.sizes
        candidate_mask = np.arange(max(1, int(counts.max(initial=0)))) < counts[:, None]
        rows = np.full(candidate_mask.shape, NO_ENTITY, np.int64)
        priors = np.zeros(candidate_mask.shape, np.float32)
        rows[candidate_mask], priors[candidate_mask] = table.rows, table.priors
        return rows, priors

    def only(self, numbers: Offsets) -> CandidateTable:
        """Return a table of some of the lists."""
        begins = self.offsets[numbers]
        counts = self.offsets[numbers + 1] - begins
        offsets = np.append(0, np.cumsum(counts))
        at = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begins, counts)
        return CandidateTable(offsets, self.rows[at], self.priors[at])


@dataclass(frozen=True, slots=True)
class KbMentions:
    """Mentions of all texts in one KB: those of text n are the entries from `offsets[n]` up to `offsets[n + 1]`."""

    offsets: Offsets
    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    numbers: NDArray[np.uint32]
    """Number of each mention's candidate list in `table`."""
    table: CandidateTable
    marked: dict[MarkKey, int] = field(default_factory=dict)
    """List numbers of the marks; `NONE` without candidates, `OTHER_KB` for marks of another KB."""
    gold: dict[str, int] = field(default_factory=dict)
    """Rows of the gold entities of marks, by id."""

    def save(self, path: Path) -> None:
        """Write the mentions and the candidate lists they use; marks are not written."""
        used, numbers = np.unique(self.numbers, return_inverse=True)
        table = self.table.only(used.astype(np.int64))
        arrays: dict[str, NDArray[Any] | Blocks] = {
            "offsets": self.offsets,
            "starts": self.starts,
            "ends": self.ends,
            "numbers": numbers.astype(np.uint32),
            "list_offsets": table.offsets,
            "rows": table.rows,
            "priors": table.priors,
        }
        save_arrays(path, arrays, {"format": _FORMAT})

    @classmethod
    def load(cls, path: Path) -> KbMentions:
        """Memory-map a saved file."""
        try:
            arrays = map_arrays(path)
            table = CandidateTable(arrays["list_offsets"], arrays["rows"], arrays["priors"])
            return cls(arrays["offsets"], arrays["starts"], arrays["ends"], arrays["numbers"], table)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is damaged ({error}); delete it, and it is made again") from error


@dataclass(frozen=True, slots=True)
class MentionCache:
    """Mentions of all texts of a dataset, by KB."""

    row_of: Mapping[str, int]
    of_kb: Mapping[str, KbMentions]

    def rows(self, texts: Iterable[str]) -> list[int]:
        """Return the numbers of texts; a text that was not annotated is an `InputError`."""
        try:
            return [self.row_of[text] for text in texts]
        except KeyError as missing:
            raise InputError(
                f"the text {short(missing.args[0], 60)!r} was not annotated; give all inputs to "
                "KnowBertProvider.prepare first"
            ) from None


class MentionFinder:
    """Finder of the mentions of one KB in texts, with candidates as rows of its vectors."""

    def __init__(self, kb: KnowledgeBase, vectors: EntityRows, config: CandidateConfig) -> None:
        self.kb, self.vectors, self.config = kb, vectors, config
        self._finder = CandidateFinder(kb, config.match_options(kb))
        self._lists: CandidateLists | None = None
        self._table = CandidateTable.of([], vectors)
        self._kinds: dict[tuple[str, int], bool] = {}

    def find(self, texts: Sequence[str], *, title: str, folder: Path | None = None) -> KbMentions:
        """Find the mentions of texts, or load them from the folder that caches them."""
        if folder is None:
            return self._find(texts, title)
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        while True:
            state = self._state()
            path = folder / f"offers-{digest_of(_FORMAT, *state, *texts)}.safetensors"
            if not path.exists():
                with FileLock(path.with_name(f".{path.name}.lock")):
                    if not path.exists():
                        mentions = self._find(texts, title)
                        if self._state() != state:  # the KB was changed meanwhile
                            continue
                        mentions.save(path)
            return KbMentions.load(path)

    def add_marks(self, mentions: KbMentions, marks: Iterable[tuple[str, Mark]]) -> KbMentions:
        """Return the mentions with candidates and gold rows of (text, mark) pairs added."""
        pairs = sorted(marks, key=str)
        marked = {mark_key(*pair): OTHER_KB for pair in pairs}
        own = [pair for pair in pairs if self._has_kind_of(pair[1])]
        keys = list(dict.fromkeys(mark_key(*pair) for pair in own))
        table = CandidateTable.of([self._candidates(*key) for key in keys], self.vectors)
        numbers = np.where(table.sizes > 0, np.arange(len(table)) + len(mentions.table), NONE)
        marked.update(zip(keys, numbers.tolist(), strict=True))
        gold = sorted({id for _, mark in own for id in mark.gold})
        return replace(
            mentions,
            table=mentions.table.joined(table) if len(table) else mentions.table,
            marked=marked,
            gold=dict(zip(gold, self.vectors.rows_of(gold).tolist(), strict=True)),
        )

    def _has_kind_of(self, mark: Mark) -> bool:
        """Return False for a mark of another KB: no entity of this KB has its kind."""
        if not self.config.marks or mark.kind is None:
            return self.config.marks
        state = mark.kind, self.kb.revision
        if state not in self._kinds:
            query = "SELECT EXISTS (SELECT 1 FROM entities WHERE kind = ?)"
            self._kinds[state] = bool(self.kb.connection.execute(query, (mark.kind,)).fetchone()[0])
        return self._kinds[state]

    def _candidates(self, name: str, kind: str | None, source: Literal["text", "lemma", "name"]) -> Sequence[Candidate]:
        if source == "text":
            return self._finder.meanings(name, kind)
        kinds = None if kind is None else (kind,)
        limit = 1 if source == "name" and has_senses(self.kb) else self.config.candidates
        return self.kb.candidates(name, case=self.config.case, kinds=kinds, limit=limit)

    def _find(self, texts: Sequence[str], title: str) -> KbMentions:
        if len(texts) < _PROGRESS_TEXTS:
            found = self._finder.find(texts)
        else:
            with console.step_bar(f"finding mentions ({title})", 0, len(texts)) as tell:
                found = self._finder.find(texts, tell=lambda done: tell(done, "texts"))
        if found.lists is not self._lists:  # the KB was changed, or the finder has dropped its lists
            self._lists, self._table = found.lists, CandidateTable.of([], self.vectors)
        if len(self._table) < len(found.lists):
            self._table = self._table.joined(CandidateTable.of(found.lists.lists[len(self._table) :], self.vectors))
        known = self._table.sizes[found.numbers] > 0
        before = np.append(0, np.cumsum(known))
        starts, ends, numbers = (
            column[known].astype(np.uint32) for column in (found.starts, found.ends, found.numbers)
        )
        return KbMentions(before[found.offsets], starts, ends, numbers, self._table)

    def _state(self) -> tuple[str, ...]:
        metadata = self.kb.metadata
        stops = " ".join(sorted(self._finder.stop_words))
        return metadata["uid"], metadata["revision"], repr(self._finder.reading), stops, self.vectors.file


def mark_key(text: str, mark: Mark) -> MarkKey:
    """Return the lookup key of a mark in a text."""
    word = text[mark.start : mark.end]
    if mark.lemma is None:
        return word, mark.kind, "text"
    is_name = mark.lemma in NAME_LEMMAS and mark.kind == "n" and word.lower() not in (mark.lemma, f"{mark.lemma}s")
    return mark.lemma, mark.kind, "name" if is_name else "lemma"
