"""Named entities and phrases: from spaCy with a pipeline the test makes, from Stanza's shapes, from labels."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from wellread.errors import AssetError, InputError, MissingExtraError
from wellread.mentions.annotators import SpacyAnnotator, StanzaAnnotator, given


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PERSON", "pattern": "Marie Curie"}, {"label": "GPE", "pattern": "Warsaw"}])
    folder = tmp_path_factory.mktemp("spacy") / "model"
    pipeline.to_disk(folder)
    return folder


def test_spacys_entities_become_mentions_with_their_labels(model_folder):
    texts = ["Marie Curie left Warsaw.", "", "No names 👩‍🚀 in Warsaw"]
    found = list(SpacyAnnotator(model_folder).annotate(texts))
    assert [[(m.text, m.label) for m in mentions] for mentions in found] == [
        [("Marie Curie", "PERSON"), ("Warsaw", "GPE")],
        [],
        [("Warsaw", "GPE")],
    ]
    assert all(text[m.start : m.end] == m.text for text, mentions in zip(texts, found, strict=True) for m in mentions)


def test_a_model_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
    with pytest.raises(InputError, match="no_such_model"):
        SpacyAnnotator(tmp_path / "no_such_model")


def test_the_default_model_that_was_not_fetched_says_how_to_fetch_it(tmp_path, monkeypatch):
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path))
    with pytest.raises(AssetError, match="wellread fetch spacy-en"):
        SpacyAnnotator()


@pytest.mark.parametrize(("name", "annotator"), [("spacy", SpacyAnnotator), ("stanza", StanzaAnnotator)])
def test_a_tagger_that_is_not_installed_says_how_to_install_it(monkeypatch, name, annotator):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        annotator()


class Tree:
    """A constituency tree with Stanza's methods."""

    def __init__(self, label, *children):
        self.label, self.children = label, children

    def is_leaf(self):
        return not self.children

    def is_preterminal(self):
        return len(self.children) == 1 and self.children[0].is_leaf()


@pytest.fixture
def stanza(monkeypatch):
    """Stanza as far as it is used: a pipeline that gives one parse for one text."""
    text = "The old dog barks."
    words = [
        SimpleNamespace(start_char=start, end_char=end) for start, end in [(0, 3), (4, 7), (8, 11), (12, 17), (17, 18)]
    ]
    tree = Tree(
        "ROOT",
        Tree(
            "S",
            Tree("NP", Tree("DT", Tree("The")), Tree("JJ", Tree("old")), Tree("NN", Tree("dog"))),
            Tree("VP", Tree("VBZ", Tree("barks"))),
            Tree(".", Tree(".")),
        ),
    )
    parsed = SimpleNamespace(
        ents=[SimpleNamespace(start_char=4, end_char=11, text="old dog", type="ANIMAL")],
        sentences=[SimpleNamespace(words=words, constituency=tree)],
    )
    module = ModuleType("stanza")
    module.Pipeline = lambda *args, **options: lambda given_text: parsed
    monkeypatch.setitem(sys.modules, "stanza", module)
    return text


def test_stanzas_entities_become_mentions(stanza):
    (found,) = StanzaAnnotator().annotate([stanza])
    assert [(m.start, m.end, m.text, m.label) for m in found] == [(4, 11, "old dog", "ANIMAL")]


def test_stanzas_constituents_become_mentions(stanza):
    (found,) = StanzaAnnotator(what="phrases").annotate([stanza])
    assert [(m.text, m.label) for m in found] == [("The old dog barks.", "S"), ("The old dog", "NP"), ("barks", "VP")]


def test_given_labels_become_mentions_in_order():
    found = given("Marie Curie left Warsaw.", [(17, 23, None), (0, 11, "PERSON")])
    assert [(m.text, m.label) for m in found] == [("Marie Curie", "PERSON"), ("Warsaw", None)]


@pytest.mark.parametrize("span", [(-1, 3), (3, 3), (4, 2), (0, 25)])
def test_a_span_outside_the_text_is_refused(span):
    with pytest.raises(InputError, match=f"{span[0]}:{span[1]}"):
        given("Marie Curie left Warsaw.", [(*span, None)])
