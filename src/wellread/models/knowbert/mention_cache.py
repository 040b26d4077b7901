"""The mentions of a dataset's texts in one knowledge base: found once, kept in a file and mapped.

A text's mentions are spans of characters, each with the number of its list of candidates; a list, however many mentions
have it, stands in a `CandidateTable` once, as rows of the KB's vectors. The file (safetensors layout) is named by a
digest of the texts, the state of the KB, the settings and the vectors. It is derived: delete it and it is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from filelock import FileLock
from jaxtyping import Float32, Int64
from numpy.typing import NDArray

from wellread.document import Candidate, short
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.arrays import Blocks, map_arrays, save_arrays
from wellread.io.files import storage
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase
from wellread.mentions.annotation_cache import digest_of
from wellread.mentions.candidate_lists import NONE, CandidateLists
from wellread.mentions.candidates import CandidateFinder, MatchOptions, has_senses
from wellread.mentions.matcher import Overlaps
from wellread.text.stopwords import spacy_stop_words
from wellread.text.tokenization import Mark
from wellread.text.words import Case, Offsets

NO_ENTITY, MASK_ENTITY = -1, -2
"""What stands for a row where there is no candidate, and where what the text hides must not be told."""

PASSED_OVER = -2
"""Stands for the list of a mark that speaks of another knowledge base."""

_FORMAT = "wellread offers 1"
_MANY = 10_000
"""Texts that it takes a while to read, so that one is told how far it is."""

Asked = tuple[str, str | None, Literal["text", "lemma", "name"]]
"""Key that a mark is looked up by: a word, the kind it must have, and where the word is from: the text, a lemma, or
the class of a name (see `NAME_LEMMAS`)."""

NAME_LEMMAS = ("person", "location", "group")
"""Lemmas that SemCor and its kin give to names ("Fulton County" is a location): a name has the first sense of its class
for its only candidate (KnowBERT: allenai/kb)."""


class Rows(Protocol):
    """What knows the rows of entities, as `EntityVectors` does; `file` changes when they would."""

    @property
    def file(self) -> str: ...  # noqa: D102

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class CandidateConfig:
    """How the mentions of one knowledge base are looked for."""

    overlaps: Overlaps = "all"
    case: Case = "folded"
    max_words: int | None = None
    """Words of a mention at most; without it 6 for WordNet, 5 for names."""
    min_chars: int = 2
    candidates: int = MOST_CANDIDATES
    """Candidates of a mention at most, those with the best priors."""
    marks: bool = True
    """Whether mentions that the data names are taken up."""
    stop_words: Literal["usual", "knowbert"] = "usual"
    """usual: names made of stop words alone are passed over. knowbert: names that begin or end with one of spaCy's stop
    words ("many"), as KnowBERT's authors do for Wikipedia."""

    def __post_init__(self) -> None:
        for name, least in (("max_words", 1), ("min_chars", 1), ("candidates", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} = {value}; it cannot be less than {least}")

    def reading(self, kb: KnowledgeBase) -> MatchOptions:
        """The same for a `CandidateFinder`."""
        words = self.max_words or (6 if has_senses(kb) else 5)
        if self.stop_words == "usual":
            return MatchOptions(self.overlaps, self.case, None, self.min_chars, words, self.candidates)
        return MatchOptions(self.overlaps, self.case, (), self.min_chars, words, self.candidates, spacy_stop_words())


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """Lists of candidates end to end: list n has the rows and priors from `offsets[n]` up to `offsets[n + 1]`."""

    offsets: Offsets
    rows: NDArray[np.uint32]
    priors: NDArray[np.float32]

    @classmethod
    def of(cls, lists: Sequence[Sequence[Candidate]], vectors: Rows) -> CandidateTable:
        """Candidates without a vector are left out, and the priors of the others made whole."""
        owner = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
        rows = vectors.rows_of([candidate.entity for one in lists for candidate in one])
        priors = np.array([candidate.prior for one in lists for candidate in one])
        there = np.flatnonzero(rows >= 0)
        owner, rows, priors = owner[there], rows[there], priors[there]
        totals = np.bincount(owner, priors, len(lists))[owner]
        counts = np.bincount(owner, minlength=len(lists))
        # Candidates whose priors are all 0 are as likely as each other.
        priors = np.where(totals > 0, priors / np.where(totals > 0, totals, 1), 1 / counts[owner])
        return cls(np.append(0, np.cumsum(counts)), rows.astype(np.uint32), priors.astype(np.float32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Offsets:
        """How many candidates each list has."""
        return np.diff(self.offsets)

    def joined(self, other: CandidateTable) -> CandidateTable:
        """These lists, then others."""
        offsets = np.append(self.offsets, other.offsets[1:] + self.offsets[-1])
        return CandidateTable(offsets, np.append(self.rows, other.rows), np.append(self.priors, other.priors))

    def take(self, numbers: Offsets) -> tuple[Int64[np.ndarray, "list cand"], Float32[np.ndarray, "list cand"]]:
        """Rows and priors of some lists, as wide as the longest of them."""
        begins = self.offsets[numbers]
        counts = self.offsets[numbers + 1] - begins
        columns = np.arange(max(1, int(counts.max(initial=0))))
        there = columns < counts[:, None]
        rows = np.full(there.shape, NO_ENTITY, np.int64)
        priors = np.zeros(there.shape, np.float32)
        at = (begins[:, None] + columns)[there]
        rows[there], priors[there] = self.rows[at], self.priors[at]
        return rows, priors

    def only(self, numbers: Offsets) -> CandidateTable:
        """Some of the lists."""
        begins = self.offsets[numbers]
        counts = self.offsets[numbers + 1] - begins
        offsets = np.append(0, np.cumsum(counts))
        at = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begins, counts)
        return CandidateTable(offsets, self.rows[at], self.priors[at])


@dataclass(frozen=True, slots=True)
class Notes:
    """What was found for one knowledge base: the mentions of text n are the rows from `offsets[n]` on."""

    offsets: Offsets
    starts: NDArray[np.uint32]
    ends: NDArray[np.uint32]
    numbers: NDArray[np.uint32]
    """The list in `book` that a mention has."""
    table: CandidateTable
    marked: dict[Asked, int] = field(default_factory=dict)
    """The lists of marks by what they are looked up by; `NONE` where nothing is known of one."""
    gold: dict[str, int] = field(default_factory=dict)
    """The rows of what marks mean."""

    def save(self, path: Path) -> None:
        """Write all but what is known of marks, with those lists only that some mention has."""
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
    def load(cls, path: Path) -> Notes:
        """Map what was written."""
        try:
            found = map_arrays(path)
            table = CandidateTable(found["list_offsets"], found["rows"], found["priors"])
            return cls(found["offsets"], found["starts"], found["ends"], found["numbers"], table)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is damaged ({error}); delete it, and it is made again") from error


@dataclass(frozen=True, slots=True)
class MentionCache:
    """The mentions of all texts of a dataset, for each knowledge base."""

    row_of: Mapping[str, int]
    of_kb: Mapping[str, Notes]

    def rows(self, texts: Iterable[str]) -> list[int]:
        """The rows of texts; one that was not annotated is an `InputError`."""
        try:
            return [self.row_of[text] for text in texts]
        except KeyError as missing:
            raise InputError(
                f"the text {short(missing.args[0], 60)!r} was not annotated; give all inputs to "
                "KnowBertProvider.prepare first"
            ) from None


class Finder:
    """Finds the mentions of texts in one knowledge base, with the rows of what they may mean."""

    def __init__(self, kb: KnowledgeBase, vectors: Rows, config: CandidateConfig) -> None:
        self.kb, self.vectors, self.config = kb, vectors, config
        self._finder = CandidateFinder(kb, config.reading(kb))
        self._lists: CandidateLists | None = None
        self._table = CandidateTable.of([], vectors)
        self._kinds: dict[tuple[str, int], bool] = {}

    def notes(self, texts: Sequence[str], *, title: str, folder: Path | None = None) -> Notes:
        """The mentions of texts; with a folder to keep them in, those it has are not looked for again."""
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
                        made = self._find(texts, title)
                        if self._state() != state:  # the KB was changed meanwhile
                            continue
                        made.save(path)
            return Notes.load(path)

    def marked(self, notes: Notes, marks: Iterable[tuple[str, Mark]]) -> Notes:
        """Notes that also know what marks may mean, and the rows of what they do mean; with each mark its text."""
        pairs = sorted(marks, key=str)
        asked = {asked_by(*pair): PASSED_OVER for pair in pairs}
        taken = [pair for pair in pairs if self._takes(pair[1])]
        names = list(dict.fromkeys(asked_by(*pair) for pair in taken))
        table = CandidateTable.of([self._meanings(*one) for one in names], self.vectors)
        numbers = np.where(table.sizes > 0, np.arange(len(table)) + len(notes.table), NONE)
        asked.update(zip(names, numbers.tolist(), strict=True))
        gold = sorted({id for _, mark in taken for id in mark.gold})
        return replace(
            notes,
            table=notes.table.joined(table) if len(table) else notes.table,
            marked=asked,
            gold=dict(zip(gold, self.vectors.rows_of(gold).tolist(), strict=True)),
        )

    def _takes(self, mark: Mark) -> bool:
        """Whether a mark speaks of this KB: one of a kind that nothing here has speaks of another."""
        if not self.config.marks or mark.kind is None:
            return self.config.marks
        state = mark.kind, self.kb.revision
        if state not in self._kinds:
            query = "SELECT EXISTS (SELECT 1 FROM entities WHERE kind = ?)"
            self._kinds[state] = bool(self.kb.connection.execute(query, (mark.kind,)).fetchone()[0])
        return self._kinds[state]

    def _meanings(self, name: str, kind: str | None, how: Literal["text", "lemma", "name"]) -> Sequence[Candidate]:
        if how == "text":
            return self._finder.meanings(name, kind)
        kinds = None if kind is None else (kind,)
        limit = 1 if how == "name" and has_senses(self.kb) else self.config.candidates
        return self.kb.candidates(name, case=self.config.case, kinds=kinds, limit=limit)

    def _find(self, texts: Sequence[str], title: str) -> Notes:
        if len(texts) < _MANY:
            found = self._finder.find(texts)
        else:
            with console.step_bar(f"finding mentions ({title})", 0, len(texts)) as tell:
                found = self._finder.find(texts, tell=lambda done: tell(done, "texts"))
        if found.lists is not self._lists:  # the KB was changed, or so many lists were met that one begins anew
            self._lists, self._table = found.lists, CandidateTable.of([], self.vectors)
        if len(self._table) < len(found.lists):
            self._table = self._table.joined(CandidateTable.of(found.lists.lists[len(self._table) :], self.vectors))
        there = self._table.sizes[found.numbers] > 0
        before = np.append(0, np.cumsum(there))
        starts, ends, numbers = (
            column[there].astype(np.uint32) for column in (found.starts, found.ends, found.numbers)
        )
        return Notes(before[found.offsets], starts, ends, numbers, self._table)

    def _state(self) -> tuple[str, ...]:
        about = self.kb.metadata
        stops = " ".join(sorted(self._finder.stop_words))
        return about["uid"], about["revision"], repr(self._finder.reading), stops, self.vectors.file


def asked_by(text: str, mark: Mark) -> Asked:
    """What a mark in a text is looked up by."""
    stands = text[mark.start : mark.end]
    if mark.lemma is None:
        return stands, mark.kind, "text"
    is_name = mark.lemma in NAME_LEMMAS and mark.kind == "n" and stands.lower() not in (mark.lemma, f"{mark.lemma}s")
    return mark.lemma, mark.kind, "name" if is_name else "lemma"
