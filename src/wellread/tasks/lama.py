"""LAMA probe (Petroni et al. 2019): facts that a masked language model knows.

1. "Dante was born in [MASK] ." is read with the encoder's own mask token as the object.
2. The words of a vocabulary are ranked by their scores there; the metric is the rank of the object.

Only facts whose object is one token and in the vocabulary are used. For a fair comparison give the vocabulary that all
models share (`lama.common_vocabulary` of their `words_of`). Sentences are lower-cased for an uncased tokenizer. If a
sentence has several masks, the first one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn

from wellread.data.readers.lama import MASK, MaskedFact, has_parts, lower, read_probe, read_vocabulary, within
from wellread.data.splits import split_by
from wellread.encoders.files import load_tokenizer
from wellread.errors import InputError
from wellread.evaluation.probe import ProbeScores, gold_ranks, score_probe
from wellread.models.kam.inputs import KamProvider
from wellread.tasks.learner import ask
from wellread.tasks.lm_head import mask_of, words_of
from wellread.tasks.masked_lm import MaskedWords, hide
from wellread.tasks.task import Batch, EncoderWithHead, in_full
from wellread.tasks.task_type import Answers, TaskMetadata, TaskSettings, TaskType, find_file, write_json_lines
from wellread.text.tokenization import TextTokenizer, Tokenization


@dataclass(frozen=True, slots=True)
class LamaOptions:
    """Facts with masked objects, for task = "lama"; data are LAMA's `data` folder, or files of facts."""

    part: Literal["google_re", "trex", "conceptnet", "squad"] | None = None
    """Part of the folder; all that exist by default."""
    vocabulary: str | None = None
    """File of allowed answers, one a line; by default all words that are one token."""


class Probing(MaskedWords):
    """Rank of a fact's object; the head is that of `Masking`."""

    score = "precision"

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Collection[str] | None = None,
        *,
        at: Sequence[int] = (10,),
        start: str | None = None,
    ) -> None:
        """Restrict the answers to a vocabulary; without one, all words that are one token are allowed."""
        self.mask, self.mask_id = mask_of(tokenizer)
        self.uncased = tokenizer.encode("A").ids == tokenizer.encode("a").ids
        words = words_of(tokenizer)
        if vocabulary is not None:
            wanted = {word.lower() for word in vocabulary} if self.uncased else set(vocabulary)
            words = {word: id for word, id in words.items() if word in wanted}
        if not words:
            raise InputError(
                f"none of the {len(vocabulary or ())} words of the vocabulary is one token of the tokenizer; give "
                "whole words, as in LAMA's common_vocab_cased.txt"
            )
        self.words, self.at, self.start = words, tuple(at), start

    def usable(self, facts: Iterable[MaskedFact], *, skipped: list[str] | None = None) -> list[MaskedFact]:
        """Return the facts that can be probed, in the tokenizer's case; `skipped` collects objects of the others."""
        return list(within(map(lower, facts) if self.uncased else facts, self.words, skipped=skipped))

    def place_usable(self, facts: Sequence[MaskedFact]) -> dict[int, MaskedFact]:
        """Return the facts that can be probed, by their index."""
        cased = (lower(fact) if self.uncased else fact for fact in facts)
        return {place: fact for place, fact in enumerate(cased) if fact.object in self.words}

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[MaskedFact], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return each sentence with the tokenizer's mask; only `usable` facts are allowed."""
        sentences = [(fact.sentence.replace(MASK, self.mask),) for fact in examples]
        return [self._hidden(one, fact) for one, fact in zip(segmenter.tokenize_many(sentences), examples, strict=True)]

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the rank of each object among the words of the vocabulary."""
        places, gold = batch.target.unbind(1)
        scores = in_full(head(states[places]))
        known = np.zeros(scores.shape[1], np.bool_)
        known[list(self.words.values())] = True
        ranks: list[Any] = gold_ranks(scores.cpu().numpy(), gold.cpu().numpy(), known_mask=known).tolist()
        return ranks

    def report(self, examples: Sequence[MaskedFact], answers: Sequence[Sequence[Any]]) -> ProbeScores:
        """Score all facts, also by relation; an object whose mask was truncated counts as not found."""
        return score_probe(
            [fact.relation for fact in examples], [some[0] if some else None for some in answers], at=self.at
        )

    def scores(self, examples: Sequence[MaskedFact], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return scores over all facts, and (`macro`) the mean over relations."""
        found = self.report(examples, answers)
        scores = {"precision": found.micro.precision, "macro": found.macro.precision, "mrr": found.micro.mrr}
        return scores | {f"precision@{k}": value for k, value in found.micro.at.items()}

    def _hidden(self, one: Tokenization, fact: MaskedFact) -> list[Tokenization]:
        masks = np.flatnonzero(one.ids == self.mask_id)
        if fact.object not in self.words:
            raise InputError(f"{fact.object!r} is not in the vocabulary; keep only `usable` facts")
        if not len(masks):
            return []
        hidden = hide(one, one.ids, masks)
        gold = np.array([self.words[fact.object]], np.int64)
        return [replace(hidden, places=masks[:1], gold=gold)]


def probe(
    model: EncoderWithHead,
    segmenter: TextTokenizer,
    facts: Iterable[MaskedFact],
    vocabulary: Collection[str] | None = None,
    *,
    provider: KamProvider | None = None,
    notes: str | Path | None = None,
    at: Sequence[int] = (10,),
    skipped: list[str] | None = None,
) -> ProbeScores:
    """Probe a model with a `WordHead`: `probe(model, segmenter, read_lama("LAMA/data", "trex"))`."""
    task = Probing(segmenter.tokenizer, vocabulary, at=at)
    chosen = task.usable(facts, skipped=skipped)
    return task.report(chosen, ask(task, model, segmenter, chosen, provider=provider, notes=notes))


# registry


def _metadata(settings: TaskSettings) -> dict[str, Any]:
    """Return the vocabulary, to be saved with the model, since its file may be moved."""
    name = settings.options.vocabulary
    return {"vocabulary": None if name is None else sorted(read_vocabulary(find_file(settings.data.root, name)))}


def _read(settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]) -> Iterator[MaskedFact]:
    """Yield the facts whose object is one token of the vocabulary."""
    task = _build(settings, metadata, load_tokenizer(settings.encoder.name))
    unknown: list[str] = []
    # The training file must have the part; other files are read whole if they have no parts.
    part = settings.options.part if path == settings.train_file or has_parts(path) else None
    yield from task.usable(read_probe(path, part, skipped=broken), skipped=unknown)
    broken += (f"{path}: {word!r} is not one token, or not in the vocabulary" for word in unknown)


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Probing:
    return Probing(tokenizer, metadata.get("vocabulary"), start=settings.encoder.name)


def _write(path: str | Path, task: Probing, examples: Sequence[Any], answers: Answers) -> None:
    pairs = zip(examples, answers, strict=True)
    rows = ({"id": one.id, "relation": one.relation, "rank": some[0] if some else None} for one, some in pairs)
    write_json_lines(path, rows)


TASKS = {
    "lama": TaskType(
        options="lama",
        read=_read,
        split=lambda facts, count: split_by(facts, count, lambda fact: fact.subject),
        build=_build,
        write=_write,
        metadata=_metadata,
        has_gold=lambda fact: True,
    )
}
