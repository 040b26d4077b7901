"""Markers around mentions that a task asks about, in any tokenizer's pieces; the text itself stays as it is.

    text      Neptune was found by Galle
    pieces    [CLS] @ neptune @ was found by # galle # [SEP]
    word_of    -1  -1    0   -1  1    2   3 -1   4  -1  -1
    places          1                        7

Markers are put in among the pieces after the text is cut, not into the text: like [CLS] they stand for nothing in it
(no word, no segment, the span 0, 0). So words, spans and marks of an input, and whatever is known of its text, are
those of the text that the data has, with no offset to be moved; a linker never reads a marker.

The pieces of markers are ones that the tokenizer has, so that an encoder needs no new embeddings: by default "@" and
"#" around the first and the second mention (`SIGNS`, as LUKE's markers begin), which nearly every tokenizer has and
every encoder has met. `UNUSED` are pieces that BERT's vocabulary keeps free for such things, one before and another
behind (Baldini Soares et al. 2019, KnowBERT): they have met nothing, and must be learned.

What is too long is cut around the mentions, and where even what lies between them is too long, around each of them:
both stay whole, and what is far from both goes. How many texts have mentions that are too long themselves is told; of
these the beginnings stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.models.luke.model import ENTITIES
from wellread.tasks.entity_inputs import with_entities
from wellread.tasks.task import Batch
from wellread.text.tokenization import TextTokenizer, Tokenization
from wellread.text.windows import keep_tokens, window_around, windows_around

Span = tuple[int, int]

SIGNS = ("@", "#")
UNUSED = ("[unused1]", "[unused2]", "[unused3]", "[unused4]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText(Tokenization):
    """An input with markers around the mentions that are asked about."""

    mentions: tuple[Span, ...]
    """The characters of each in the first text."""
    places: Int64[np.ndarray, " mention"]
    """Where the marker before each stands."""
    ends: Int64[np.ndarray, " mention"]
    """Where the marker behind each stands."""


class MarkerHead(nn.Module):
    """Scores by the states of an input's mentions, laid side by side: dropout, and one linear layer (KnowBERT)."""

    def __init__(self, width: int, mentions: int, count: int, *, bias: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width * mentions, count, bias=bias)
        nn.init.normal_(self.out.weight, std=0.02)
        if bias:
            nn.init.zeros_(self.out.bias)

    def forward(self, mentions: Float[Tensor, "input mention dim"]) -> Float[Tensor, "input count"]:
        """One row of scores for each input."""
        scores: Tensor = self.out(self.dropout(mentions.flatten(1)))
        return scores


