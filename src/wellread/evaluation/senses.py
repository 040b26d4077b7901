"""Scores of word senses by the rule of the framework of Raganato et al. (2017): F1 over instances.

An instance may have several right keys: an answer is right if it is any of them. Where several keys are answered, each
counts its share. Precision is over what is answered, recall over all instances; who answers everything has both alike.
Answers to instances that have no gold do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wellread.errors import InputError

PARTS = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
"""The parts of speech as scores name them."""


@dataclass(frozen=True, slots=True)
class SenseInstance:
    """A word whose sense is asked for."""

    id: str
    lemma: str
    kind: str
    """Its part of speech: n, v, a, r."""
    gold: tuple[str, ...] = ()
    """The right keys; none where they are kept secret."""
    source: str = ""
    """The data set that it is of."""


@dataclass(frozen=True, slots=True)
class SenseScores:
    """How many instances there are, how many were answered, and how many rightly."""

    count: int
    answered: int
    right: float

    @property
    def precision(self) -> float:
        """The share of the answers that is right."""
        return self.right / self.answered if self.answered else 0.0

    @property
    def recall(self) -> float:
        """The share of the instances that is answered rightly."""
        return self.right / self.count if self.count else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        whole = self.precision + self.recall
        return 2 * self.precision * self.recall / whole if whole else 0.0


def refuse_twins(instances: Iterable[SenseInstance]) -> None:
    """Fail where two instances have one id: the answer to one would be taken for both."""
    seen: set[str] = set()
    for instance in instances:
        if instance.id in seen:
            raise InputError(
                f"two instances are called {instance.id!r}, so that their answers cannot be told apart; give each data "
                "set once, files names of their own, and every instance in them its own id"
            )
        seen.add(instance.id)


def score_senses(instances: Sequence[SenseInstance], answers: Mapping[str, Iterable[str]]) -> SenseScores:
    """The official rule, for keys answered by the id of their instance."""
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
    """The scores of all instances as "all", then of each part of speech and, where there are several, data set."""
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
    """The baseline: the first sense of every lemma and part of speech that has one."""
    return {one.id: (key,) for one in instances if (key := first(one.lemma, one.kind)) is not None}


def back_off(
    instances: Sequence[SenseInstance],
    answers: Mapping[str, Iterable[str]],
    first: Callable[[str, str], str | None],
) -> dict[str, tuple[str, ...]]:
    """Answers for all instances: the first sense where nothing was answered."""
    given = {id: tuple(keys) for id, keys in answers.items()}
    missing = [instance for instance in instances if not given.get(instance.id)]
    return {**given, **answer_first(missing, first)}
