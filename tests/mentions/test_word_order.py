"""Names are found with their words in another order or form, by one key per span."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions.proposals import WAYS, ProposalFinder, ProposalOptions
from wellread.mentions.word_order import MAX_WORDS, StemSums, name_keys
from wellread.text.words import split, split_names

NAMES = {
    "elbow": ["Elbow contracture"],
    "kidney": ["Abnormality of the kidney"],
    "hypotonia": ["Hypotonia"],
    "delay": ["Growth delay"],
    "city": ["New York"],
    "theodora": ["Theodora"],
    "policy": ["Police"],
}


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("order") / "terms.kb"
    entities = [Entity(id, names[0], aliases=dict.fromkeys(names, 1.0)) for id, names in NAMES.items()]
    build(lambda tally: iter(entities), path, origin=Origin("test"))
    with KnowledgeBase.open(path) as opened:
        yield opened


def found(kb, text, **options):
    """{span: (way, entity)} of one text."""
    proposals = ProposalFinder(kb, ProposalOptions(**options)).find([text])
    return {
        text[proposals.starts[row] : proposals.ends[row]]: (
            WAYS[proposals.ways[row]],
            proposals.candidates(row)[0].entity,
        )
        for row in range(len(proposals))
    }


@pytest.mark.parametrize(
    ("text", "span", "entity"),
    [
        ("with contractures of the elbows", "contractures of the elbows", "elbow"),
        ("a kidney abnormality", "kidney abnormality", "kidney"),
        ("kidney abnormalities", "kidney abnormalities", "kidney"),
        ("a delay in growth", "delay in growth", "delay"),
        ("a hypotonic child", "hypotonic", "hypotonia"),
    ],
)
def test_words_in_another_order_or_form_are_found(kb, text, span, entity):
    assert found(kb, text)[span] == ("word order", entity)


@pytest.mark.parametrize(
    "text",
    [
        "elbow, contracture",  # punctuation between the words
        "delay and growth",  # another word between them
        "Theodore came",  # a capitalised word is a name of its own
        "a new policy",  # common words are not stemmed alone
    ],
)
def test_other_names_are_not_found_by_word_order(kb, text):
    assert "word order" not in {way for way, _ in found(kb, text).values()}


def test_a_name_as_it_is_written_is_not_found_by_word_order(kb):
    assert found(kb, "an elbow contracture")["elbow contracture"] == ("case", "elbow")


def test_word_order_can_be_switched_off(kb):
    assert found(kb, "contractures of the elbows", word_order=False) == {}


def test_a_new_name_is_found_by_word_order(tmp_path):
    path = tmp_path / "growing.kb"
    build(lambda tally: iter([Entity("a", "Elbow contracture")]), path, origin=Origin("test"))
    with KnowledgeBase.open(path, writable=True) as kb:
        finder = ProposalFinder(kb)
        assert len(finder.find(["atrophy of the retina"])) == 0
        kb.add(Entity("b", "Retinal atrophy"))
        text = "atrophy of the retinal nerve"
        proposals = finder.find([text])
        assert [text[start:end] for start, end in zip(proposals.starts, proposals.ends, strict=True)] == [
            "atrophy of the retinal"
        ]


WORDS = st.lists(st.sampled_from(["kidney", "elbow", "elbows", "of", "the", "growth", "hypoplasia", ","]), max_size=12)


@given(WORDS)
@example(["kidney"] * MAX_WORDS)
@example(["kidney", "of", "elbow"])
@example([])
def test_spans_have_the_key_of_the_same_words_as_a_name(words):
    text = " ".join(words)
    sums = StemSums(split(text))
    every = [
        (first, last, key)
        for firsts, lasts, keys in sums.spans(lambda keys: np.arange(len(keys)))
        for first, last, key in zip(firsts.tolist(), lasts.tolist(), keys.tolist(), strict=True)
    ]
    for first, last, key in every:
        _, name, begins = split_names([" ".join(words[first : last + 1])])
        assert name_keys(name, begins).tolist() == [key]
    for first in range(len(words)):
        for last in range(first, min(first + MAX_WORDS, len(words))):
            inside = words[first : last + 1]
            stems = [word for word in inside if word not in ("of", "the")]
            whole = "," not in inside and inside[0] in stems and inside[-1] in stems and 2 <= len(stems) <= 6
            assert whole <= ((first, last) in {(one, other) for one, other, _ in every})
