"""Entity typing: of what types is a mention in its text? Several may be right (Open Entity, ultra-fine types).

1. The mention is marked, and the text is read (`tasks.mention_markers`).
2. The state of the marker before it gives a score for each type; each type is a question of its own (binary
   cross-entropy, as in KnowBERT). An encoder that takes entities is given a [MASK] at the mention, and its state counts
   (LUKE). Types with a chance above the threshold are the answer.

Files, plain or compressed, as a JSON list or with an object a line:

- ultra-fine (Choi et al. 2018): `left_context_token`, `mention_span`, `right_context_token`, `y_str`, `annot_id`;
- Open Entity as ERNIE's authors cut it, with the nine general types: `sent`, `start`, `end` (characters), `labels`.

Scored as the ultra-fine scorer does (`evaluation.entity_typing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from wellread.data.splits import split_by
from wellread.data.tables import Record, text_of
from wellread.document import short
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError
from wellread.evaluation.entity_typing import score_types
from wellread.io.files import write_atomically
from wellread.tasks.entity_inputs import masks_of
from wellread.tasks.mention_markers import SIGNS, Marker, MarkerHead, Span, mask_mentions, mention_states
from wellread.tasks.relations import join_words, make_objects
from wellread.tasks.task import Batch
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class TypedMention:
    """A mention as characters of its text; `types` is None where they are kept secret."""

    id: str
    text: str
    mention: Span
    types: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """How mentions are typed, for task = "entity-types"."""

    types: tuple[str, ...] = ()
    """The types that are asked for, others are not looked at; all that the training file has if none is named."""
    threshold: float = 0.5
    """The chance that a type must exceed to be an answer."""
    at_least_one: bool = False
    """Whether the best type is an answer whatever its chance; usual for ultra-fine types."""
    markers: tuple[str, ...] = SIGNS[:1]
    """The piece around the mention, or two, before and behind it."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise UsageError(f"threshold is {self.threshold}; expected a chance, between 0 and 1")


class EntityTyping:
    """The types of a mention; answers are tuples of them, in the task's order."""

    score = "micro_f1"

    def __init__(self, tokenizer: Tokenizer, types: Sequence[str], *, options: TypeOptions | None = None) -> None:
        self.options = options or TypeOptions()
        if not types or len(set(types)) < len(types):
            raise InputError(f"the types are {', '.join(types) or 'none'}; expected one or more, each once")
        self.types = tuple(types)
        self.marker = Marker(tokenizer, self.options.markers, mentions=1)
        self._masks: tuple[int, int] | None = None
        self._number = {name: number for number, name in enumerate(self.types)}
        # The score, not the chance, so that nothing is lost in the last digits of a chance.
        self._least = float(torch.logit(torch.tensor(self.options.threshold, dtype=torch.float64)))

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[TypedMention], *, learning: bool
    ) -> list[list[Tokenization]]:
        """One input for each mention, a `MarkedText`."""
        return self.marker.tokenize(segmenter, [((one.text,), (one.mention,)) for one in examples])

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """A score for each type."""
        self._masks = masks_of(encoder)
        return MarkerHead(int(encoder.config.hidden_size), 1, len(self.types))

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With a row of 0 and 1 for each mention; types that are not asked for have no part in it."""
        batch = mask_mentions(batch, self._masks)
        if not learning:
            return batch
        target = torch.zeros(len(batch.examples), len(self.types))
        for row, one in enumerate(batch.examples):
            if one.types is None:
                raise InputError("a mention has no types to learn from; is this a test file?")
            target[row, [self._number[name] for name in one.types if name in self._number]] = 1
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Binary cross-entropy, the mean over mentions and types."""
        found = head(mention_states(states, batch))
        return {"type": binary_cross_entropy_with_logits(found, batch.target.to(found.dtype))}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """The types of each mention."""
        found = head(mention_states(states, batch))
        chosen = found > self._least
        if self.options.at_least_one:
            chosen[torch.arange(len(found)), found.argmax(1)] = True
        return [tuple(self.types[number] for number in row.nonzero()[:, 0].tolist()) for row in chosen]

    def scores(self, examples: Sequence[TypedMention], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """`micro_f1` and the others of `TypeScores`; where the options name types, of these alone."""
        gold = [one.types for one in examples if one.types is not None]
        if len(gold) < len(examples):
            raise InputError("some mentions have no types to score against; is this a test file?")
        return score_types(gold, [some[0] for some in answers], only=self.options.types or None).to_dict()


# files


def read_types(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[TypedMention]:
    """Mentions of a file in either format; `skipped` gets the reasons of what was left out."""
    return make_objects(path, _mention, skipped)


def write_types(path: str | Path, examples: Sequence[TypedMention], predicted: Sequence[Sequence[str]]) -> None:
    """Predictions as the ultra-fine scorer takes them: {id: {"gold": [types], "pred": [types]}}."""
    told = {
        one.id: {"gold": list(one.types or ()), "pred": list(some)}
        for one, some in zip(examples, predicted, strict=True)
    }
    with write_atomically(path) as file:
        file.write(json.dumps(told, ensure_ascii=False).encode() + b"\n")


def find_types(mentions: Iterable[TypedMention]) -> tuple[str, ...]:
    """All types that mentions have, in the order of letters."""
    return tuple(sorted({name for one in mentions for name in one.types or ()}))


def split_mentions(mentions: Sequence[TypedMention], count: int) -> tuple[list[TypedMention], list[TypedMention]]:
    """(the rest, at least `count` for development): a text has all its mentions on one side."""
    return split_by(mentions, count, lambda one: one.text)


def parse_mention(id: str, text: str) -> TypedMention:
    """A text with its mention in tags: "Neptune was found by <e1>Galle</e1>" -> (21, 26)."""
    before, opened, rest = text.partition("<e1>")
    mention, closed, after = rest.partition("</e1>")
    if not (opened and closed and mention.strip()) or "e1>" in before + mention + after:
        raise InputError(f"expected one <e1></e1> with something in it in {short(text, 60)!r}")
    return TypedMention(id, f"{before}{mention}{after}", (len(before), len(before) + len(mention)))


def _mention(record: Record, number: str) -> TypedMention:
    if "sent" in record:
        text, span = text_of(record, "sent"), (record.get("start"), record.get("end"))
        start, end = (place if isinstance(place, int) else -1 for place in span)
        id, types = record.get("id"), record.get("labels")
    else:
        left, right = (_words(record, f"{side}_context_token") for side in ("left", "right"))
        mention = text_of(record, "mention_span").strip()
        before, after = join_words(left)[0], join_words(right)[0]
        text = " ".join(part for part in (before, mention, after) if part)
        start = len(before) + 1 if before else 0
        end = start + len(mention)
        id, types = record.get("annot_id"), record.get("y_str")
    if not (0 <= start < end <= len(text) and text[start:end].strip()):
        raise InputError(
            f"the mention is from {start} to {end} in a text of {len(text)} characters; expected some of it"
        )
    if types is not None and not (isinstance(types, list) and all(isinstance(name, str) for name in types)):
        raise InputError(f"the types are {json.dumps(types)}, expected a list of names")
    return TypedMention(str(id or number), text, (start, end), None if types is None else tuple(dict.fromkeys(types)))


def _words(record: Record, column: str) -> list[str]:
    words = record.get(column)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"{column!r} is no list of words (there are {', '.join(record)}); expected ultra-fine data "
            "(left_context_token, mention_span, right_context_token, y_str) or Open Entity (sent, start, end, labels)"
        )
    return words
