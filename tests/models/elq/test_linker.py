"""Linking with ELQ from text to links: against plain loops, in windows and batches, and while the KB changes."""

import itertools
import math
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.toy_models import ENTITIES, FRAMES, PEOPLE, PLACES
from wellread import Linker
from wellread.encoders.packing import Packing
from wellread.errors import KnowledgeBaseError, UsageError
from wellread.index.entity_index import EntityIndex
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding
from wellread.models.elq.candidate_pool import Pool, Search, features_of
from wellread.models.elq.linker import ElqBackend
from wellread.models.elq.load import open_index
from wellread.models.elq.model import Elq
from wellread.text.windows import WindowTokenizer

ALL = Search(nearest=10, floor=-math.inf, mentions=10**6)
"""Looks at every span."""


@pytest.fixture
def here(toy, tmp_path):
    """A copy of the toy folder, to be changed."""
    shutil.copytree(toy, tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def load(here):
    opened = []

    def load(**options):
        options = {"kb": here / "toy.kb", "model": here / "model", "precision": "fp32", **options}
        opened.append(Linker.load(**options))
        return opened[-1]

    yield load
    for linker in opened:
        linker.close()


@pytest.fixture
def backend(here):
    """Readers with any search, decoding and change of the model."""
    kb = KnowledgeBase.open(here / "toy.kb", writable=True)

    def read(search=ALL, decoding=None, change=None, config=None, **options):
        model = Elq.from_pretrained(here / "model").eval().requires_grad_(False)
        model.config = replace(model.config, **(config or {}))
        if change is not None:
            change(model)
        decoding = decoding or Decoding(threshold=0.0, overlaps="keep", candidates=100)
        return ElqBackend(
            model.inference(), kb, open_index(kb, model.config), search=search, decoding=decoding, **options
        )

    yield read
    kb.close()


def links_of(document):
    """Links without their scores."""
    return [(link.start, link.end, link.text, link.entity) for link in document.links]


def assert_same(one, other, tolerance=1e-5):
    """The same links with the same scores."""
    assert one.text == other.text
    assert links_of(one) == links_of(other)
    for a, b in zip(one.links, other.links, strict=True):
        assert (a.score, a.mention_score) == (
            pytest.approx(b.score, abs=tolerance),
            pytest.approx(b.mention_score, abs=tolerance),
        )
        assert {c.entity: c.score for c in a.candidates} == pytest.approx(
            {c.entity: c.score for c in b.candidates}, abs=tolerance
        )


def long_text(words, seed=0):
    chance = random.Random(seed)
    parts = []
    while sum(len(part.split()) for part in parts) < words:
        parts.append(chance.choice(FRAMES).format(chance.choice(PLACES + PEOPLE)))
    return " ".join(parts)


def test_names_are_linked_where_they_stand(load):
    linker = load()
    text = "who is the mayor of Cork"
    (link,) = linker.link(text).links
    assert (link.start, link.end, link.text, link.entity, link.title) == (20, 24, "Cork", "p2", "cork")
    assert link.candidates[0].entity == "p2"
    assert link.candidates[0].prior == 1.0
    assert [c.score for c in link.candidates] == sorted((c.score for c in link.candidates), reverse=True)
    assert (link.kb, linker.name, linker.link(text).meta) == ("toy", "toy", {"kb": "toy", "model": "elq"})
    right = sum([one[3] for one in links_of(linker.link(f"what is {e.title}"))][:1] == [e.id] for e in ENTITIES[:24])
    assert right >= 22


def test_scores_are_what_plain_loops_give(backend):
    models = []
    one = backend(change=models.append)
    text = "was dora born near mercury"
    found = {(link.start, link.end): link for link in one.score_many([text])[0].document().links}
    (windows,) = one.window_tokenizer.tokenize([text])
    (window,) = windows
    (model,) = models
    states = model.states(torch.from_numpy(window.ids), Packing.of([len(window)]))
    heads = model.mention_head(states).double().tolist()
    priors = {(name, c.entity): c.prior for name in ("dora", "mercury") for c in one.kb.candidates(name, limit=10)}
    assert {entity for name, entity in priors if name == "mercury"} == {"planet", "god"}
    ids = [entity.id for entity in ENTITIES]
    vectors = dict(zip(ids, one.pool.index.vectors_of(one.pool.index.rows_of(ids)).astype(float), strict=True))
    checked = 0
    for first in range(1, 6):
        for last in range(first, 6):
            start, end = int(window.spans[first, 0]), int(window.spans[last, 1])
            logit = heads[first][0] + heads[last][1] + sum(heads[at][2] for at in range(first, last + 1))
            vector = states[first : last + 1].double().mean(0).float()
            vector = model.entity_head(vector).double().numpy()
            vector = vector / np.linalg.norm(vector) * math.exp(float(model.log_scale))
            dots = {id: float(vector @ other) for id, other in vectors.items()}
            near = sorted(dots, key=lambda id: -dots[id])[:10]
            named = [entity for name, entity in priors if name == text[start:end]]
            scores = {None: float(model.nil_head)}
            for id in {*near, *named}:
                prior = priors.get((text[start:end], id), 0.0)
                says = [1.0, math.log(max(prior, 1e-3))] if prior else [0.0, 0.0]
                scores[id] = dots[id] + float(np.dot(model.names_head.weight[0].tolist(), says))
            total = math.log(sum(math.exp(score) for score in scores.values()))
            chances = {id: math.exp(score - total) for id, score in scores.items()}
            link = found.pop((start, end))
            assert link.mention_score == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-4)
            assert chances[link.entity] == pytest.approx(max(chances.values()), rel=1e-4)
            scores_by_entity = {c.entity: c.score for c in link.candidates}
            assert scores_by_entity == pytest.approx({id: c for id, c in chances.items() if id is not None}, abs=1e-5)
            checked += 1
    assert checked == 15
    assert found == {}


