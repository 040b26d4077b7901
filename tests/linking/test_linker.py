"""The front door: links with exact spans, scores and candidates; NIL; streams; JSON and back."""

import itertools
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from tests.mentions.conftest import NAMES, entity
from wellread import Document, Linker
from wellread.document import Mention
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions.annotators import given


@pytest.fixture
def kb_path(tmp_path):
    build(lambda tally: map(entity, NAMES), tmp_path / "names.kb", origin=Origin("test"))
    return tmp_path / "names.kb"


class Labels:
    """An annotator that finds one word."""

    def __init__(self, word):
        self.word = word

    def annotate(self, texts):
        for text in texts:
            start = text.find(self.word)
            yield given(text, [(start, start + len(self.word), "X")]) if start >= 0 else []


def test_a_text_is_linked_by_its_names(kb_path):
    document = Linker.load(kb_path, "prior").link("Beyoncé left 東京 for New York City.")
    assert [(link.start, link.end, link.text, link.entity, link.title) for link in document.links] == [
        (0, 7, "Beyoncé", "Q36153", "Beyoncé"),
        (13, 15, "東京", "Q1490", "Tokyo"),
        (20, 33, "New York City", "Q60", "New York City"),
    ]
    assert {link.kb for link in document.links} == {"names"}
    assert document.meta == {"kb": "names", "model": "prior"}


def test_the_likelier_candidate_wins_and_the_others_are_kept(tmp_path):
    records = [Entity("a", "Paris", aliases={"Paris": 9}), Entity("b", "Paris, Texas", aliases={"Paris": 1})]
    build(lambda tally: iter(records), tmp_path / "x.kb", origin=Origin("test"))
    (link,) = Linker.load(tmp_path / "x.kb", "prior").link("In Paris").links
    assert (link.entity, 0.5 < link.score < 0.9) == ("a", True)
    assert [(c.entity, c.prior, c.score) for c in link.candidates] == [
        ("a", pytest.approx(0.9), pytest.approx(0.9)),
        ("b", pytest.approx(0.1), pytest.approx(0.1)),
    ]
    for threshold in (0.95, np.float32(0.95)):
        assert Linker.load(tmp_path / "x.kb", "prior", threshold=threshold).link("In Paris").links == ()


def test_popularity_decides_between_equal_counts(tmp_path):
    records = [Entity("a", "Paris", popularity=1), Entity("b", "Paris", popularity=5)]
    build(lambda tally: iter(records), tmp_path / "x.kb", origin=Origin("test"))
    assert Linker.load(tmp_path / "x.kb", "prior").link("Paris").links[0].entity == "b"


def test_a_mention_that_the_kb_does_not_know_is_nil(kb_path):
    linker = Linker.load(kb_path, mentions=Labels("Atlantis"), threshold=0.5, nil=True)
    (link,) = linker.link("From Atlantis to Tokyo").links
    assert (link.text, link.entity, link.title, link.candidates) == ("Atlantis", None, None, ())
    (link,) = Linker.load(kb_path, mentions=Labels("tokyo")).link("in tokyo").links
    assert link.entity == "Q1490"


def test_an_endless_stream_is_linked_as_it_comes(kb_path):
    endless = (f"Tokyo {number}" for number in itertools.count())
    documents = Linker.load(kb_path, "prior").link_many(endless)
    assert [document.text for document in itertools.islice(documents, 3)] == ["Tokyo 0", "Tokyo 1", "Tokyo 2"]


def test_documents_come_in_the_order_of_their_texts_also_across_batches(kb_path):
    texts = ["Tokyo" if number % 3 else "nothing" for number in range(700)]
    documents = list(Linker.load(kb_path, "prior").link_many(texts))
    assert [document.text for document in documents] == texts
    assert [len(document.links) for document in documents] == [1 if number % 3 else 0 for number in range(700)]


def test_a_linked_text_survives_json(kb_path):
    document = Linker.load(kb_path, "prior").link("Beyoncé – “New York” – 👩‍🚀\r\n東京")
    assert Document.from_json(document.to_json()) == document
    assert "東京" in document.to_json()


def test_json_whose_spans_do_not_fit_the_text_is_refused(kb_path):
    line = Linker.load(kb_path, "prior").link("In Tokyo").to_json().replace("In Tokyo", "in, Tokyo")
    with pytest.raises(InputError, match="end exclusive"):
        Document.from_json(line)


def test_an_empty_text_has_no_links(kb_path):
    assert Linker.load(kb_path, "prior").link("").links == ()


