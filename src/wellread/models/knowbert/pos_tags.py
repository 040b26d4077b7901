"""Part-of-speech tags of words by spaCy, to restrict their senses: in "the leaves" the noun, not the verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wellread.linking.decoding import Ints
from wellread.mentions.annotators import SpacyAnnotator

KINDS = ("n", "v", "a", "r")
"""Parts of speech by their WordNet letters: noun, verb, adjective, adverb."""
_KIND_OF = {"NOUN": 0, "PROPN": 0, "VERB": 1, "AUX": 1, "ADJ": 2, "ADV": 3}
_FUNCTION_WORD, _NOT_TAGGED = -2, -3
_RULER = "attribute_ruler"
_WORD_ATTRIBUTES = {
    "TAG",
    "POS",
    "DEP",
    "ORTH",
    "TEXT",
    "LOWER",
    "SHAPE",
    "LENGTH",
    "IS_SPACE",
    "IS_ALPHA",
    "IS_PUNCT",
    "IS_DIGIT",
}
"""Attributes of a pattern that depend on the word alone."""
_BATCH = 32
"""Texts that spaCy tags at a time: few enough for the cache."""
_MAX_CHARS = 50_000
"""Characters of one spaCy document, whose memory grows with its length."""


@dataclass(frozen=True, slots=True)
class PosTags:
    """Words of some texts with their parts of speech."""

    keys: Ints
    """Text number and first character of each word as one number: text << 40 | character."""
    ends: Ints
    kinds: NDArray[np.int8]

    def of(self, text_of: Ints, spans: Ints) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """Return the part of speech of each span (position in `KINDS`), and False for function words.

        It is negative for spans that are not one word, and for function words.
        """
        kinds = np.full(len(spans), _NOT_TAGGED, np.int8)
        if len(self.keys):
            keys = (text_of << 40) + spans[:, 0]
            word = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            whole = (self.keys[word] == keys) & (self.ends[word] == spans[:, 1])
            kinds[whole] = self.kinds[word[whole]]
        return kinds, kinds != _FUNCTION_WORD


class PosTagger:
    """SpaCy's tagger without the rest of its pipeline, which makes it much faster."""

    def __init__(self, annotator: SpacyAnnotator | None = None) -> None:
        self.pipeline = (annotator or SpacyAnnotator()).pipeline
        needed = {"tok2vec", "transformer", "tagger", "morphologizer", _RULER}
        self._disabled = [name for name in self.pipeline.pipe_names if name not in needed]
        self._ruler: _CachedRuler | None = None
        if self.pipeline.has_pipe(_RULER) and is_context_free(cast(Any, self.pipeline.get_pipe(_RULER)).patterns):
            self._ruler = _CachedRuler(self.pipeline)
            self._disabled.append(_RULER)

    def tag(self, texts: Sequence[str]) -> PosTags:
        """Tag the words of all texts."""
        from spacy.parts_of_speech import IDS

        kind_of = np.full(max(IDS.values()) + 1, _FUNCTION_WORD, np.int8)
        for name, kind in _KIND_OF.items():
            kind_of[IDS[name]] = kind
        parts = list(_parts(texts))
        tagged = self.pipeline.pipe((part for _, _, part in parts), disable=self._disabled, batch_size=_BATCH)
        columns = []
        for (number, begin, _), parsed in zip(parts, tagged, strict=True):
            table = parsed.to_array(["IDX", "LENGTH", "POS", "TAG", "ORTH"]).reshape(-1, 5)
            starts, ends = begin + table[:, 0].astype(np.int64), begin + table[:, :2].sum(1).astype(np.int64)
            columns.append(((number << 40) + starts, ends, table[:, 2:]))
        if not columns:
            return PosTags(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))
        keys, ends, words = (np.concatenate(column) for column in zip(*columns, strict=True))
        return PosTags(keys, ends, kind_of[words[:, 0] if self._ruler is None else self._ruler.apply(words)])


Rule = Mapping[str, Any]
"""Rule of spaCy's attribute_ruler: `patterns` of words, and the `attrs` that a matching word gets."""


def is_context_free(rules: Iterable[Rule]) -> bool:
    """Return True if the rules derive a part of speech only from the word itself and its tag.

    Rules that need a parser (DEP) never match here, because none is run.
    """
    patterns = [pattern for rule in rules if "POS" in rule["attrs"] for pattern in rule["patterns"]]
    possible = [pattern for pattern in patterns if not any(_needs_parser(word) for word in pattern)]
    return all(len(pattern) == 1 and pattern[0].keys() <= _WORD_ATTRIBUTES for pattern in possible)


def _needs_parser(word: Mapping[str, Any]) -> bool:
    return isinstance(word.get("DEP"), str) and word["DEP"] != ""


_CACHE_SIZE = 1 << 16
"""Number of (word, tag) pairs in the cache, which is cleared when it is exceeded."""


class _CachedRuler:
    """Cache of the results of a pipeline's attribute_ruler, which is slow, by word and tag."""

    def __init__(self, pipeline: Any) -> None:
        self._ruler, self._vocab = pipeline.get_pipe(_RULER), pipeline.vocab
        self._cache: dict[tuple[int, ...], int] = {}

    def apply(self, words: NDArray[np.uint64]) -> Ints:
        """Return the parts of speech of rows (part of speech, tag, word), as spaCy numbers them."""
        rows = list(map(tuple, words.tolist()))
        if len(self._cache) > _CACHE_SIZE:
            self._cache.clear()
        if new := [row for row in dict.fromkeys(rows) if row not in self._cache]:
            self._cache.update(zip(new, self._run(new), strict=True))
        return np.array([self._cache[row] for row in rows], np.int64)

    def _run(self, rows: Sequence[tuple[int, ...]]) -> list[int]:
        from spacy.parts_of_speech import NAMES
        from spacy.tokens import Doc

        strings = self._vocab.strings
        kinds, tags, words = zip(*rows, strict=True)
        document = Doc(
            self._vocab,
            words=[strings[word] for word in words],
            tags=[strings[tag] for tag in tags],
            pos=[NAMES[kind] for kind in kinds],
        )
        return [int(kind) for kind in self._ruler(document).to_array("POS")]


def _parts(texts: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (text number, first character, part); long texts are split at blanks."""
    for number, text in enumerate(texts):
        begin = 0
        while begin < len(text):
            end = begin + _MAX_CHARS
            if end < len(text):
                blank = text.rfind(" ", begin + 1, end)
                end = blank if blank > begin else end
            yield number, begin, text[begin:end]
            begin = end