def look_at_no_neighbour(model):
    """The encoder had no attention to begin with; here go the adapters that learned some."""
    for name, weight in model.encoder.named_parameters():
        if "attention.output.dense.lora_B" in name:
            weight.data.zero_()


def test_where_a_long_text_is_cut_changes_nothing(backend):
    whole = backend(decoding=Decoding(threshold=0.3), change=look_at_no_neighbour)
    text = long_text(500)
    (want,) = whole.link_many([text])
    assert len(want.links) > 50
    tokens = whole.window_tokenizer.tokenizer
    windows = []
    for width, shared in ((60, 24), (100, 20), (151, 30), (250, 24)):
        other = backend(decoding=Decoding(threshold=0.3), change=look_at_no_neighbour)
        other.window_tokenizer = WindowTokenizer(tokens, width=width, shared=shared)
        windows.append(len(next(other.window_tokenizer.tokenize([text]))))
        (found,) = other.link_many([text])
        assert_same(found, want)
    assert windows == [15, 7, 4, 3]


def test_links_are_in_the_text_and_in_order(load):
    linker = load(threshold=0.0)
    for text in (long_text(400, seed=2), "Zürich\n\n東京 cork 👩‍🚀 ADA!", "ada" * 40):
        links = linker.link(text).links
        assert all(text[link.start : link.end] == link.text and link.text.strip() for link in links)
        places = [(link.start, link.end) for link in links]
        assert places == sorted(places)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(places))


def test_neighbours_and_order_have_no_say(load):
    linker = load(threshold=0.1)
    texts = ["what is ada", "", long_text(300), " \n", "in fargo ?", "cork", long_text(30, seed=4), "what is ada"]
    alone = [linker.link(text) for text in texts]
    for order in (list(range(8)), [7, 3, 2, 6, 0, 1, 5, 4]):
        for place, document in zip(order, linker.link_many(texts[at] for at in order), strict=True):
            assert_same(document, alone[place])
    assert alone[1].links == alone[3].links == ()
    assert list(linker.link_many([])) == []


def test_batches_of_few_pieces_change_nothing(load, monkeypatch):
    linker = load(threshold=0.1)
    texts = [long_text(20 + 9 * number, seed=number) for number in range(12)]
    together = list(linker.link_many(texts))
    monkeypatch.setattr("wellread.models.elq.linker._TOKENS", 64)
    for one, other in zip(linker.link_many(texts), together, strict=True):
        assert_same(one, other)


def test_scores_become_the_links_of_any_threshold(load):
    text = long_text(60)
    linker = load()
    scored = linker.score(text)
    assert scored.document() == linker.link(text)
    counts = []
    for threshold in (0.0, 0.2, 0.6, 0.95, 1.0):
        document = load(threshold=threshold).link(text)
        assert scored.document(threshold=threshold) == document
        counts.append(len(document.links))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 0
    for options in ({"kind": "top_entity_by_mention"}, {"overlaps": "keep"}, {"nil": False}):
        assert scored.document(**options) == load(**options).link(text)
    assert [one.text for one in linker.score_many([text, ""])] == [text, ""]


def test_the_model_s_own_threshold_is_the_default(load, here):
    model = Elq.from_pretrained(here / "model")
    assert load().backend.decoding.threshold == model.config.threshold
    model.calibrate(*model.config.calibration, threshold=1.0)
    model.save_pretrained(here / "model")
    assert load().link("what is ada").links == ()


