"""Facts as arrays, what may be tested on, learning from them, and the rows that come of it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.index.test_entity_vectors import BagOfWords
from tests.kb.conftest import build_kb
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.index.combined_vectors import GraphVectors, VectorWeights, combine
from wellread.index.entity_vectors import EntityVectors
from wellread.index.triples import Graph, Queries
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.plots import curves as plots
from wellread.training import graph_vectors as module
from wellread.training.graph_vectors import GraphLearner, GraphRecipe, embed, train_graph
from wellread.training.schedule import Schedule

COUNT = 30


def ring():
    """Things in a ring: each has a next one and one before it, a twin five on, and a colour of three."""
    things = []
    for n in range(COUNT):
        facts = [("next", f"t{(n + 1) % COUNT}"), ("before", f"t{(n - 1) % COUNT}"), ("near", f"t{(n + 5) % COUNT}")]
        facts += [("near", f"t{(n - 5) % COUNT}"), ("coloured", f"c{n % 3}")]
        things.append(Entity(f"t{n}", f"thing {n}", f"number {n}", facts=tuple(facts)))
    return [*things, *(Entity(f"c{n}", f"colour {n}") for n in range(3)), Entity("alone", "loner", "without facts")]


@pytest.fixture
def kb(tmp_path):
    build_kb(tmp_path / "ring.kb", ring())
    with KnowledgeBase.open(tmp_path / "ring.kb", writable=True) as opened:
        yield opened


def spelled(graph, facts):
    return {(graph.entities[s], graph.relations[r], graph.entities[o]) for s, r, o in facts.tolist()}


# the graph


def test_a_graph_has_every_fact_both_ways_and_none_twice(kb):
    graph = Graph.read(kb)
    found = spelled(graph, graph.facts)
    facts = {(entity.id, relation, object) for entity in kb.entities() for relation, object in entity.facts}
    assert found == facts | {(o, "reverse of coloured", s) for s, r, o in facts if r == "coloured"}
    assert len(graph.facts) == len(found) == 180
    names = {graph.relations[r]: graph.relations[back] for r, back in enumerate(graph.reverse.tolist())}
    assert names == {
        "next": "before",
        "before": "next",
        "near": "near",
        "coloured": "reverse of coloured",
        "reverse of coloured": "coloured",
    }
    assert "alone" not in graph.entities
    assert (graph.uid, graph.revision) == (kb.metadata["uid"], 1)


def test_a_reverse_relation_with_a_gap_is_filled_and_one_with_many_is_none():
    many = [(n, 0, n + 1) for n in range(100)] + [(n + 1, 1, n) for n in range(98)]
    graph = Graph.of(np.array(many), [f"e{n}" for n in range(101)], ["over", "under"])
    assert (list(graph.relations), graph.reverse.tolist()) == (["over", "under"], [1, 0])
    assert ("e100", "under", "e99") in spelled(graph, graph.facts)
    graph = Graph.of(np.array(many[:180]), [f"e{n}" for n in range(101)], ["over", "under"])
    assert graph.relations[2:] == ["reverse of over", "reverse of under"]
    assert graph.reverse.tolist() == [2, 3, 0, 1]


def test_relations_that_say_the_same_share_out_their_reverses():
    facts = [(0, 0, 1), (0, 1, 1), (1, 2, 0)]
    graph = Graph.of(np.array(facts), ["a", "b"], ["owns", "has", "of"])
    assert graph.reverse[graph.reverse].tolist() == list(range(len(graph.relations)))
    assert sorted(graph.relations) == ["has", "of", "owns", "reverse of has"]


def test_nothing_that_was_learned_joins_two_entities_that_are_tested(kb):
    graph = Graph.read(kb)
    split = graph.split(0.3)
    joined = [{frozenset((s, o)) for s, _, o in part.tolist()} for part in (split.train, split.dev, split.test)]
    assert not joined[0] & joined[1]
    assert not joined[0] & joined[2]
    assert not joined[1] & joined[2]
    assert len(split.train) + len(split.dev) + len(split.test) == len(graph.facts)
    assert 0.25 < (len(joined[1]) + len(joined[2])) / sum(map(len, joined)) <= 0.31
    assert {n for pair in joined[0] for n in pair} == set(range(len(graph.entities)))
    assert all(np.array_equal(a, b) for a, b in zip(_parts(split), _parts(graph.split(0.3)), strict=True))
    assert not np.array_equal(split.dev, graph.split(0.3, seed=1).dev)


def _parts(split):
    return split.train, split.dev, split.test


def test_an_entity_keeps_its_last_neighbour():
    star = np.array([(0, 0, n) for n in range(1, 20)])
    split = Graph.of(star, [str(n) for n in range(20)], ["of"]).split(0.9)
    assert (len(split.train), len(split.dev), len(split.test)) == (38, 0, 0)


def test_a_table_says_which_part_a_fact_belongs_to(kb, tmp_path):
    graph = Graph.read(kb)
    lines = []
    for entity in kb.entities():
        for relation, object in entity.facts:
            # "before" is "next" backwards: the first part that tells a fact has it.
            part = "test" if (entity.id, relation) == ("t3", "coloured") else "train"
            lines.append(f"{entity.id}\t{relation}\t{object}\t{part}")
    (tmp_path / "split.tsv").write_text("\n".join([*lines, "t1\tnext\tnobody\tvalid"]) + "\n")
    split = graph.read_split(tmp_path / "split.tsv")
    assert spelled(graph, split.test) == {("t3", "coloured", "c0"), ("c0", "reverse of coloured", "t3")}
    assert (len(split.train), len(split.dev)) == (178, 0)
    (tmp_path / "split.tsv").write_text("\n".join(lines[:-20]))
    with pytest.raises(InputError, match=r"does not assign \d+ facts of the knowledge base to a part, e\.g\. "):
        graph.read_split(tmp_path / "split.tsv")
    (tmp_path / "split.tsv").write_text("a\tb\tc\n")
    with pytest.raises(InputError, match="line 1: expected subject, relation, object and train, valid or test"):
        graph.read_split(tmp_path / "split.tsv")


def test_queries_have_all_their_objects():
    queries = Queries.of(np.array([[2, 0, 5], [0, 1, 7], [0, 1, 5], [0, 0, 1]]))
    assert list(zip(queries.subjects.tolist(), queries.relations.tolist(), strict=True)) == [(0, 0), (0, 1), (2, 0)]
    numbers = queries.find(np.array([0, 1, 2, 0]), np.array([1, 1, 0, 9]))
    assert numbers.tolist() == [1, -1, 2, -1]
    objects, places = queries.take(numbers)
    assert (objects.tolist(), places.tolist()) == ([5, 7, 5], [0, 0, 2])
    assert Queries.of(np.zeros((0, 3), np.int64)).find(np.array([0]), np.array([0])).tolist() == [-1]


def test_a_kb_without_facts_says_what_to_do(tmp_path):
    build_kb(tmp_path / "x.kb", [Entity("a", "a")])
    with KnowledgeBase.open(tmp_path / "x.kb") as kb, pytest.raises(InputError, match="--graph none"):
        Graph.read(kb)


# learning


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Plots have tests of their own."""
    monkeypatch.setattr(plots, "save", lambda figure, path: None)


