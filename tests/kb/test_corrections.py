"""Corrections of links in a file beside a knowledge base."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from wellread.data.formats import read_linked
from wellread.errors import InputError, KnowledgeBaseError
from wellread.kb.corrections import Correction, Corrections, corrections_path, to_json

TEXT = "Paris was born in Paris 😀 Texas."


@pytest.fixture
def kept(tmp_path):
    return Corrections(corrections_path(tmp_path / "cities.kb"))


def test_they_lie_beside_the_knowledge_base_or_in_a_folder(tmp_path):
    assert corrections_path("a/cities.kb").as_posix() == "a/cities.kb.corrections"
    assert corrections_path("a/cities.kb", tmp_path) == tmp_path / "cities.kb.corrections"


def test_nothing_is_written_before_the_first(kept):
    assert (len(kept), list(kept.documents()), kept.remove(1)) == (0, [], False)
    assert not kept.path.exists()


def test_the_last_correction_of_a_span_counts_and_may_be_taken_back(kept):
    kept.add(Correction(TEXT, 0, 5, None, predicted="Q90", score=0.9, model="elq"))
    second = kept.add(Correction(TEXT, 0, 5, "Q167646", "Paris (mythology)", predicted="Q90"))
    other = kept.add(Correction("Paris", 0, 5, "Q90", "Paris"))
    assert len(kept) == 2
    assert [[link.entity for link in one.links] for one in kept.documents()] == [["Q167646"], ["Q90"]]
    assert (kept.remove(second), kept.remove(second), len(kept)) == (True, False, 1)
    assert [one.text for one in Corrections(kept.path).documents()] == ["Paris"]
    assert kept.remove(other)
    assert len(kept) == 0


def test_export_is_gold_that_is_read_again_and_judges_the_corrected_spans_only(kept, tmp_path):
    kept.add(Correction(TEXT, 24 + 2, 31, "Q1439", "Texas"))
    kept.add(Correction(TEXT, 0, 5, None))
    path = tmp_path / "gold.jsonl"
    path.write_text("".join(json.dumps(to_json(one)) + "\n" for one in kept.documents()))
    (document,) = read_linked(path)
    assert [(link.text, link.entity, link.title) for link in document.links] == [
        ("Paris", None, None),
        ("Texas", "Q1439", "Texas"),
    ]
    assert document.meta == {"evaluate": [[0, 5], [26, 31]]}
    assert (document.text, document.id) == (TEXT, "c1")


@pytest.mark.parametrize("span", [(-1, 2), (3, 3), (4, 2), (0, len(TEXT) + 1)])
def test_a_span_outside_of_its_text_is_refused(kept, span):
    with pytest.raises(InputError, match="is not in its text of"):
        kept.add(Correction(TEXT, *span, None))
    assert not kept.path.exists()


def test_another_file_of_that_name_is_left_alone(kept):
    with sqlite3.connect(kept.path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(KnowledgeBaseError, match="is not a file of corrections; move it away"):
        kept.add(Correction(TEXT, 0, 5, None))
    kept.path.write_bytes(b"nothing of that" * 100)
    with pytest.raises(KnowledgeBaseError, match="is damaged"):
        len(kept)


@pytest.mark.parametrize("exists", [False, True])
def test_a_symbolic_link_in_its_place_is_not_followed(kept, tmp_path, exists):
    target = tmp_path / "of the user"
    if exists:
        target.touch()  # SQLite would take an empty file for a new database
    kept.path.symlink_to(target)
    with pytest.raises(KnowledgeBaseError, match="is a symbolic link, which is not followed"):
        kept.add(Correction(TEXT, 0, 5, "Q90"))
    assert target.exists() == exists
    assert not exists or not target.read_bytes()


def test_several_may_write_at_once(kept):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: kept.add(Correction(TEXT, number, number + 1, None)), range(24)))
    assert len(kept) == 24
