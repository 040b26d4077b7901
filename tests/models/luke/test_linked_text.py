"""Windows of linked text on disk: contents, shards, resuming and counts."""

import json

import numpy as np
import pytest

from tests.pretraining_data import CITIES, LINKED
from tests.task_models import TOKENIZER
from tests.toy_models import document
from wellread.data.formats import read_linked
from wellread.document import Document, Link
from wellread.errors import InputError
from wellread.models.luke import linked_text as linked
from wellread.models.luke.linked_text import BEGINS, SPECIAL, WITHIN, LinkedWindows, read_pages
from wellread.models.luke.mention_windows import MentionTokenizer
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.text import words as names

VOCABULARY = EntityVocabulary.of_ids([*(f"c-{city}" for city in CITIES), "h-paris", "c-paris"])
CUTTER = MentionTokenizer(TOKENIZER, longest=12, most=4)


@pytest.fixture
def documents(tmp_path):
    lines = [{**line, "doc": f"page {number // 3}"} for number, line in enumerate(LINKED)]
    (tmp_path / "linked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(read_linked(tmp_path / "linked.jsonl"))


def build(folder, documents, digest="one", **options):
    return LinkedWindows.build(documents, CUTTER, VOCABULARY, folder, digest=digest, **options)


def as_lists(windows):
    found = [windows[place] for place in range(len(windows))]
    return [[part.tolist() for part in (one.ids, one.roles, one.rows, one.spans, one.names)] for one in found]


def test_paragraphs_of_a_page_are_one_text():
    one = document("rome is old", ("rome", "r"))
    two = Document("near avon", (Link(5, 9, "avon", "a"),), meta={"doc": "p"})
    three = Document("cork", (Link(0, 4, "cork", "c"),), meta={"doc": "p"})
    pages = list(read_pages([one, one, two, three, one]))
    assert [name for name, _ in pages] == ["rome is old", "rome is old", "p", "rome is old"]
    page = pages[2][1]
    assert page.text == "near avon\ncork"
    assert [page.text[link.start : link.end] for link in page.links] == ["avon", "cork"]


def test_a_window_has_tokens_words_and_entities(tmp_path):
    windows = build(tmp_path / "w", [document("new avon is near troy", ("avon", "c-avon"), ("troy", "c-paris"))])
    (one,) = [windows[0]]
    tokens = [TOKENIZER.id_to_token(token) for token in one.ids.tolist()]
    assert tokens == ["[CLS]", "new", "avon", "is", "near", "t", "##r", "##o", "##y", "[SEP]"]
    assert one.roles.tolist() == [SPECIAL, *[BEGINS] * 5, *[WITHIN] * 3, SPECIAL]
    assert one.rows.tolist() == VOCABULARY.rows_of(["c-avon", "c-paris"]).tolist()
    assert one.spans.tolist() == [[2, 2], [5, 8]]
    assert one.names.tolist() == [names.key("avon"), names.key("troy")]


def test_mentions_are_counted(tmp_path):
    texts = [
        document("avon is in rome near cork", ("avon", "c-avon"), ("rome", None), ("cork", "elsewhere")),
        document(
            "who is the mayor of old new city paris rome avon brno",
            ("who is the mayor of old new city paris", "c-avon"),
        ),
    ]
    windows = build(tmp_path / "w", texts, page="doc")
    counts = windows.counts
    assert (counts.pages, counts.kept, counts.nil, counts.unknown, counts.lost) == (2, 2, 1, 1, 0)
    windows = build(tmp_path / "w", texts, unknown="unk")
    assert windows[0].rows.tolist() == [VOCABULARY.row_of["c-avon"], VOCABULARY.unk]
    long = " ".join(CITIES * 2)
    counts = build(tmp_path / "w", [document(long, (long, "c-avon"))], digest="two").counts
    assert counts.lost == 1
    assert "did not fit (the first: 'avon brno" in counts.report()
    assert "it has 16 tokens, but a window has capacity for 10" in counts.report()


def test_sharding_does_not_change_the_windows(tmp_path, documents, monkeypatch):
    whole = build(tmp_path / "whole", documents)
    monkeypatch.setattr(linked, "_PAGES", 2)
    many = build(tmp_path / "many", documents, shard=40)
    assert len(whole.shards) == 1
    assert len(many.shards) > 3
    assert as_lists(many) == as_lists(whole)
    assert many.counts == whole.counts
    assert many.lengths.tolist() == [len(ids) for ids, *_ in as_lists(whole)]


def test_an_interrupted_build_resumes(tmp_path, documents, monkeypatch):
    monkeypatch.setattr(linked, "_PAGES", 1)
    whole = build(tmp_path / "whole", documents, shard=40)

    def some():
        yield from documents[:13]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "killed", some(), shard=40)
    there = set((tmp_path / "killed").glob("*.safetensors"))
    assert there
    ages = {path: path.stat().st_mtime_ns for path in there}
    again = build(tmp_path / "killed", documents, shard=40)
    assert as_lists(again) == as_lists(whole)
    assert again.counts == whole.counts
    assert all(path.stat().st_mtime_ns == age for path, age in ages.items())