def test_a_span_that_is_no_mention_is_not_searched_for(backend, monkeypatch):
    requested = []
    search = EntityIndex.search

    def count(self, queries, *args, **options):
        requested.append(len(queries))
        return search(self, queries, *args, **options)

    monkeypatch.setattr(EntityIndex, "search", count)
    silent = backend(Search(), change=lambda model: model.mention_head.bias.fill_(-50.0))
    assert [document.links for document in silent.link_many([long_text(300), "ada"])] == [(), ()]
    assert requested == []
    few = backend(Search(mentions=2))
    next(few.link_many(["who is the mayor of cork"]))
    assert requested == [2]


def test_only_the_best_spans_of_a_window_are_looked_at(backend):
    text = "was dora born near the river"
    every = backend(ALL).score_many([text])[0]
    best = backend(replace(ALL, mentions=4)).score_many([text])[0]
    assert sorted(best.mention_log_p, reverse=True) == sorted(every.mention_log_p, reverse=True)[:4]
    floor = float(np.mean(sorted(every.mention_log_p)[2:4]))  # between two of them
    above = backend(replace(ALL, floor=floor)).score_many([text])[0]
    assert sorted(above.mention_log_p) == sorted(p for p in every.mention_log_p if p > floor)


# where candidates come from


def candidates_of(backend, name="cork"):
    (document,) = backend.link_many([f"what is {name}"])
    (link,) = (link for link in document.links if link.text == name)
    return {candidate.entity: candidate for candidate in link.candidates}, link


def test_candidates_come_from_names_from_vectors_or_both(backend):
    names, _ = candidates_of(backend(replace(ALL, sources="names")), "mercury")
    assert set(names) == {"planet", "god"}
    assert [names[id].prior for id in ("planet", "god")] == pytest.approx([0.75, 0.25])
    dense, _ = candidates_of(backend(replace(ALL, sources="dense", nearest=3)), "mercury")
    assert len(dense) == 3
    assert {candidate.prior for candidate in dense.values()} == {0.0}
    both, _ = candidates_of(backend(replace(ALL, nearest=3)), "mercury")
    assert set(both) == {*names, *dense}
    assert both["planet"].prior == pytest.approx(0.75)


def test_a_mention_without_candidates_is_nil_or_nothing(backend):
    by_name = replace(ALL, sources="names")
    _, link = candidates_of(backend(by_name), "river")
    assert (link.entity, link.candidates) == (None, ())
    without = backend(by_name, config={"nil": False})
    assert next(without.link_many(["the river"])).links == ()


def test_one_is_found_among_those_allowed_only(load):
    assert links_of(load().link("what is cork"))[0][3] == "p2"
    for options in ({"kinds": ["person"]}, {"among": ["h0", "h1", "nobody"]}, {"kinds": ["city"], "among": ["p3"]}):
        linker = load(threshold=0.0, nil=True, **options)
        allowed = {e.id for e in ENTITIES if e.kind in options.get("kinds", (e.kind,))}
        allowed &= set(options.get("among", allowed))
        found = {c.entity for link in linker.link("what is cork").links for c in link.candidates}
        assert found
        assert found <= allowed
    linker = load(kinds=["person"])
    found = [{link.entity for link in linker.link(f"what is {name}").links} for name in PEOPLE]
    assert sum(f"h{number}" in some for number, some in enumerate(found)) >= 10


def test_among_nobody_nobody_is_found(load):
    linker = load(among=[], threshold=0.0)
    assert {link.entity for link in linker.link("what is cork").links} <= {None}


def test_kinds_that_no_entity_has_name_the_fix(load):
    with pytest.raises(UsageError, match=r"toy.kb has no entity of the kinds dragon; see: wellread kb stats"):
        load(kinds=["dragon"])


def test_nil_wins_where_it_scores_most_and_can_be_left_out(backend):
    def all_nil(model):
        model.nil_head.fill_(1000.0)

    text = "what is cork"
    (document,) = backend(change=all_nil).link_many([text])
    assert {link.entity for link in document.links} == {None}
    assert all(link.title is None and link.candidates for link in document.links)
    quiet = Decoding(threshold=0.0, nil=False)
    assert next(backend(change=all_nil, decoding=quiet).link_many([text])).links == ()
    (document,) = backend(change=all_nil, config={"nil": False}).link_many([text])
    assert None not in {link.entity for link in document.links}


# a KB that changes


def test_a_new_entity_is_found_by_its_name(backend):
    one = backend(replace(ALL, sources="names"))
    assert set(candidates_of(one)[0]) == {"p2"}
    one.kb.add(Entity("stopper", "stopper", "of bottles", aliases={"cork": 1}))
    found, _ = candidates_of(one)
    assert {id: c.prior for id, c in found.items()} == pytest.approx({"p2": 0.75, "stopper": 0.25})
    assert found["stopper"].title == "stopper"


