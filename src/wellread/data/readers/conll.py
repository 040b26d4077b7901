"""Sentences with named entities in the columns of the CoNLL tasks: one word per line, a blank line after a sentence.

    EU NNP I-NP I-ORG
    rejects VBZ I-VP O
    German JJ I-NP I-MISC

`Columns` chooses the columns of word and tag, by default the first and the last. Columns are separated by tabs, or by
blanks if a line has no tab. Tags are IOB1, IOB2, BIOES or BILOU (`evaluation.chunks`). A file of one column has words
only: its labels are secret. Lines that begin with "#" and have another number of columns than the words are comments
(GermEval, MultiCoNER).

A document begins at "-DOCSTART-", "#begin document" or "# newdoc"; its other sentences are the context of each
(`NamedText.document`). Sentences before the first such line have no context, as in files without documents (WNUT-17).

A broken line (another number of columns, no tag) is an `InputError` that names file and line; with a list as `skipped`,
it gets the message and the sentence is left out, also as context.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from wellread.data.splits import split_by
from wellread.document import short
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk, Scheme, chunks_of, split_tag, tags_of
from wellread.io.files import decode, make_or_skip, path_name, read_lines, write_atomically
from wellread.text.words import split

Span = tuple[int, int]

_DOCUMENT = re.compile(r"-DOCSTART-|#\s*begin document|#\s*newdoc\b")
_COMMENT = "#"


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a file that are read, from 0; below 0: from the end."""

    word: int = 0
    tag: int = -1


class Name(NamedTuple):
    """A span of characters from `start` up to `end` (exclusive) with a label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class NamedText:
    """A sentence, the spans of its words, and its named entities; `chunks` is None if they are secret."""

    id: str
    text: str
    words: tuple[Span, ...]
    chunks: tuple[Chunk, ...] | None = None
    document: tuple[str, ...] = field(default=(), repr=False)
    """Sentences of its document, including itself; empty without context."""
    place: int = 0
    """Index of this sentence in `document`."""
    missed: tuple[Name, ...] = ()
    """Names that begin or end within a word, so that no run of words matches: counted as gold, never found."""

    @classmethod
    def of_words(cls, id: str, words: Sequence[str], chunks: Iterable[Chunk] | None = None) -> NamedText:
        """Build from words, joined by blanks."""
        spans, begin = [], 0
        for word in words:
            spans.append((begin, begin + len(word)))
            begin += len(word) + 1
        return cls(id, " ".join(words), tuple(spans), None if chunks is None else tuple(chunks))

    @classmethod
    def of_text(cls, id: str, text: str) -> NamedText:
        """Build from a user's text, split into words."""
        found = split(text)
        return cls(id, text, tuple(zip(found.starts.tolist(), found.ends.tolist(), strict=True)))

    def with_names(self, chunks: Iterable[Chunk], missed: Iterable[Name] = ()) -> NamedText:
        """Return the same text with known chunks."""
        return replace(self, chunks=tuple(sorted(chunks)), missed=tuple(missed))

    def word(self, number: int) -> str:
        """Return the text of a word."""
        return self.text[slice(*self.words[number])]


def read_conll(
    path: str | Path, columns: Columns | None = None, *, skipped: list[str] | None = None
) -> Iterator[NamedText]:
    """Yield the sentences of a file, plain or compressed; `skipped` gets the reasons of what was left out."""
    columns = columns or Columns()
    document: list[NamedText] | None = None
    for number, rows in _sentences(path):
        if rows is None:
            yield from in_document(document or [])
            document = []
            continue
        found = make_or_skip(partial(_sentence, path, number, rows, columns), skipped)
        if document is None:
            yield from found
        else:
            document += found
    yield from in_document(document or [])


