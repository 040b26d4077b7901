"""Training of the scorer that maps strings to a KB (`mapping.scorer`), on the names of several KBs.

For each KB a part of the entities is removed from the index, and of others one alias. Strings are names of all of them,
as written or changed (`data.synthetic.name_noise`): those of removed entities have no right match, and removed aliases
are names that the KB does not know. The weights are the maximum likelihood of a conditional logit over the candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

import numpy as np
from numpy.typing import NDArray

from wellread.data.synthetic.name_noise import NOISE, WORD_ADDED, add_words
from wellread.kb.store import KnowledgeBase
from wellread.mapping.features import FEATURES, NAMES_ONLY, WITHOUT_CONTEXT, Matrix
from wellread.mapping.mapper import BATCH, Meaning, NameMapper
from wellread.mapping.name_index import NamedEntity, NameIndex, read_entities
from wellread.mapping.normal_form import normal_words
from wellread.mapping.scorer import Evidence, NameScorer, choice_probabilities

Floats = NDArray[np.float64]
_RIDGE = 0.3
"""Weight of the squared weights, with that many strings."""
_COLUMNS: dict[Evidence, int] = {"names": NAMES_ONLY, "meaning": WITHOUT_CONTEXT, "context": len(FEATURES)}


@dataclass(frozen=True, slots=True)
class GoldString:
    """A string, its context ("" for none), the right entity (None if the KB lacks it), and the kind of noise."""

    text: str
    context: str
    entity: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class Choices:
    """Candidates of strings: features, the string of each, and the right ones."""

    rows: Matrix
    groups: NDArray[np.int64]
    right_mask: NDArray[np.bool_]
    count: int
    strings: tuple[GoldString, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Strings of a KB, and the index of the entities and aliases that are not held out."""

    index: NameIndex
    strings: list[GoldString]


def sample_strings(
    kb: KnowledgeBase,
    count: int,
    *,
    seed: int = 1,
    removed: float = 0.15,
    unknown: float = 0.15,
    context: Callable[[str, Random], str] = lambda id, rng: "",
) -> Sample:
    """Return changed names of a KB's entities, and the index of its names without those that are held out.

    Half of the strings are of entities drawn by their popularity. `context` returns a context of an entity.
    """
    rng = Random(seed)  # noqa: S311  # not a secret
    entities = read_entities(kb)
    absent = set(rng.sample(range(len(entities)), int(removed * len(entities))))
    hidden: dict[int, str] = {}
    for number, entity in enumerate(entities):
        others = [name for name, _ in entity.aliases if name != entity.title]
        if number not in absent and others and rng.random() < unknown:
            hidden[number] = rng.choice(sorted(others))
    kept = [
        entity._replace(aliases=[pair for pair in entity.aliases if pair[0] != hidden.get(number)])
        for number, entity in enumerate(entities)
        if number not in absent
    ]
    there = {name for entity in kept for name in (entity.title, *(name for name, _ in entity.aliases))}
    kinds = [*NOISE, "word added"]
    weights = [weight for _, weight in NOISE.values()] + [WORD_ADDED]
    noises = {kind: noise for kind, (noise, _) in NOISE.items()} | {"word added": add_words(_extra_words(kept))}
    popular = list(accumulate(1 + entity.popularity for entity in entities))
    numbers = range(len(entities))
    strings: list[GoldString] = []
    while len(strings) < count:
        by_popularity = rng.random() < 0.5
        number = rng.choices(numbers, cum_weights=popular)[0] if by_popularity else rng.choice(numbers)
        if number not in absent and rng.random() < 0.1:  # so that a quarter of the strings have no match
            continue
        entity = entities[number]
        names = dict(entity.aliases) | {entity.title: dict(entity.aliases).get(entity.title, 0.0) + 0.5}
        name = rng.choices(list(names), [0.5 + one for one in names.values()])[0]
        if number in hidden and rng.random() < 0.5:
            name = hidden[number]
        kind = rng.choices(kinds, weights)[0]
        text = noises[kind](name, rng)
        if not normal_words(text):
            continue
        if number in absent and (text in there or name in there):
            continue  # another entity has the name, and may be right
        strings.append(GoldString(text, context(entity.id, rng), None if number in absent else entity.id, kind))
    return Sample(NameIndex.build(kept), strings)


def _extra_words(entities: Sequence[NamedEntity]) -> list[str]:
    """Return the words that most names of a KB have in common, and common additions."""
    spread = Counter(word for entity in entities for word in {*entity.title.split()})
    return [*(word for word, _ in spread.most_common(40)), *"Inc. Ltd GmbH the new (UK) 2024 - Co. group".split()]


