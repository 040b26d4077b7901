"""Texts of any length as inputs of an encoder: sentence by sentence, or in windows that share some pieces.

Every piece is owned by one stretch of its text, so that nothing is cut off and nothing is told twice. A sentence (or
several that are read together) owns all it has. What is longer than an input is read in windows that share pieces with
the next, and each owns up to the middle of what is shared.

    pieces      0 1 2 3 4 5 6 7 8 9
    sentences   └─────┘ └─────────┘     owned: 0-3, 4-9
    windows     └─────────┘
                        └─────────┘     owned: 0-4, 5-9 (6 pieces each, 2 shared)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wellread.errors import UsageError
from wellread.text.segments import Segmented
from wellread.text.tokenization import encode_many, owners, trim_blanks
from wellread.text.words import Offsets, split

_END = re.compile(r"""[.!?…]["'”’)\]]*(\s+)(?=["'“‘(\[]*[A-Z0-9])|(\n\s*\n)""")
_NO_END = re.compile(r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Sen|Rep|Jr|Sr|vs|No|cf|e\.g|i\.e))\.$")
"""What a full stop belongs to: initials and titles."""


@dataclass(frozen=True, slots=True)
class TextWindow:
    """A part of a text that is read at once; the positions `first` up to `last` of its pieces are its own."""

    text: int
    """The number of its text."""
    input: Segmented
    first: int
    last: int

    def __len__(self) -> int:
        return len(self.input)


class TextWindowTokenizer:
    """Cuts texts into stretches of at most `width` pieces: `sentences` of them at once, or windows where it is 0."""

    def __init__(self, tokenizer: Tokenizer | Any, *, width: int = 192, shared: int = 24, sentences: int = 0) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.tokenizer = Tokenizer.from_str(backend.to_str())  # a copy: the user's own keeps its truncation
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        around = self.tokenizer.encode("")
        first = int(np.argmin(self.tokenizer.encode("a").special_tokens_mask))
        self._before, self._after = (np.array(ids, np.int64) for ids in (around.ids[:first], around.ids[first:]))
        self._room, self._shared, self._sentences = width - len(around.ids), shared, sentences
        if shared < 2 or self._room < 2 * shared:
            raise UsageError(
                f"stretches of {width} pieces cannot share {shared}; let them share 2 or more, and be at least "
                f"{2 * max(shared, 2) + len(around.ids)} wide"
            )

    def tokenize(self, texts: Sequence[str], *, words: bool = True) -> list[list[TextWindow]]:
        """The stretches of each text, none where it has no piece; who does not ask for words may save their time."""
        codes = encode_many(self.tokenizer, texts, special=False)
        made = []
        for number, (text, code) in enumerate(zip(texts, codes, strict=True)):
            ids = np.array(code.ids, np.int64)
            spans = trim_blanks(text, np.array(code.offsets, np.int64).reshape(-1, 2)) if len(ids) else ids
            made.append(list(self._windows(number, text, ids, spans, words)) if len(ids) else [])
        return made

    def _windows(
        self, number: int, text: str, ids: NDArray[np.int64], spans: Offsets, words: bool
    ) -> Iterator[TextWindow]:
        word_spans, word_of = np.zeros((0, 2), np.int64), np.full(len(ids), -1, np.int64)
        if words:
            found = split(text)
            word_spans = np.stack((found.starts, found.ends), axis=1)
            word_of = owners(spans, word_spans)
        before, after = len(self._before), len(self._after)
        for low, high, first, last in self._cuts(text, spans):
            own = word_of[low:high]
            known = own[own >= 0]
            begin, end = (int(known.min()), int(known.max()) + 1) if len(known) else (0, 0)
            size = high - low + before + after
            inside = slice(before, before + high - low)
            segment_of, belongs = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
            segment_of[inside], belongs[inside] = 0, np.where(own < 0, -1, own - begin)
            places = np.zeros((size, 2), np.int64)
            places[inside] = spans[low:high]
            one = Segmented(
                (text,),
                np.concatenate((self._before, ids[low:high], self._after)),
                np.zeros(size, np.int64),
                places,
                segment_of,
                belongs,
                tuple(text[start:stop] for start, stop in word_spans[begin:end].tolist()),
                word_spans[begin:end],
                np.zeros(end - begin, np.int64),
                (begin,),
            )
            yield TextWindow(number, one, before + first - low, before + last - low)

    def _cuts(self, text: str, spans: Offsets) -> Iterator[tuple[int, int, int, int]]:
        """(first, last + 1) of the pieces of each stretch, and of those that it owns."""
        for low, high in self._parts(text, spans):
            first, owned = low, low
            while first + self._room < high:
                not_owned = first + self._room - self._shared // 2
                yield first, first + self._room, owned, not_owned
                first, owned = first + self._room - self._shared, not_owned
            yield first, high, owned, high

    def _parts(self, text: str, spans: Offsets) -> Iterator[tuple[int, int]]:
        """The pieces of sentences that are read together, as many as asked for and as fit."""
        if not self._sentences:
            yield 0, len(spans)
            return
        borders = np.unique(np.append(np.searchsorted(spans[:, 0], sentence_starts(text)), len(spans))).tolist()
        low, high, many = 0, 0, 0
        for border in borders:
            if border == 0:
                continue
            if many and (many == self._sentences or border - low > self._room):
                yield low, high
                low, many = high, 0
            high, many = border, many + 1
        yield low, high


def sentence_starts(text: str) -> list[int]:
    """Where sentences begin, the first at 0: "It rained. We left." -> [0, 11]; empty lines end one too."""
    starts = [0]
    for end in _END.finditer(text):
        if end[2] is None and _NO_END.search(text, max(0, end.start() - 6), end.start() + 1):
            continue
        starts.append(end.end())
    return starts