class Marker:
    """Puts markers into inputs of one tokenizer, around one mention or two."""

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[str], *, mentions: int) -> None:
        """`pieces`: one for each mention, which stands on both sides of it, or two, before it and behind it."""
        if len(tokens) not in (mentions, 2 * mentions):
            raise UsageError(
                f"markers are {', '.join(tokens) or 'none'}; expected {mentions}, on both sides of a mention, or "
                f"{2 * mentions}, before and behind, as in {list(SIGNS[:mentions])} or {list(UNUSED[: 2 * mentions])}"
            )
        ids = [_id(tokenizer, token) for token in tokens]
        self.ids = np.array(ids, np.int64).reshape(mentions, -1).repeat(2 * mentions // len(ids), axis=1)

    def tokenize(
        self, segmenter: TextTokenizer, inputs: Sequence[tuple[tuple[str, ...], tuple[Span, ...]]]
    ) -> list[list[Tokenization]]:
        """One input for each (texts, mentions in the first of them), markers counted in the segmenter's `longest`.

        A note tells how many have mentions that do not fit.
        """
        for texts, mentions in inputs:
            for start, end in mentions:
                if not 0 <= start < end <= len(texts[0]):
                    raise InputError(
                        f"a mention from {start} to {end} in a text of {len(texts[0])} characters; mentions are "
                        "characters of the text, end exclusive"
                    )
        whole = TextTokenizer(segmenter.tokenizer).tokenize_many([texts for texts, _ in inputs])
        made, short = [], 0
        for one, (_, mentions) in zip(whole, inputs, strict=True):
            spans = [_tokens_of(one, *mention) for mention in mentions]
            one, left = self._cropped(one, spans, segmenter.longest)
            short += any(_length(new) < _length(old) for new, old in zip(left, spans, strict=True))
            made.append([self._marked(one, mentions, left)])
        if short:
            console.note(
                f"{short:,} of {len(inputs):,} texts have mentions that do not fit into inputs of {segmenter.longest} "
                "pieces: of these the beginnings are read, or nothing; let encoder.longest be more"
            )
        return cast(list[list[Tokenization]], made)

    def _cropped(self, one: Tokenization, spans: list[Span], longest: int | None) -> tuple[Tokenization, list[Span]]:
        """An input with room for markers, and the pieces that mentions have in it."""
        if longest is None or len(one) + self.ids.size <= longest:
            return one, spans
        room = longest - self.ids.size
        first, last = min(first for first, _ in spans), max(last for _, last in spans)
        if last - first <= room - int((one.segment_of != 0).sum()):
            kept = window_around(one, first, last, room)
        else:
            kept = windows_around(one, spans, room)
        places = [(int(np.searchsorted(kept, first)), int(np.searchsorted(kept, last))) for first, last in spans]
        return keep_tokens(one, kept), places

    def _marked(self, one: Tokenization, mentions: tuple[Span, ...], spans: list[Span]) -> MarkedText:
        order = sorted(_order(spans))
        at = np.array([place for place, *_ in order], np.int64)
        ids = np.array([self.ids[number, side] for *_, number, side in order], np.int64)
        edges = np.zeros((2, len(mentions)), np.int64)
        for before, (place, *_, number, side) in enumerate(order):
            edges[side, number] = place + before
        told = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
        told["ids"] = np.insert(one.ids, at, ids)
        told["types"] = np.insert(one.types, at, one.types[np.maximum(at - 1, 0)])
        told["spans"] = np.insert(one.spans, at, 0, axis=0)
        told["segment_of"] = np.insert(one.segment_of, at, -1)
        told["word_of"] = np.insert(one.word_of, at, -1)
        return MarkedText(**told, mentions=mentions, places=edges[0], ends=edges[1])


def marked_places(batch: Batch) -> Int[Tensor, "input mention"]:
    """Where the markers before the mentions stand among all pieces of a batch."""
    places = torch.from_numpy(np.stack([marked(one).places for one in batch.inputs]))
    return batch.packing.starts[:, None] + places.to(batch.ids.device)


def mask_mentions(batch: Batch, masks: tuple[int, int] | None) -> Batch:
    """A batch whose first mentions are [MASK] entities, the second ones [MASK2], each with its markers (LUKE).

    Without `masks`, for an encoder that takes no entities, it is as it was.
    """
    if masks is None:
        return batch
    spans = np.stack([np.stack((marked(one).places, marked(one).ends), axis=1) for one in batch.inputs])
    inputs, mentions, _ = spans.shape
    text_of = torch.arange(inputs).repeat_interleave(mentions)
    ids = torch.tensor(masks[:mentions]).repeat(inputs)
    return with_entities(batch, text_of, ids, torch.from_numpy(spans.reshape(-1, 2)))


def mention_states(states: Float[Tensor, "token dim"], batch: Batch) -> Float[Tensor, "input mention dim"]:
    """What mentions are judged by: their entities, or where they have none the markers before them."""
    if ENTITIES not in batch.told:
        return states[marked_places(batch)]
    entities: Tensor = batch.told[ENTITIES]
    return entities.view(len(batch.inputs), -1, entities.shape[-1])


def marked(one: Tokenization) -> MarkedText:
    """An input that a `Marker` made."""
    assert isinstance(one, MarkedText)
    return one


def _id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a marker as it stands in the middle of a text, by itself."""
    ids = tokenizer.encode(f" {token}", add_special_tokens=False).ids
    if len(ids) == 1 and ids[0] not in (tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")):
        return ids[0]
    if (id := tokenizer.token_to_id(token)) is not None:
        return id
    raise UsageError(
        f"the tokenizer has no piece {token!r} to mark mentions with; name pieces that it has as markers, such as signs"
    )


def _length(span: Span) -> int:
    return span[1] - span[0]


def _order(spans: Sequence[Span]) -> Iterator[tuple[int, int, int, int, int]]:
    """(before which piece, then what comes first, number of the mention, 0 before or 1 behind it).

    At one place mentions end before others begin, and an outer one begins before, and ends behind, an inner one.
    """
    for number, (first, last) in enumerate(spans):
        if first == last:
            yield first, 1, 0, number, 0
            yield first, 1, 0, number, 1
        else:
            yield first, 2, -last, number, 0
            yield last, 0, -first, number, 1


def _tokens_of(one: Tokenization, start: int, end: int) -> Span:
    """The pieces (first, last + 1) that characters of the first text touch."""
    touched = np.flatnonzero((one.segment_of == 0) & (one.spans[:, 0] < end) & (one.spans[:, 1] > start))
    if len(touched):
        return int(touched[0]), int(touched[-1]) + 1
    # A tokenizer may make nothing of some characters: then between the pieces around them.
    own = np.flatnonzero(one.segment_of == 0)
    after = own[one.spans[own, 0] >= end]
    place = int(after[0]) if len(after) else int(own[-1]) + 1 if len(own) else 1
    return place, place