def write_conll(
    path: str | Path, sentences: Sequence[NamedText], predicted: Sequence[Iterable[Chunk]], *, scheme: Scheme = "IOB2"
) -> None:
    """Write predictions for the CoNLL script: word, gold tag (if known) and predicted tag per line."""
    if any(_beyond_tags(one) for one in sentences):
        raise UsageError(
            "tags of words cannot represent names that overlap, or begin or end within a word; write to a file named "
            ".jsonl"
        )
    with write_atomically(path) as file:
        for sentence, ours in zip(sentences, predicted, strict=True):
            count = len(sentence.words)
            columns = [[sentence.word(number).replace(" ", "_") for number in range(count)]]
            if sentence.chunks is not None:
                columns.append(tags_of(sentence.chunks, count, scheme=scheme))
            columns.append(tags_of(ours, count, scheme=scheme))
            file.write("".join(f"{' '.join(row)}\n" for row in zip(*columns, strict=True)).encode() + b"\n")


def find_labels(sentences: Iterable[NamedText]) -> tuple[str, ...]:
    """Return all labels of chunks, sorted."""
    return tuple(sorted({chunk.label for one in sentences for chunk in one.chunks or ()}))


def longest_name(sentences: Iterable[NamedText]) -> int:
    """Return the number of words of the longest chunk; 0 if there is none."""
    return max((chunk.end - chunk.start for one in sentences for chunk in one.chunks or ()), default=0)


def in_document(sentences: Sequence[NamedText]) -> Iterator[NamedText]:
    """Yield the sentences of one document, each with the others as its context."""
    texts = tuple(one.text for one in sentences)
    for place, one in enumerate(sentences):
        yield replace(one, document=texts, place=place)


def split_sentences(sentences: Sequence[NamedText], count: int) -> tuple[list[NamedText], list[NamedText]]:
    """Return (the rest, at least `count` for validation); a document has all its sentences on one side."""
    return split_by(sentences, count, lambda one: "\n".join(one.document) or one.text)


def _sentences(path: str | Path) -> Iterator[tuple[int, list[tuple[int, list[str]]] | None]]:
    """Yield the numbered rows of each sentence, with its first line number; None at the beginning of a document."""
    rows: list[tuple[int, list[str]]] = []
    width: int | None = None
    for number, line in read_lines(path):
        said = decode(line, f"{path_name(path)}, line {number}")
        cells = said.split("\t") if "\t" in said else said.split()
        begins = _DOCUMENT.match(said) is not None
        if begins or not said.strip():
            if rows:
                yield rows[0][0], rows
                rows = []
            if begins:
                yield number, None
        elif said.startswith(_COMMENT) and len(cells) != width and (width is not None or len(cells) > 1):
            continue
        else:
            width = width or len(cells)
            rows.append((number, [cell.strip() for cell in cells]))
    if rows:
        yield rows[0][0], rows


def _sentence(path: str | Path, number: int, rows: Sequence[tuple[int, list[str]]], columns: Columns) -> NamedText:
    width = len(rows[0][1])
    if not (-width <= columns.word < width and -width <= columns.tag < width):
        raise UsageError(
            f"{path_name(path)} has {width} columns, and word is {columns.word}, tag is {columns.tag}; give their "
            "numbers from 0, or below 0 from the end"
        )
    words, tags = [], []
    for line, cells in rows:
        try:
            if len(cells) != width:
                raise InputError(f"{len(cells)} columns, expected {width} as above: {short(' '.join(cells), 40)!r}")
            if not cells[columns.word]:
                raise InputError("a tag without a word")
            if width > 1:
                split_tag(cells[columns.tag])
        except InputError as error:
            raise InputError(f"{path_name(path)}, line {line}: {error}; mend the line") from error
        words.append(cells[columns.word])
        tags.append(cells[columns.tag])
    return NamedText.of_words(str(number), words, chunks_of(tags) if width > 1 else None)


def _beyond_tags(one: NamedText) -> bool:
    chunks = sorted(one.chunks or ())
    return bool(one.missed) or any(first.end > second.start for first, second in pairwise(chunks))
