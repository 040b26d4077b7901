"""Cache of annotations of a dataset's texts by taggers, parsers and linkers, in memory-mapped Arrow files.

Each text is annotated once, however many inputs it is part of. There is one file per source (`spacy-….arrow`), whose
name is a digest of the texts and of the source's fingerprint; its rows are the texts, sorted. Any tool for Arrow's IPC
format can open it. It is derived data: if deleted, it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from wellread.document import Document, Link, short
from wellread.errors import InputError
from wellread.io import console
from wellread.io.files import storage, write_atomically
from wellread.mentions.annotators import Marks, SpacyAnnotator, StanzaAnnotator, What
from wellread.text.tokenization import owners
from wellread.text.words import Offsets, split

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_FORMAT = "wellread annotations 1"
_WIDTHS = {"mentions": 2, "leaves": 2, "heads": 1, "constituents": 3, "chunks": 2}
"""Arrays of `Marks` and their numbers of columns; `names` are strings."""
_TOGETHER = 1 << 16
"""Characters that are split into words at a time."""


class Source(Protocol):
    """Protocol of annotation sources: `fingerprint` changes with the results; `mark` annotates batches of texts."""

    name: str

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def mark(self, texts: Iterable[str]) -> Iterator[Marks]: ...  # noqa: D102


class Tagger:
    """A tagger or parser that is loaded on first use."""

    def __init__(self, name: str, load: Callable[[], Any], fingerprint: Callable[[], str]) -> None:
        self.name, self._load, self._fingerprint = name, cache(load), fingerprint

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of its model."""
        return self._fingerprint()

    def mark(self, texts: Iterable[str]) -> Iterator[Marks]:
        """Yield the annotations of each text."""
        return cast(Iterator[Marks], self._load().mark(texts))


TaggerName = Literal["spacy", "stanza", "stanza-phrases"]


@cache
def tagger(name: TaggerName, model: str | None = None) -> Tagger:
    """Return the (cached) tagger: spaCy, or Stanza for entities or phrases, with its default model or another."""
    if name == "spacy":
        return Tagger(name, lambda: SpacyAnnotator(model), lambda: SpacyAnnotator.fingerprint(model))
    what: What = "entities" if name == "stanza" else "phrases"
    return Tagger(name, lambda: StanzaAnnotator(model, what=what), lambda: StanzaAnnotator.fingerprint(model))


class Links:
    """Links of a linker, or of given documents, as a source: `Links(linker.link_many, fingerprint="vital 3, elq")`."""

    def __init__(
        self, link: Callable[[list[str]], Iterable[Document]], *, fingerprint: str, name: str = "links"
    ) -> None:
        self._link, self.fingerprint, self.name = link, fingerprint, name

    @classmethod
    def given(cls, documents: Iterable[Document], *, name: str = "given") -> Links:
        """Use the links of given documents; a text without a document is an `InputError`."""
        known = {document.text: document for document in documents}
        digest = blake2b(digest_size=16)
        for text in sorted(known):
            digest.update(known[text].to_json().encode("utf-8", "surrogatepass") + b"\n")

        def look_up(texts: list[str]) -> Iterator[Document]:
            for text in texts:
                if text not in known:
                    raise InputError(
                        f"no given document has the text {short(text, 60)!r}; give a document for every text, one "
                        "without links where nothing is named"
                    )
                yield known[text]

        return cls(look_up, fingerprint=digest.hexdigest(), name=name)

    def mark(self, texts: Iterable[str]) -> Iterator[Marks]:
        """Yield the links of each text as mentions."""
        for document in self._link(list(texts)):
            spans = np.array([(link.start, link.end) for link in document.links], np.int32).reshape(-1, 2)
            yield Marks(mentions=spans, names=tuple(link.entity or "" for link in document.links))


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths in one array; row r is `values[offsets[r] : offsets[r + 1]]`."""

    values: NDArray[Any]
    offsets: Offsets

    def owners(self) -> Offsets:
        """Return the row of each value."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


