"""Named entities and phrases of a text from spaCy, from Stanza if installed, or from given labels.

`annotate` yields `Mention`s with a label and without candidates, which the linker looks up. `mark` yields `Marks`:
entities, phrases and parse trees of a text as arrays, from which `models/kam/inputs.py` builds attention maps. A tagger
is loaded once and processes texts in batches.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int32

from wellread.assets import find
from wellread.document import Mention
from wellread.errors import InputError, MissingExtraError, install_extra

What = Literal["entities", "phrases"]


def _none(width: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.zeros((0, width), np.int32)


@dataclass(frozen=True, slots=True)
class Marks:
    """Output of a tagger, parser or linker for one text. Offsets are characters; leaves are a parser's words."""

    mentions: Int32[np.ndarray, "mention 2"] = field(default_factory=lambda: _none(2))
    names: tuple[str, ...] = ()
    """For each mention its entity, or a tagger's label; "" for NIL."""
    leaves: Int32[np.ndarray, "leaf 2"] = field(default_factory=lambda: _none(2))
    heads: Int32[np.ndarray, "leaf 1"] = field(default_factory=lambda: _none(1))
    """Head of each leaf in the dependency tree; a root is its own head."""
    constituents: Int32[np.ndarray, "node 3"] = field(default_factory=lambda: _none(3))
    """(first leaf, last leaf + 1, level) of each inner node of a constituency tree; preterminals have level 0."""
    chunks: Int32[np.ndarray, "chunk 2"] = field(default_factory=lambda: _none(2))
    """Noun chunks."""


