"""Scores of word senses by the rules of Raganato et al. (2017): F1 over instances.

An instance may have several right keys: an answer is right if it is any of them. If several keys are answered, each
counts a fraction. Precision is over the answered instances, recall over all; they are equal if all are answered.
Answers to instances without gold keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wellread.errors import InputError

PARTS = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
"""Names of the parts of speech in scores."""


@dataclass(frozen=True, slots=True)
class SenseInstance:
    """Word to disambiguate."""

    id: str
    lemma: str
    kind: str
    """Part of speech: n, v, a, r."""
    gold: tuple[str, ...] = ()
    """Right keys; empty in test files."""
    source: str = ""
    """Name of the dataset."""


@dataclass(frozen=True, slots=True)
class SenseScores:
    """Number of instances, of answered instances, and of right answers."""

    count: int
    answered: int
    right: float

    @property
    def precision(self) -> float:
        """Share of the answers that is right."""
        return self.right / self.answered if self.answered else 0.0

    @property
    def recall(self) -> float:
        """Share of the instances that is answered right."""
        return self.right / self.count if self.count else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        whole = self.precision + self.recall
        return 2 * self.precision * self.recall / whole if whole else 0.0


def refuse_twins(instances: Iterable[SenseInstance]) -> None:
    """Raise `InputError` if two instances have the same id, since their answers would be confused."""
    seen: set[str] = set()
    for instance in instances:
        if instance.id in seen:
            raise InputError(
                f"two instances have the id {instance.id!r}, so answers are ambiguous; give each dataset "
                "once, with unique file names and unique instance ids"
            )
        seen.add(instance.id)


def score_senses(instances: Sequence[SenseInstance], answers: Mapping[str, Iterable[str]]) -> SenseScores:
    """Score keys, given by instance id, by the official rule."""
    refuse_twins(instances)
    count = answered = 0
    right = 0.0
    for instance in instances:
        if not instance.gold:
            continue
        count += 1
        given = set(answers.get(instance.id, ()))
        if given:
            answered += 1
            right += len(given.intersection(instance.gold)) / len(given)
    if not count:
        raise InputError("there is nothing to score: no instance has a gold key; is the gold file the right one?")
    return SenseScores(count, answered, right)


def score_by_part(instances: Sequence[SenseInstance], answers: Mapping[str, Iterable[str]]) -> dict[str, SenseScores]:
    """Return scores of all instances as "all", of each part of speech and, if there are several, of each dataset."""
    scores = {"all": score_senses(instances, answers)}
    gold = [instance for instance in instances if instance.gold]
    for kind, name in PARTS.items():
        if some := [instance for instance in gold if instance.kind == kind]:
            scores[name] = score_senses(some, answers)
    sources = list(dict.fromkeys(instance.source for instance in gold))
    if len(sources) > 1:
        for source in sources:
            scores[source] = score_senses([instance for instance in gold if instance.source == source], answers)
    return scores


def answer_first(
    instances: Iterable[SenseInstance], first: Callable[[str, str], str | None]
) -> dict[str, tuple[str, ...]]:
    """Return the baseline: the first sense of every lemma and part of speech."""
    return {one.id: (key,) for one in instances if (key := first(one.lemma, one.kind)) is not None}


def back_off(
    instances: Sequence[SenseInstance],
    answers: Mapping[str, Iterable[str]],
    first: Callable[[str, str], str | None],
) -> dict[str, tuple[str, ...]]:
    """Return answers for all instances, with the first sense where there is no answer."""
    given = {id: tuple(keys) for id, keys in answers.items()}
    missing = [instance for instance in instances if not given.get(instance.id)]
    return {**given, **answer_first(missing, first)}