RECIPE = GraphRecipe(
    entity_dim=16,
    relation_dim=4,
    input_dropout=0.0,
    core_dropout=0.0,
    query_dropout=0.0,
    batch=32,
    hold_out=0.1,
    schedule=Schedule(steps=120, learning_rate=0.03, weight_decay=0.0, clip=1e6, evaluate_every=40),
)
"""Colours repeat and nearness is everywhere, so some of what is held out can be known."""


@pytest.mark.parametrize(
    ("kind", "loss", "negatives", "bar"),
    [
        ("tucker", "bce", 0, 0.8),
        ("complex", "softmax", 0, 0.8),
        ("distmult", "softmax", 8, 0.8),
        ("tucker", "bce", 8, 0.4),
    ],
)
def test_what_is_learned_is_known(kb, tmp_path, kind, loss, negatives, bar):
    recipe = replace(RECIPE, graph=kind, loss=loss, negatives=negatives, hold_out=0.0)
    vectors, scores = train_graph(kb, recipe, tmp_path / "run")
    assert list(scores) == ["learned"]
    assert scores["learned"].mrr > bar  # by chance 0.12
    assert (vectors.dim, len(vectors.ids), vectors.about["model"]) == (16, 33, kind)


def test_facts_held_out_are_scored_and_the_choice_is_explained(kb, tmp_path, capsys):
    _, scores = train_graph(kb, replace(RECIPE, schedule=replace(RECIPE.schedule, steps=5)), tmp_path / "run")
    assert scores["dev"].queries > 5
    assert scores["test"].queries > 5
    output = capsys.readouterr().err
    assert "33 entities, 5 relations (with inverse ones)" in output
    assert "Every entity is scored for every query (1-N)" in output


