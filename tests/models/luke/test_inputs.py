"""The entities of texts as they are lent: where their mentions lie, what is told of them, and what is not."""

from dataclasses import replace

import numpy as np
import pytest

from tests.task_models import SEGMENTER
from wellread.document import Document, Link
from wellread.errors import UsageError
from wellread.mentions.annotation_cache import Links
from wellread.models.luke.inputs import EntityLender
from wellread.models.luke.vocabulary import EntityVocabulary

VOCABULARY = EntityVocabulary.of_ids(["a", "b", "c"])


def document(text, **entities):
    """A text in which every word of a name is linked."""
    links = [
        Link(at, at + len(name), name, entity)
        for name, entity in entities.items()
        for at in range(len(text))
        if text.startswith(name, at)
    ]
    return Document(text, tuple(sorted(links, key=lambda link: link.start)))


DOCUMENTS = [
    document("the mayor of avon near old cork", avon="a", cork="b"),
    document("who wrote to dover , avon ?", dover="x", avon="a"),
    document("cork"),
    document("essen is not fargo", essen=None, fargo="c"),
]


def lender(**options):
    return EntityLender(Links.given(DOCUMENTS), VOCABULARY, **options)


def told_of(cut, **options):
    made = lender(**options).told(cut)["entities"]
    assert (np.diff(made["text_of"]) >= 0).all()
    return made


def texts_of(cut, told):
    found = []
    for text, (first, last), type in zip(told["text_of"], told["spans"], told["types"], strict=True):
        one = cut[text]
        assert one.types[first] == type
        segment = one.segment_of[first]
        found.append((int(text), one.texts[segment][one.spans[first, 0] : one.spans[last, 1]]))
    return found


def test_entities_lie_at_the_pieces_of_their_mentions():
    cut = SEGMENTER.cut_many([(DOCUMENTS[0].text,), (DOCUMENTS[1].text, DOCUMENTS[0].text), (DOCUMENTS[2].text,)])
    told = told_of(cut)
    assert texts_of(cut, told) == [(0, "avon"), (0, "cork"), (1, "avon"), (1, "avon"), (1, "cork")]
    assert VOCABULARY.rows_of("abaab").tolist() == [4, 5, 4, 4, 5]
    assert told["ids"].tolist() == [4, 5, 4, 4, 5]
    assert told["types"].tolist() == [0, 0, 0, 1, 1]


def test_what_is_unknown_is_dropped_or_told_as_such_and_nil_never_is():
    cut = SEGMENTER.cut_many([(DOCUMENTS[1].text,), (DOCUMENTS[3].text,)])
    assert told_of(cut)["ids"].tolist() == [4, 6]
    told = told_of(cut, unknown="unk")
    assert told["ids"].tolist() == [VOCABULARY.unk, 4, 6]
    assert texts_of(cut, told) == [(0, "dover"), (0, "avon"), (1, "fargo")]


def test_windows_share_the_entities_that_they_share_and_lose_none():
    (windows,) = SEGMENTER.cut_windows_many([(DOCUMENTS[2].text, DOCUMENTS[0].text)], longest=8, stride=2)
    assert len(windows) > 1
    found = texts_of(windows, told_of(windows))
    assert {name for _, name in found} == {"avon", "cork"}
    for number, one in enumerate(windows):
        for name in ("avon", "cork"):
            whole = name in one.words[int((one.word_segment == 0).sum()) :]
            assert ((number, name) in found) == whole


def test_no_input_has_more_than_so_many():
    cut = SEGMENTER.cut_many([(DOCUMENTS[0].text,), (DOCUMENTS[1].text, DOCUMENTS[0].text)])
    assert texts_of(cut, told_of(cut, most=1)) == [(0, "avon"), (1, "avon")]
    with pytest.raises(UsageError, match="most is 0; expected 1 entity or more"):
        lender(most=0)


def test_an_entity_of_a_hidden_word_is_masked():
    (one,) = SEGMENTER.cut_many([(DOCUMENTS[0].text,)])
    words = ["" if word == "avon" else word for word in one.words]
    assert told_of([replace(one, words=tuple(words))])["ids"].tolist() == [VOCABULARY.mask, 5]


def test_texts_are_linked_once_and_kept(tmp_path):
    asked = []

    def link(texts):
        asked.extend(texts)
        known = {document.text: document for document in DOCUMENTS}
        return [known[text] for text in texts]

    cut = SEGMENTER.cut_many([(one.text,) for one in DOCUMENTS])
    for _ in range(2):
        made = EntityLender(Links(link, fingerprint="1"), VOCABULARY)
        notes = made.annotate(cut, cache=tmp_path)
        assert made.told(cut[:1], notes)["entities"]["ids"].tolist() == [4, 5]
    assert sorted(asked) == sorted(one.text for one in DOCUMENTS)
    assert made.told(cut[2:3], notes)["entities"]["spans"].shape == (0, 2)


def test_what_is_not_told_is_counted_once(capsys):
    cut = SEGMENTER.cut_many([(document.text,) for document in DOCUMENTS])
    made = lender()
    for _ in range(2):
        made.annotate(cut)
    told = "of 5 links 1 (20.0%) have no row in the entity vocabulary and are left out: x\n"
    assert capsys.readouterr().err == told
    lender(unknown="unk").annotate(cut)
    assert "1 (20.0%) have no row in the entity vocabulary and are told as [UNK]: x" in capsys.readouterr().err
    lender(most=1).annotate(cut[:1])
    assert capsys.readouterr().err == "of 2 links 1 (50.0%) are cut off, or beyond the 1 of an input\n"


def test_a_link_that_any_window_tells_is_told(capsys):
    (windows,) = SEGMENTER.cut_windows_many([(DOCUMENTS[2].text, DOCUMENTS[0].text)], longest=8, stride=2)
    lender().annotate(windows)
    assert capsys.readouterr().err == ""
    lender().annotate(windows[:1])
    assert "are cut off" in capsys.readouterr().err
