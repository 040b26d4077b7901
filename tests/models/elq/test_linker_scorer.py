"""ELQ with a link scorer: names of the KB propose spans beside the encoder, and the scorer decides."""

import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.linking.test_link_scorer import random_scorer
from tests.models.elq.test_linker import assert_same, links_of, long_text
from wellread import Linker
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding
from wellread.linking.features import FEATURES
from wellread.linking.link_scorer import SCORER, LinkScorer
from wellread.models.elq.candidate_pool import Search
from wellread.models.elq.linker import ElqBackend
from wellread.models.elq.load import open_index
from wellread.models.elq.model import Elq


def stumps(*rules, shift=0.0, threshold=0.5):
    """A scorer of trees with one decision: (feature, border, below, above)."""
    return LinkScorer(
        np.array([[FEATURES.index(name)] for name, *_ in rules], np.int16),
        np.array([[border] for _, border, _, _ in rules], np.float32),
        np.array([[below, above] for *_, below, above in rules], np.float32),
        shift=shift,
        threshold=threshold,
    )


BY_NAME = stumps(("by_exact", 0.5, -3.0, 3.0))
"""Believes every name that is written as in the KB, and nothing else."""
LONGER = stumps(("by_exact", 0.5, -3.0, 2.0), ("words", 1.5, 0.0, 1.0))
"""The same, and longer names more."""


@pytest.fixture
def here(toy, tmp_path):
    shutil.copytree(toy, tmp_path / "toy")
    with KnowledgeBase.open(tmp_path / "toy" / "toy.kb", writable=True) as kb:
        kb.add([Entity("oldcork", "old cork", "a city near the river", "city", 1, {"old cork": 2})])
    return tmp_path / "toy"


@pytest.fixture
def backend(here):
    """Readers with any scorer and change of the model."""
    kb = KnowledgeBase.open(here / "toy.kb", writable=True)

    def read(scorer=BY_NAME, change=None, decoding=None, **options):
        model = Elq.from_pretrained(here / "model").eval().requires_grad_(False)
        if change is not None:
            change(model)
        decoding = decoding or Decoding(threshold=scorer.threshold, nil=False)
        return ElqBackend(
            model.inference(), kb, open_index(kb, model.config), decoding=decoding, scorer=scorer, **options
        )

    yield read
    kb.close()


@pytest.fixture
def load(here):
    """Linkers whose model folder has a scorer."""
    opened = []

    def load(scorer, **options):
        scorer.save(here / "model" / SCORER)
        opened.append(Linker.load(here / "toy.kb", here / "model", precision="fp32", **options))
        return opened[-1]

    yield load
    for linker in opened:
        linker.close()


def no_mention(model):
    model.mention_head.bias.fill_(-50.0)


def every_mention(model):
    model.mention_head.bias.fill_(9.0)


def found(document):
    return [(link.text, link.entity, link.found_by) for link in document.links]


def test_names_propose_spans_that_the_head_misses(backend):
    deaf = backend(change=no_mention)
    (document,) = deaf.link_many(["was cork near Fargo ?"])
    assert found(document) == [("cork", "p2", "exact")]
    assert document.links[0].score == pytest.approx(1 / (1 + np.exp(-3)))
    assert document.links[0].mention_score < 1e-9
    both = backend(stumps(("by_encoder", 0.5, 3.0, -3.0)), change=no_mention)
    (document,) = both.link_many(["was cork near Fargo ?"])
    assert found(document) == [("cork", "p2", "exact"), ("Fargo", "p5", "case")]


def test_the_head_proposes_what_is_no_name(backend):
    scorer = stumps(("by_encoder", 0.5, -3.0, 3.0))
    (document,) = backend(scorer, change=every_mention).link_many(["what is zzyx"])
    assert {link.found_by for link in document.links} == {"encoder"}
    assert "zzyx" in document.text[document.links[-1].start : document.links[-1].end]
    assert all(link.entity is not None for link in document.links)
    names = backend(scorer, change=every_mention, search=Search(sources="names"))
    assert next(names.link_many(["what is zzyx"])).links == ()


def test_a_name_and_the_head_propose_a_span_once(backend):
    (scored,) = backend(change=every_mention, search=Search(floor=-np.inf, mentions=1000)).score_many(
        ["was cork old ?"]
    )
    spans = [tuple(span) for span in scored.spans.tolist()]
    assert len(spans) == len(set(spans))
    assert spans == sorted(spans, key=lambda span: (span[0], -span[1]))


