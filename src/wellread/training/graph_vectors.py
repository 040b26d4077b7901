"""Training of entity vectors from the facts of a knowledge base, in a resumable run folder.

    graph = "tucker"
    loss = "bce"

    [schedule]
    epochs = 100

A batch is a set of queries (subject, relation, ?) with all their right objects. In a small graph every entity is scored
for every query (1-N, Dettmers et al. 2018). In a large graph that is too slow: then the right objects and `negatives`
random entities are scored, shared by the whole batch so that it stays one matrix product, and weighted so that the
expected loss is the full one.

The vectors are in `entities.safetensors`; `graph.json` has their knowledge base and revision.
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
"""Maximum number of entities for 1-N scoring; with more, negatives are sampled."""
DRAWN = 4096
"""Default number of sampled entities per batch."""
_SCORES = 1 << 24
"""Scores in memory at once in ranking: 64 MB."""


@dataclass(frozen=True, slots=True)
class GraphRecipe:
    """Model, loss and schedule of vectors trained on facts."""

    graph: Kind = "tucker"
    entity_dim: int = 200
    relation_dim: int = 30
    input_dropout: float = 0.2
    core_dropout: float = 0.2
    query_dropout: float = 0.3
    loss: Literal["bce", "softmax"] = "bce"
    """Loss: bce is a binary decision per entity (as in the paper), softmax a choice among all entities."""
    smoothing: float = 0.1
    """bce: labels are 1 - smoothing and 0, plus 1 / entities, as in the authors' code, but at most `smoothing` more,
    since a label above 1 has no minimum of the loss.
    """
    batch: int = 128
    """Number of queries in a batch."""
    negatives: int | None = None
    """Number of sampled entities per batch; 0 scores all. By default it depends on the number of entities."""
    hold_out: float = 0.05
    """Share of linked entity pairs whose facts are held out, half for validation and half for testing; with 0 all facts
    are trained on, and the scores are those of training facts.
    """
    split: str | None = None
    """Alternatively, a table of subject, relation, object and train, valid or test."""
    develop: int = 4000
    """Number of queries that are ranked in an evaluation."""
    schedule: Schedule = field(
        default_factory=lambda: Schedule(epochs=50, learning_rate=1e-3, weight_decay=0.0, warmup=0.02, clip=1e6)
    )
    kb: str = ""
    """Knowledge base of the vectors, by its uid; set by the training."""
    revision: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise UsageError(f"smoothing is {self.smoothing}; expected a share from 0 to less than 1")
        for name in ("batch", "develop"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.graph == "tucker" and self.batch == 1:
            raise UsageError("batch is 1, but tucker has a batch norm over queries; give 2 or more")
        if self.negatives is not None and self.negatives < 0:
            raise UsageError(f"negatives is {self.negatives}; expected 1 or more, or 0 for all entities")
        self.model  # noqa: B018  # incompatible settings are rejected now

    @property
    def model(self) -> FactorsConfig:
        """Part of the settings that the model is built from."""
        dropouts = (self.input_dropout, self.core_dropout, self.query_dropout)
        return FactorsConfig(self.graph, self.entity_dim, self.relation_dim, *dropouts)


def usual(kind: Kind) -> GraphRecipe:
    """Return the default recipe of a model: softmax converges faster than the loss of TuckER's paper."""
    if kind == "tucker":
        return GraphRecipe(loss="softmax")
    return GraphRecipe(graph=kind, loss="softmax", input_dropout=0.2, core_dropout=0.0, query_dropout=0.2)


@dataclass(frozen=True, slots=True)
class FactBatch:
    """Queries and their right objects, concatenated."""

    subjects: Int64[Tensor, " query"]
    relations: Int64[Tensor, " query"]
    objects: Int64[Tensor, " fact"]
    query_of: Int64[Tensor, " fact"]

    @property
    def tokens(self) -> int:
        """Number of facts, which the log counts."""
        return len(self.objects)

    def to(self, device: torch.device) -> FactBatch:
        """Return a copy on the device."""
        return FactBatch(*(part.to(device) for part in (self.subjects, self.relations, self.objects, self.query_of)))


