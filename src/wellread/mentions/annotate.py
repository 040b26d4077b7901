"""Named entities and phrases of a text from spaCy, from Stanza where it is installed, or from labels that a user has.

All give `Mention`s with a label and without candidates; `linker.py` looks those up, and `knowledge/maps.py` will draw
them. A tagger is loaded once and given texts in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from wellread.assets import find
from wellread.errors import InputError, MissingExtraError
from wellread.text import Mention

What = Literal["entities", "phrases"]


class SpacyAnnotator:
    """Named entities, noun phrases and parts of speech from a spaCy pipeline; the default model is a wellread asset."""

    def __init__(self, model: str | Path | None = None, *, what: What = "entities") -> None:
        try:
            import spacy
        except ImportError:
            raise MissingExtraError(
                "named entities from spaCy need it installed: pip install 'wellread[spacy]'"
            ) from None
        self.what = what
        try:
            # A folder is loaded as data; the package that carried it is never imported.
            self.pipeline = spacy.load(model if model is not None else find("spacy-en"))
        except OSError as error:
            raise InputError(
                f"spaCy cannot load {model}: {error}; give an installed model or a model folder"
            ) from error

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """The mentions of each text, labelled: "ORG", "PERSON", … or "NP"."""
        for parsed in self.pipeline.pipe(texts):
            spans = parsed.ents if self.what == "entities" else parsed.noun_chunks
            yield [Mention(span.start_char, span.end_char, span.text, label=span.label_) for span in spans]

    def tags(self, text: str) -> dict[tuple[int, int], str]:
        """The part of speech of each content word in WordNet's letters, as `CandidateFinder.mentions` takes them."""
        kinds = {"NOUN": "n", "PROPN": "n", "VERB": "v", "AUX": "v", "ADJ": "a", "ADV": "r"}
        return {
            (word.idx, word.idx + len(word.text)): kinds[word.pos_]
            for word in self.pipeline(text)
            if word.pos_ in kinds
        }


class StanzaAnnotator:
    """Named entities, or the phrases of a constituency tree, from Stanza (what the KAM paper uses)."""

    def __init__(self, folder: str | Path | None = None, *, what: What = "entities", language: str = "en") -> None:
        try:
            import stanza
        except ImportError:
            raise MissingExtraError("Stanza is not installed: pip install stanza") from None
        self.what = what
        processors = "tokenize,ner" if what == "entities" else "tokenize,pos,constituency"
        try:
            self.pipeline: Any = stanza.Pipeline(
                language, dir=None if folder is None else str(folder), processors=processors, download_method=None
            )
        except Exception as error:  # Stanza raises its own and many others when models are missing
            raise InputError(
                f"Stanza's models for {language!r} are not there ({error}); fetch them with stanza.download"
            ) from error

    def annotate(self, texts: Iterable[str]) -> Iterator[list[Mention]]:
        """The mentions of each text with Stanza's entity types or constituent labels."""
        for text in texts:
            parsed = self.pipeline(text)
            if self.what == "entities":
                yield [Mention(span.start_char, span.end_char, span.text, label=span.type) for span in parsed.ents]
            else:
                yield [mention for sentence in parsed.sentences for mention in _constituents(text, sentence)]


def _constituents(text: str, sentence: Any) -> Iterator[Mention]:
    """The inner nodes of a constituency tree that are no preterminals, as spans."""
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


def given(text: str, labels: Iterable[tuple[int, int, str | None]]) -> list[Mention]:
    """Mentions from (start, end, label) triples, in order; a span outside the text is an `InputError`."""
    mentions = []
    for start, end, label in sorted(labels, key=lambda entry: entry[:2]):
        if not 0 <= start < end <= len(text):
            raise InputError(f"the span {start}:{end} is not in the text of {len(text)} characters; end is exclusive")
        mentions.append(Mention(start, end, text[start:end], label=label))
    return mentions
