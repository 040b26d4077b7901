"""Markers around the mentions that a task classifies, and entity tokens for them (LUKE).

    text      Neptune was found by Galle
    tokens    [CLS] @ neptune @ was found by # galle # [SEP]
    word_of    -1  -1    0   -1  1    2   3 -1   4  -1  -1
    places          1                        7

Markers are inserted among the tokens, not into the text. Like [CLS] they belong to no word and no segment, and their
span is (0, 0). Words, spans and marks keep the offsets of the original text, and a linker never sees a marker.

Markers are tokens that the tokenizer already has, so the encoder needs no new embeddings. The default is "@" and "#"
around the first and the second mention (`SIGNS`, as in LUKE). `UNUSED` are BERT's reserved tokens, one before and one
behind each mention (Baldini Soares et al. 2019, KnowBERT); their embeddings are untrained.

Texts that are too long are cropped around the mentions: one window if it holds both, else a window around each. If a
mention itself is too long, its beginning is kept and a note says how many texts are concerned.

An encoder with entity tokens gets a [MASK] entity at each mention, whose state is classified (`with_entities`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.models.luke.model import ENTITIES
from wellread.tasks.task import Batch
from wellread.text.tokenization import TextTokenizer, Tokenization
from wellread.text.windows import keep_tokens, window_around, windows_around

Span = tuple[int, int]

SIGNS = ("@", "#")
UNUSED = ("[unused1]", "[unused2]", "[unused3]", "[unused4]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText(Tokenization):
    """Input with markers around the mentions to classify."""

    mentions: tuple[Span, ...]
    """Character span of each mention in the first text."""
    places: Int64[np.ndarray, " mention"]
    """Position of the marker before each mention."""
    ends: Int64[np.ndarray, " mention"]
    """Position of the marker behind each mention."""


class MarkerHead(nn.Module):
    """Dropout and one linear layer over the concatenated states of an input's mentions (KnowBERT)."""

    def __init__(self, width: int, mentions: int, count: int, *, bias: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width * mentions, count, bias=bias)
        nn.init.normal_(self.out.weight, std=0.02)
        if bias:
            nn.init.zeros_(self.out.bias)

    def forward(self, mentions: Float[Tensor, "input mention dim"]) -> Float[Tensor, "input count"]:
        """Return one row of scores per input."""
        scores: Tensor = self.out(self.dropout(mentions.flatten(1)))
        return scores


class Marker:
    """Inserts markers around one or two mentions, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[str], *, mentions: int) -> None:
        """Look up the marker `tokens`: one per mention, used on both sides, or two, before and behind it."""
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
        """Return one input per (texts, mentions in the first text); `segmenter.longest` includes the markers.

        Prints a note with the number of texts whose mentions do not fit.
        """
        for texts, mentions in inputs:
            for start, end in mentions:
                if not 0 <= start < end <= len(texts[0]):
                    raise InputError(
                        f"mention {start}-{end} lies outside a text of {len(texts[0])} characters; expected spans in "
                        "characters, end exclusive"
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
                "tokens and are truncated; raise encoder.longest"
            )
        return cast(list[list[Tokenization]], made)

    def _cropped(self, one: Tokenization, spans: list[Span], longest: int | None) -> tuple[Tokenization, list[Span]]:
        """Return an input that leaves space for the markers, and the token spans of its mentions."""
        if longest is None or len(one) + self.ids.size <= longest:
            return one, spans
        size = longest - self.ids.size
        first, last = min(first for first, _ in spans), max(last for _, last in spans)
        if last - first <= size - int((one.segment_of != 0).sum()):
            kept = window_around(one, first, last, size)
        else:
            kept = windows_around(one, spans, size)
        places = [(int(np.searchsorted(kept, first)), int(np.searchsorted(kept, last))) for first, last in spans]
        return keep_tokens(one, kept), places

    def _marked(self, one: Tokenization, mentions: tuple[Span, ...], spans: list[Span]) -> MarkedText:
        order = sorted(_order(spans))
        at = np.array([place for place, *_ in order], np.int64)
        ids = np.array([self.ids[number, side] for *_, number, side in order], np.int64)
        edges = np.zeros((2, len(mentions)), np.int64)
        for before, (place, *_, number, side) in enumerate(order):
            edges[side, number] = place + before
        values = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
        values["ids"] = np.insert(one.ids, at, ids)
        values["types"] = np.insert(one.types, at, one.types[np.maximum(at - 1, 0)])
        values["spans"] = np.insert(one.spans, at, 0, axis=0)
        values["segment_of"] = np.insert(one.segment_of, at, -1)
        values["word_of"] = np.insert(one.word_of, at, -1)
        return MarkedText(**values, mentions=mentions, places=edges[0], ends=edges[1])


def masks_of(encoder: InfusedEncoder) -> tuple[int, int] | None:
    """Return the rows of [MASK] and [MASK2] in the encoder's entity table; None if it has no entity tokens."""
    infusions: Iterable[Any] = encoder.infusions
    taking = next((infusion for infusion in infusions if ENTITIES in infusion.inputs), None)
    return None if taking is None else taking.masks


