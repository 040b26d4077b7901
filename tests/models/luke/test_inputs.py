"""The entities of texts as they are lent: where their mentions lie, what is told of them, and what is not."""

from dataclasses import replace

import numpy as np
import pytest

from tests.task_models import SEGMENTER
from wellread.document import Document, Link
from wellread.errors import UsageError
from wellread.mentions.annotation_cache import Links
from wellread.models.luke.inputs import LukeProvider
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


def provider(**options):
    return LukeProvider(Links.given(DOCUMENTS), VOCABULARY, **options)


def told_of(tokenized, **options):
    made = provider(**options).collate(tokenized)["entities"]
    assert (np.diff(made["text_of"]) >= 0).all()
    return made


def texts_of(tokenized, told):
    found = []
    for text, (first, last), type in zip(told["text_of"], told["spans"], told["types"], strict=True):
        one = tokenized[text]
        assert one.types[first] == type
        segment = one.segment_of[first]
        found.append((int(text), one.texts[segment][one.spans[first, 0] : one.spans[last, 1]]))
    return found


def test_entities_lie_at_the_pieces_of_their_mentions():
    tokenized = SEGMENTER.tokenize_many(
        [(DOCUMENTS[0].text,), (DOCUMENTS[1].text, DOCUMENTS[0].text), (DOCUMENTS[2].text,)]
    )
    told = told_of(tokenized)
    assert texts_of(tokenized, told) == [(0, "avon"), (0, "cork"), (1, "avon"), (1, "avon"), (1, "cork")]
    assert VOCABULARY.rows_of("abaab").tolist() == [4, 5, 4, 4, 5]
    assert told["ids"].tolist() == [4, 5, 4, 4, 5]
    assert told["types"].tolist() == [0, 0, 0, 1, 1]


def test_what_is_unknown_is_dropped_or_told_as_such_and_nil_never_is():
    tokenized = SEGMENTER.tokenize_many([(DOCUMENTS[1].text,), (DOCUMENTS[3].text,)])
    assert told_of(tokenized)["ids"].tolist() == [4, 6]
    told = told_of(tokenized, unknown="unk")
    assert told["ids"].tolist() == [VOCABULARY.unk, 4, 6]
    assert texts_of(tokenized, told) == [(0, "dover"), (0, "avon"), (1, "fargo")]


def test_windows_share_the_entities_that_they_share_and_lose_none():
    (windows,) = SEGMENTER.tokenize_windows_many([(DOCUMENTS[2].text, DOCUMENTS[0].text)], longest=8, stride=2)
    assert len(windows) > 1
    found = texts_of(windows, told_of(windows))
    assert {name for _, name in found} == {"avon", "cork"}
    for number, one in enumerate(windows):
        for name in ("avon", "cork"):
            whole = name in one.words[int((one.word_segment == 0).sum()) :]
            assert ((number, name) in found) == whole


def test_no_input_has_more_than_so_many():
    tokenized = SEGMENTER.tokenize_many([(DOCUMENTS[0].text,), (DOCUMENTS[1].text, DOCUMENTS[0].text)])
    assert texts_of(tokenized, told_of(tokenized, most=1)) == [(0, "avon"), (1, "avon")]
    with pytest.raises(UsageError, match="most is 0; expected 1 entity or more"):
        provider(most=0)


def test_an_entity_of_a_hidden_word_is_masked():
    (one,) = SEGMENTER.tokenize_many([(DOCUMENTS[0].text,)])
    words = ["" if word == "avon" else word for word in one.words]
    assert told_of([replace(one, words=tuple(words))])["ids"].tolist() == [VOCABULARY.mask, 5]


def test_texts_are_linked_once_and_kept(tmp_path):
    asked = []

    def link(texts):
        asked.extend(texts)
        known = {document.text: document for document in DOCUMENTS}
        return [known[text] for text in texts]

    tokenized = SEGMENTER.tokenize_many([(one.text,) for one in DOCUMENTS])
    for _ in range(2):
        made = LukeProvider(Links(link, fingerprint="1"), VOCABULARY)
        notes = made.prepare(tokenized, cache=tmp_path)
        assert made.collate(tokenized[:1], notes)["entities"]["ids"].tolist() == [4, 5]
    assert sorted(asked) == sorted(one.text for one in DOCUMENTS)
    assert made.collate(tokenized[2:3], notes)["entities"]["spans"].shape == (0, 2)


def test_what_is_not_told_is_counted_once(capsys):
    tokenized = SEGMENTER.tokenize_many([(document.text,) for document in DOCUMENTS])
    made = provider()
    for _ in range(2):
        made.prepare(tokenized)
    told = "of 5 links 1 (20.0%) have no row in the entity vocabulary and are left out: x\n"
    assert capsys.readouterr().err == told
    provider(unknown="unk").prepare(tokenized)
    assert "1 (20.0%) have no row in the entity vocabulary and are told as [UNK]: x" in capsys.readouterr().err
    provider(most=1).prepare(tokenized[:1])
    assert capsys.readouterr().err == "of 2 links 1 (50.0%) are cut off, or beyond the 1 of an input\n"


def test_a_link_that_any_window_tells_is_told(capsys):
    (windows,) = SEGMENTER.tokenize_windows_many([(DOCUMENTS[2].text, DOCUMENTS[0].text)], longest=8, stride=2)
    provider().prepare(windows)
    assert capsys.readouterr().err == ""
    provider().prepare(windows[:1])
    assert "are cut off" in capsys.readouterr().err
