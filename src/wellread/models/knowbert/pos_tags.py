"""Parts of speech of a text's words, to keep their senses apart: "leaves" after "the" are no verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wellread.linking.decoding import Ints
from wellread.mentions.annotators import SpacyAnnotator

KINDS = ("n", "v", "a", "r")
"""Parts of speech as WordNet names them."""
_KIND_OF = {"NOUN": 0, "PROPN": 0, "VERB": 1, "AUX": 1, "ADJ": 2, "ADV": 3}
_NO_WORD, _NOT_TAGGED = -2, -3
_RULER = "attribute_ruler"
_OWN = {"TAG", "POS", "DEP", "ORTH", "TEXT", "LOWER", "SHAPE", "LENGTH", "IS_SPACE", "IS_ALPHA", "IS_PUNCT", "IS_DIGIT"}
"""What patterns may ask of a word by itself."""
_TOGETHER = 32
"""Texts that spaCy tags at a time: few enough for the cache."""
_AT_ONCE = 50_000
"""Characters that spaCy is given at once: it takes memory for all of a text."""


@dataclass(frozen=True, slots=True)
class Tagging:
    """The words of some texts with their parts of speech; a place is a text and a character as one number."""

    places: Ints
    ends: Ints
    kinds: NDArray[np.int8]

    def of(self, text_of: Ints, spans: Ints) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """The kind (in `KINDS`; negative: any) of each span that is one word, and whether it is worth a link."""
        kinds, spoken = np.full(len(spans), _NOT_TAGGED, np.int8), np.ones(len(spans), np.bool_)
        if not len(self.places):
            return kinds, spoken
        at = (text_of << 40) + spans[:, 0]
        word = np.minimum(np.searchsorted(self.places, at), len(self.places) - 1)
        whole = (self.places[word] == at) & (self.ends[word] == spans[:, 1])
        kinds[whole] = self.kinds[word[whole]]
        return kinds, kinds != _NO_WORD


class Tagger:
    """Asks spaCy's tagger alone, which is much faster than all of a pipeline."""

    def __init__(self, annotator: SpacyAnnotator | None = None) -> None:
        self.pipeline = (annotator or SpacyAnnotator()).pipeline
        needed = {"tok2vec", "transformer", "tagger", "morphologizer", _RULER}
        self._disabled = [name for name in self.pipeline.pipe_names if name not in needed]
        self._rules: _Rules | None = None
        if self.pipeline.has_pipe(_RULER) and asks_words_alone(cast(Any, self.pipeline.get_pipe(_RULER)).patterns):
            self._rules = _Rules(self.pipeline)
            self._disabled.append(_RULER)

    def tag(self, texts: Sequence[str]) -> Tagging:
        """The words of all texts."""
        from spacy.parts_of_speech import IDS

        kind_of = np.full(max(IDS.values()) + 1, _NO_WORD, np.int8)
        for name, kind in _KIND_OF.items():
            kind_of[IDS[name]] = kind
        parts = list(_parts(texts))
        tagged = self.pipeline.pipe((part for _, _, part in parts), disable=self._disabled, batch_size=_TOGETHER)
        columns = []
        for (number, begin, _), parsed in zip(parts, tagged, strict=True):
            told = parsed.to_array(["IDX", "LENGTH", "POS", "TAG", "ORTH"]).reshape(-1, 5)
            starts, ends = begin + told[:, 0].astype(np.int64), begin + told[:, :2].sum(1).astype(np.int64)
            columns.append(((number << 40) + starts, ends, told[:, 2:]))
        if not columns:
            return Tagging(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))
        places, ends, words = (np.concatenate(column) for column in zip(*columns, strict=True))
        return Tagging(places, ends, kind_of[words[:, 0] if self._rules is None else self._rules.apply(words)])


Rule = Mapping[str, Any]
"""One of spaCy's attribute_ruler: `patterns` of words, and the `attrs` that a word of them gets."""


def asks_words_alone(rules: Iterable[Rule]) -> bool:
    """Whether a word's part of speech, by these rules, depends on nothing but its letters and its own tags.

    A rule that looks at a parser's work (DEP) has no say here, where there is no parser.
    """
    patterns = [pattern for rule in rules if "POS" in rule["attrs"] for pattern in rule["patterns"]]
    possible = [pattern for pattern in patterns if not any(_needs_parser(word) for word in pattern)]
    return all(len(pattern) == 1 and pattern[0].keys() <= _OWN for pattern in possible)


def _needs_parser(word: Mapping[str, Any]) -> bool:
    return isinstance(word.get("DEP"), str) and word["DEP"] != ""


_MOST_KNOWN = 1 << 16
"""Words with their tags that are remembered; beyond that, all are asked again."""


class _Rules:
    """A pipeline's attribute_ruler, asked once for each word and tag: it is slow, and mostly asked the same again."""

    def __init__(self, pipeline: Any) -> None:
        self._ruler, self._vocab = pipeline.get_pipe(_RULER), pipeline.vocab
        self._known: dict[tuple[int, ...], int] = {}

    def apply(self, words: NDArray[np.uint64]) -> Ints:
        """The parts of speech of words: rows of (part of speech, tag, word), as spaCy numbers them."""
        rows = list(map(tuple, words.tolist()))
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        if new := [row for row in dict.fromkeys(rows) if row not in self._known]:
            self._known.update(zip(new, self._ask(new), strict=True))
        return np.array([self._known[row] for row in rows], np.int64)

    def _ask(self, rows: Sequence[tuple[int, ...]]) -> list[int]:
        from spacy.parts_of_speech import NAMES
        from spacy.tokens import Doc

        strings = self._vocab.strings
        kinds, tags, words = zip(*rows, strict=True)
        asked = Doc(
            self._vocab,
            words=[strings[word] for word in words],
            tags=[strings[tag] for tag in tags],
            pos=[NAMES[kind] for kind in kinds],
        )
        return [int(kind) for kind in self._ruler(asked).to_array("POS")]


def _parts(texts: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(number of its text, first character, part): long texts are parted at blanks."""
    for number, text in enumerate(texts):
        begin = 0
        while begin < len(text):
            end = begin + _AT_ONCE
            if end < len(text):
                blank = text.rfind(" ", begin + 1, end)
                end = blank if blank > begin else end
            yield number, begin, text[begin:end]
            begin = end
