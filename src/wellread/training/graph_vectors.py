"""Learning vectors of entities from the facts of a knowledge base, in a run folder that can be interrupted.

    graph = "tucker"
    loss = "bce"

    [schedule]
    epochs = 100

A batch is some queries (subject, relation, ?) with all their right objects. Where the graph is small, every entity is
scored for every query (1-N, Dettmers et al. 2018). Where it is large, that would cost minutes for an epoch's every
percent: then the right objects and `negatives` entities are scored, drawn at random for the whole batch, so that it
stays one matrix product, and weighed so that the loss is on average the one over all.

The vectors are in `entities.safetensors`, and `graph.json` says which knowledge base and revision they are of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import embedding, softplus

from wellread import config
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.evaluation.triples import FactScores, filtered_ranks, score_ranks
from wellread.index.combined_vectors import Combined, GraphVectors, VectorWeights, combine
from wellread.index.entity_vectors import Encoding, EntityEncoder, EntityVectors
from wellread.index.folder import vectors_folder
from wellread.index.triples import Graph, Queries, Split
from wellread.io import console
from wellread.kb.store import KnowledgeBase
from wellread.models.graph_vectors import Factors, FactorsConfig, Kind
from wellread.training.loop import seed_all, train
from wellread.training.run import Run
from wellread.training.schedule import Schedule
from wellread.training.stopping import stop_if_requested

FEW = 30_000
"""Entities that are all scored for every query; with more, some are drawn."""
DRAWN = 4096
"""Entities that are drawn for a batch where nothing else is said."""
_SCORES = 1 << 24
"""Scores that are looked at together when ranking: 64 MB."""


@dataclass(frozen=True, slots=True)
class GraphRecipe:
    """How vectors are learned from facts."""

    graph: Kind = "tucker"
    entity_dim: int = 200
    relation_dim: int = 30
    input_dropout: float = 0.2
    core_dropout: float = 0.2
    query_dropout: float = 0.3
    loss: Literal["bce", "softmax"] = "bce"
    """bce: of every entity, whether it is right (the paper's). softmax: which of all entities is."""
    smoothing: float = 0.1
    """bce: labels are 1 - smoothing and 0, with 1 / entities added to each, as in the authors' code; but no more than
    smoothing, since with a label above 1 there is no least loss."""
    batch: int = 128
    """Queries in a batch."""
    negatives: int | None = None
    """Entities that are drawn for a batch; 0: all are scored. Without it by the number of entities."""
    hold_out: float = 0.05
    """The share of joined pairs whose facts are split off, half to choose the best weights by, half to test on; with 0
    all facts are learned from, and the scores are of facts that were learned."""
    split: str | None = None
    """Or: a table of subject, relation, object and train, valid or test."""
    develop: int = 4000
    """Queries that are ranked at an evaluation."""
    schedule: Schedule = field(
        default_factory=lambda: Schedule(epochs=50, learning_rate=1e-3, weight_decay=0.0, warmup=0.02, clip=1e6)
    )
    kb: str = ""
    """What the vectors are of: the KB's uid; written by the training, not by hand."""
    revision: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise UsageError(f"smoothing is {self.smoothing}; expected a share from 0 to less than 1")
        for name in ("batch", "develop"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.graph == "tucker" and self.batch == 1:
            raise UsageError("batch is 1, but tucker norms over the queries of a batch; give 2 or more")
        if self.negatives is not None and self.negatives < 0:
            raise UsageError(f"negatives is {self.negatives}; expected 1 or more, or 0 for all entities")
        self.model  # noqa: B018  # what does not fit together is refused now

    @property
    def model(self) -> FactorsConfig:
        """The part of the settings that the model is built from."""
        dropouts = (self.input_dropout, self.core_dropout, self.query_dropout)
        return FactorsConfig(self.graph, self.entity_dim, self.relation_dim, *dropouts)


def usual(kind: Kind) -> GraphRecipe:
    """The recipe of a model where none is given: all learn sooner by softmax than by the loss of TuckER's paper."""
    if kind == "tucker":
        return GraphRecipe(loss="softmax")
    return GraphRecipe(graph=kind, loss="softmax", input_dropout=0.2, core_dropout=0.0, query_dropout=0.2)


@dataclass(frozen=True, slots=True)
class FactBatch:
    """Some queries and their right objects, laid end to end."""

    subjects: Int64[Tensor, " query"]
    relations: Int64[Tensor, " query"]
    objects: Int64[Tensor, " fact"]
    query_of: Int64[Tensor, " fact"]

    @property
    def tokens(self) -> int:
        """Facts, which is what the log counts."""
        return len(self.objects)

    def to(self, device: torch.device) -> FactBatch:
        """The same on another device."""
        return FactBatch(*(part.to(device) for part in (self.subjects, self.relations, self.objects, self.query_of)))


class _Batches(Sequence[FactBatch]):
    """The queries of an epoch in an order, cut when they are asked for.

    One query that is left over goes with the batch before: alone it cannot be normed over a batch.
    """

    def __init__(self, queries: Queries, order: Int64[np.ndarray, " query"], size: int) -> None:
        self._queries, self._order, self._size = queries, order, size

    def __len__(self) -> int:
        count = -(-len(self._order) // self._size)
        alone = len(self._order) % self._size == 1 and 1 < self._size < len(self._order)
        return count - alone

    def __getitem__(self, place: int) -> FactBatch:  # type: ignore[override]  # nobody asks for slices
        if not 0 <= place < len(self):
            raise IndexError(place)
        end = None if place == len(self) - 1 else (place + 1) * self._size
        numbers = self._order[place * self._size : end]
        objects, query_of = self._queries.take(numbers)
        parts = (self._queries.subjects[numbers], self._queries.relations[numbers], objects, query_of)
        return FactBatch(*map(torch.from_numpy, parts))


class GraphLearner:
    """Facts to learn, as the loop wants them."""

    score = "mrr"

    def __init__(self, model: Factors, graph: Graph, split: Split, recipe: GraphRecipe) -> None:
        self.model, self.graph, self.split, self.recipe = model, graph, split, recipe
        self.queries = Queries.of(split.train)
        if recipe.graph == "tucker" and len(self.queries) == 1:
            raise InputError(
                "there is one query to learn from, but tucker norms over several; add facts, or learn another model: "
                'graph = "distmult"'
            )
        count = len(graph.entities)
        wanted = recipe.negatives if recipe.negatives is not None else 0 if count <= FEW else DRAWN
        self.negatives = wanted if 0 < wanted < count else 0
        """How many entities are drawn for a batch; 0: all are scored."""
        developed = split.dev if len(split.dev) else split.train
        chosen = np.random.default_rng([recipe.schedule.seed, 7]).permutation(len(developed))[: recipe.develop]
        self.developed = developed[np.sort(chosen)]

    def explain(self) -> str:
        """How many facts there are, and which entities are scored, and why."""
        count, split = len(self.graph.entities), self.split
        told = (
            f"{count:,} entities, {len(self.graph.relations):,} relations (reverse ones included); facts, both ways: "
        )
        told += f"{len(split.train):,} to learn, {len(split.dev):,} to develop on, {len(split.test):,} to test on. "
        if not self.negatives:
            return told + "Every entity is scored for every query (1-N)"
        why = f"more than {FEW:,} entities" if self.recipe.negatives is None else "as asked for"
        return told + f"{self.negatives:,} entities are drawn for every batch and scored ({why})"

    def batches(self, epoch: int) -> Sequence[FactBatch]:
        """All queries once, shuffled by the seed and the epoch."""
        order = np.random.default_rng([self.recipe.schedule.seed, epoch]).permutation(len(self.queries))
        return _Batches(self.queries, order, self.recipe.batch)

    def loss(self, batch: FactBatch) -> dict[str, Tensor]:
        """The mean over queries (bce) or facts (softmax)."""
        count = len(self.model.entities)
        if not self.negatives:
            query = self.model.query(embedding(batch.subjects, self.model.entities), batch.relations)
            scores = query @ self.model.entities.T
            right = scores[batch.query_of, batch.objects]
            if self.recipe.loss == "bce":
                return {"bce": bce(scores, right, self.recipe.smoothing)}
            return {"softmax": softmax(scores, right, batch.query_of, batch.objects)}
        drawn = torch.randint(count, (self.negatives,), device=batch.subjects.device)
        asked = (batch.subjects, drawn, batch.objects)
        # Looked up together: each look-up costs a gradient as large as the table.
        subjects, wrong, objects = torch.split(embedding(torch.cat(asked), self.model.entities), [*map(len, asked)])
        query = self.model.query(subjects, batch.relations)
        scores, right = query @ wrong.T, (embedding(batch.query_of, query) * objects).sum(-1)
        wrong_mask = wrong_mask_of(drawn, batch)
        if self.recipe.loss == "bce":
            return {"bce": drawn_bce(scores, wrong_mask, right, batch.query_of, count, self.recipe.smoothing)}
        return {"softmax": drawn_softmax(scores, wrong_mask, right, batch.query_of, count)}

    def evaluate(self) -> dict[str, float]:
        """Filtered scores of facts that were not learned."""
        return score_ranks(self.ranks(self.developed)).flat()

    def ranks(self, facts: Int64[np.ndarray, "fact 3"]) -> Float[np.ndarray, " fact"]:
        """The filtered rank of each fact's object; the model must be in eval mode."""
        found = [np.zeros(0)]
        size = max(1, _SCORES // len(self.graph.entities))
        device = self.model.entities.device
        with torch.no_grad():
            for begin in range(0, len(facts), size):
                some = facts[begin : begin + size]
                asked = (torch.from_numpy(np.ascontiguousarray(some[:, column])).to(device) for column in (0, 1))
                scores = self.model(*asked).float().cpu().numpy()
                known, known_of = self._known.take(self._known.find(some[:, 0], some[:, 1]))
                found.append(filtered_ranks(scores, some[:, 2], known, known_of))
        return np.concatenate(found)

    @cached_property
    def _known(self) -> Queries:
        return Queries.of(self.graph.facts)


def bce(scores: Float[Tensor, "query entity"], right: Float[Tensor, " fact"], smoothing: float) -> Float[Tensor, ""]:
    """Binary cross-entropy with smoothed labels, summed over entities, the mean over queries.

    -t log p - (1 - t) log(1 - p) is softplus(x) - t x: so the labels are never laid out. Not the mean over entities, as
    in the authors' code, because gradients of a large graph would vanish beside Adam's epsilon.
    """
    queries, entities = scores.shape
    added = min(smoothing, 1 / entities)
    return (softplus(scores).sum() - (1 - smoothing) * right.sum() - added * scores.sum()) / queries


def softmax(
    scores: Float[Tensor, "query entity"],
    right: Float[Tensor, " fact"],
    query_of: Int64[Tensor, " fact"],
    objects: Int64[Tensor, " fact"],
) -> Float[Tensor, ""]:
    """Cross-entropy of each right entity against itself and all wrong ones, the mean over facts.

    Other right objects of a query do not take part: of two that are right none is a mistake.
    """
    wrong = scores.index_put((query_of, objects), scores.new_tensor(-torch.inf))
    return (torch.logaddexp(torch.logsumexp(wrong, 1)[query_of], right) - right).mean()


def drawn_bce(
    scores: Float[Tensor, "query drawn"],
    wrong_mask: Bool[Tensor, "query drawn"],
    right: Float[Tensor, " fact"],
    query_of: Int64[Tensor, " fact"],
    entities: int,
    smoothing: float,
) -> Float[Tensor, ""]:
    """What `bce` would be, from the right entities and some that were drawn: each of these stands for many."""
    queries, added = len(scores), min(smoothing, 1 / entities)
    each = ((softplus(scores) - added * scores) * wrong_mask).sum(1)
    wrong = each @ _times(scores, wrong_mask, query_of, entities)
    return (wrong + (softplus(right) - (1 - smoothing + added) * right).sum()) / queries


def drawn_softmax(
    scores: Float[Tensor, "query drawn"],
    wrong_mask: Bool[Tensor, "query drawn"],
    right: Float[Tensor, " fact"],
    query_of: Int64[Tensor, " fact"],
    entities: int,
) -> Float[Tensor, ""]:
    """What `softmax` would be, from the right entities and some that were drawn."""
    rest = torch.logsumexp(scores.masked_fill(~wrong_mask, -torch.inf), 1)
    rest = rest + _times(scores, wrong_mask, query_of, entities).log()
    return (torch.logaddexp(rest[query_of], right) - right).mean()


def _times(
    scores: Float[Tensor, "query drawn"],
    wrong_mask: Bool[Tensor, "query drawn"],
    query_of: Int64[Tensor, " fact"],
    entities: int,
) -> Float[Tensor, " query"]:
    """How many wrong entities each drawn one stands for."""
    wrong = entities - torch.bincount(query_of, minlength=len(scores))
    return wrong.to(scores) / wrong_mask.sum(1).clamp(min=1)


def wrong_mask_of(drawn: Int64[Tensor, " drawn"], batch: FactBatch) -> Bool[Tensor, "query drawn"]:
    """Where a drawn entity is wrong for a query, and not by chance a right one."""
    mask = torch.ones(len(batch.subjects), len(drawn), dtype=torch.bool, device=drawn.device)
    hits = torch.isin(batch.objects, drawn)
    for fact in torch.nonzero(hits).flatten().tolist():  # few: objects of a batch among entities drawn from many
        mask[batch.query_of[fact], drawn == batch.objects[fact]] = False
    return mask


def train_graph(
    kb: KnowledgeBase, recipe: GraphRecipe, folder: str | Path, *, resume: bool = True
) -> tuple[GraphVectors, dict[str, FactScores]]:
    """Learn the vectors of a KB's entities in a folder, or go on there; with the scores of facts held out, by part."""
    folder, graph = Path(folder), Graph.read(kb)
    recipe = replace(recipe, kb=graph.uid, revision=graph.revision)
    if resume:
        _check_same(folder, kb, graph.uid, graph.revision)
    split = graph.split(recipe.hold_out) if recipe.split is None else graph.read_split(recipe.split)
    seed_all(recipe.schedule.seed)
    model = Factors.build(recipe.model, len(graph.entities), len(graph.relations))
    learner = GraphLearner(model, graph, split, recipe)
    console.note(learner.explain())
    train(learner, recipe.schedule, folder, recipe=recipe, resume=resume)
    stop_if_requested()
    model.eval()
    parts = (
        {"dev": split.dev, "test": split.test} if len(split.dev) + len(split.test) else {"learned": learner.developed}
    )
    console.note(f"ranking all entities for {sum(map(len, parts.values())):,} queries")
    scores = {name: score_ranks(learner.ranks(facts)) for name, facts in parts.items() if len(facts)}
    vectors = model.entities.detach().float().cpu().numpy()
    digest = hashlib.sha256(vectors.tobytes()).hexdigest()[:16]
    told = {name: score.to_dict() for name, score in scores.items()}
    return GraphVectors.save(folder, graph, vectors, digest, {"model": recipe.graph, "scores": told}), scores


def _check_same(folder: Path, kb: KnowledgeBase, uid: str, revision: int) -> None:
    """Facts that were added or taken away change everything: such a run is not gone on with."""
    run = Run(folder)
    if not run.recipe.exists():
        return
    told = config.read_table(run.recipe)
    there = told.get("kb"), told.get("revision")
    if there != (uid, revision):
        what = f"revision {there[1]} of {kb.path.name}" if there[0] == uid else "another knowledge base"
        raise KnowledgeBaseError(
            f"the vectors in {folder} are learned from {what}, {kb.path.name} is at revision {revision}; give "
            "another folder, or --anew to learn them again"
        )


def embed(
    kb: KnowledgeBase,
    folder: str | Path,
    *,
    encoder: EntityEncoder | None = None,
    recipe: GraphRecipe | None = None,
    mixture: VectorWeights | None = None,
    resume: bool = True,
) -> tuple[Combined, dict[str, FactScores]]:
    """Vectors of a KB's entities in a folder: from their texts (in `text`), from facts (in `graph`), both in one row.

    Each part goes on where it was interrupted. Text vectors that the KB's index has of the same encoder are taken.
    """
    folder, scores, text, graph = Path(folder), dict[str, FactScores](), None, None
    if recipe is not None and resume:  # a mismatch is told before texts are encoded
        about = kb.metadata
        _check_same(folder / "graph", kb, about["uid"], int(about["revision"]))
    if encoder is not None:
        text = _text_vectors(kb, encoder, folder / "text")
    if recipe is not None:
        graph, scores = train_graph(kb, recipe, folder / "graph", resume=resume)
    return combine(kb, folder, text=text, graph=graph, mixture=mixture), scores


def _text_vectors(kb: KnowledgeBase, encoder: EntityEncoder, folder: Path) -> EntityVectors:
    try:
        there = EntityVectors.open(vectors_folder(kb))
    except KnowledgeBaseError:
        there = None
    about = kb.metadata
    wanted = (about["uid"], int(about["revision"]), encoder.fingerprint)
    if there is not None and (there.uid, there.revision, there.fingerprint) == wanted:
        console.note(f"text vectors are taken from {there.folder}")
        return there
    progress = Encoding()
    with console.progress_bar(f"encoding {kb.path.name}", progress):
        return EntityVectors.build(kb, encoder, folder, progress=progress)
