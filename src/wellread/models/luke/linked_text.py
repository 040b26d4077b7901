"""Linked text for pretraining: windows of tokens with their entities, in memory-mapped shards on disk.

Consecutive paragraphs of a page are one text, which is split into windows without losing a mention
(`models.luke.mention_windows`). A window is stored as numbers: token ids, word borders, and the rows and spans of its
entities. So a corpus is tokenized once, and training needs the memory of a batch, whatever the size of the corpus.
Shards are written atomically, one after the other, and an interrupted build resumes after the last. `windows.json` is
written at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from wellread.models.luke.mention_windows import DroppedMention, MentionTokenizer, MentionWindow
from wellread.models.luke.vocabulary import EntityVocabulary, Unknown
from wellread.text import words as names
from wellread.text.tokenization import Mark

FORMAT = "wellread windows 1"
WITHIN, BEGINS, SPECIAL = 0, 1, 2
"""Role of a token: inside a word, the first of a word (or outside any), or special."""
_MANIFEST = "windows.json"
_PAGES = 256
"""Pages tokenized together."""
_SHARD = 1 << 22


@dataclass(frozen=True, slots=True)
class LinkedWindow:
    """Token ids, token roles and entities of one input."""

    ids: Int64[np.ndarray, " token"]
    roles: NDArray[np.uint8]
    rows: Int64[np.ndarray, " entity"]
    """Rows of the entity vocabulary."""
    spans: Int64[np.ndarray, "entity 2"]
    """First and last token of each mention."""
    names: UInt64[np.ndarray, " entity"]
    """Key of each mention's text (`text.words.key`)."""


@dataclass(slots=True)
class MentionCounts:
    """Statistics of the mentions of a corpus."""

    pages: int = 0
    kept: int = 0
    nil: int = 0
    """Mentions linked to NIL."""
    unknown: int = 0
    """Mentions of entities outside the vocabulary; dropped, or [UNK] by option."""
    lost: int = 0
    """Mentions that are in no window."""
    first_lost: str = ""

    def add_dropped(self, dropped: Iterable[tuple[str, DroppedMention]]) -> None:
        """Count mentions that are in no window, and keep the first as an example."""
        for text, mention in dropped:
            self.lost += 1
            name = short(text[mention.mark.start : mention.mark.end], 60)
            self.first_lost = self.first_lost or f"{name!r}: {mention.reason}"

    def report(self) -> str:
        """Return the statistics as one line."""
        dropped = f", {self.lost:,} did not fit (the first: {self.first_lost})" if self.lost else ""
        return (
            f"{self.pages:,} pages with {self.kept:,} mentions; {self.nil:,} are NIL, "
            f"{self.unknown:,} are of entities outside the vocabulary{dropped}"
        )