def test_windows_are_rebuilt_only_after_a_change(tmp_path, documents):
    build(tmp_path / "w", documents)

    def none():
        raise AssertionError("read again")
        yield

    assert len(build(tmp_path / "w", none())) > 0
    with pytest.raises(AssertionError, match="read again"):
        build(tmp_path / "w", none(), digest="two")
    with pytest.raises(AssertionError, match="read again"):
        build(tmp_path / "w", none(), unknown="unk")


def test_a_page_is_either_in_training_or_in_validation(tmp_path, documents):
    windows = build(tmp_path / "w", documents)
    rest, dev = windows.split(7)
    assert len(rest) + len(dev) == len(windows)
    assert 7 <= len(dev) < 14
    pages = [{int(part.shards[0]["pages"][at]) for _, at in part.where.tolist()} for part in (rest, dev)]
    assert not pages[0] & pages[1]
    other = build(tmp_path / "other", [*documents[3:], *documents[:3]]).split(7)[1]
    assert sorted(as_lists(other)) == sorted(as_lists(dev))  # in whatever order pages come
    assert len(windows.split(7, 3)[0]) == 3
    with pytest.raises(InputError, match=r"all .* windows would be used for validation; lower develop"):
        windows.split(1000)


def test_counts_are_those_of_the_selected_windows(tmp_path, documents):
    windows = build(tmp_path / "w", documents)
    some = windows.take([0, 3, 5])
    every = [some[place] for place in range(3)]
    rows = np.concatenate([one.rows for one in every])
    assert some.count_rows(len(VOCABULARY)).tolist() == np.bincount(rows, minlength=len(VOCABULARY)).tolist()
    tokens = np.concatenate([one.ids[1:-1] for one in every])
    assert some.count_tokens(200).tolist() == np.bincount(tokens, minlength=200).tolist()
    assert some.name_keys().tolist() == sorted({key for one in every for key in one.names.tolist()})
    best = windows.best_named(windows.name_keys())
    assert windows.best_named(some.name_keys()) == {key: best[key] for key in some.name_keys().tolist()}
    assert best[names.key("Avon")] == VOCABULARY.row_of["c-avon"]
    paris = windows.count_rows(len(VOCABULARY))[VOCABULARY.rows_of(["h-paris", "c-paris"])]
    assert best[names.key("paris")] == VOCABULARY.row_of["h-paris" if paris[0] >= paris[1] else "c-paris"]


def test_missing_files_raise_an_error(tmp_path):
    with pytest.raises(InputError, match="no text to train on"):
        build(tmp_path / "w", [])
    with pytest.raises(InputError, match="has no valid windows"):
        LinkedWindows.open(tmp_path)