def test_thresholds_are_scores_of_the_scorer(load):
    linker = load(replace(LONGER, threshold=0.9))
    assert linker.backend.decoding.threshold == 0.9
    scored = linker.score("ada in old cork")
    sure, high = (float(1 / (1 + np.exp(-logit))) for logit in (2, 3))
    assert found(scored.document(threshold=0.5)) == [("ada", "h0", "exact"), ("old cork", "oldcork", "exact")]
    assert [link.score for link in scored.document(threshold=0.5).links] == pytest.approx([sure, high])
    assert found(linker.link("ada in old cork")) == [("old cork", "oldcork", "exact")]
    assert scored.document() == linker.link("ada in old cork")
    assert scored.document(threshold=0.99).links == ()
    for threshold in (0.0, 0.5, 0.95, 1.0):
        assert load(LONGER, threshold=threshold).link("ada in old cork") == scored.document(threshold=threshold)


def test_overlapping_links_are_dropped_or_kept(load):
    text = "ada in old cork"
    linker = load(LONGER)
    assert [link.text for link in linker.link(text).links] == ["ada", "old cork"]
    kept = linker.score(text).document(overlaps="keep")
    assert [link.text for link in kept.links] == ["ada", "old cork", "cork"]
    shorter = load(stumps(("by_exact", 0.5, -3.0, 2.0), ("words", 1.5, 1.0, 0.0)))
    assert [link.text for link in shorter.link(text).links] == ["ada", "cork"]


def test_nil_is_a_sure_mention_without_a_link(backend):
    def all_nil(model):
        every_mention(model)
        model.nil_head.fill_(1000.0)

    one = backend(change=all_nil)
    (scored,) = one.score_many(["cork zzyx"])
    assert found(scored.document()) == [("cork", "p2", "exact")]
    shown = scored.document(nil=True)
    assert [link.entity for link in shown.links if link.start == 0] == ["p2"]
    (nil,) = (link for link in shown.links if link.entity is None)
    assert (nil.text, nil.title, nil.found_by) == ("zzyx", None, "encoder")
    assert nil.score > 0.5
    assert {link.entity for link in scored.document(threshold=1.0, nil=True).links} == {None}
    unsure = backend(change=lambda model: (all_nil(model), no_mention(model)))
    assert found(unsure.score_many(["cork zzyx"])[0].document(nil=True)) == [("cork", "p2", "exact")]


def test_other_kinds_of_threshold_decide_as_in_the_paper(backend):
    def all_nil(model):
        every_mention(model)
        model.nil_head.fill_(1000.0)

    for kind in ("top_entity_by_mention", "thresholded_entity_by_mention"):
        (scored,) = backend(change=all_nil).score_many(["what is cork"])
        assert {link.entity for link in scored.document(kind=kind, nil=True).links} == {None}
        assert scored.document(kind=kind).links == ()
    (scored,) = backend(change=every_mention).score_many(["what is cork"])
    document = scored.document(kind="thresholded_entity_by_mention", threshold=0.4)
    assert "p2" in {link.entity for link in document.links}


def test_entities_that_are_not_allowed_propose_nothing(backend):
    text = "ada in old cork"
    part = backend(change=no_mention).part(["h0", "p3"])
    assert found(next(part.link_many([text]))) == [("ada", "h0", "exact")]
    assert found(next(backend(change=no_mention).part([]).link_many([text]))) == []
    heard = backend(stumps(("by_exact", 0.5, 1.0, 3.0)), change=every_mention).part(["h0", "p3"])
    (document,) = heard.link_many([text])
    assert {link.entity for link in document.links} <= {"h0", "p3"}
    assert {link.found_by for link in document.links if link.text != "ada"} <= {"encoder"}


def test_an_allowed_entity_is_found_behind_many_others(backend):
    one = backend(change=no_mention)
    one.kb.add([Entity(f"c{n}", f"cork {n}", "a city", "city", 1, {"cork": 9}) for n in range(15)])
    assert found(next(one.part(["p2"]).link_many(["what is cork"]))) == [("cork", "p2", "exact")]


TEXTS = [
    "what is ada",
    "",
    long_text(400),
    " \n",
    "  in fargo ?",
    "Zürich 東京 cork 👩‍🚀 ADA!",
    "👩‍🚀",
    long_text(30, seed=4).title(),
    "x" * 300 + " old cork",
    "\u00ad\u0301 was dora born",
    "what is ada",
]


