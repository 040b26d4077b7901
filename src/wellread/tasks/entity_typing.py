"""Entity typing: the types of a mention in its text, several of which may be right (Open Entity, ultra-fine types).

1. The mention is marked in the text (`tasks.mention_markers`).
2. The state of the marker before it gives a score per type, each a binary decision (binary cross-entropy, as in
   KnowBERT). With LUKE, the state of a [MASK] entity at the mention is used. Types above the threshold are the answer.

Files, plain or compressed, as a JSON list or one object per line:

- ultra-fine (Choi et al. 2018): `left_context_token`, `mention_span`, `right_context_token`, `y_str`, `annot_id`;
- Open Entity as split by ERNIE's authors, with the nine general types: `sent`, `start`, `end` (characters), `labels`.

Scored as by the ultra-fine scorer (`evaluation.entity_typing`).
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
from wellread.tasks.mention_markers import SIGNS, Marker, MarkerHead, Span, mask_mentions, masks_of, mention_states
from wellread.tasks.relations import join_words, make_objects, single_text
from wellread.tasks.task import Batch
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class TypedMention:
    """Mention as a character span of its text; `types` is None in test files."""

    id: str
    text: str
    mention: Span
    types: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """Options of task = "entity-types"."""

    types: tuple[str, ...] = ()
    """Types to predict, others are ignored; by default all of the training file."""
    threshold: float = 0.5
    """Probability above which a type is an answer."""
    at_least_one: bool = False
    """Always answer the best type, even below the threshold; usual for ultra-fine types."""
    markers: tuple[str, ...] = SIGNS[:1]
    """Marker token on both sides of the mention, or two, before and behind it."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise UsageError(f"threshold is {self.threshold}; expected a probability between 0 and 1")


class EntityTyping:
    """Types of a mention; answers are tuples of types, in the task's order."""

    score = "micro_f1"

    def __init__(self, tokenizer: Tokenizer, types: Sequence[str], *, options: TypeOptions | None = None) -> None:
        self.options = options or TypeOptions()
        if not types or len(set(types)) < len(types):
            raise InputError(f"the types are {', '.join(types) or 'none'}; expected one or more, each once")
        self.types = tuple(types)
        self.marker = Marker(tokenizer, self.options.markers, mentions=1)
        self._masks: tuple[int, int] | None = None
        self._number = {name: number for number, name in enumerate(self.types)}
        # Compared as logits, since probabilities near 0 and 1 lose precision.
        self._least = float(torch.logit(torch.tensor(self.options.threshold, dtype=torch.float64)))

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[TypedMention], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return one input per mention, a `MarkedText`."""
        return self.marker.tokenize(segmenter, [((one.text,), (one.mention,)) for one in examples])

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with a score per type."""
        self._masks = masks_of(encoder)
        return MarkerHead(int(encoder.config.hidden_size), 1, len(self.types))

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add a 0/1 row per mention; types that are not predicted are ignored."""
        batch = mask_mentions(batch, self._masks)
        if not learning:
            return batch
        target = torch.zeros(len(batch.examples), len(self.types))
        for row, one in enumerate(batch.examples):
            if one.types is None:
                raise InputError("a mention has no types to train on; is this a test file?")
            target[row, [self._number[name] for name in one.types if name in self._number]] = 1
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the mean binary cross-entropy over mentions and types."""
        found = head(mention_states(states, batch))
        return {"type": binary_cross_entropy_with_logits(found, batch.target.to(found.dtype))}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the types of each mention."""
        found = head(mention_states(states, batch))
        chosen = found > self._least
        if self.options.at_least_one:
            chosen[torch.arange(len(found)), found.argmax(1)] = True
        return [tuple(self.types[number] for number in row.nonzero()[:, 0].tolist()) for row in chosen]

    def scores(self, examples: Sequence[TypedMention], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return `micro_f1` and the other `TypeScores`; restricted to the types that the options name, if any."""
        gold = [one.types for one in examples if one.types is not None]
        if len(gold) < len(examples):
            raise InputError("some mentions have no types to score against; is this a test file?")
        return score_types(gold, [some[0] for some in answers], only=self.options.types or None).to_dict()


# files


def read_types(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[TypedMention]:
    """Read mentions in either format; `skipped` collects the reasons for skipped examples."""
    return make_objects(path, _mention, skipped)


def write_types(path: str | Path, examples: Sequence[TypedMention], predicted: Sequence[Sequence[str]]) -> None:
    """Write predictions for the ultra-fine scorer: {id: {"gold": [types], "pred": [types]}}."""
    rows = {
        one.id: {"gold": list(one.types or ()), "pred": list(some)}
        for one, some in zip(examples, predicted, strict=True)
    }
    with write_atomically(path) as file:
        file.write(json.dumps(rows, ensure_ascii=False).encode() + b"\n")


def find_types(mentions: Iterable[TypedMention]) -> tuple[str, ...]:
    """Return all types of the mentions, sorted."""
    return tuple(sorted({name for one in mentions for name in one.types or ()}))


def split_mentions(mentions: Sequence[TypedMention], count: int) -> tuple[list[TypedMention], list[TypedMention]]:
    """Return (training mentions, at least `count` validation mentions); all mentions of a text are in one part."""
    return split_by(mentions, count, lambda one: one.text)


def parse_mention(id: str, text: str) -> TypedMention:
    """Parse a text with a tagged mention: "Neptune was found by <e1>Galle</e1>" -> (21, 26)."""
    before, opened, rest = text.partition("<e1>")
    mention, closed, after = rest.partition("</e1>")
    if not (opened and closed and mention.strip()) or "e1>" in before + mention + after:
        raise InputError(f"expected one <e1></e1> that is not empty in {short(text, 60)!r}")
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
        raise InputError(f"the mention is {start}-{end} in a text of {len(text)} characters; expected a span inside it")
    if types is not None and not (isinstance(types, list) and all(isinstance(name, str) for name in types)):
        raise InputError(f"the types are {json.dumps(types)}, expected a list of names")
    return TypedMention(str(id or number), text, (start, end), None if types is None else tuple(dict.fromkeys(types)))


def _words(record: Record, column: str) -> list[str]:
    words = record.get(column)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(
            f"{column!r} is not a list of words (there are {', '.join(record)}); expected ultra-fine data "
            "(left_context_token, mention_span, right_context_token, y_str) or Open Entity (sent, start, end, labels)"
        )
    return words


# registry


def _metadata(settings: TaskSettings) -> dict[str, Any]:
    named = settings.options.types
    return {"types": list(named or find_types(read_types(settings.train_file, skipped=[])))}


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> EntityTyping:
    return EntityTyping(tokenizer, metadata["types"], options=settings.options)


def _write(path: str | Path, task: EntityTyping, examples: Sequence[TypedMention], answers: Answers) -> None:
    write_types(path, examples, [some[0] for some in answers])


TASKS = {
    "entity-types": TaskType(
        options="types",
        read=lambda settings, metadata, path, broken: read_types(path, skipped=broken),
        split=split_mentions,
        build=_build,
        write=_write,
        metadata=_metadata,
        has_gold=lambda mention: mention.types is not None,
        example=lambda number, texts: parse_mention(number, single_text(texts)),
        own_entities=lambda options: True,
    )
}
