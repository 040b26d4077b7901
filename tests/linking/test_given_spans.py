"""Spans that somebody else has found: each gets a link, what it is scored by is what the model says of it."""

from dataclasses import replace

import pytest

from tests.kb.conftest import CITIES, build_kb
from tests.toy_models import PEOPLE, PLACES
from wellread import Linker
from wellread.errors import InputError, UsageError


@pytest.fixture(scope="module")
def linker(toy):
    with Linker.load(toy / "toy.kb", toy / "model", precision="fp32") as opened:
        yield opened


def names_in(text, names):
    return [(text.index(name), text.index(name) + len(name)) for name in names]


def test_given_mentions_have_the_candidates_that_found_ones_have(linker):
    texts = [f"who is the mayor of {place}" for place in PLACES]
    found = [document for document in linker.link_many(texts) if document.links]
    assert len(found) > len(texts) // 2
    again = linker.link_given(
        [one.text for one in found], [[(link.start, link.end) for link in one.links] for one in found]
    )
    for one, other in zip(found, again, strict=True):
        assert [link.entity for link in one.links] == [link.entity for link in other.links]
        for link, same in zip(one.links, other.links, strict=True):
            assert [(c.entity, c.prior) for c in link.candidates] == [(c.entity, c.prior) for c in same.candidates]
            assert [c.score for c in same.candidates] == pytest.approx([c.score for c in link.candidates], abs=1e-5)
            assert same.mention_score == 1.0
            assert same.score >= link.score  # nothing is lost to the doubt that it is a mention


def test_every_span_gets_one_link_in_the_order_of_their_places(linker):
    text = "was cork born near   the river"
    spans = [(22, 30), (4, 8), (0, 3), (4, 13), (19, 20), (4, 8)]
    (document,) = linker.link_given([text], [spans])
    assert [(link.start, link.end) for link in document.links] == sorted(set(spans))
    assert {(link.start, link.end): link.text for link in document.links}[4, 13] == "cork born"
    blank = next(link for link in document.links if link.start == 19)
    assert (blank.entity, blank.candidates) == (None, ())
    assert [one.links for one in linker.link_given(["", "cork"], [[], []])] == [(), ()]


def test_what_is_too_weak_is_nil_and_keeps_its_candidates(toy):
    with Linker.load(toy / "toy.kb", toy / "model", precision="fp32", threshold=1.0) as strict:
        (document,) = strict.link_given(["in cork ?"], [[(3, 7)]])
    (link,) = document.links
    assert (link.entity, link.title, bool(link.candidates)) == (None, None, True)


def test_the_best_entity_is_chosen_where_nil_is_ruled_out(toy):
    texts, spans = ["who wrote to cork ?", "in   the old city"], [[(13, 17), (0, 3)], [(9, 12), (3, 4)]]
    with Linker.load(toy / "toy.kb", toy / "model", precision="fp32", threshold=1.0) as strict:
        strict.backend.model.heads = replace(strict.backend.model.heads, nil=50.0)
        with_nil = [link for one in strict.link_given(texts, spans) for link in one.links]
        never = [link for one in strict.link_given(texts, spans, nil="never") for link in one.links]
    assert [link.entity for link in with_nil] == [None] * 4
    assert [(link.start, link.end) for link in never] == [(link.start, link.end) for link in with_nil]
    for link, nil in zip(never, with_nil, strict=True):
        assert link.candidates == nil.candidates
        assert (link.entity, link.title) == (
            (link.candidates[0].entity, link.candidates[0].title) if link.candidates else (None, None)
        )
    assert [bool(link.candidates) for link in never] == [True, True, False, True]  # a blank has no candidate
    assert never[1].score < 1e-3  # the score of the entity, not of NIL


def test_the_models_own_threshold_is_not_asked_of_given_spans(toy):
    ask = (["in cork ?"], [[(3, 7)]])
    with Linker.load(toy / "toy.kb", toy / "model", precision="fp32") as linker:
        linker.backend.decoding = replace(linker.backend.decoding, threshold=1.0)
        assert linker.link("in cork ?").links == ()
        assert next(linker.link_given(*ask)).links[0].entity is not None