class Annotations:
    """Annotations of texts, as arrays over all of them; derived arrays are computed on first use."""

    def __init__(self, texts: Sequence[str], tables: Mapping[str, pa.Table]) -> None:
        self.texts = tuple(texts)
        self._row_of = {text: row for row, text in enumerate(self.texts)}
        self._tables = tables
        self._made: dict[Hashable, Any] = {}
        self.terms: dict[bytes, tuple[str, ...]] = {}
        """Cache of auxiliary terms by the words of an input."""

    def row_of(self, text: str) -> int:
        """Return the row of a text; a text that was not annotated is an `InputError`."""
        row = self._row_of.get(text)
        if row is None:
            raise InputError(
                f"the text {short(text, 60)!r} was not annotated; give all inputs to KamProvider.prepare first"
            )
        return row

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached result of `make`, called at the first use of `key`."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])

    def marks(self, source: str, what: str) -> Ragged:
        """Return one of the arrays of `Marks` for all texts."""
        column = self._column(source, what)
        values = column.values.to_numpy(zero_copy_only=True).reshape(-1, _WIDTHS[what])
        return Ragged(values, column.offsets.to_numpy(zero_copy_only=True) // _WIDTHS[what])

    def names(self, source: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return the name of every mention as a number, and the names."""

        def number() -> tuple[NDArray[np.int64], list[str]]:
            coded = self._column(source, "names").values.dictionary_encode()
            return np.asarray(coded.indices, np.int64), coded.dictionary.to_pylist()

        return self.once((source, "names"), number)

    def document(self, source: str, text: str) -> Document:
        """Return a text with the annotations of a source as links; a tagger's label takes the place of the entity."""
        row, marks, (numbers, names) = self.row_of(text), self.marks(source, "mentions"), self.names(source)
        found = range(int(marks.offsets[row]), int(marks.offsets[row + 1]))
        spans = (marks.values[at].tolist() for at in found)
        entities = (names[numbers[at]] or None for at in found)
        links = (
            Link(start, end, text[start:end], entity) for (start, end), entity in zip(spans, entities, strict=True)
        )
        return Document(text, tuple(links))

    @property
    def words(self) -> Ragged:
        """Return (start, end) of every word, counted through all texts with one character between them."""
        return self.once("words", lambda: _words(self.texts, self._bases))

    @property
    def _bases(self) -> Offsets:
        """Return the start of each text."""

        def count() -> Offsets:
            lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
            return np.cumsum(lengths + 1) - (lengths + 1)

        return self.once("bases", count)

    def mentions(self, source: str) -> Ragged:
        """Return (first word, last word + 1) of every mention in its text, of words that overlap it.

        A mention of white space has no words: the two are equal.
        """

        def find() -> Ragged:
            marks, words = self.marks(source, "mentions"), self.words
            rows = marks.owners()
            spans = marks.values + self._bases[rows, None]
            first = np.searchsorted(words.values[:, 1], spans[:, 0], side="right") - words.offsets[rows]
            last = np.searchsorted(words.values[:, 0], spans[:, 1], side="left") - words.offsets[rows]
            return Ragged(np.stack((first, np.maximum(first, last)), axis=1), marks.offsets)

        return self.once((source, "mentions"), find)

    def owners(self, source: str, what: str) -> Offsets:
        """Return for every word the leaf or chunk that it overlaps most, counted through all texts; -1 for none."""

        def find() -> Offsets:
            marks = self.marks(source, what)
            return owners(self.words.values, marks.values + self._bases[marks.owners(), None])

        return self.once((source, what), find)

    def _column(self, source: str, what: str) -> Any:
        column = self._tables[source].column(what)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def annotate(texts: Iterable[str], sources: Iterable[Source], *, folder: str | Path | None = None) -> Annotations:
    """Annotate texts by all sources; annotations in `folder`, if given, are reused."""
    distinct = sorted(set(texts))
    tables = {}
    for source in {source.name: source for source in sources}.values():
        if folder is None:
            tables[source.name] = _table(distinct, source)
        else:
            digest = digest_of(_FORMAT, source.fingerprint, *distinct)
            tables[source.name] = cached(
                Path(folder) / f"{source.name}-{digest}.arrow", partial(_table, distinct, source)
            )
    return Annotations(distinct, tables)


def digest_of(*parts: str) -> str:
    """Return a digest of strings with their lengths, so that only the same strings in order are equal."""
    digest = blake2b(digest_size=12)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cached(path: Path, make: Callable[[], pa.Table]) -> pa.Table:
    """Map the table of an Arrow file; if missing, one process makes it while others wait."""
    import pyarrow as pa

    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                table = make()
                with write_atomically(path) as file, pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and it is made again") from error


def _table(texts: Sequence[str], source: Source) -> pa.Table:
    """Annotate texts by a source, one row for each."""
    import pyarrow as pa

    arrays: dict[str, list[NDArray[np.int32]]] = {what: [] for what in _WIDTHS}
    names: list[tuple[str, ...]] = []
    with console.step_bar(f"annotating ({source.name})", 0, len(texts)) as tell:
        for number, marks in enumerate(source.mark(texts), 1):
            for what in _WIDTHS:
                arrays[what].append(getattr(marks, what))
            names.append(marks.names)
            tell(number, "texts")
    if len(names) != len(texts):
        raise InputError(
            f"the source {source.name!r} gave {len(names)} results for {len(texts)} texts; expected one for each, in "
            "their order"
        )
    for what in ("mentions", "leaves", "chunks"):
        for text, spans in zip(texts, arrays[what], strict=True):
            if len(spans) and (spans.min() < 0 or spans[:, 1].max() > len(text)):
                raise InputError(
                    f"the source {source.name!r} has {what} outside of the {len(text)} characters of "
                    f"{short(text, 60)!r}; spans are characters of the text as it was given, end exclusive"
                )
    columns = {what: _lists(pa, parts, _WIDTHS[what]) for what, parts in arrays.items()}
    columns["names"] = pa.array([list(row) for row in names], pa.large_list(pa.string()))
    return pa.table(columns).combine_chunks() if texts else pa.table(columns)


def _lists(pa: Any, parts: Sequence[NDArray[np.int32]], width: int) -> Any:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([part.size for part in parts], out=offsets[1:])
    flat = np.concatenate([part.reshape(-1) for part in parts]) if parts else np.zeros(0, np.int32)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat, pa.int32()))


def _words(texts: Sequence[str], bases: Offsets) -> Ragged:
    """The words of all texts, split together: the line end between two texts is a blank that no word crosses."""
    spans, begin = [np.zeros((0, 2), np.int64)], 0
    while begin < len(texts):
        size, end = 0, begin
        while end < len(texts) and (end == begin or size + len(texts[end]) <= _TOGETHER):
            size += len(texts[end])
            end += 1
        found = split("\n".join(texts[begin:end]))
        spans.append(np.stack((found.starts, found.ends), axis=1) + bases[begin])
        begin = end
    values = np.concatenate(spans)
    total = bases[-1] + len(texts[-1]) + 1 if len(texts) else 0
    return Ragged(values, np.searchsorted(values[:, 0], np.append(bases, total)))