@dataclass(frozen=True)
class LinkedWindows:
    """Sequence of the windows of a corpus, or of a selection (`take`)."""

    shards: tuple[dict[str, NDArray[Any]], ...] = field(repr=False)
    where: Int64[np.ndarray, "window 2"] = field(repr=False)
    """Shard of each window, and its index there."""
    counts: MentionCounts = field(default_factory=MentionCounts)

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, place: int) -> LinkedWindow:
        shard, at = self.where[place]
        arrays = self.shards[shard]
        tokens, entities = (slice(*arrays[name][at : at + 2].tolist()) for name in ("piece_ends", "entity_ends"))
        return LinkedWindow(
            arrays["ids"][tokens].astype(np.int64),
            arrays["roles"][tokens],
            arrays["rows"][entities].astype(np.int64),
            arrays["spans"][entities].astype(np.int64),
            arrays["names"][entities],
        )

    @property
    def lengths(self) -> Int64[np.ndarray, " window"]:
        """Number of tokens of each window."""
        return self._gather([_sizes(arrays["piece_ends"]) for arrays in self.shards])

    def _gather(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Select these windows from values of all windows of each shard."""
        starts = np.cumsum([0, *(len(part) for part in values)])[:-1]
        return np.asarray(np.concatenate(values)[starts[self.where[:, 0]] + self.where[:, 1]])

    def take(self, places: Sequence[int] | NDArray[np.int64]) -> LinkedWindows:
        """Return the windows at these indices."""
        return replace(self, where=self.where[np.asarray(places, np.int64)])

    def split(self, develop: int, most: int | None = None) -> tuple[LinkedWindows, LinkedWindows]:
        """Return training windows (at most `most`) and at least `develop` validation windows, of different pages.

        Pages are selected by a hash of their name or text, so that every run validates on the same ones.
        """
        pages = self._gather([arrays["pages"] for arrays in self.shards])
        order = np.argsort(pages, kind="stable")
        while 0 < develop < len(order) and pages[order[develop]] == pages[order[develop - 1]]:
            develop += 1
        rest = order[develop:]
        if not len(rest):
            raise InputError(
                f"all {len(order):,} windows would be used for validation; lower develop, or give more text"
            )
        return self.take(np.sort(rest[:most])), self.take(order[:develop])

    def count_rows(self, rows: int) -> Int64[np.ndarray, " row"]:
        """Return the number of mentions of each row of the vocabulary."""
        total = np.zeros(rows, np.int64)
        for found, _ in self._entities():
            total += np.bincount(found, minlength=rows)
        return total

    def count_tokens(self, tokens: int) -> Int64[np.ndarray, " token"]:
        """Return the number of occurrences of each token id, without special tokens."""
        total = np.zeros(tokens, np.int64)
        for shard, arrays in enumerate(self.shards):
            mask = self._mask(shard, "piece_ends") & (arrays["roles"] != SPECIAL)
            total += np.bincount(arrays["ids"][mask], minlength=tokens)
        return total

    def name_keys(self) -> UInt64[np.ndarray, " name"]:
        """Return the distinct keys of all names."""
        found = [np.unique(keys) for _, keys in self._entities()]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)

    def best_named(self, among: UInt64[np.ndarray, " name"]) -> dict[int, int]:
        """Return {key: row} of the entity that each of these names is most often linked to; ties by row."""
        counts: Counter[tuple[int, int]] = Counter()
        for rows, keys in self._entities():
            wanted = np.isin(keys, among)  # counting all names of a corpus would take too much memory
            counts.update(zip(keys[wanted].tolist(), rows[wanted].tolist(), strict=True))
        best: dict[int, tuple[int, int]] = {}
        for (key, row), count in counts.items():
            best[key] = min(best.get(key, (0, 0)), (-count, row))
        return {key: row for key, (_, row) in best.items()}

    def _entities(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        for shard, arrays in enumerate(self.shards):
            mask = self._mask(shard, "entity_ends")
            yield arrays["rows"][mask].astype(np.int64), arrays["names"][mask]

    def _mask(self, shard: int, ends: str) -> NDArray[np.bool_]:
        """Return a mask of the tokens or entities of a shard that are in these windows."""
        borders = self.shards[shard][ends]
        chosen = np.zeros(len(borders) - 1, np.bool_)
        chosen[self.where[self.where[:, 0] == shard, 1]] = True
        return np.repeat(chosen, _sizes(borders))

    @classmethod
    def open(cls, folder: str | Path) -> LinkedWindows:
        """Memory-map the windows in a folder."""
        folder = Path(folder)
        try:
            about = json.loads((folder / _MANIFEST).read_bytes())
            shards = tuple(map_arrays(folder / name) for name in about["shards"])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder} has no valid windows ({error}); delete it to build them again") from error
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
        """Tokenize documents into windows in a folder, or resume there; `digest` identifies the documents.

        `page` is the metadata field with the name of a document's page; consecutive documents of a page are one text.
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
        done, counts = _finished(folder, state)
        pages = islice(read_pages(documents, page), counts.pages, None)
        for arrays in _shards(pages, window_tokenizer, vocabulary, unknown, counts, shard):
            name = f"{state}-{len(done):05}.safetensors"
            save_arrays(folder / name, arrays, {"told": json.dumps(asdict(counts))})
            done.append(name)
        if not done:
            raise InputError("there is no text to train on; check that the files have valid, non-empty lines")
        with write_atomically(folder / _MANIFEST) as file:
            about = {"state": state, "shards": done, "told": asdict(counts)}
            file.write(json.dumps(about, indent=2).encode() + b"\n")
        return cls.open(folder)


def _sizes(ends: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(ends[1:] - ends[:-1], np.int64)


def read_pages(documents: Iterable[Document], page: str = "doc") -> Iterator[tuple[str, Document]]:
    """Yield (name, document) of each page, its consecutive documents joined; without a name a document is a page."""
    numbered = enumerate(documents)
    for (name, _), group in groupby(numbered, key=lambda pair: _page_of(pair[1], page, pair[0])):
        parts = [document for _, document in group]
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
    """Return the shards of an interrupted build, and the statistics after the last of them."""
    done: list[str] = []
    counts = MentionCounts()
    while (path := folder / f"{state}-{len(done):05}.safetensors").exists():
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        counts = MentionCounts(**json.loads(header["__metadata__"]["told"]))
        done.append(path.name)
    return done, counts


def _shards(
    pages: Iterator[tuple[str, Document]],
    window_tokenizer: MentionTokenizer,
    vocabulary: EntityVocabulary,
    unknown: Unknown,
    counts: MentionCounts,
    size: int,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield shards of about `size` tokens as arrays, and update `counts`."""
    ready: list[dict[str, NDArray[Any]]] = []
    while batch := list(islice(pages, _PAGES)):
        inputs = [((document.text,), _marks(document, vocabulary, unknown, counts)) for _, document in batch]
        found: list[tuple[int, MentionWindow]] = []
        for (name, document), tokenized in zip(batch, window_tokenizer.tokenize_many(inputs), strict=True):
            page = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())
            found += [(page, window) for window in tokenized.windows if not window.special_mask.all()]
            counts.add_dropped((document.text, mention) for mention in tokenized.dropped)
        counts.pages += len(batch)
        counts.kept += sum(len(window.marks) for _, window in found)
        ready += [_as_arrays(found, vocabulary)] if found else []
        if sum(len(arrays["ids"]) for arrays in ready) >= size:
            yield _joined(ready)
            ready = []
    if ready:
        yield _joined(ready)


def _marks(document: Document, vocabulary: EntityVocabulary, unknown: Unknown, counts: MentionCounts) -> list[Mark]:
    marks = []
    for link in document.links:
        if link.entity is None:
            counts.nil += 1
            continue
        if link.entity not in vocabulary:
            counts.unknown += 1
            if unknown == "drop":
                continue
        marks.append(Mark(0, link.start, link.end, gold=(link.entity,)))
    return marks


def _as_arrays(windows: Sequence[tuple[int, MentionWindow]], vocabulary: EntityVocabulary) -> dict[str, NDArray[Any]]:
    """Return windows as arrays; `piece_ends` and `entity_ends` are sizes here, which `_joined` sums up."""
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
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name in ("piece_ends", "entity_ends"):
        joined[name] = np.concatenate(([0], np.cumsum(joined[name])))
    return joined
