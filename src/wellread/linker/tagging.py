"""Parts of speech of a text's words, to keep their senses apart: "leaves" after "the" are no verb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellread.linker.decoding import Ints
from wellread.mentions.annotate import SpacyAnnotator

KINDS = ("n", "v", "a", "r")
"""Parts of speech as WordNet names them."""
_KIND_OF = {"NOUN": 0, "PROPN": 0, "VERB": 1, "AUX": 1, "ADJ": 2, "ADV": 3}
_NO_WORD, _NOT_TAGGED = -2, -3
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
        needed = {"tok2vec", "transformer", "tagger", "morphologizer", "attribute_ruler"}
        self._disabled = [name for name in self.pipeline.pipe_names if name not in needed]

    def tag(self, texts: Sequence[str]) -> Tagging:
        """The words of all texts."""
        from spacy.parts_of_speech import IDS

        kind_of = np.full(max(IDS.values()) + 1, _NO_WORD, np.int8)
        for name, kind in _KIND_OF.items():
            kind_of[IDS[name]] = kind
        parts = list(_parts(texts))
        tagged = self.pipeline.pipe((part for _, _, part in parts), disable=self._disabled)
        columns = []
        for (number, begin, _), parsed in zip(parts, tagged, strict=True):
            starts, sizes, kinds = parsed.to_array(["IDX", "LENGTH", "POS"]).astype(np.int64).reshape(-1, 3).T
            columns.append(((number << 40) + begin + starts, begin + starts + sizes, kind_of[kinds]))
        if not columns:
            return Tagging(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))
        return Tagging(*(np.concatenate(column) for column in zip(*columns, strict=True)))


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
