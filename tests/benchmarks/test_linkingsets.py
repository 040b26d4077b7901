"""Development sets for linking: how their gold is read, and the shared files where they are there."""

import json

import pytest
from benchmarks.linkingsets import SETS, choose_sets, missing

from benchmarks import linkingsets
from wellread.evaluation.partial_annotation import keep_judged


def write(path, *rows):
    path.write_text("".join(json.dumps({"id": str(at), **row}) + "\n" for at, row in enumerate(rows)))
    return path


def test_questions_whose_gold_has_no_span_are_left_out(tmp_path):
    path = write(
        tmp_path / "questions.jsonl",
        {"text": "who is ada?", "mentions": [[7, 10, "Q1"]], "gold_qids": ["Q1"]},
        {"text": "who married deborah?", "mentions": [], "gold_qids": ["Q8445"]},
        {"text": "who is bob?", "mentions": [[7, 10, None]], "gold_qids": []},
    )
    assert [document.text for document in linkingsets.read_with_spans(path)] == ["who is ada?", "who is bob?"]


def test_of_texts_with_some_entities_marked_only_these_are_judged(tmp_path):
    path = write(tmp_path / "news.jsonl", {"text": "Ada met Bob in Rome", "mentions": [[0, 3, "Q1"], [8, 11, None]]})
    (gold,) = linkingsets.read_marked_only(path)
    assert gold.meta["evaluate"] == [[0, 3], [8, 11]]
    assert len(gold.links) == 2


def test_repeated_mentions_of_the_schools_text_are_gold_and_unsure_ones_optional(tmp_path):
    row = {
        "text": "Rome is old. Rome and Ada",
        "mentions": [[0, 4, "Q1"]],
        "more": [[13, 17, "Q1"]],
        "unsure": [[22, 25]],
    }
    (gold,) = linkingsets.read_schools(write(tmp_path / "schools.jsonl", row))
    assert [(link.start, link.end, link.text) for link in gold.links] == [(0, 4, "Rome"), (13, 17, "Rome")]
    assert gold.meta["optional"] == [[22, 25]]


def test_an_unknown_set_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match=r"no set wbqsp; choose from webqsp, "):
        choose_sets(["wbqsp"])
    assert choose_sets(None) == list(SETS)
    assert [one.name for one in choose_sets(["oke", "webqsp"])] == ["oke", "webqsp"]


def test_sets_that_are_not_here_are_named(tmp_path):
    absent = linkingsets.LinkingSet("absent", "queries", tmp_path / "none.jsonl")
    assert "absent" in (missing([absent]) or "")
    assert missing(choose_sets(["products_dev"])) is None


@pytest.mark.parametrize("chosen", SETS, ids=lambda one: one.name)
def test_every_shared_set_can_be_read_and_judged(chosen):
    if not chosen.is_here:
        pytest.skip(f"{chosen.path.name} is not in ../shared/data; set WELLREAD_SHARED_DATA to where it is")
    documents = chosen.documents()
    assert any(link.entity is not None for document in documents for link in document.links)
    for document in documents:
        gold, _ = keep_judged(document, document)  # its spans are checked, and its own gold is never dropped
        assert gold.links == document.links