def test_neighbours_order_and_batches_have_no_say(load, monkeypatch):
    linker = load(random_scorer(2, trees=40, levels=4), threshold=0.3)
    alone = [linker.link(text) for text in TEXTS]
    assert sum(len(document.links) for document in alone) > 20
    for order in (range(len(TEXTS)), [7, 3, 2, 6, 0, 1, 10, 5, 4, 9, 8]):
        for place, document in zip(order, linker.link_many(TEXTS[at] for at in order), strict=True):
            assert_same(document, alone[place])
    monkeypatch.setattr("wellread.models.elq.linker._TOKENS", 64)
    for one, other in zip(linker.link_many(TEXTS), alone, strict=True):
        assert_same(one, other)
    for document in alone:
        assert all(document.text[link.start : link.end] == link.text for link in document.links)


def test_a_name_longer_than_a_window_is_found(backend):
    one = backend(change=no_mention)
    name = " ".join(["river"] * 300)
    one.kb.add(Entity("long", name, "a long name", aliases={name: 1}))
    text = f"what is {name} ?"
    assert len(next(one.window_tokenizer.tokenize([text]))) > 1
    assert (8, 8 + len(name), name, "long") in links_of(next(one.link_many([text])))


def test_new_names_are_proposed_at_once(backend):
    one = backend(change=no_mention)
    assert found(next(one.link_many(["what is zzyx"]))) == []
    one.kb.add(Entity("z", "zzyx", "a thing"))
    assert found(next(one.link_many(["what is zzyx"]))) == [("zzyx", "z", "exact")]
    one.kb.remove("p2")
    assert found(next(one.link_many(["zzyx , cork"]))) == [("zzyx", "z", "exact")]


def test_lists_of_candidates_are_kept_between_calls(backend, monkeypatch):
    one = backend()
    before = next(one.link_many(["ada in old cork"]))

    def never(*args):
        raise AssertionError("looked up again")

    monkeypatch.setattr(one.pool, "_rows_of", never)
    monkeypatch.setattr("wellread.mentions.candidate_lists.rank", never)
    assert next(one.link_many(["ada in old cork"])) == before


def test_a_change_of_the_kb_during_a_call_does_not_mix_states(backend):
    whole = backend(stumps(("by_exact", 0.5, 1.0, 3.0)))
    text = "ada in old cork near fargo"
    for one in (whole, whole.part([f"h{n}" for n in range(12)] + ["p2", "p5", "oldcork"])):
        want = next(one.link_many([text]))
        states = one.model.states

        def change(one=one):
            one.kb.remove(["p0", "p1"])
            one.kb.add(Entity("new", "new", "a new person"))
            one.link_many(["what is new"])
            one.kb.remove("new")

        def slow(*args, states=states, change=change, one=one):
            one.model.states = states
            other = threading.Thread(target=change)
            other.start()
            other.join()
            return states(*args)

        one.model.states = slow
        before = one.pool
        assert links_of(next(one.link_many([text]))) == links_of(want)
        assert one.pool is not before
        one.kb.add([Entity("p0", "avon"), Entity("p1", "brno")])


def test_given_spans_are_linked_by_their_names(load):
    linker = load(BY_NAME)
    (document,) = linker.link_given(["ada in old cork"], [[(7, 15), (0, 3)]])
    assert links_of(document) == [(0, 3, "ada", "h0"), (7, 15, "old cork", "oldcork")]


def test_no_texts_and_no_entities_are_no_trouble(backend):
    one = backend()
    assert one.score_many([]) == []
    one.kb.remove([entity.id for entity in one.kb.entities()])
    assert [document.links for document in one.link_many(["what is cork", ""])] == [(), ()]


def test_the_profile_is_that_of_the_kb_as_it_is(backend):
    one = backend()
    next(one.link_many(["what is cork"]))
    before = one.profile
    assert before.log_entities == pytest.approx(np.log10(27))
    assert (before.described, before.digits, before.lower) == (1.0, 0.0, 1.0)
    one.kb.add([Entity(f"x{n}", f"Thing {n}") for n in range(27)])
    next(one.link_many(["what is cork"]))
    assert one.profile.log_entities == pytest.approx(np.log10(54))
    assert (one.profile.described, one.profile.lower) == (0.5, 29 / 56)  # two entities have a second alias
    assert one.profile == backend().profile