def test_a_new_entity_is_found_by_its_vector(backend):
    one = backend(replace(ALL, sources="dense"))
    assert candidates_of(one)[1].entity == "p2"
    old = one.kb.get("p2")
    one.kb.remove("p2")
    assert "p2" not in candidates_of(one)[0]
    one.kb.add(Entity("again", old.title, old.description))
    found, link = candidates_of(one)
    assert link.entity == "again"
    assert "p2" not in found


def test_an_update_is_linked_at_once(load):
    linker = load()
    assert linker.link("what is cork").links[0].title == "cork"
    old = linker.kb.get("p2")
    linker.kb.update(Entity("p2", "Corcaigh", old.description, "city", 1, {"cork": 3}))
    assert linker.link("what is cork").links[0].title == "Corcaigh"
    linker.kb.remove("p2")
    assert "p2" not in {link.entity for link in linker.link("what is cork").links}
    linker.kb.add(old)
    assert linker.link("what is cork").links[0].title == "cork"


def test_a_subset_follows_the_kb(load):
    linker = load(among=["new", "p3"], threshold=0.0)
    linker.kb.add(Entity("new", "cork", "a city near the river cork", aliases={"cork": 1}))
    (link,) = (link for link in linker.link("what is cork").links if link.text == "cork")
    assert {candidate.entity for candidate in link.candidates} == {"new", "p3"}


def test_scores_from_before_a_change_keep_their_names(load):
    linker = load()
    linker.kb.add([Entity("n1", "one"), Entity("n2", "two"), Entity("n3", "cork", "a city near the river cork")])
    scored = linker.score("what is cork")
    before = scored.document(threshold=0.0)
    assert "n3" in {candidate.entity for link in before.links for candidate in link.candidates}
    linker.kb.remove(["n1", "p0"])
    linker.kb.add(Entity("n4", "four"))
    linker.link("what is cork")
    assert scored.document(threshold=0.0) == before


# refusals


def test_names_alone_have_no_scores(load):
    linker = load(model="prior", precision="auto")
    assert links_of(linker.link("what is cork"))[0][3] == "p2"
    with pytest.raises(UsageError, match="load the linker with model elq"):
        linker.score("cork")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": "magic"}, "choose union, dense or names"),
        ({"precision": "int4"}, "choose auto, fp32 or int8"),
        ({"kind": "best"}, "choose joint"),
        ({"threshold": 7}, "threshold=7 is not a probability; give one from 0 to 1"),
        ({"overlaps": "some"}, "choose auto, drop or keep"),
        ({"mentions": "spacy"}, "omit mentions and reading, or use model prior"),
        ({"model": "magic"}, "magic"),
    ],
)
def test_what_cannot_be_loaded_names_the_fix(load, options, message):
    with pytest.raises(UsageError, match=message):
        load(**options)


def test_an_index_of_another_encoder_is_refused(load, here, encoder):
    model = Elq.from_pretrained(here / "model")
    model.config = replace(model.config, pooling="cls")
    model.save_pretrained(here / "model")
    with pytest.raises(KnowledgeBaseError, match=r"made by another encoder.*wellread index build"):
        load()


def test_one_text_is_not_many(load):
    with pytest.raises(UsageError, match="use score for one"):
        next(load().score_many("cork"))


# parts


def test_what_names_say_is_whether_and_how_often():
    named, log_prior = features_of(np.array([[0.0, 1.0, 0.5, 1e-9]]))[0].T.tolist()
    assert named == [0, 1, 1, 1]
    assert log_prior == pytest.approx([0, 0, math.log(0.5), math.log(1e-3)])


def test_no_candidate_is_found_twice(backend):
    one = backend()
    pool = Pool(one.kb, one.pool.index, ALL)
    rows, priors = pool.find([pool.named(name) for name in ("cork", "nobody", "mercury")], np.ones((3, 32), np.float32))
    for row, prior in zip(rows.tolist(), priors.tolist(), strict=True):
        there = [entity for entity in row if entity >= 0]
        assert len(there) == len(set(there))
        assert all(not chance for entity, chance in zip(row, prior, strict=True) if entity < 0)
    vectors = pool.vectors_of(rows)
    assert not vectors[rows < 0].any()
    assert np.array_equal(vectors[0, 0], pool.index.vectors_of(rows[0, :1])[0])


def test_a_device_is_refused_where_onnxruntime_runs_the_model(load):
    with pytest.raises(
        UsageError, match="device='cuda': this linker runs on onnxruntime, on the CPU; leave device out"
    ):
        load(device="cuda")