def _rows(rows: Sequence[Sequence[int]], width: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(rows, np.int32).reshape(-1, width)


_NO_SPACY = f"named entities and phrases from spaCy need spaCy; {install_extra('spacy')}"
_NO_STANZA = "Stanza is not installed: pip install stanza"


class SpacyAnnotator:
    """Named entities, noun phrases and parts of speech from a spaCy pipeline; the default model is a wellread asset."""

    def __init__(self, model: str | Path | None = None, *, what: What = "entities") -> None:
        try:
            import spacy
        except ImportError:
            raise MissingExtraError(_NO_SPACY) from None
        self.what = what
        try:
            # A folder is loaded as data; the package it came in is never imported.
            self.pipeline = spacy.load(model if model is not None else find("spacy-en"))
        except OSError as error:
            raise InputError(
                f"spaCy cannot load {model}: {error}; give an installed model or a model folder"
            ) from error

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """Yield the mentions of each text, labelled: "ORG", "PERSON", … or "NP"."""
        for parsed in self.pipeline.pipe(texts):
            spans = parsed.ents if self.what == "entities" else parsed.noun_chunks
            yield [Mention(span.start_char, span.end_char, span.text, label=span.label_) for span in spans]

    @staticmethod
    def fingerprint(model: str | Path | None = None) -> str:
        """Return a string that differs between models with different results, without loading the model."""
        try:
            version = importlib.metadata.version("spacy")
        except importlib.metadata.PackageNotFoundError:
            raise MissingExtraError(_NO_SPACY) from None
        about = Path(model if model is not None else find("spacy-en")) / "meta.json"
        if not about.is_file():  # an installed model
            return f"spacy {version} {model} {_version(str(model))}"
        return f"spacy {version} {blake2b(about.read_bytes(), digest_size=8).hexdigest()}"

    def mark(self, texts: Iterable[str]) -> Iterator[Marks]:
        """Yield entities, noun chunks and dependency trees of each text, as far as the pipeline has them.

        With `what="phrases"` noun chunks are required.
        """
        for parsed in self.pipeline.pipe(texts, disable=["lemmatizer"]):
            heads, chunks = _none(1), _none(2)
            if parsed.has_annotation("DEP"):
                heads = _rows([[leaf.head.i] for leaf in parsed], 1)
            try:
                chunks = _rows([(chunk.start_char, chunk.end_char) for chunk in parsed.noun_chunks], 2)
            except (ValueError, NotImplementedError) as error:  # no parser, or a language without noun chunks
                if self.what == "phrases":
                    about = self.pipeline.meta
                    raise InputError(
                        f"the spaCy model {about['lang']}_{about['name']} finds no noun chunks ({error}); give a model "
                        "that does, such as en_core_web_sm, or read phrases from dependency trees"
                    ) from None
            yield Marks(
                mentions=_rows([(span.start_char, span.end_char) for span in parsed.ents], 2),
                names=tuple(span.label_ for span in parsed.ents),
                leaves=_rows([(leaf.idx, leaf.idx + len(leaf.text)) for leaf in parsed], 2),
                heads=heads,
                chunks=chunks,
            )

    def tags(self, text: str) -> dict[tuple[int, int], str]:
        """Return the part of speech of each content word in WordNet's letters, for `CandidateFinder.mentions`."""
        kinds = {"NOUN": "n", "PROPN": "n", "VERB": "v", "AUX": "v", "ADJ": "a", "ADV": "r"}
        return {
            (word.idx, word.idx + len(word.text)): kinds[word.pos_]
            for word in self.pipeline(text)
            if word.pos_ in kinds
        }


class StanzaAnnotator:
    """Named entities, or the phrases of a constituency tree, from Stanza (as in the KAM paper)."""

    def __init__(self, folder: str | Path | None = None, *, what: What = "entities", language: str = "en") -> None:
        try:
            import stanza
        except ImportError:
            raise MissingExtraError(_NO_STANZA) from None
        self.what = what
        processors = "tokenize,ner" if what == "entities" else "tokenize,pos,constituency"
        try:
            self.pipeline: Any = stanza.Pipeline(
                language, dir=None if folder is None else str(folder), processors=processors, download_method=None
            )
        except Exception as error:  # Stanza raises its own errors and many others when models are missing
            raise InputError(
                f"Stanza's models for {language!r} are not there ({error}); fetch them with stanza.download"
            ) from error

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """Yield the mentions of each text with Stanza's entity types or constituent labels."""
        for text in texts:
            parsed = self.pipeline(text)
            if self.what == "entities":
                yield [Mention(span.start_char, span.end_char, span.text, label=span.type) for span in parsed.ents]
            else:
                yield [mention for sentence in parsed.sentences for mention in _constituents(text, sentence)]

    @staticmethod
    def fingerprint(folder: str | Path | None = None, language: str = "en") -> str:
        """Return a string that differs between sets of models: versions, and Stanza's list of models."""
        try:
            version = importlib.metadata.version("stanza")
        except importlib.metadata.PackageNotFoundError:
            raise MissingExtraError(_NO_STANZA) from None
        listed = Path(folder) / "resources.json" if folder is not None else None
        digest = blake2b(listed.read_bytes(), digest_size=8).hexdigest() if listed and listed.is_file() else ""
        return f"stanza {version} {language} {digest}".rstrip()

    def mark(self, texts: Iterable[str]) -> Iterator[Marks]:
        """Yield the entities, or the constituency trees, of each text."""
        for text in texts:
            parsed = self.pipeline(text)
            if self.what == "entities":
                spans = parsed.ents
                mentions = _rows([(span.start_char, span.end_char) for span in spans], 2)
                yield Marks(mentions=mentions, names=tuple(span.type for span in spans))
                continue
            leaves: list[tuple[int, int]] = []
            nodes: list[tuple[int, int, int]] = []
            for sentence in parsed.sentences:
                nodes += _levels(sentence.constituency, len(leaves))
                leaves += [_place(word) for word in sentence.words]
            yield Marks(leaves=_rows(leaves, 2), constituents=_rows(nodes, 3))


def _place(word: Any) -> tuple[int, int]:
    """Return the span of a word of Stanza; parts of a contraction may only have that of the whole."""
    whole = word if word.start_char is not None else word.parent
    return whole.start_char, whole.end_char


def _levels(root: Any, first: int) -> list[tuple[int, int, int]]:
    """Return (first leaf, last leaf + 1, level) of a tree's inner nodes, children first; leaves count from `first`.

    A preterminal has level 0, an inner node 1 + the highest of its children (Bai et al. 2022, eq. 6).
    """
    found = []

    def walk(tree: Any, first: int) -> tuple[int, int]:
        """Return the end and the level of a node."""
        if tree.is_leaf() or tree.is_preterminal():
            return first + 1, 0
        last, level = first, 0
        for child in tree.children:
            last, below = walk(child, last)
            level = max(level, below)
        found.append((first, last, level + 1))
        return last, level + 1

    walk(root, first)
    return found


def _constituents(text: str, sentence: Any) -> Iterator[Mention]:
    """Yield the inner nodes of a constituency tree, without preterminals, as mentions."""
    leaves = [(word.start_char, word.end_char) for word in sentence.words]

    def walk(tree: Any, first: int) -> tuple[int, list[Mention]]:
        if tree.is_leaf():
            return first + 1, []
        last, inside = first, []
        for child in tree.children:
            last, deeper = walk(child, last)
            inside += deeper
        if not tree.is_preterminal() and tree.label != "ROOT":
            start, end = leaves[first][0], leaves[last - 1][1]
            inside.insert(0, Mention(start, end, text[start:end], label=tree.label))
        return last, inside

    yield from walk(sentence.constituency, 0)[1]


def _version(package: str) -> str:
    """Return the version of an installed model; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""


def given(text: str, labels: Iterable[tuple[int, int, str | None]]) -> list[Mention]:
    """Return mentions from (start, end, label) triples, in order; a span outside the text is an `InputError`."""
    mentions = []
    for start, end, label in sorted(labels, key=lambda entry: entry[:2]):
        if not 0 <= start < end <= len(text):
            raise InputError(f"the span {start}:{end} is not in the text of {len(text)} characters; end is exclusive")
        mentions.append(Mention(start, end, text[start:end], label=label))
    return mentions
