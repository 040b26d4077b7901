"""Relation classification: the relation between two entities of a text (TACRED, SemEval-2010 task 8).

1. Both entities are marked in the text (`tasks.mention_markers`). If the data has entity types, as TACRED does, they
   are a second segment: "person , city" (KnowBERT appends them as special tokens).
2. The states of the markers before the entities, concatenated, are classified (KnowBERT; Baldini Soares et al. 2019).
   With LUKE, a [MASK] entity spans the first mention and a [MASK2] the second, markers included, and their states are
   classified (without bias).

Files, plain or compressed:

- TACRED: JSON, a list of objects (or one a line), with `token`, `subj_start`, `subj_end`, `obj_start`, `obj_end` (last
  word inclusive), `subj_type`, `obj_type`, `relation` and `id`. Penn Treebank brackets and quotes ("-LRB-") are
  replaced by the characters they stand for.
- SemEval-2010 task 8: a line with a number and the text in quotes, its entities in <e1></e1> and <e2></e2>; a line
  with the relation, absent in test files; a comment; a blank line.

Scored by the rules of the official scorers (`evaluation.relations`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wellread.data.splits import split_by
from wellread.data.tables import Draft, Record, make_each, read_json, read_records, text_of
from wellread.document import short
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError
from wellread.evaluation.relations import NO_RELATION, OTHER, score_semeval2010, score_tacred
from wellread.io.files import decode, make_or_skip, path_name, read_lines, write_atomically
from wellread.tasks.mention_markers import SIGNS, Marker, MarkerHead, Span, mask_mentions, masks_of, mention_states
from wellread.tasks.task import Batch
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType, Texts
from wellread.text.tokenization import TextTokenizer, Tokenization

Rule = Literal["tacred", "semeval2010"]
_T = TypeVar("_T")

_NAMES = (
    *("Cause-Effect", "Component-Whole", "Content-Container", "Entity-Destination", "Entity-Origin"),
    *("Instrument-Agency", "Member-Collection", "Message-Topic", "Product-Producer"),
)
SEMEVAL2010 = (OTHER, *(f"{name}({order})" for name in _NAMES for order in ("e1,e2", "e2,e1")))
"""Labels of SemEval-2010 task 8: nine relations in two directions, and Other."""

_NUMBERED = re.compile(r"(\d+)\s*\t(.*)")
_LABEL = re.compile(r"Other|\S+\(e[12],e[12]\)")
_TAG = re.compile(r"<(/?)e([12])>")
_TREEBANK = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}


@dataclass(frozen=True, slots=True)
class EntityPair:
    """Two entities of a text, as character spans; `relation` is None in test files."""

    id: str
    text: str
    subject: Span
    """First entity (e1 in SemEval-2010)."""
    object: Span
    relation: str | None = None
    kinds: tuple[str, str] | None = None
    """Entity types of both, if the data has them."""


@dataclass(frozen=True, slots=True)
class RelationOptions:
    """Options of task = "tacred" and "semeval2010"."""

    markers: tuple[str, ...] = SIGNS
    """Marker tokens: one per entity, or four, before and behind each."""
    kinds: bool = True
    """Add the types of subject and object as a second segment, if the data has them."""


class Relating:
    """Relation of two entities; answers are labels."""

    score = "f1"

    def __init__(
        self, tokenizer: Tokenizer, labels: Sequence[str], *, rule: Rule, options: RelationOptions | None = None
    ) -> None:
        options = options or RelationOptions()
        if len(set(labels)) < max(2, len(labels)):
            raise InputError(f"the relations are {', '.join(labels) or 'none'}; expected two or more, each once")
        self.labels, self.rule, self.kinds = tuple(labels), rule, options.kinds
        self.marker = Marker(tokenizer, options.markers, mentions=2)
        self._masks: tuple[int, int] | None = None

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[EntityPair], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return one input per pair, a `MarkedText`."""
        return self.marker.tokenize(segmenter, [(self._texts(pair), (pair.subject, pair.object)) for pair in examples])

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with a score per relation."""
        self._masks = masks_of(encoder)
        return MarkerHead(int(encoder.config.hidden_size), 2, len(self.labels), bias=self._masks is None)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add the relations as class numbers."""
        batch = mask_mentions(batch, self._masks)
        if not learning:
            return batch
        labels = [pair.relation for pair in batch.examples]
        unknown = next((label for label in labels if label not in self.labels), "")
        if unknown != "":
            raise InputError(
                f"a pair has the relation {unknown!r}, expected one of {', '.join(self.labels)}; train on a file whose "
                "relations these are"
            )
        return replace(batch, target=torch.tensor([self.labels.index(label) for label in labels if label is not None]))

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of the relations."""
        return {"relation": cross_entropy(head(mention_states(states, batch)), batch.target)}

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the label of the best relation."""
        return [self.labels[best] for best in head(mention_states(states, batch)).argmax(1).tolist()]

    def scores(self, examples: Sequence[EntityPair], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return the official scores: `f1` is micro for TACRED, macro for SemEval-2010 (with `micro_f1` beside it)."""
        gold = [pair.relation for pair in examples if pair.relation is not None]
        if len(gold) < len(examples):
            raise InputError("some pairs have no relation to score against; is this a test file?")
        predicted = [some[0] for some in answers]
        if self.rule == "tacred":
            return score_tacred(gold, predicted)
        found = score_semeval2010(gold, predicted)
        macro = {"f1": found.macro.f1, "precision": found.macro.precision, "recall": found.macro.recall}
        return macro | {"micro_f1": found.micro.f1, "accuracy": found.accuracy}

    def _texts(self, pair: EntityPair) -> tuple[str, ...]:
        if pair.kinds is None or not self.kinds:
            return (pair.text,)
        return pair.text, " , ".join(kind.lower().replace("_", " ") for kind in pair.kinds)


# files


def read_tacred(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[EntityPair]:
    """Read pairs from TACRED's JSON; `skipped` collects the reasons for skipped examples."""
    return make_objects(path, _tacred_pair, skipped)


def read_semeval2010(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[EntityPair]:
    """Read pairs from the text format of SemEval-2010 task 8; `skipped` collects the reasons for skipped examples."""
    return make_each(path, _blocks(path), _semeval_pair, skipped)


def write_semeval2010(path: str | Path, examples: Sequence[EntityPair], predicted: Sequence[str]) -> None:
    """Write predictions for the official scorer: number, tab, relation."""
    lines = (f"{pair.id}\t{label}\n" for pair, label in zip(examples, predicted, strict=True))
    with write_atomically(path) as file:
        file.write("".join(lines).encode())


def write_tacred(path: str | Path, predicted: Sequence[str]) -> None:
    """Write predictions for the official scorer: one relation per line, in the order of the examples."""
    with write_atomically(path) as file:
        file.write("".join(f"{label}\n" for label in predicted).encode())


def split_pairs(pairs: Sequence[EntityPair], count: int) -> tuple[list[EntityPair], list[EntityPair]]:
    """Return (training pairs, at least `count` validation pairs); all pairs of a text are in one part."""
    return split_by(pairs, count, lambda pair: pair.text)


def find_relations(pairs: Iterable[EntityPair], rule: Rule) -> tuple[str, ...]:
    """Return the relations of the pairs, sorted; all of SemEval-2010's if they are a subset of those."""
    labels = {pair.relation for pair in pairs if pair.relation is not None}
    if rule == "semeval2010" and labels <= set(SEMEVAL2010):
        return SEMEVAL2010
    return tuple(sorted(labels | ({NO_RELATION} if rule == "tacred" else set())))


def parse_pair(id: str, text: str, relation: str | None = None) -> EntityPair:
    """Parse a text with tagged entities: "<e1>Galle</e1> found <e2>Neptune</e2>" -> (0, 5) and (12, 19)."""
    plain: list[str] = []
    length = begin = 0
    edges: dict[tuple[str, str], int] = {}
    for tag in _TAG.finditer(text):
        plain.append(text[begin : tag.start()])
        length, begin = length + tag.start() - begin, tag.end()
        if (tag[1], tag[2]) in edges:
            raise InputError(f"{tag[0]} occurs twice in {short(text, 60)!r}; expected one <e1></e1> and one <e2></e2>")
        edges[tag[1], tag[2]] = length
    plain.append(text[begin:])
    spans = [(edges.get(("", number), 0), edges.get(("/", number), 0)) for number in "12"]
    if len(edges) < 4 or any(start >= end for start, end in spans):
        raise InputError(f"expected one <e1></e1> and one <e2></e2> that are not empty in {short(text, 60)!r}")
    return EntityPair(id, "".join(plain), spans[0], spans[1], relation)


def make_objects(path: str | Path, make: Callable[[Record, str], _T], skipped: list[str] | None = None) -> Iterator[_T]:
    """Yield `make(object, number)` for each object of a JSON list or a JSONL file."""
    first = next((line for _, line in read_lines(path) if line.strip()), b"")
    if not first.lstrip().startswith(b"["):
        yield from make_each(path, read_records(path, "jsonl"), make, skipped)
        return

    def made(record: Any, number: int) -> _T:
        if not isinstance(record, dict):
            raise InputError(f"expected an object, got {short(str(record), 40)!r}")
        return make(record, str(number))

    for number, record in enumerate(read_json(path), 1):
        yield from make_or_skip(partial(made, record, number), skipped, f"{path_name(path)}, example {number}")


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join treebank words with blanks, and return the character span of each word."""
    plain = [_TREEBANK.get(word, word) for word in words]
    spans, begin = [], 0
    for word in plain:
        spans.append((begin, begin + len(word)))
        begin += len(word) + 1
    return " ".join(plain), spans


def _tacred_pair(record: Record, number: str) -> EntityPair:
    words = record.get("token")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"'token' is not a list of words (there are {', '.join(record)}); is this TACRED's JSON?")
    text, spans = join_words(words)
    found = []
    for name in ("subj", "obj"):
        first, last = record.get(f"{name}_start"), record.get(f"{name}_end")
        if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last < len(words)):
            raise InputError(f"{name}_start is {first} and {name}_end is {last}; expected two of {len(words)} words")
        found.append((spans[first][0], spans[last][1]))
    kinds = record.get("subj_type"), record.get("obj_type")
    return EntityPair(
        str(record.get("id") or number),
        text,
        found[0],
        found[1],
        None if record.get("relation") is None else text_of(record, "relation"),
        (kinds[0], kinds[1]) if isinstance(kinds[0], str) and isinstance(kinds[1], str) else None,
    )


def _blocks(path: str | Path) -> Iterator[tuple[int, Draft]]:
    """Yield each numbered text with the lines below it, up to the next numbered text."""
    begin, block = 0, list[str]()
    for number, line in read_lines(path):
        content = decode(line, f"{path_name(path)}, line {number}").strip()
        if block and _NUMBERED.fullmatch(content):
            yield begin, partial(_block, block)
            block = []
        if content:
            begin = begin if block else number
            block.append(content)
    if block:
        yield begin, partial(_block, block)


def _block(lines: Sequence[str]) -> Record:
    numbered = _NUMBERED.fullmatch(lines[0])
    if numbered is None:
        raise InputError(f"expected a number, a tab and a text in quotes, got {short(lines[0], 60)!r}")
    relation = lines[1] if len(lines) > 1 and not lines[1].startswith("Comment") else None
    if relation is not None and not _LABEL.fullmatch(relation):
        raise InputError(f"the relation is {short(relation, 60)!r}, expected one such as Cause-Effect(e2,e1), or Other")
    return {"id": numbered[1], "text": numbered[2], "relation": relation}


def _semeval_pair(record: Record, number: str) -> EntityPair:
    text = record["text"].strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return parse_pair(record["id"], text, record["relation"])


# registry


def _read(settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]) -> Iterator[EntityPair]:
    return (read_tacred if settings.task == "tacred" else read_semeval2010)(path, skipped=broken)


def _rule(settings: TaskSettings) -> Rule:
    return "tacred" if settings.task == "tacred" else "semeval2010"


def _metadata(settings: TaskSettings) -> dict[str, Any]:
    return {"labels": list(find_relations(_read(settings, {}, settings.train_file, []), _rule(settings)))}


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Relating:
    return Relating(tokenizer, metadata["labels"], rule=_rule(settings), options=settings.options)


def _write(path: str | Path, task: Relating, examples: Sequence[EntityPair], answers: Answers) -> None:
    labels = [some[0] for some in answers]
    if task.rule == "tacred":
        write_tacred(path, labels)
    else:
        write_semeval2010(path, examples, labels)


def single_text(texts: Texts) -> str:
    """Return the only text; raise `UsageError` if there are several."""
    if len(texts) != 1:
        raise UsageError(f"expected one text with its entities in tags, got {len(texts)} texts; give one")
    return texts[0]


_ROW = TaskType(
    options="relations",
    read=_read,
    split=split_pairs,
    build=_build,
    write=_write,
    metadata=_metadata,
    has_gold=lambda pair: pair.relation is not None,
    example=lambda number, texts: parse_pair(number, single_text(texts)),
    own_entities=lambda options: True,
)
TASKS = {"tacred": _ROW, "semeval2010": _ROW}