def collect(mapper: NameMapper, strings: Sequence[GoldString]) -> dict[Evidence, Choices]:
    """Return the candidates of strings, by the evidence that the mapper has for them."""
    parts: dict[Evidence, list[tuple[Matrix, list[bool], GoldString]]] = {kind: [] for kind in _COLUMNS}
    for begin in range(0, len(strings), BATCH):
        batch = strings[begin : begin + BATCH]
        found = mapper.score([(one.text, one.context) for one in batch])
        places: list[list[int]] = [[] for _ in batch]
        for at, pair in enumerate(found.pairs):
            places[pair[0]].append(at)
        for one, some, kind in zip(batch, places, found.evidence, strict=True):
            ids = [_entity(mapper.index, found.pairs[at]) for at in some]
            parts[kind].append((found.rows[np.array(some, np.int64)], [id == one.entity for id in ids], one))
    return {kind: _joined(found) for kind, found in parts.items() if found}


def _entity(index: NameIndex, pair: tuple[int, int, int]) -> str:
    _, row, place = pair
    return index.entities[index.bearers[row][place].entity][0]


def _joined(parts: Sequence[tuple[Matrix, list[bool], GoldString]]) -> Choices:
    return Choices(
        np.concatenate([rows for rows, _, _ in parts]),
        np.repeat(np.arange(len(parts)), [len(rows) for rows, _, _ in parts]),
        np.array([one for _, right, _ in parts for one in right], np.bool_),
        len(parts),
        tuple(one for _, _, one in parts),
    )


def fit(choices: Sequence[Choices], evidence: Evidence) -> Floats:
    """Return the weights of the features, from the candidates of several KBs that count equally.

    A string whose entity is not among the candidates counts as one without a match.
    """
    from scipy.optimize import minimize

    columns = _COLUMNS[evidence]
    rows = np.concatenate([one.rows[:, :columns] for one in choices]).astype(np.float64)
    offsets = np.cumsum([0, *(one.count for one in choices)])
    groups = np.concatenate([one.groups + offset for one, offset in zip(choices, offsets, strict=False)])
    right = np.concatenate([one.right_mask for one in choices])
    count = int(offsets[-1])
    most = max(one.count for one in choices)
    weight = np.concatenate([np.full(one.count, most / one.count) for one in choices])
    weight *= count / weight.sum()
    has_right = np.bincount(groups, right, count) > 0

    def loss(weights: Floats) -> tuple[float, Floats]:
        utilities = rows @ weights
        chosen = choice_probabilities(utilities, groups, count)
        left = np.maximum(1 - np.bincount(groups, chosen, count), 1e-12)
        likelihood = np.where(has_right, np.bincount(groups, chosen * right, count), left)
        value = -(weight * np.log(np.maximum(likelihood, 1e-12))).sum() + _RIDGE * (weights @ weights)
        gradient = rows.T @ (weight[groups] * (chosen - right)) + 2 * _RIDGE * weights
        return value, gradient

    found = minimize(loss, np.zeros(columns), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return np.append(found.x, np.zeros(len(FEATURES) - columns))


def first_scorer() -> NameScorer:
    """Return a scorer with weights by hand, which chooses the candidates of the first round."""
    by_hand = {"one": -5.0, "same_form": 4.0, "cosine": 6.0, "both_covered": 4.0, "edits": -4.0, "log_prior": 1.0}
    row = np.array([by_hand.get(name, 0.0) for name in FEATURES])
    return NameScorer(dict.fromkeys(_COLUMNS, row))


def train(samples: Sequence[Sample], meanings: Sequence[Meaning | None], rounds: int = 2) -> NameScorer:
    """Train a scorer on samples of several KBs; each round collects the candidates with the scorer of the last one."""
    scorer = first_scorer()
    for _ in range(rounds):
        scorer = fit_all(collect_all(samples, [None] * len(samples), scorer), scorer)
    return fit_all(collect_all(samples, meanings, scorer), scorer)


def collect_all(
    samples: Sequence[Sample], meanings: Sequence[Meaning | None], scorer: NameScorer
) -> list[dict[Evidence, Choices]]:
    """Return the candidates of each sample for each kind of evidence, as they are when mapping.

    Those of meaning are of strings that names leave open.
    """
    found = []
    for sample, meaning in zip(samples, meanings, strict=True):
        plain = [replace(one, context="") for one in sample.strings]
        kinds: dict[Evidence, Choices] = {"names": collect(NameMapper(sample.index, None, scorer), plain)["names"]}
        if meaning is not None:
            mapper = NameMapper(sample.index, meaning, scorer)
            if open_ := collect(mapper, plain).get("meaning"):
                kinds["meaning"] = open_
            about = [one for one in sample.strings if one.context]
            if about:
                kinds["context"] = collect(mapper, about)["context"]
        found.append(kinds)
    return found


def fit_all(found: Sequence[Mapping[Evidence, Choices]], scorer: NameScorer) -> NameScorer:
    """Return a scorer with weights fitted for each kind of evidence that was collected."""
    weights = dict(scorer.weights)
    for kind in _COLUMNS:
        choices = [kinds[kind] for kinds in found if kind in kinds]
        if choices:
            weights[kind] = fit(choices, kind)
    return NameScorer(weights)
