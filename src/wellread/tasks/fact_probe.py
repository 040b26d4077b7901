"""Wikidata-style fact probe of KnowBERT: predict the masked object of a fact in a sentence.

1. "Dante was born in Florence ." has all tokens of its object masked.
2. At each masked token the whole vocabulary is ranked; the mean reciprocal rank is over tokens, as in the paper. Tokens
   with the same score as the right one rank before it.

Unlike LAMA (`tasks.lama`), objects may have several tokens, and no vocabulary is shared between models, so only models
with the same tokenizer are comparable. Knowledge providers treat the masked words as hidden.

Files, plain or compressed: the authors' (the first and last word of the object, a tab, the sentence with blanks between
its words), or JSONL with `text`, `start` and `end` (characters), and optionally `relation` and `id`. `render_facts`
makes sentences from the facts of a knowledge base with templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.readers.lama import Relation
from wellread.data.splits import split_by
from wellread.data.tables import Draft, Record, make_each, read_records, text_of
from wellread.document import short
from wellread.encoders.infusion.providers import KnowledgeProvider
from wellread.errors import InputError
from wellread.evaluation.probe import ProbeScores, gold_ranks, score_probe
from wellread.io.files import decode, path_name, read_lines, write_atomically
from wellread.kb.store import KnowledgeBase
from wellread.tasks.learner import ask
from wellread.tasks.lm_head import mask_of
from wellread.tasks.masked_lm import MaskedWords, hide
from wellread.tasks.task import Batch, EncoderWithHead, in_full
from wellread.tasks.task_type import TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization

_SPANNED = re.compile(r"(\d+) (\d+)\t(.+)")


@dataclass(frozen=True, slots=True)
class RenderedFact:
    """Sentence that states a fact, and the character span of its object."""

    id: str
    relation: str
    text: str
    start: int
    end: int

    def __post_init__(self) -> None:
        if not (0 <= self.start < self.end <= len(self.text)):
            raise InputError(
                f"the object is {self.start}-{self.end} in {short(self.text, 60)!r}; expected a character span "
                "of the sentence"
            )


class FactProbing(MaskedWords):
    """Ranks of the tokens of a fact's object; the head is that of `Masking`."""

    score = "mrr"

    def __init__(self, tokenizer: Tokenizer, *, at: Sequence[int] = (10,), start: str | None = None) -> None:
        """Set up the probe; `start` is the encoder whose checkpoint may have a pretrained head."""
        _, self.mask_id = mask_of(tokenizer)
        self.at, self.start = tuple(at), start

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[RenderedFact], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return each sentence with its object masked; no input if the object was truncated."""
        tokenized = segmenter.tokenize_many([(fact.text,) for fact in examples])
        return [self._hidden(one, fact) for one, fact in zip(tokenized, examples, strict=True)]

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the rank of each token of each object."""
        places, gold = batch.target.unbind(1)
        ranks = gold_ranks(in_full(head(states[places])).cpu().numpy(), gold.cpu().numpy())
        owners = np.searchsorted(batch.packing.starts.cpu().numpy(), places.cpu().numpy(), side="right") - 1
        return [tuple(ranks[owners == number].tolist()) for number in range(len(batch.inputs))]

    def report(self, examples: Sequence[RenderedFact], answers: Sequence[Sequence[Any]]) -> ProbeScores:
        """Score all tokens, also by relation; a truncated object counts as one token not found."""
        ranks = [some[0] if some else (None,) for some in answers]
        relations = [fact.relation for fact, some in zip(examples, ranks, strict=True) for _ in some]
        return score_probe(relations, [rank for some in ranks for rank in some], at=self.at)

    def scores(self, examples: Sequence[RenderedFact], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return `mrr` as in the paper, its mean over relations, and the share of facts with all tokens right."""
        found = self.report(examples, answers)
        whole = sum(bool(some) and max(some[0]) == 1 for some in answers) / len(answers)
        scores = {"mrr": found.micro.mrr, "macro_mrr": found.macro.mrr, "precision": found.micro.precision}
        return scores | {f"precision@{k}": value for k, value in found.micro.at.items()} | {"facts": whole}

    def _hidden(self, one: Tokenization, fact: RenderedFact) -> list[Tokenization]:
        touched = (one.segment_of == 0) & (one.spans[:, 0] < fact.end) & (one.spans[:, 1] > fact.start)
        places = np.flatnonzero(touched)
        if not len(places):
            return []
        return [hide(one, np.where(touched, self.mask_id, one.ids), places)]


def probe_facts(
    model: EncoderWithHead,
    segmenter: TextTokenizer,
    facts: Sequence[RenderedFact],
    *,
    provider: KnowledgeProvider | None = None,
    notes: str | Path | None = None,
    at: Sequence[int] = (10,),
) -> ProbeScores:
    """Probe a model with a `WordHead`: `probe_facts(model, segmenter, list(read_rendered("all.text")))`."""
    task = FactProbing(segmenter.tokenizer, at=at)
    return task.report(facts, ask(task, model, segmenter, facts, provider=provider, notes=notes))


# files, and facts of a knowledge base


def read_rendered(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[RenderedFact]:
    """Read facts in either format; the default relation is the name of the file."""
    name = Path(path).name.split(".")[0]
    first = next((line for _, line in read_lines(path) if line.strip()), b"")
    rows = read_records(path, "jsonl") if first.lstrip().startswith(b"{") else _lines(path)
    return make_each(path, rows, partial(_fact, name=name), skipped)


def write_rendered(path: str | Path, facts: Iterable[RenderedFact]) -> None:
    """Write facts as JSONL."""
    with write_atomically(path) as file:
        for fact in facts:
            record = {part: getattr(fact, part) for part in ("id", "relation", "text", "start", "end")}
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def render_facts(kb: KnowledgeBase, relations: Iterable[Relation]) -> Iterator[RenderedFact]:
    """Yield the facts of a knowledge base as sentences, for relations with a template, in the order of the KB.

    Entities are named by their titles; relations may come from a file such as LAMA's (`lama.read_relations`).
    """
    by_name = {relation.name: relation for relation in relations if relation.template is not None}
    for entity in kb.entities():
        for name, other in entity.facts:
            if name in by_name and other in kb:
                text, start, end = _render(by_name[name], entity.title, kb.get(other).title)
                yield RenderedFact(f"{entity.id} {name} {other}", name, text, start, end)


def split_facts(facts: Sequence[RenderedFact], count: int) -> tuple[list[RenderedFact], list[RenderedFact]]:
    """Return (training facts, at least `count` validation facts), by their sentences."""
    return split_by(facts, count, lambda fact: fact.text)


def _render(relation: Relation, subject: str, object: str) -> tuple[str, int, int]:
    before, after = str(relation.template).split("[Y]")
    before, after = before.replace("[X]", subject), after.replace("[X]", subject)
    return f"{before}{object}{after}", len(before), len(before) + len(object)


def _lines(path: str | Path) -> Iterator[tuple[int, Draft]]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, partial(_spanned, decode(line, f"{path_name(path)}, line {number}").strip())


def _spanned(line: str) -> Record:
    found = _SPANNED.fullmatch(line)
    if found is None:
        raise InputError(
            "expected the numbers of the object's first and last word, a tab and a sentence, as in "
            f"{'3 3<tab>Dante died in Ravenna .'!r}, got {short(line, 60)!r}"
        )
    first, last, text = int(found[1]), int(found[2]), found[3]
    words = list(re.finditer(r"\S+", text))
    if not first <= last < len(words):
        raise InputError(f"the object is words {first} to {last}, but the sentence has {len(words)}, numbered from 0")
    return {"text": text, "start": words[first].start(), "end": words[last].end()}


def _fact(record: Record, number: str, *, name: str) -> RenderedFact:
    places = record.get("start"), record.get("end")
    start, end = (place if isinstance(place, int) else -1 for place in places)
    relation = text_of(record, "relation") if "relation" in record else name
    return RenderedFact(str(record.get("id") or number), relation, text_of(record, "text"), start, end)


# registry


TASKS = {
    "fact-probe": TaskType(
        read=lambda settings, metadata, path, broken: read_rendered(path, skipped=broken),
        split=split_facts,
        build=lambda settings, metadata, tokenizer: FactProbing(tokenizer, start=settings.encoder.name),
        has_gold=lambda fact: True,
    )
}
