"""Knowledge provider of LUKE: spans, rows and left-out links."""

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
    """Return a text in which every occurrence of a name is linked."""
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


def entities_of(tokenized, **options):
    made = provider(**options).collate(tokenized)["entities"]
    assert (np.diff(made["text_of"]) >= 0).all()
    return made


def texts_of(tokenized, entities):
    found = []
    for text, (first, last), type in zip(entities["text_of"], entities["spans"], entities["types"], strict=True):
        one = tokenized[text]
        assert one.types[first] == type
        segment = one.segment_of[first]
        found.append((int(text), one.texts[segment][one.spans[first, 0] : one.spans[last, 1]]))
    return found


def test_entities_have_the_tokens_of_their_mentions():
    tokenized = SEGMENTER.tokenize_many(
        [(DOCUMENTS[0].text,), (DOCUMENTS[1].text, DOCUMENTS[0].text), (DOCUMENTS[2].text,)]
    )
    entities = entities_of(tokenized)
    assert texts_of(tokenized, entities) == [(0, "avon"), (0, "cork"), (1, "avon"), (1, "avon"), (1, "cork")]
    assert VOCABULARY.rows_of("abaab").tolist() == [4, 5, 4, 4, 5]
    assert entities["ids"].tolist() == [4, 5, 4, 4, 5]
    assert entities["types"].tolist() == [0, 0, 0, 1, 1]


def test_unknown_entities_are_dropped_or_unk_and_nil_is_dropped():
    tokenized = SEGMENTER.tokenize_many([(DOCUMENTS[1].text,), (DOCUMENTS[3].text,)])
    assert entities_of(tokenized)["ids"].tolist() == [4, 6]
    entities = entities_of(tokenized, unknown="unk")
    assert entities["ids"].tolist() == [VOCABULARY.unk, 4, 6]
    assert texts_of(tokenized, entities) == [(0, "dover"), (0, "avon"), (1, "fargo")]


def test_every_entity_is_in_the_windows_that_contain_its_mention():
    (windows,) = SEGMENTER.tokenize_windows_many([(DOCUMENTS[2].text, DOCUMENTS[0].text)], longest=8, stride=2)
    assert len(windows) > 1
    found = texts_of(windows, entities_of(windows))
    assert {name for _, name in found} == {"avon", "cork"}
    for number, one in enumerate(windows):
        for name in ("avon", "cork"):
            whole = name in one.words[int((one.word_segment == 0).sum()) :]
            assert ((number, name) in found) == whole


def test_an_input_has_at_most_the_given_number_of_entities():
    tokenized = SEGMENTER.tokenize_many([(DOCUMENTS[0].text,), (DOCUMENTS[1].text, DOCUMENTS[0].text)])
    assert texts_of(tokenized, entities_of(tokenized, most=1)) == [(0, "avon"), (1, "avon")]
    with pytest.raises(UsageError, match="most is 0; expected 1 entity or more"):
        provider(most=0)


def test_an_entity_with_a_masked_word_is_masked():
    (one,) = SEGMENTER.tokenize_many([(DOCUMENTS[0].text,)])
    words = ["" if word == "avon" else word for word in one.words]
    assert entities_of([replace(one, words=tuple(words))])["ids"].tolist() == [VOCABULARY.mask, 5]


def test_texts_are_linked_once_and_cached(tmp_path):
    questions = []

    def link(texts):
        questions.extend(texts)
        known = {document.text: document for document in DOCUMENTS}
        return [known[text] for text in texts]

    tokenized = SEGMENTER.tokenize_many([(one.text,) for one in DOCUMENTS])
    for _ in range(2):
        made = LukeProvider(Links(link, fingerprint="1"), VOCABULARY)
        notes = made.prepare(tokenized, cache=tmp_path)
        assert made.collate(tokenized[:1], notes)["entities"]["ids"].tolist() == [4, 5]
    assert sorted(questions) == sorted(one.text for one in DOCUMENTS)
    assert made.collate(tokenized[2:3], notes)["entities"]["spans"].shape == (0, 2)


def test_links_left_out_are_logged_once(capsys):
    tokenized = SEGMENTER.tokenize_many([(document.text,) for document in DOCUMENTS])
    made = provider()
    for _ in range(2):
        made.prepare(tokenized)
    entities = "of 5 links 1 (20.0%) have no row in the entity vocabulary and are left out: x\n"
    assert capsys.readouterr().err == entities
    provider(unknown="unk").prepare(tokenized)
    assert "1 (20.0%) have no row in the entity vocabulary and are replaced by [UNK]: x" in capsys.readouterr().err
    provider(most=1).prepare(tokenized[:1])
    assert capsys.readouterr().err == "of 2 links 1 (50.0%) are split by a window border, or exceed the 1 per input\n"


def test_a_link_in_any_window_is_not_counted_as_left_out(capsys):
    (windows,) = SEGMENTER.tokenize_windows_many([(DOCUMENTS[2].text, DOCUMENTS[0].text)], longest=8, stride=2)
    provider().prepare(windows)
    assert capsys.readouterr().err == ""
    provider().prepare(windows[:1])
    assert "are split by a window border" in capsys.readouterr().err
