"""LAMA probe of several models with a masked language model head (`inference.probe`).

All models get the same facts and the same vocabulary: words that are one token for each of them. If one tokenizer is
uncased, words are compared without case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from wellread.data.readers.lama import MaskedFact, common_vocabulary
from wellread.errors import InputError
from wellread.evaluation.probe import ProbeScores
from wellread.inference.probe import Prober
from wellread.tasks.lama import Probing
from wellread.tasks.learner import ask


@dataclass(frozen=True, slots=True)
class Probed:
    """Scores of models, all over the same facts and vocabulary."""

    models: tuple[str, ...]
    scores: tuple[ProbeScores, ...]
    vocabulary: int
    """Size of the vocabulary."""
    left_out: int
    """Number of facts whose object is not in the vocabulary."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for JSON."""
        models = [{"model": name, **score.to_dict()} for name, score in zip(self.models, self.scores, strict=True)]
        return {"vocabulary": self.vocabulary, "left_out": self.left_out, "models": models}


def probe_models(
    probers: Sequence[Prober],
    facts: Sequence[MaskedFact],
    vocabulary: Collection[str] | None = None,
    *,
    at: Sequence[int] = (10,),
) -> Probed:
    """Probe all models with the same facts, over the words that all models and `vocabulary` have."""
    known = common_words([prober.words for prober in probers], [prober.tokenizer for prober in probers], vocabulary)
    tasks = [Probing(prober.tokenizer, words, at=at) for prober, words in zip(probers, known, strict=True)]
    usable = [task.place_usable(facts) for task in tasks]
    places = [place for place in range(len(facts)) if all(place in some for some in usable)]
    if not places:
        raise InputError(
            f"none of the {len(facts):,} facts has an object that is one token for every model; give models with "
            "larger vocabularies, or other facts"
        )
    scores = []
    for prober, task, some in zip(probers, tasks, usable, strict=True):
        chosen = [some[place] for place in places]
        answers = ask(task, prober.network, prober.segmenter, chosen, provider=prober.provider)
        scores.append(task.report(chosen, answers))
    size = min(len(task.words) for task in tasks)
    return Probed(tuple(prober.name for prober in probers), tuple(scores), size, len(facts) - len(places))


def common_words(
    words: Sequence[Collection[str]], tokenizers: Sequence[Tokenizer], vocabulary: Collection[str] | None = None
) -> list[frozenset[str]]:
    """Return, for each model, its words that all models have; compared without case if one is uncased."""
    folded = any(tokenizer.encode("A").ids == tokenizer.encode("a").ids for tokenizer in tokenizers)

    def key(word: str) -> str:
        return word.lower() if folded else word

    every = [*words, *([] if vocabulary is None else [vocabulary])]
    shared = common_vocabulary([{key(word) for word in some} for some in every])
    return [frozenset(word for word in some if key(word) in shared) for some in words]
