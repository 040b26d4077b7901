"""The LAMA probe of models that can be asked for words (`inference.probe`).

Models are asked the same facts, and answer in the same words: those that are one piece for each of them. A tokenizer
that knows no capitals makes all of them compare words without.
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
    """What models know: scores in the order of the models, all over the same facts and the same vocabulary."""

    models: tuple[str, ...]
    scores: tuple[ProbeScores, ...]
    vocabulary: int
    """How many words there are to choose from."""
    left_out: int
    """Facts that were not asked, because their object is no word of the vocabulary."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, for JSON."""
        told = [{"model": name, **score.to_dict()} for name, score in zip(self.models, self.scores, strict=True)]
        return {"vocabulary": self.vocabulary, "left_out": self.left_out, "models": told}


def probe_models(
    probers: Sequence[Prober],
    facts: Sequence[MaskedFact],
    vocabulary: Collection[str] | None = None,
    *,
    at: Sequence[int] = (10,),
) -> Probed:
    """Ask all models for the same facts, over the words that all of them have, and that `vocabulary` has."""
    known = common_words([prober.words for prober in probers], [prober.tokenizer for prober in probers], vocabulary)
    tasks = [Probing(prober.tokenizer, words, at=at) for prober, words in zip(probers, known, strict=True)]
    asked = [task.place_usable(facts) for task in tasks]
    places = [place for place in range(len(facts)) if all(place in some for some in asked)]
    if not places:
        raise InputError(
            f"none of the {len(facts):,} facts has an object that is one piece for every model; give models with "
            "larger vocabularies, or other facts"
        )
    scores = []
    for prober, task, some in zip(probers, tasks, asked, strict=True):
        chosen = [some[place] for place in places]
        answers = ask(task, prober.network, prober.segmenter, chosen, provider=prober.provider)
        scores.append(task.report(chosen, answers))
    size = min(len(task.words) for task in tasks)
    return Probed(tuple(prober.name for prober in probers), tuple(scores), size, len(facts) - len(places))


def common_words(
    words: Sequence[Collection[str]], tokenizers: Sequence[Tokenizer], vocabulary: Collection[str] | None = None
) -> list[frozenset[str]]:
    """For each model those of its words that all of them have; without regard to capitals if one knows none."""
    folded = any(tokenizer.encode("A").ids == tokenizer.encode("a").ids for tokenizer in tokenizers)

    def key(word: str) -> str:
        return word.lower() if folded else word

    every = [*words, *([] if vocabulary is None else [vocabulary])]
    shared = common_vocabulary([{key(word) for word in some} for some in every])
    return [frozenset(word for word in some if key(word) in shared) for some in words]