def test_a_new_entity_is_linked_at_once(kb_path):
    linker = Linker.load(kb_path, "prior")
    assert linker.link("Gotham").links == ()
    with KnowledgeBase.open(kb_path, writable=True) as kb:
        kb.add([Entity("g", "Gotham")])
    assert linker.link("Gotham").links[0].entity == "g"
    with KnowledgeBase.open(kb_path, writable=True) as kb:
        kb.remove(["g"])
    assert linker.link("Gotham").links == ()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "magic"}, UsageError, "magic"),
        ({"mentions": "psychic"}, UsageError, "psychic"),
        ({"kb": "wordnet"}, KnowledgeBaseError, "wellread kb build wordnet"),
        ({"kb": "no/such.kb"}, KnowledgeBaseError, "no/such.kb"),
        ({"threshold": -2.9}, UsageError, r"give one from 0 to 1 \(exp\(-2.9\) = 0.055, if it is the logarithm of one"),
        ({"threshold": 5}, UsageError, "threshold=5 is not a probability; give one from 0 to 1$"),
    ],
)
def test_what_cannot_be_loaded_names_the_fix(kb_path, tmp_path, monkeypatch, options, error, message):
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    with pytest.raises(error, match=message):
        Linker.load(**{"kb": kb_path, **options})


def test_linking_by_name_needs_no_torch(kb_path, tmp_path):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "torch.py").write_text("raise RuntimeError('torch was imported')")
    code = f"from wellread import Linker; print(len(Linker.load({str(kb_path)!r}, 'prior').link('Tokyo').links))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "stub")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "1\n"


def test_threads_share_a_linker(kb_path):
    linker = Linker.load(kb_path, "prior")
    texts = [
        f"{place} é{chr(0x4E00 + number)} 東京 and New York City {number}"
        for number in range(60)
        for place in ("a", "b")
    ]
    alone = [linker.link(text) for text in texts]
    fresh = Linker.load(kb_path, "prior")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fresh.link, texts)) == alone


def test_forked_processes_share_a_linker(kb_path):
    linker = Linker.load(kb_path, "prior")
    linker.link("Tokyo")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [
        context.Process(target=lambda: results.put([len(linker.link("Tokyo").links) for _ in range(20)]))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [[1] * 20] * 2
    for worker in workers:
        worker.join()
    assert len(linker.link("Tokyo").links) == 1
    results.close()
    results.join_thread()


def test_a_closed_linker_says_so(kb_path):
    with Linker.load(kb_path, "prior") as linker:
        assert linker.link("Tokyo").links
    with pytest.raises(KnowledgeBaseError, match="was closed"):
        linker.link("Tokyo")


def test_a_single_text_is_not_many(kb_path):
    with pytest.raises(UsageError, match="use link for one"):
        next(Linker.load(kb_path, "prior").link_many("Tokyo"))
    with pytest.raises(UsageError, match="was given NoneType, bytes among its texts; give each as a str"):
        next(Linker.load(kb_path, "prior").link_many(["Tokyo", b"Tokyo", None]))


def test_an_annotator_owes_a_list_for_each_text(kb_path):
    class Lazy:
        def annotate(self, texts):
            return iter([[]])

    with pytest.raises(UsageError, match="1 lists of mentions for 2 texts"):
        list(Linker.load(kb_path, mentions=Lazy()).link_many(["a", "b"]))


def test_what_a_change_says_is_forgotten_when_it_is_taken_back(kb_path):
    with KnowledgeBase.open(kb_path, writable=True) as kb:
        linker = Linker.load(kb, "prior")
        with suppress(ZeroDivisionError), kb.change() as change:
            change.update(Entity("Q1490", "Edo", aliases={"Tokyo": 1}))
            assert linker.link("Tokyo").links[0].title == "Edo"
            raise ZeroDivisionError
        assert linker.link("Tokyo").links[0].title == "Tokyo"


def test_mentions_without_candidates_keep_their_order(kb_path):
    class Both:
        def annotate(self, texts):
            for text in texts:
                yield [Mention(0, 5, text[:5]), Mention(6, 11, text[6:11])]

    links = Linker.load(kb_path, mentions=Both(), nil=True).link("Tokyo Zzyzx").links
    assert [(link.text, link.entity) for link in links] == [("Tokyo", "Q1490"), ("Zzyzx", None)]
    links = Linker.load(kb_path, mentions=Both()).link("Tokyo Zzyzx").links
    assert [link.text for link in links] == ["Tokyo"]  # NIL is shown only where it is asked for


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("prior", {"trust": 6}, "trust has no effect on model prior; .* a model that uses it: elq, luke"),
        ("prior", {"among": ["Q60"]}, "among has no effect on model prior"),
        ("prior", {"tags": "none"}, "tags has no effect on model prior; .* uses it: knowbert"),
        ("prior", {"device": "cuda"}, "device has no effect on model prior; .* uses it: elq, luke"),
        ("prior", {"precision": "int8"}, "precision has no effect on model prior"),
        ("elq", {"passes": 2}, "passes has no effect on model elq; .* uses it: luke"),
    ],
)
def test_an_option_that_a_model_ignores_is_refused(kb_path, model, options, message):
    with pytest.raises(UsageError, match=message):
        Linker.load(kb_path, model, **options)


def test_options_at_their_defaults_are_accepted(kb_path):
    linker = Linker.load(kb_path, "prior", overlaps="keep", sources="union", passes=8, among=None, device="cpu")
    assert linker.link("New York City").links


@pytest.mark.parametrize("text", [None, 7, ["a"]])
def test_link_takes_one_text(kb_path, text):
    with pytest.raises(UsageError, match=f"link takes one text as a str, got {type(text).__name__}; use link_many"):
        Linker.load(kb_path, "prior").link(text)