class _Batches(Sequence[FactBatch]):
    """Batches of an epoch's queries, built on access.

    A single leftover query joins the batch before it, since a batch norm needs more than one.
    """

    def __init__(self, queries: Queries, order: Int64[np.ndarray, " query"], size: int) -> None:
        self._queries, self._order, self._size = queries, order, size

    def __len__(self) -> int:
        count = -(-len(self._order) // self._size)
        alone = len(self._order) % self._size == 1 and 1 < self._size < len(self._order)
        return count - alone

    def __getitem__(self, place: int) -> FactBatch:  # type: ignore[override]  # no slices
        if not 0 <= place < len(self):
            raise IndexError(place)
        end = None if place == len(self) - 1 else (place + 1) * self._size
        numbers = self._order[place * self._size : end]
        objects, query_of = self._queries.take(numbers)
        parts = (self._queries.subjects[numbers], self._queries.relations[numbers], objects, query_of)
        return FactBatch(*map(torch.from_numpy, parts))


class GraphLearner:
    """Learner of facts, as the training loop takes it."""

    score = "mrr"

    def __init__(self, model: Factors, graph: Graph, split: Split, recipe: GraphRecipe) -> None:
        self.model, self.graph, self.split, self.recipe = model, graph, split, recipe
        self.queries = Queries.of(split.train)
        if recipe.graph == "tucker" and len(self.queries) == 1:
            raise InputError(
                "there is only one query to train on, but tucker has a batch norm; add facts, or use another model: "
                'graph = "distmult"'
            )
        count = len(graph.entities)
        wanted = recipe.negatives if recipe.negatives is not None else 0 if count <= FEW else DRAWN
        self.negatives = wanted if 0 < wanted < count else 0
        """Number of sampled entities per batch; 0 scores all."""
        developed = split.dev if len(split.dev) else split.train
        chosen = np.random.default_rng([recipe.schedule.seed, 7]).permutation(len(developed))[: recipe.develop]
        self.developed = developed[np.sort(chosen)]

    def explain(self) -> str:
        """Return the numbers of facts, and which entities are scored and why."""
        count, split = len(self.graph.entities), self.split
        text = f"{count:,} entities, {len(self.graph.relations):,} relations (with inverse ones); facts, both ways: "
        text += f"{len(split.train):,} to train on, {len(split.dev):,} to validate on, {len(split.test):,} to test on. "
        if not self.negatives:
            return text + "Every entity is scored for every query (1-N)"
        why = f"more than {FEW:,} entities" if self.recipe.negatives is None else "as set"
        return text + f"{self.negatives:,} entities are sampled per batch and scored ({why})"

    def batches(self, epoch: int) -> Sequence[FactBatch]:
        """Return batches of all queries, shuffled by seed and epoch."""
        order = np.random.default_rng([self.recipe.schedule.seed, epoch]).permutation(len(self.queries))
        return _Batches(self.queries, order, self.recipe.batch)

    def loss(self, batch: FactBatch) -> dict[str, Tensor]:
        """Return the mean loss over queries (bce) or facts (softmax)."""
        count = len(self.model.entities)
        if not self.negatives:
            query = self.model.query(embedding(batch.subjects, self.model.entities), batch.relations)
            scores = query @ self.model.entities.T
            right = scores[batch.query_of, batch.objects]
            if self.recipe.loss == "bce":
                return {"bce": bce(scores, right, self.recipe.smoothing)}
            return {"softmax": softmax(scores, right, batch.query_of, batch.objects)}
        drawn = torch.randint(count, (self.negatives,), device=batch.subjects.device)
        looked_up = (batch.subjects, drawn, batch.objects)
        # One look-up instead of three: each costs a gradient as large as the table.
        subjects, wrong, objects = torch.split(
            embedding(torch.cat(looked_up), self.model.entities), [*map(len, looked_up)]
        )
        query = self.model.query(subjects, batch.relations)
        scores, right = query @ wrong.T, (embedding(batch.query_of, query) * objects).sum(-1)
        wrong_mask = wrong_mask_of(drawn, batch)
        if self.recipe.loss == "bce":
            return {"bce": drawn_bce(scores, wrong_mask, right, batch.query_of, count, self.recipe.smoothing)}
        return {"softmax": drawn_softmax(scores, wrong_mask, right, batch.query_of, count)}

    def evaluate(self) -> dict[str, float]:
        """Return filtered scores of the validation facts."""
        return score_ranks(self.ranks(self.developed)).flat()

    def ranks(self, facts: Int64[np.ndarray, "fact 3"]) -> Float[np.ndarray, " fact"]:
        """Return the filtered rank of each fact's object; the model must be in eval mode."""
        found = [np.zeros(0)]
        size = max(1, _SCORES // len(self.graph.entities))
        device = self.model.entities.device
        with torch.no_grad():
            for begin in range(0, len(facts), size):
                some = facts[begin : begin + size]
                columns = (torch.from_numpy(np.ascontiguousarray(some[:, column])).to(device) for column in (0, 1))
                scores = self.model(*columns).float().cpu().numpy()
                known, known_of = self._known.take(self._known.find(some[:, 0], some[:, 1]))
                found.append(filtered_ranks(scores, some[:, 2], known, known_of))
        return np.concatenate(found)

    @cached_property
    def _known(self) -> Queries:
        return Queries.of(self.graph.facts)


def bce(scores: Float[Tensor, "query entity"], right: Float[Tensor, " fact"], smoothing: float) -> Float[Tensor, ""]:
    """Binary cross-entropy with smoothed labels, summed over entities and averaged over queries.

    -t log p - (1 - t) log(1 - p) equals softplus(x) - t x, so no label matrix is needed. The authors' code averages
    over entities too, but then gradients of a large graph vanish beside Adam's epsilon.
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
    """Cross-entropy of each right entity against itself and all wrong ones, averaged over facts.

    Other right objects of a query are masked.
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
    """Estimate `bce` from the right entities and sampled ones, weighted by the number they represent."""
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
    """Estimate `softmax` from the right entities and sampled ones."""
    rest = torch.logsumexp(scores.masked_fill(~wrong_mask, -torch.inf), 1)
    rest = rest + _times(scores, wrong_mask, query_of, entities).log()
    return (torch.logaddexp(rest[query_of], right) - right).mean()


def _times(
    scores: Float[Tensor, "query drawn"],
    wrong_mask: Bool[Tensor, "query drawn"],
    query_of: Int64[Tensor, " fact"],
    entities: int,
) -> Float[Tensor, " query"]:
    """Return the number of wrong entities that each sampled one represents."""
    wrong = entities - torch.bincount(query_of, minlength=len(scores))
    return wrong.to(scores) / wrong_mask.sum(1).clamp(min=1)


def wrong_mask_of(drawn: Int64[Tensor, " drawn"], batch: FactBatch) -> Bool[Tensor, "query drawn"]:
    """Return False where a sampled entity is a right object of the query."""
    mask = torch.ones(len(batch.subjects), len(drawn), dtype=torch.bool, device=drawn.device)
    hits = torch.isin(batch.objects, drawn)
    for fact in torch.nonzero(hits).flatten().tolist():  # few: objects of a batch among entities drawn from many
        mask[batch.query_of[fact], drawn == batch.objects[fact]] = False
    return mask


def train_graph(
    kb: KnowledgeBase, recipe: GraphRecipe, folder: str | Path, *, resume: bool = True
) -> tuple[GraphVectors, dict[str, FactScores]]:
    """Train or resume the entity vectors of a KB in a folder; return them with scores of held-out facts."""
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
    reported = {name: score.to_dict() for name, score in scores.items()}
    return GraphVectors.save(folder, graph, vectors, digest, {"model": recipe.graph, "scores": reported}), scores


def _check_same(folder: Path, kb: KnowledgeBase, uid: str, revision: int) -> None:
    """Raise `KnowledgeBaseError` if the run was trained on another KB or revision."""
    run = Run(folder)
    if not run.recipe.exists():
        return
    saved = config.read_table(run.recipe)
    there = saved.get("kb"), saved.get("revision")
    if there != (uid, revision):
        what = f"revision {there[1]} of {kb.path.name}" if there[0] == uid else "another knowledge base"
        raise KnowledgeBaseError(
            f"the vectors in {folder} were trained on {what}, {kb.path.name} is at revision {revision}; give "
            "another folder, or --anew to train them again"
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
    """Build entity vectors in a folder: from texts (in `text`), from facts (in `graph`), or both concatenated.

    Each part resumes where it was interrupted. Text vectors of the KB's index are reused if the encoder is the same.
    """
    folder, scores, text, graph = Path(folder), dict[str, FactScores](), None, None
    if recipe is not None and resume:  # raise before texts are encoded
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
        console.note(f"reusing text vectors of {there.folder}")
        return there
    progress = Encoding()
    with console.progress_bar(f"encoding {kb.path.name}", progress):
        return EntityVectors.build(kb, encoder, folder, progress=progress)