def test_given_spans_may_come_from_json(linker):
    (document,) = linker.link_given(["in cork ?"], [[[3, 7], [0, 2]]])
    assert [link.text for link in document.links] == ["in", "cork"]


def test_a_span_says_whether_it_is_a_name_or_was_only_given(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    text = "Paris and paris, Nowhere"
    with Linker.load(tmp_path / "cities.kb", "prior") as linker:
        (document,) = linker.link_given([text], [names_in(text, ["Paris", "paris", "Nowhere"])])
    assert [link.found_by for link in document.links] == ["exact", "case", "given"]


def test_long_texts_are_read_where_the_span_is(linker):
    """The toy encoder does not look around: wherever a name stands, its scores are the same."""
    parts = [f"{name} wrote to the old city" for name in (*PLACES, *PEOPLE) for _ in range(3)]
    text = " ".join(parts)
    spans, at = [], 0
    for part in parts:
        spans.append((at, at + part.index(" ")))
        at += len(part) + 1
    (long,) = linker.link_given([text], [spans])
    short = linker.link_given(parts, [[(0, part.index(" "))] for part in parts])
    assert len(long.links) == len(parts)
    for link, document in zip(long.links, short, strict=True):
        assert link.entity == document.links[0].entity
        assert link.score == pytest.approx(document.links[0].score, abs=1e-5)


def test_a_span_longer_than_a_window_is_no_trouble(linker):
    text = "old " * 600
    (document,) = linker.link_given([text], [[(0, len(text) - 1), (4, 7)]])
    assert [(link.start, link.end) for link in document.links] == [(0, len(text) - 1), (4, 7)]


def test_the_new_is_found_at_once(toy, tmp_path):
    import shutil

    from wellread.kb.records import Entity

    shutil.copytree(toy, tmp_path / "toy")
    with Linker.load(tmp_path / "toy" / "toy.kb", tmp_path / "toy" / "model", precision="fp32", trust=9.0) as linker:
        ask = (["what is xyzzy"], [[(8, 13)]])
        assert "new" not in [c.entity for c in next(linker.link_given(*ask)).links[0].candidates]
        linker.kb.add(Entity("new", "xyzzy", "a city near the river", "city", 1, {"xyzzy": 3}))
        assert next(linker.link_given(*ask)).links[0].entity == "new"


def test_names_alone_link_given_spans_too(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    text = "Paris and Nowhere, 東京"
    spans = names_in(text, ["Paris", "Nowhere", "東京"])
    with Linker.load(tmp_path / "cities.kb", "prior") as linker:
        (document,) = linker.link_given([text], [spans])
        assert [link.entity for link in document.links] == ["Q90", None, "Q1490"]
        found = linker.link(text).links[0]
        assert document.links[0].candidates == found.candidates
        assert document.links[0].score == found.candidates[0].prior > found.score  # a given span is known to be a name
    with Linker.load(tmp_path / "cities.kb", "prior", threshold=0.999) as strict:
        (document,) = strict.link_given([text], [spans])
        assert [link.entity for link in document.links] == [None, None, "Q1490"]
        assert len(document.links[0].candidates) == 2
        (document,) = strict.link_given([text], [spans], nil="never")
        assert [link.entity for link in document.links] == ["Q90", None, "Q1490"]


def test_spans_that_do_not_fit_are_reported(linker):
    with pytest.raises(InputError, match=r"span 0:9 is not in the text of 4 characters"):
        next(linker.link_given(["cork"], [[(0, 9)]]))
    with pytest.raises(UsageError, match="more texts than lists of spans"):
        list(linker.link_given(["cork", "avon"], [[(0, 4)]]))
    with pytest.raises(UsageError, match="choose model or never"):
        list(linker.link_given(["cork"], [[(0, 4)]], nil=False))
    with pytest.raises(UsageError, match="link_given takes several texts"):
        list(linker.link_given("cork", [[(0, 4)]]))
