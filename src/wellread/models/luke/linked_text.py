"""Linked text as a model is pretrained with it: windows of pieces with their entities, in shards on disk, mapped.

Consecutive paragraphs of a page are one text; it is cut into windows that lose no mention
(`models.luke.mention_windows`). What is kept of a window are numbers: pieces, where words begin, the rows of its
entities and where they lie. So a corpus of any size is read once, and learning takes as much memory as a batch. Shards
are written one by one, whole or not at all: a build that was killed goes on behind the last. `windows.json` is written
last.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt64
from numpy.typing import NDArray

from wellread.document import Document, short
from wellread.errors import InputError
from wellread.io.arrays import map_arrays, save_arrays
from wellread.io.files import storage, write_atomically
from wellread.models.luke.mention_windows import Lost, Marked, MentionTokenizer
from wellread.models.luke.vocabulary import EntityVocabulary, Unknown
from wellread.text import words as names
from wellread.text.tokenization import Mark

FORMAT = "wellread windows 1"
WITHIN, BEGINS, SPECIAL = 0, 1, 2
"""What a piece is: inside a word, the first of one (or of none), or special."""
_MANIFEST = "windows.json"
_PAGES = 256
"""Pages that are cut together."""
_SHARD = 1 << 22


@dataclass(frozen=True, slots=True)
class Window:
    """One input: pieces, what they are, and its entities."""

    ids: Int64[np.ndarray, " token"]
    roles: NDArray[np.uint8]
    rows: Int64[np.ndarray, " entity"]
    """Of the entity vocabulary."""
    spans: Int64[np.ndarray, "entity 2"]
    """The first and the last piece of each."""
    names: UInt64[np.ndarray, " entity"]
    """The key of what each is called here (`text.words.key`)."""


@dataclass(slots=True)
class MentionCounts:
    """What became of the mentions of a corpus."""

    pages: int = 0
    kept: int = 0
    nil: int = 0
    """Linked to nothing."""
    unknown: int = 0
    """Linked to what the vocabulary has not; left out, unless these are to be [UNK]."""
    lost: int = 0
    """In no window."""
    first_lost: str = ""

    def note(self, lost: Iterable[tuple[str, Lost]]) -> None:
        """Count mentions that are in no window; the first is told in full."""
        for text, one in lost:
            self.lost += 1
            self.first_lost = self.first_lost or f"{short(text[one.mark.start : one.mark.end], 60)!r}: {one.why}"

    def report(self) -> str:
        """In a line for a person."""
        lost = f", {self.lost:,} did not fit (the first: {self.first_lost})" if self.lost else ""
        return (
            f"{self.pages:,} pages with {self.kept:,} mentions; {self.nil:,} are linked to nothing, "
            f"{self.unknown:,} to what is not in the vocabulary{lost}"
        )


@dataclass(frozen=True)
class LinkedWindows:
    """All windows of a corpus, or some of them (`take`)."""

    shards: tuple[dict[str, NDArray[Any]], ...] = field(repr=False)
    where: Int64[np.ndarray, "window 2"] = field(repr=False)
    """The shard of each, and its place there."""
    told: MentionCounts = field(default_factory=MentionCounts)

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, place: int) -> Window:
        shard, at = self.where[place]
        arrays = self.shards[shard]
        tokens, entities = (slice(*arrays[name][at : at + 2].tolist()) for name in ("piece_ends", "entity_ends"))
        return Window(
            arrays["ids"][tokens].astype(np.int64),
            arrays["roles"][tokens],
            arrays["rows"][entities].astype(np.int64),
            arrays["spans"][entities].astype(np.int64),
            arrays["names"][entities],
        )

    @property
    def lengths(self) -> Int64[np.ndarray, " window"]:
        """How many pieces each has."""
        return self._gather([_sizes(arrays["piece_ends"]) for arrays in self.shards])

    def _gather(self, found: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """What is found of every window of each shard, for these windows."""
        starts = np.cumsum([0, *(len(some) for some in found)])[:-1]
        return np.asarray(np.concatenate(found)[starts[self.where[:, 0]] + self.where[:, 1]])

    def take(self, places: Sequence[int] | NDArray[np.int64]) -> LinkedWindows:
        """Some of them."""
        return replace(self, where=self.where[np.asarray(places, np.int64)])

    def split(self, develop: int, most: int | None = None) -> tuple[LinkedWindows, LinkedWindows]:
        """(those to learn from, `most` at most; at least `develop` to develop on), page by page.

        Pages are chosen by what they are called or say, so that every run develops on the same.
        """
        pages = self._gather([arrays["pages"] for arrays in self.shards])
        order = np.argsort(pages, kind="stable")
        while 0 < develop < len(order) and pages[order[develop]] == pages[order[develop - 1]]:
            develop += 1
        rest = order[develop:]
        if not len(rest):
            raise InputError(f"all {len(order):,} windows would be developed on; lower develop, or give more text")
        return self.take(np.sort(rest[:most])), self.take(order[:develop])

    # counts

    def count_rows(self, rows: int) -> Int64[np.ndarray, " row"]:
        """How often each row of the vocabulary is linked to in these windows."""
        total = np.zeros(rows, np.int64)
        for found, _ in self._entities():
            total += np.bincount(found, minlength=rows)
        return total

    def count_tokens(self, tokens: int) -> Int64[np.ndarray, " token"]:
        """How often each ordinary piece of the tokenizer is in these windows."""
        total = np.zeros(tokens, np.int64)
        for shard, arrays in enumerate(self.shards):
            mine = self._mask(shard, "piece_ends") & (arrays["roles"] != SPECIAL)
            total += np.bincount(arrays["ids"][mine], minlength=tokens)
        return total

    def name_keys(self) -> UInt64[np.ndarray, " name"]:
        """The keys of all names in these windows, each once."""
        found = [np.unique(keys) for _, keys in self._entities()]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)

    def best_named(self, among: UInt64[np.ndarray, " name"]) -> dict[int, int]:
        """The row that each of these names means most often here, by the name's key; the first row of equals."""
        counts: Counter[tuple[int, int]] = Counter()
        for rows, keys in self._entities():
            asked = np.isin(keys, among)  # a corpus has more names than memory has room for
            counts.update(zip(keys[asked].tolist(), rows[asked].tolist(), strict=True))
        best: dict[int, tuple[int, int]] = {}
        for (key, row), count in counts.items():
            best[key] = min(best.get(key, (0, 0)), (-count, row))
        return {key: row for key, (_, row) in best.items()}

    def _entities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        for shard, arrays in enumerate(self.shards):
            mine = self._mask(shard, "entity_ends")
            yield arrays["rows"][mine].astype(np.int64), arrays["names"][mine]

    def _mask(self, shard: int, ends: str) -> NDArray[np.bool_]:
        """Which pieces or entities of a shard are in these windows."""
        borders = self.shards[shard][ends]
        chosen = np.zeros(len(borders) - 1, np.bool_)
        chosen[self.where[self.where[:, 0] == shard, 1]] = True
        return np.repeat(chosen, _sizes(borders))

    # files

    @classmethod
    def open(cls, folder: str | Path) -> LinkedWindows:
        """Map the windows in a folder."""
        folder = Path(folder)
        try:
            about = json.loads((folder / _MANIFEST).read_bytes())
            shards = tuple(map_arrays(folder / name) for name in about["shards"])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder} has no windows ({error}); delete it, and they are made again") from error
        where = [
            np.stack((np.full(len(arrays["pages"]), shard), np.arange(len(arrays["pages"]))), 1)
            for shard, arrays in enumerate(shards)
        ]
        return cls(shards, np.concatenate(where).astype(np.int64), MentionCounts(**about["told"]))

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        window_tokenizer: MentionTokenizer,
        vocabulary: EntityVocabulary,
        folder: str | Path,
        *,
        digest: str,
        unknown: Unknown = "drop",
        page: str = "doc",
        shard: int = _SHARD,
    ) -> LinkedWindows:
        """Cut documents into windows in a folder, or go on there; `digest` is another one for other documents.

        `page` is what a line calls the page that it is of; consecutive ones of a page are one text.
        """
        folder = Path(folder)
        settings = (
            FORMAT,
            digest,
            vocabulary.fingerprint,
            unknown,
            page,
            shard,
            window_tokenizer.longest,
            window_tokenizer.most,
        )
        tokens = window_tokenizer.tokenizer.to_str()
        state = hashlib.blake2b(repr((settings, tokens)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            if json.loads((folder / _MANIFEST).read_bytes()).get("state") == state:
                return cls.open(folder)
        except (OSError, ValueError):
            pass
        done, told = _finished(folder, state)
        pages = islice(read_pages(documents, page), told.pages, None)
        for arrays in _shards(pages, window_tokenizer, vocabulary, unknown, told, shard):
            name = f"{state}-{len(done):05}.safetensors"
            save_arrays(folder / name, arrays, {"told": json.dumps(_as_dict(told))})
            done.append(name)
        if not done:
            raise InputError("there is no text to learn from; are the files empty, or all their lines broken?")
        with write_atomically(folder / _MANIFEST) as file:
            about = {"state": state, "shards": done, "told": _as_dict(told)}
            file.write(json.dumps(about, indent=2).encode() + b"\n")
        return cls.open(folder)


def _sizes(ends: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(ends[1:] - ends[:-1], np.int64)


def read_pages(documents: Iterable[Document], page: str = "doc") -> Iterator[tuple[str, Document]]:
    """Consecutive documents of one page as one, with the page's name; one that names no page is its own."""
    numbered = enumerate(documents)
    for (name, _), some in groupby(numbered, key=lambda pair: _page_of(pair[1], page, pair[0])):
        parts = [document for _, document in some]
        text, links = parts[0].text, list(parts[0].links)
        for part in parts[1:]:
            shift = len(text) + 1
            text = f"{text}\n{part.text}"
            links += [replace(link, start=link.start + shift, end=link.end + shift) for link in part.links]
        yield name or text, Document(text, tuple(links))


def _page_of(document: Document, page: str, number: int) -> tuple[str, int]:
    name = document.meta.get(page)
    return ("", number) if name is None else (str(name), -1)


def _finished(folder: Path, state: str) -> tuple[list[str], MentionCounts]:
    """The shards of a build that was killed, and what it had told by then."""
    done: list[str] = []
    told = MentionCounts()
    while (path := folder / f"{state}-{len(done):05}.safetensors").exists():
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        told = MentionCounts(**json.loads(header["__metadata__"]["told"]))
        done.append(path.name)
    return done, told


def _as_dict(told: MentionCounts) -> dict[str, Any]:
    return {name: getattr(told, name) for name in MentionCounts.__slots__}


def _shards(
    pages: Iterator[tuple[str, Document]],
    window_tokenizer: MentionTokenizer,
    vocabulary: EntityVocabulary,
    unknown: Unknown,
    told: MentionCounts,
    size: int,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Windows as arrays, about so many pieces at a time; `told` is what was told up to there."""
    ready: list[dict[str, NDArray[Any]]] = []
    while some := list(islice(pages, _PAGES)):
        inputs = [((document.text,), _marks(document, vocabulary, unknown, told)) for _, document in some]
        found: list[tuple[int, Marked]] = []
        for (name, document), tokenized in zip(some, window_tokenizer.tokenize_many(inputs), strict=True):
            page = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())
            found += [(page, window) for window in tokenized.windows if not window.special_mask.all()]
            told.note((document.text, lost) for lost in tokenized.lost)
        told.pages += len(some)
        told.kept += sum(len(window.marks) for _, window in found)
        ready += [_as_arrays(found, vocabulary)] if found else []
        if sum(len(arrays["ids"]) for arrays in ready) >= size:
            yield _joined(ready)
            ready = []
    if ready:
        yield _joined(ready)


def _marks(document: Document, vocabulary: EntityVocabulary, unknown: Unknown, told: MentionCounts) -> list[Mark]:
    marks = []
    for link in document.links:
        if link.entity is None:
            told.nil += 1
            continue
        if link.entity not in vocabulary:
            told.unknown += 1
            if unknown == "drop":
                continue
        marks.append(Mark(0, link.start, link.end, gold=(link.entity,)))
    return marks


def _as_arrays(windows: Sequence[tuple[int, Marked]], vocabulary: EntityVocabulary) -> dict[str, NDArray[Any]]:
    """Windows as arrays; of ends, how many pieces and entities each has."""
    roles = []
    marks = [(one.texts[mark.segment][mark.start : mark.end], mark.gold[0]) for _, one in windows for mark in one.marks]
    for _, one in windows:
        role = np.full(len(one), BEGINS, np.uint8)
        role[1:][(one.word_of[1:] == one.word_of[:-1]) & (one.word_of[1:] >= 0)] = WITHIN
        role[one.special_mask] = SPECIAL
        roles.append(role)
    return {
        "ids": np.concatenate([one.ids for _, one in windows]).astype(np.uint32),
        "roles": np.concatenate(roles),
        "piece_ends": np.array([len(one) for _, one in windows], np.int64),
        "rows": vocabulary.rows_of(entity for _, entity in marks).astype(np.uint32),
        "spans": (np.concatenate([one.mark_tokens for _, one in windows]) - [0, 1]).astype(np.uint16),
        "names": names.keys([name for name, _ in marks]),
        "entity_ends": np.array([len(one.marks) for _, one in windows], np.int64),
        "pages": np.array([page for page, _ in windows], np.uint64),
    }


def _joined(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    made = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name in ("piece_ends", "entity_ends"):
        made[name] = np.concatenate(([0], np.cumsum(made[name])))
    return made
