"""Sentences with named entities in the columns of the CoNLL tasks: a word a line, a blank line between sentences.

    EU NNP I-NP I-ORG
    rejects VBZ I-VP O
    German JJ I-NP I-MISC

Which columns are word and tag can be said (`Columns`); usually the first and the last. Columns are parted by tabs, or
by blanks where a line has no tab. Tags are IOB1, IOB2, BIOES or BILOU (`evaluation.chunks`). A file of one column has
words alone: what is right is kept secret. Lines that begin with "#" and have another number of columns than the words
are comments (GermEval, MultiCoNER).

A document begins at "-DOCSTART-", "#begin document" or "# newdoc"; its other sentences are the context of each
(`NamedText.document`). Sentences before the first such line are alone, as all are in files without them (WNUT-17).

A line that is broken (another number of columns, no tag) is an `InputError` that names file and line; where a list
`skipped` is given, it gets the message and the sentence is left out, which then is nobody's context either.
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
from wellread.io.files import decode, make_or_tell, read_lines, told, write_atomically
from wellread.text.words import split

Span = tuple[int, int]

_DOCUMENT = re.compile(r"-DOCSTART-|#\s*begin document|#\s*newdoc\b")
_COMMENT = "#"


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file are read, from 0; below 0: from the end."""

    word: int = 0
    tag: int = -1


class Name(NamedTuple):
    """Characters of a text, from `start` up to `end` (exclusive), that name something of a kind."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class NamedText:
    """A sentence, the characters of its words, and what they name; `chunks` is None where that is kept secret."""

    id: str
    text: str
    words: tuple[Span, ...]
    chunks: tuple[Chunk, ...] | None = None
    document: tuple[str, ...] = field(default=(), repr=False)
    """The sentences of its document, itself among them; none where it is alone."""
    place: int = 0
    """Which of them it is."""
    missed: tuple[Name, ...] = ()
    """Names that no run of words is, since they begin or end within one: asked for, and never found."""

    @classmethod
    def of_words(cls, id: str, words: Sequence[str], chunks: Iterable[Chunk] | None = None) -> NamedText:
        """Words with blanks between them."""
        spans, begin = [], 0
        for word in words:
            spans.append((begin, begin + len(word)))
            begin += len(word) + 1
        return cls(id, " ".join(words), tuple(spans), None if chunks is None else tuple(chunks))

    @classmethod
    def of_text(cls, id: str, text: str) -> NamedText:
        """A text that a user asks about, in the words that it has by itself."""
        found = split(text)
        return cls(id, text, tuple(zip(found.starts.tolist(), found.ends.tolist(), strict=True)))

    def with_names(self, chunks: Iterable[Chunk], missed: Iterable[Name] = ()) -> NamedText:
        """The same text, of which it is known what its words name."""
        return replace(self, chunks=tuple(sorted(chunks)), missed=tuple(missed))

    def word(self, number: int) -> str:
        """The characters of a word."""
        return self.text[slice(*self.words[number])]


def read_conll(
    path: str | Path, columns: Columns | None = None, *, skipped: list[str] | None = None
) -> Iterator[NamedText]:
    """Sentences of a file, plain or compressed; `skipped` gets the reasons of what was left out."""
    columns = columns or Columns()
    document: list[NamedText] | None = None
    for number, rows in _sentences(path):
        if rows is None:
            yield from in_document(document or [])
            document = []
            continue
        found = make_or_tell(partial(_sentence, path, number, rows, columns), skipped)
        if document is None:
            yield from found
        else:
            document += found
    yield from in_document(document or [])


def write_conll(
    path: str | Path, sentences: Sequence[NamedText], predicted: Sequence[Iterable[Chunk]], *, scheme: Scheme = "IOB2"
) -> None:
    """Predictions as the CoNLL script takes them: word, gold tag (where it is known) and predicted tag in a line."""
    if any(_beyond_tags(one) for one in sentences):
        raise UsageError(
            "tags of words cannot tell names that overlap, or begin or end within a word; write to a file named .jsonl"
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
    """All labels that chunks have, in the order of letters."""
    return tuple(sorted({chunk.label for one in sentences for chunk in one.chunks or ()}))


def longest_name(sentences: Iterable[NamedText]) -> int:
    """How many words the longest chunk has; 0 where there is none."""
    return max((chunk.end - chunk.start for one in sentences for chunk in one.chunks or ()), default=0)


def in_document(sentences: Sequence[NamedText]) -> Iterator[NamedText]:
    """Sentences of one document, each with the others as its context."""
    texts = tuple(one.text for one in sentences)
    for place, one in enumerate(sentences):
        yield replace(one, document=texts, place=place)


def split_sentences(sentences: Sequence[NamedText], count: int) -> tuple[list[NamedText], list[NamedText]]:
    """(the rest, at least `count` for development): a document has all its sentences on one side."""
    return split_by(sentences, count, lambda one: "\n".join(one.document) or one.text)


def _sentences(path: str | Path) -> Iterator[tuple[int, list[tuple[int, list[str]]] | None]]:
    """The numbered rows of each sentence, with the number of its first line; None where a document begins."""
    rows: list[tuple[int, list[str]]] = []
    width: int | None = None
    for number, line in read_lines(path):
        said = decode(line, f"{told(path)}, line {number}")
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
            f"{told(path)} has {width} columns, and word is {columns.word}, tag is {columns.tag}; say which they are, "
            "from 0, or below 0 from the end"
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
            raise InputError(f"{told(path)}, line {line}: {error}; mend the line") from error
        words.append(cells[columns.word])
        tags.append(cells[columns.tag])
    return NamedText.of_words(str(number), words, chunks_of(tags) if width > 1 else None)


def _beyond_tags(one: NamedText) -> bool:
    chunks = sorted(one.chunks or ())
    return bool(one.missed) or any(first.end > second.start for first, second in pairwise(chunks))
