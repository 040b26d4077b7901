"""The task of linking: what becomes an example, what a batch asks, what is learned and how it is scored."""

import random
import re
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.toy_models import ENTITIES, document, make_elq, shake, teach, toy_documents
from wellread.document import Document, Link
from wellread.evaluation.calibration import pr_curve
from wellread.evaluation.linking import right_links, score_linking
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding
from wellread.models.elq.linker import ElqBackend
from wellread.models.elq.load import open_index
from wellread.models.elq.model import Elq, entity_loss, mention_loss
from wellread.models.elq.training_task import (
    NIL,
    LinkingLearner,
    collate,
    make_examples,
    mark_unsure,
    split_off,
)

LONGEST = 10


@pytest.fixture(scope="module")
def kb(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task") / "toy"
    shutil.copytree(toy, folder)
    with KnowledgeBase.open(folder / "toy.kb") as opened:
        yield opened


@pytest.fixture(scope="module")
def index(kb, plain_encoder):
    return open_index(kb, make_elq(plain_encoder).config)


@pytest.fixture
def model(plain_encoder):
    return make_elq(plain_encoder)


@pytest.fixture
def taught(toy):
    return Elq.from_pretrained(toy / "model").eval()


@pytest.fixture
def learner(model, kb, index):
    def learner(documents=None, dev=None, using=model, **options):
        documents = toy_documents(60) if documents is None else documents
        dev = {"toy": toy_documents(20, seed=1)} if dev is None else dev
        return LinkingLearner(using, kb, index, make_examples(documents, using, index), dev, **options)

    return learner


# examples


def words_of(example, span):
    window = example.window
    return window.spans[span[0], 0], window.spans[span[1], 1]


def test_examples_have_the_pieces_of_their_links(model, index):
    text = "who is the mayor of Zürich and cork , or of atlantis ?"
    gold = document(text, ("cork", "p2"), ("Zürich", "unheard of"), ("atlantis", None), unsure=((0, 3),))
    (example,) = make_examples([gold], model, index)
    assert [words_of(example, span) for span in example.spans] == [(20, 26), (31, 35), (44, 52)]
    assert example.rows == (NIL, index.rows_of(["p2"])[0], NIL)
    assert example.names == ("Zürich", "cork", "atlantis")
    assert [words_of(example, span) for span in example.unsure] == [(0, 3)]


def test_a_text_without_links_is_an_example_and_an_empty_one_is_none(model, index):
    (example,) = make_examples([document("who is the mayor"), document("")], model, index)
    assert (example.spans, example.rows, example.names, example.unsure) == ((), (), (), ())
    assert make_examples([], model, index) == []


def test_links_that_are_too_long_or_within_a_word_are_left_out(model, index):
    (example,) = make_examples([document("what is " + "x" * 12 + " of corkscrew", ("x" * 12, "p2"))], model, index)
    assert example.spans == ()
    within = Document("corkscrew", (Link(4, 9, "screw", "p2"),))
    assert make_examples([within], model, index)[0].spans == ()


def test_gold_mentions_that_are_left_out_are_counted(model, index, capsys):
    long, within = "x" * 12, Document("corkscrew", (Link(4, 9, "screw", "p2"),))
    documents = [document(f"what is {long} of cork", (long, "p2"), ("cork", "p2")), within]
    examples = make_examples(documents, model, index)
    assert [len(example.spans) for example in examples] == [1, 0]
    assert capsys.readouterr().err == (
        "left out 2 of 3 gold mentions: 1 have more than 10 tokens (raise model.longest), 1 begin inside a word or "
        "have no token\n"
    )
    make_examples([document("in cork", ("cork", "p2"))], model, index)
    assert capsys.readouterr().err == ""


def test_every_link_of_a_long_text_is_in_one_example(model, index):
    text = " ".join(["who is the mayor of cork and of ada"] * 60)
    ids = {"cork": "p2", "ada": "h0"}
    links = tuple(Link(*found.span(), found[0], ids[found[0]]) for found in re.finditer("cork|ada", text))
    examples = make_examples([Document(text, links)], model, index)
    assert len(examples) > 2
    found = [words_of(example, span) for example in examples for span in example.spans]
    assert found == [(link.start, link.end) for link in links]


def test_a_longest_mention_of_many_pieces_is_still_seen_whole(plain_encoder, index):
    model = make_elq(plain_encoder, longest=40)
    name = "the old city of " * 9 + "cork"
    for before in range(100, 200):
        text = "river " * before + name + " river" * 60
        start = text.index(name)
        gold = Document(text, (Link(start, start + len(name), name, "p2"),))
        found = [words_of(one, span) for one in make_examples([gold], model, index) for span in one.spans]
        assert found == [(start, start + len(name))]


def test_names_without_a_link_are_unsure_where_they_look_like_names(kb):
    text = "Cork and ada wrote to Ada in Mercury"
    (marked,) = mark_unsure([document(text, ("Mercury", "planet"))], kb)
    assert marked.meta["unsure"] == [[0, 4], [22, 25]]
    assert marked.links == document(text, ("Mercury", "planet")).links
    assert mark_unsure([], kb) == []


def unsure_of(kb, text, *links, **meta):
    (marked,) = mark_unsure([Document(text, document(text, *links).links, meta=meta)], kb)
    return {text[start:end] for start, end in marked.meta["unsure"]}


def test_capitalised_words_without_a_link_are_unsure_in_every_part(kb):
    assert unsure_of(kb, "he met Grace Brewster Hopper today") == {
        *("Grace", "Grace Brewster", "Grace Brewster Hopper", "Brewster", "Brewster Hopper", "Hopper")
    }
    assert unsure_of(kb, "Élan, über Ökonomie of Tim O'Neil") == {"Élan", "Ökonomie", "Tim", "Tim O'Neil", "O'Neil"}
    assert unsure_of(kb, "A B C D E F") == {
        *(" ".join("ABCDEF"[first:last]) for first in range(6) for last in range(first + 1, min(6, first + 5) + 1))
    }
    assert unsure_of(kb, "東京 école 3 x") == set()


def test_parts_of_capitalised_runs_do_not_reach_over_a_link(kb):
    assert unsure_of(kb, "Lady Ada Byron", ("Ada", "h0")) == {"Lady", "Byron"}
    assert unsure_of(kb, "in Cork", ("Cork", "p2"), unsure=[[0, 2]]) == {"in"}


# splitting


def texts(documents):
    return [one.text for one in documents]


@given(st.lists(st.sampled_from([f"text {number}" for number in range(12)]), max_size=30), st.integers(0, 31))
def test_a_split_depends_on_the_texts_alone(lines, count):
    documents = [Document(line) for line in lines]
    rest, dev = split_off(documents, count)
    assert sorted(texts(rest) + texts(dev)) == sorted(lines)
    assert set(texts(rest)).isdisjoint(texts(dev))
    assert len(dev) >= min(count, len(lines))
    shuffled = random.Random(3).sample(documents, len(documents))
    again = split_off(shuffled, count)
    assert [texts(part) for part in again] == [texts(rest), texts(dev)]


def test_case_and_blanks_around_do_not_part_equal_texts():
    documents = [Document("Ada"), Document(" ada\n"), *(Document(f"other {n}") for n in range(20))]
    for count in range(1, 22):
        _, dev = split_off(documents, count)
        assert len({"Ada", " ada\n"} & set(texts(dev))) != 1


def test_more_text_leaves_what_was_split_off_in_its_order():
    few = [Document(f"text {number}") for number in range(50)]
    _, dev = split_off(few, 10)
    rest, more = split_off([*few, *(Document(f"more {number}") for number in range(50))], 40)
    assert [text for text in texts(more) + texts(rest) if text in texts(dev)] == texts(dev)


# batches


def naive_batch(examples, longest):
    """(asked, gold) spans as sets of (first, last) in the packed sequence, and the mentions in their order."""
    proposed, gold, mentions, start = set(), set(), [], 0
    for example in examples:
        window = example.window
        for first in range(len(window)):
            for last in range(first, min(first + longest, len(window))):
                real = all(window.spans[at][1] > window.spans[at][0] for at in range(first, last + 1))
                whole = window.begins_mask[first] and window.ends_mask[last]
                if real and whole and (first, last) not in example.unsure:
                    proposed.add((start + first, start + last))
        for first, last in example.spans:
            gold.add((start + first, start + last))
            mentions.append((start + first, last - first))
        start += len(window)
    return proposed | gold, gold, mentions


def test_a_batch_asks_what_plain_loops_ask(model, index):
    documents = [
        document("was dora born near cork", ("dora", "h3"), ("cork", "p2"), unsure=((4, 8), (9, 13))),
        document("who"),
        document("mercury planet and mercury god", ("mercury planet", "planet"), unsure=((19, 26),)),
    ]
    examples = make_examples(documents, model, index)
    batch = collate(examples, LONGEST)
    proposed, gold, mentions = naive_batch(examples, LONGEST)
    for mask, want in ((batch.asked_mask, proposed), (batch.gold_mask, gold)):
        assert {(first, first + width) for first, width in mask.nonzero().tolist()} == want
    assert list(zip(batch.firsts.tolist(), batch.widths.tolist(), strict=True)) == mentions
    assert batch.rows.tolist() == [row for example in examples for row in example.rows]
    assert batch.names == ("dora", "cork", "mercury planet")
    assert batch.tokens == sum(len(example.window) for example in examples) == len(batch.ids)
    assert batch.packing.lengths.tolist() == [len(example.window) for example in examples]


def test_unsure_spans_have_no_say_in_the_loss(model, index, learner):
    plain = document("was dora born near cork", ("cork", "p2"))
    unsure = document("was dora born near cork", ("cork", "p2"), unsure=((4, 8),))
    one = learner([plain])
    batch, other = (collate(make_examples([text], model, index), LONGEST) for text in (plain, unsure))
    (place,) = (batch.asked_mask & ~other.asked_mask).nonzero().tolist()
    assert place == [2, 0]
    scores = torch.zeros(batch.asked_mask.shape, requires_grad=True)
    mention_loss(scores, other.gold_mask, other.asked_mask).backward()
    assert scores.grad[2, 0] == 0
    assert float(one.loss(other)["mention"].detach()) < float(one.loss(batch)["mention"].detach())


def contents_of(batches):
    return [(batch.ids.tolist(), batch.rows.tolist()) for batch in batches]


def test_batches_are_a_function_of_seed_and_epoch(learner):
    one, same, other = learner(seed=3), learner(seed=3), learner(seed=4)
    batches = {epoch: contents_of(one.batches(epoch)) for epoch in (2, 0, 1)}
    np.random.seed(99)
    assert {epoch: contents_of(same.batches(epoch)) for epoch in range(3)} == {
        epoch: batches[epoch] for epoch in range(3)
    }
    assert batches[0] != batches[1]
    assert contents_of(other.batches(0)) != batches[0]


@pytest.mark.parametrize("size", [1, 40, 256, 100_000])
def test_an_epoch_has_every_example_once_in_batches_of_few_pieces(learner, size):
    one = learner(batch_pieces=size)
    batches = list(one.batches(0))
    parts = [part for batch in batches for part in batch.ids.split(batch.packing.lengths.tolist())]
    found = sorted(tuple(part.tolist()) for part in parts)
    assert found == sorted(tuple(example.window.ids.tolist()) for example in one.examples)
    assert all(batch.tokens <= size or len(batch.packing.lengths) == 1 for batch in batches)
    assert len(batches) == {1: 60, 100_000: 1}.get(size, len(batches))


def test_nothing_to_learn_from_is_no_batch(learner):
    assert len(learner([]).batches(0)) == 0


# losses


def all_of(learner):
    return collate(learner.examples, LONGEST)


@pytest.mark.parametrize("negatives", ["hard", "batch"])
@pytest.mark.parametrize("kind", ["softmax", "bce"])
@pytest.mark.parametrize("names", [True, False])
def test_the_entity_loss_is_that_of_the_candidates_that_plain_loops_find(
    plain_encoder, learner, kb, index, negatives, kind, names
):
    model = shake(make_elq(plain_encoder, names=names))
    documents = [
        document("what is mercury", ("mercury", "god")),
        document("in cork ?", ("cork", "p2")),
        document("in atlantis ?", ("atlantis", None)),
        document("in ada ?", ("ada", "p7")),
    ]
    one = learner(documents, using=model, negatives=negatives, loss=kind, nearest=3)
    batch = all_of(one)
    found = one.loss(batch)["entity"]
    states = model.states(batch.ids, batch.packing)
    vectors = model.mention_vectors(states, batch.firsts, batch.firsts + batch.widths, batch.packing).detach()
    everyone = index.vectors_of(np.arange(len(index)))
    rows = []
    for vector, name, gold in zip(vectors, batch.names, batch.rows.tolist(), strict=True):
        dots = vector.numpy() @ everyone.T
        priors = {}
        if negatives == "hard":
            candidates = set(np.argsort(-dots)[:3].tolist())
            if names:
                known = kb.candidates(name, limit=10)
                priors = {int(index.rows_of([c.entity])[0]): c.prior for c in known}
        else:
            candidates = {row for row in batch.rows.tolist() if row >= 0}
        candidates |= set(priors) | ({gold} if gold >= 0 else set())
        order = sorted(candidates, key=lambda row: row != gold)
        scores = []
        for row in order:
            says = [1.0, np.log(priors[row])] if priors.get(row) else [0.0, 0.0]
            weights = model.names_head.weight.detach()[0].numpy() if names else np.zeros(2)
            scores.append(float(dots[row] + weights @ says))
        scores.append(float(model.nil_head.detach()))
        rows.append((torch.tensor([scores]).double(), torch.tensor([0 if gold >= 0 else len(scores) - 1])))
    sizes = [scores.numel() if kind == "bce" else 1 for scores, _ in rows]
    want = np.average([float(entity_loss(scores, gold, kind)) for scores, gold in rows], weights=sizes)
    assert float(found.detach()) == pytest.approx(want, rel=1e-4)


def test_without_nil_its_mentions_are_found_but_not_linked(plain_encoder, learner):
    documents = [document("in cork ?", ("cork", "p2")), document("in atlantis ?", ("atlantis", None))]
    model = make_elq(plain_encoder, nil=False)
    both, only = learner(documents, using=model), learner(documents[:1], using=model)
    assert float(both.loss(all_of(both))["entity"].detach()) == pytest.approx(
        float(only.loss(all_of(only))["entity"].detach()), rel=1e-5
    )
    nothing = learner(documents[1:], using=model)
    losses = nothing.loss(all_of(nothing))
    assert float(losses["entity"]) == 0
    assert float(losses["mention"].detach()) > 0
    assert all_of(nothing).gold_mask.sum() == 1


def test_a_batch_without_mentions_still_teaches_what_is_none(learner, model):
    one = learner([document("who is the mayor")])
    losses = one.loss(all_of(one))
    assert float(losses["entity"]) == 0
    torch.stack(list(losses.values())).sum().backward()
    assert model.mention_head.weight.grad.any()


def test_gold_that_is_left_out_is_nil(learner, model):
    one = learner(leave_out=1.0)
    batch = all_of(one)
    vectors = model.mention_vectors(
        model.states(batch.ids, batch.packing), batch.firsts, batch.firsts + batch.widths, batch.packing
    ).detach()
    candidates, gold = one._candidates(list(batch.names), batch.rows.copy(), vectors)
    assert (gold == candidates.there_mask.shape[1]).all()
    for vector, there, row in zip(candidates.vectors, candidates.there_mask, batch.rows, strict=True):
        own = torch.from_numpy(one.index.vectors_of([row])[0])
        assert not any(torch.equal(other, own) for other in vector[there])
    candidates, gold = learner(leave_out=0.0)._candidates(list(batch.names), batch.rows.copy(), vectors)
    assert (gold < candidates.there_mask.shape[1]).all()
    assert candidates.there_mask[torch.arange(len(gold)), gold].all()


def test_about_the_share_asked_for_is_left_out_by_the_seed(learner, model):
    one = learner(toy_documents(400), leave_out=0.25)
    batch = all_of(one)
    vectors = torch.zeros(len(batch.rows), 32)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        candidates, gold = one._candidates(list(batch.names), batch.rows.copy(), vectors)
        draws.append((gold == candidates.there_mask.shape[1]).tolist())
    assert draws[0] == draws[1] != draws[2]
    assert 0.15 < np.mean(draws[0]) < 0.35


def test_a_model_without_nil_leaves_nothing_out(plain_encoder, learner):
    assert learner(using=make_elq(plain_encoder, nil=False), leave_out=0.5).leave_out == 0


def test_gradients_reach_heads_and_adapters(learner, model):
    shake(model).train()
    one = learner([*toy_documents(20), document("in atlantis ?", ("atlantis", None))])
    torch.stack(list(one.loss(all_of(one)).values())).sum().backward()
    missing = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    still = [name for name, weight in model.named_parameters() if weight.grad is not None and not weight.grad.any()]
    assert missing == []
    # Without reach, what pieces ask each other comes to nothing.
    assert all("attention.self.query" in name or "attention.self.key" in name for name in still)


# learning and scoring


def test_a_toy_linker_learns_its_catalogue(learner, model):
    documents, dev = split_off(toy_documents(300), 60)
    one = learner(documents, {"toy": dev}, batch_pieces=256)
    before = one.evaluate()["f1"]
    losses = teach(one, 6)
    after = one.evaluate()
    assert losses[-1] < losses[0] / 2
    assert after["f1"] > max(0.9, before + 0.1)


def test_scores_are_reported_for_all_and_for_each_file(learner, taught):
    dev = {"one": toy_documents(15, seed=5), "two": toy_documents(15, seed=6)}
    scores = learner(using=taught, dev=dev).evaluate()
    assert set(scores) == {f"{name}{key}" for name in ("", "one/", "two/") for key in ("f1", "precision", "recall")}
    assert scores["one/f1"] == learner(using=taught, dev={"one": dev["one"]}).evaluate()["f1"]


def test_evaluating_needs_no_gold_and_no_links(learner, taught):
    nothing = learner(using=taught, dev={"plain": [document("who is the"), document("")]})
    assert set(nothing.evaluate()) == {"f1", "precision", "recall"}
    nothing.predictions()
    taught.mention_head.bias.data.fill_(-50.0)
    silent = learner(using=taught)
    assert silent.evaluate()["f1"] == 0
    assert len(silent.predictions().scores) == 0
    assert taught.config.calibration == (1.0, 0.0)
    assert 0 <= taught.config.threshold <= 1


def test_predictions_calibrate_the_model_and_its_threshold_gives_the_best_f1(learner, taught, kb, index):
    dev = toy_documents(80, seed=9)
    one = learner(using=taught, dev={"toy": dev})
    taught.calibrate(1.0, 0.0, 0.5)
    predictions = one.predictions()
    assert taught.config.calibration != (1.0, 0.0)
    backend = ElqBackend(taught.inference(), kb, index, decoding=Decoding(threshold=taught.config.threshold))
    found = list(backend.link_many([one.text for one in dev]))
    score = score_linking(dev, found, bootstrap=0).get(match="overlap", scope="in_kb")
    assert score.linking.f1.value == pytest.approx(pr_curve(predictions).best.f1)
    again = sorted(link.score for one in found for link in one.links if link.entity is not None)
    kept = np.sort(predictions.scores[predictions.scores > taught.config.threshold])
    assert again == pytest.approx(kept.tolist(), abs=1e-6)


def test_gold_that_the_kb_does_not_hold_is_not_asked_for(learner, taught):
    dev = [document("what is cork", ("cork", "unheard of")), document("what is cork", ("cork", "p2"))]
    assert learner(using=taught, dev={"toy": dev}).predictions().gold == 1


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5), st.sampled_from(["a", "b", "out", None])), max_size=8)


@given(SPANS, SPANS)
def test_right_links_are_those_that_scoring_counts(gold, predicted):
    text = "x" * 30

    def linked(spans):
        found = {(start, start + width): entity for start, width, entity in spans}
        return Document(text, tuple(Link(*span, text[slice(*span)], entity) for span, entity in found.items()))

    def known(entity):
        return entity != "out"

    right = right_links(linked(gold), linked(predicted), known)
    score = score_linking([linked(gold)], [linked(predicted)], known=known, bootstrap=0).get()
    assert (sum(right), len(right)) == (score.linked, score.predicted)


def test_the_toy_documents_are_about_the_toy_kb(kb):
    assert {link.entity for one in toy_documents(300) for link in one.links} <= {entity.id for entity in ENTITIES}
    assert len(kb) == len(ENTITIES)