def with_entities(
    batch: Batch, text_of: Int[Tensor, " entity"], ids: Int[Tensor, " entity"], spans: Int[Tensor, "entity 2"]
) -> Batch:
    """Add entity tokens to a batch; their segment type is that of the first token of their span.

    Spans are first and last token within a text, from 0; `text_of` is ascending.
    """
    types = batch.types[batch.packing.starts[text_of] + spans[:, 0]]
    entities: Any = {"text_of": text_of, "ids": ids, "spans": spans, "types": types}
    return replace(batch, knowledge={**batch.knowledge, ENTITIES: entities})


def marked_places(batch: Batch) -> Int[Tensor, "input mention"]:
    """Return the positions of the markers before the mentions, among all tokens of the batch."""
    places = torch.from_numpy(np.stack([marked(one).places for one in batch.inputs]))
    return batch.packing.starts[:, None] + places.to(batch.ids.device)


def mask_mentions(batch: Batch, masks: tuple[int, int] | None) -> Batch:
    """Add a [MASK] entity for the first mention and [MASK2] for the second, spanning their markers (LUKE).

    Returns the batch unchanged if `masks` is None (the encoder has no entity tokens).
    """
    if masks is None:
        return batch
    spans = np.stack([np.stack((marked(one).places, marked(one).ends), axis=1) for one in batch.inputs])
    inputs, mentions, _ = spans.shape
    text_of = torch.arange(inputs).repeat_interleave(mentions)
    ids = torch.tensor(masks[:mentions]).repeat(inputs)
    return with_entities(batch, text_of, ids, torch.from_numpy(spans.reshape(-1, 2)))


def mention_states(states: Float[Tensor, "token dim"], batch: Batch) -> Float[Tensor, "input mention dim"]:
    """Return the states that represent the mentions: their entity tokens, or else the markers before them."""
    if ENTITIES not in batch.outputs:
        return states[marked_places(batch)]
    entities: Tensor = batch.outputs[ENTITIES]
    return entities.view(len(batch.inputs), -1, entities.shape[-1])


def marked(one: Tokenization) -> MarkedText:
    """Return the input as the `MarkedText` that a `Marker` made."""
    assert isinstance(one, MarkedText)
    return one


def _id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a marker as it is tokenized inside a text."""
    ids = tokenizer.encode(f" {token}", add_special_tokens=False).ids
    if len(ids) == 1 and ids[0] not in (tokenizer.token_to_id(name) for name in ("[UNK]", "<unk>")):
        return ids[0]
    if (id := tokenizer.token_to_id(token)) is not None:
        return id
    raise UsageError(
        f"the tokenizer has no token {token!r} for markers; choose tokens of its vocabulary, such as punctuation"
    )


def _length(span: Span) -> int:
    return span[1] - span[0]


def _order(spans: Sequence[Span]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (token position, tie-breakers, number of the mention, 0 for before or 1 for behind).

    At one position, mentions end before others begin, and an outer mention encloses an inner one.
    """
    for number, (first, last) in enumerate(spans):
        if first == last:
            yield first, 1, 0, number, 0
            yield first, 1, 0, number, 1
        else:
            yield first, 2, -last, number, 0
            yield last, 0, -first, number, 1


def _tokens_of(one: Tokenization, start: int, end: int) -> Span:
    """Return the tokens (first, last + 1) that overlap characters of the first text."""
    touched = np.flatnonzero((one.segment_of == 0) & (one.spans[:, 0] < end) & (one.spans[:, 1] > start))
    if len(touched):
        return int(touched[0]), int(touched[-1]) + 1
    # Some tokenizers drop characters: then the empty range between the neighbouring tokens.
    own = np.flatnonzero(one.segment_of == 0)
    after = own[one.spans[own, 0] >= end]
    place = int(after[0]) if len(after) else int(own[-1]) + 1 if len(own) else 1
    return place, place