def test_a_large_graph_has_entities_drawn(kb, monkeypatch):
    monkeypatch.setattr(module, "FEW", 10)
    monkeypatch.setattr(module, "DRAWN", 12)
    graph = Graph.read(kb)
    model = module.Factors.build(RECIPE.model, 33, 5)
    learner = GraphLearner(model, graph, graph.split(0.1), RECIPE)
    assert learner.negatives == 12
    assert learner.explain().endswith("12 entities are sampled per batch and scored (more than 10 entities)")
    recipe = replace(RECIPE, negatives=500)
    assert GraphLearner(model, graph, graph.split(0.1), recipe).negatives == 0


@pytest.mark.parametrize("kind", ["tucker", "distmult"])
def test_a_query_that_is_left_over_goes_with_the_batch_before(kb, kind):
    graph = Graph.read(kb)
    recipe = replace(RECIPE, graph=kind, relation_dim=16)
    model = module.Factors.build(recipe.model, 33, 5)
    count = len(GraphLearner(model, graph, graph.split(0.0), recipe).queries)
    for size, wanted in ((count - 1, [count]), (count - 2, [count - 2, 2]), ((count - 1) // 2, None), (count, [count])):
        learner = GraphLearner(model, graph, graph.split(0.0), replace(recipe, batch=size))
        batches = learner.batches(0)
        sizes = [len(batch.subjects) for batch in batches]
        assert len(batches) == len(sizes)
        assert sum(sizes) == count
        assert wanted is None or sizes == wanted
        assert min(sizes) > 1
        seen = {
            pair for batch in batches for pair in zip(batch.subjects.tolist(), batch.relations.tolist(), strict=True)
        }
        assert len(seen) == count
        for batch in batches:
            assert torch.isfinite(learner.loss(batch)["bce"])


def test_one_query_alone_is_a_batch_but_not_for_tucker(kb):
    graph = Graph.read(kb)
    split = replace(graph.split(0.0), train=graph.facts[:1])
    alone = replace(RECIPE, graph="distmult", batch=1)
    model = module.Factors.build(alone.model, 33, 5)
    assert [len(batch.subjects) for batch in GraphLearner(model, graph, split, alone).batches(0)] == [1]
    every = GraphLearner(model, graph, graph.split(0.0), alone)
    assert len(every.batches(0)) == len(every.queries)
    with pytest.raises(InputError, match="one query to train on"):
        GraphLearner(model, graph, split, RECIPE)


def test_ranks_leave_out_what_is_known(kb):
    graph = Graph.read(kb)
    learner = GraphLearner(module.Factors.build(RECIPE.model, 33, 5).eval(), graph, graph.split(0.1), RECIPE)
    facts = graph.facts[::7]
    known = {tuple(fact) for fact in graph.facts.tolist()}
    with torch.no_grad():
        scores = learner.model(torch.from_numpy(facts[:, 0].copy()), torch.from_numpy(facts[:, 1].copy())).numpy()
    for (s, r, o), row, rank in zip(facts.tolist(), scores, learner.ranks(facts), strict=True):
        rivals = [row[e] for e in range(33) if e != o and (s, r, e) not in known]
        assert rank == 1 + sum(x > row[o] for x in rivals) + sum(x == row[o] for x in rivals) / 2


def test_a_run_that_was_interrupted_ends_with_the_same_bits(kb, tmp_path, monkeypatch):
    recipe = replace(RECIPE, negatives=8, query_dropout=0.2, schedule=replace(RECIPE.schedule, steps=30))
    recipe = replace(recipe, schedule=replace(recipe.schedule, evaluate_every=10))
    train_graph(kb, recipe, tmp_path / "whole")
    seen = []

    def stopping(self, batch, loss=GraphLearner.loss):
        seen.append(batch)
        if len(seen) == 25:
            raise KeyboardInterrupt
        return loss(self, batch)

    monkeypatch.setattr(GraphLearner, "loss", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_graph(kb, recipe, tmp_path / "cut")
    train_graph(kb, recipe, tmp_path / "cut")
    assert len(seen) == 25 + 10  # from step 20 on
    whole, tokenized = (load_file(tmp_path / name / "entities.safetensors") for name in ("whole", "cut"))
    assert torch.equal(whole["vectors"], tokenized["vectors"])


def test_a_run_of_another_state_of_the_kb_is_refused(kb, tmp_path):
    recipe = replace(RECIPE, schedule=replace(RECIPE.schedule, steps=3))
    embed(kb, tmp_path / "to", recipe=recipe)
    kb.add(Entity("new", "newcomer", facts=(("next", "t0"),)))
    with pytest.raises(KnowledgeBaseError, match=r"trained on revision 1 of ring.kb, ring.kb is at revision 2"):
        embed(kb, tmp_path / "to", recipe=recipe)
    made, _ = embed(kb, tmp_path / "to", recipe=recipe, resume=False)
    assert made.vectors.revision == 2
    build_kb(tmp_path / "other.kb", ring())
    with (
        KnowledgeBase.open(tmp_path / "other.kb") as other,
        pytest.raises(KnowledgeBaseError, match="another knowledge"),
    ):
        embed(other, tmp_path / "to", recipe=recipe)


def test_settings_that_cannot_be_are_refused():
    for options, says in (
        ({"batch": 0}, "batch is 0"),
        ({"batch": 1}, "batch is 1, but tucker"),
        ({"negatives": -1}, "negatives is -1"),
        ({"smoothing": 1.0}, "smoothing is 1.0"),
        ({"graph": "complex", "entity_dim": 7}, "even number"),
    ):
        with pytest.raises(UsageError, match=says):
            replace(RECIPE, **options)


# combined vectors


@pytest.fixture
def parts(kb, tmp_path):
    text = EntityVectors.build(kb, BagOfWords(), tmp_path / "text")
    graph = Graph.read(kb)
    rows = np.random.default_rng(0).normal(size=(33, 5)).astype(np.float32)
    return text, GraphVectors.save(tmp_path / "graph", graph, rows, "fp", {"model": "tucker"})


def test_a_row_is_the_text_beside_the_graph_and_an_entity_without_facts_has_zeros(kb, tmp_path, parts):
    text, graph = parts
    made = combine(kb, tmp_path / "both", text=text, graph=graph, mixture=VectorWeights(2.0, 3.0))
    vectors = EntityVectors.open(tmp_path / "both")
    assert (len(vectors), vectors.dim, made.without_facts) == (34, 21, 1)
    assert (vectors.uid, vectors.revision) == (kb.metadata["uid"], 1)
    ids = graph.ids.take(range(33))
    for id in ("t0", "c2", "alone"):
        row = vectors.rows[vectors.rows_of([id])[0]].astype(np.float32)
        own = text.rows[text.rows_of([id])[0]].astype(np.float32)
        np.testing.assert_allclose(row[:16], 2 * own / np.linalg.norm(own), atol=2e-3)
        facts = graph.rows[ids.index(id)] if id in ids else np.zeros(5)
        np.testing.assert_allclose(row[16:], 3 * facts / (np.linalg.norm(facts) or 1), atol=3e-3)
    assert vectors.ids.take(range(34)) == text.ids.take(range(34))
    manifest = json.loads((tmp_path / "both" / "vectors.json").read_text())
    assert manifest["without_facts"] == 1
    assert manifest["parts"]["graph"] == {"fingerprint": "fp", "dim": 5, "weight": 3.0, "model": "tucker"}


def test_parts_are_joined_as_they_are_where_asked(kb, tmp_path, parts):
    text, graph = parts
    unit = combine(kb, tmp_path / "both", text=text, graph=graph).vectors
    plain = combine(kb, tmp_path / "both", text=text, graph=graph, mixture=VectorWeights(unit=False)).vectors
    assert unit.fingerprint != plain.fingerprint
    row = plain.rows[plain.rows_of(["t7"])[0]].astype(np.float32)
    np.testing.assert_allclose(row[16:], graph.rows[graph.ids.take(range(33)).index("t7")], atol=2e-3)
    assert len(list((tmp_path / "both").glob("*.safetensors"))) == 1
    alone = combine(kb, tmp_path / "graph only", graph=graph).vectors
    assert (alone.dim, len(alone)) == (5, 34)
    assert combine(kb, tmp_path / "text only", text=text).vectors.dim == 16


def test_parts_that_do_not_belong_together_are_refused(kb, tmp_path, parts):
    text, graph = parts
    with pytest.raises(UsageError, match="nothing to combine"):
        combine(kb, tmp_path / "both")
    with pytest.raises(UsageError, match="the weight of graph is 0"):
        VectorWeights(graph=0)
    kb.add(Entity("new", "newcomer"))
    fresh = EntityVectors.build(kb, BagOfWords(), tmp_path / "text")
    with pytest.raises(KnowledgeBaseError, match=r"at revision 2, the graph vectors in \S+ are of revision 1 of it"):
        combine(kb, tmp_path / "both", text=fresh, graph=graph)
    with pytest.raises(KnowledgeBaseError, match="the text vectors"):
        combine(kb, tmp_path / "both", text=text)
    assert not (tmp_path / "both" / "vectors.json").exists()


def test_damaged_graph_vectors_say_what_to_do(tmp_path, parts):
    with pytest.raises(KnowledgeBaseError, match="there are no graph vectors"):
        GraphVectors.open(tmp_path)
    file = tmp_path / "graph" / "entities.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(KnowledgeBaseError, match="missing or damaged"):
        GraphVectors.open(tmp_path / "graph")
    shutil.rmtree(tmp_path / "graph")


def test_numbers_beyond_half_precision_are_refused(kb, tmp_path, parts):
    text, graph = parts
    with pytest.raises(InputError, match="not finite"):
        combine(kb, tmp_path / "both", text=text, graph=graph, mixture=VectorWeights(graph=1e6))


def test_text_vectors_of_the_index_are_taken(kb, tmp_path):
    encoder = BagOfWords()
    EntityVectors.build(kb, encoder)
    seen = len(encoder.seen)
    embed(kb, tmp_path / "to", encoder=encoder)
    assert len(encoder.seen) == seen
    embed(kb, tmp_path / "to", encoder=BagOfWords(fingerprint="bag 2"))
    assert (tmp_path / "to" / "text" / "vectors.json").exists()
