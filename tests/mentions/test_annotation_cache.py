"""Annotations of a dataset: made once, kept in files that say what they are of, read as they were made."""

import random
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import pytest

from tests.map_data import GivenMarks, word_piece
from wellread import config
from wellread.document import Document, Link
from wellread.errors import AssetError, InputError, MissingExtraError, UsageError
from wellread.mentions import annotation_cache as annotations
from wellread.mentions.annotation_cache import Annotations, Links, Tagger, annotate, tagger
from wellread.mentions.annotators import Marks, SpacyAnnotator, StanzaAnnotator
from wellread.models.kam.inputs import EntityMap, KamProvider, MapsConfig, TermChoice
from wellread.text import words as names
from wellread.text.tokenization import TextTokenizer

TEXTS = ["the mayor of york", "", "東京 is old\r\nnew-york", "e\u0301 -", "\u0301 the", "who\n", "-a", "a-"]
SOURCES = ("mentions", "leaves", "heads", "constituents", "chunks")


def random_marks(text):
    """Something in every array, the same for the same text."""
    chance = random.Random(text)
    count = min(chance.randint(0, 3), len(text) // 2)
    borders = np.array(sorted(chance.sample(range(len(text) + 1), 2 * count)), np.int32).reshape(-1, 2)
    nodes = np.array([(0, count, 1)] * count, np.int32).reshape(-1, 3)
    return Marks(borders, ("a", "b", "")[:count], borders, np.zeros((count, 1), np.int32), nodes, borders[:1])


def assert_as_given(notes, texts):
    for text in texts:
        expected, row = random_marks(text), notes.row_of(text)
        for what in SOURCES:
            found = notes.marks("given", what)
            here = found.values[found.offsets[row] : found.offsets[row + 1]]
            assert here.tolist() == getattr(expected, what).tolist()
        document = notes.document("given", text)
        assert [(link.start, link.end, link.text) for link in document.links] == [
            (start, end, text[start:end]) for start, end in expected.mentions.tolist()
        ]
        assert [link.entity for link in document.links] == [name or None for name in expected.names]


def test_texts_are_annotated_once_each_and_kept_as_given(tmp_path):
    source = GivenMarks(random_marks)
    assert_as_given(annotate([*TEXTS, *TEXTS], [source]), TEXTS)
    assert sorted(source.asked) == sorted(TEXTS)
    source.asked.clear()
    assert_as_given(annotate([*TEXTS, *TEXTS], [source], folder=tmp_path), TEXTS)
    assert sorted(source.asked) == sorted(TEXTS)


def test_what_is_kept_is_not_made_again_in_any_order(tmp_path):
    annotate(TEXTS, [GivenMarks(random_marks)], folder=tmp_path)
    again = GivenMarks(None)  # would fail if it were asked
    assert_as_given(annotate(reversed(TEXTS), [again], folder=tmp_path), TEXTS)
    assert len(list(tmp_path.glob("given-*.arrow"))) == 1


@pytest.mark.parametrize(
    ("texts", "fingerprint"), [([*TEXTS, "more"], "given 1"), (TEXTS[1:], "given 1"), (TEXTS, "given 2")]
)
def test_other_texts_or_another_source_are_annotated_anew(tmp_path, texts, fingerprint):
    annotate(TEXTS, [GivenMarks(random_marks)], folder=tmp_path)
    source = GivenMarks(random_marks, fingerprint=fingerprint)
    annotate(texts, [source], folder=tmp_path)
    assert len(source.asked) == len(texts)
    assert len(list(tmp_path.glob("given-*.arrow"))) == 2


def test_texts_that_differ_only_in_where_they_end_are_different(tmp_path):
    annotate(["ab", "c"], [GivenMarks(random_marks)], folder=tmp_path)
    source = GivenMarks(random_marks)
    annotate(["a", "bc"], [source], folder=tmp_path)
    assert source.asked == ["a", "bc"]


def test_a_source_that_fails_leaves_nothing_behind(tmp_path):
    def fail(text):
        if text == "who\n":
            raise RuntimeError("no power")
        return Marks()

    with pytest.raises(RuntimeError, match="no power"):
        annotate(TEXTS, [GivenMarks(fail)], folder=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".arrow" or ".part" in path.name]
    assert_as_given(annotate(TEXTS, [GivenMarks(random_marks)], folder=tmp_path), TEXTS)


def test_a_damaged_file_says_that_it_may_be_deleted(tmp_path):
    annotate(TEXTS, [GivenMarks(random_marks)], folder=tmp_path)
    (path,) = tmp_path.glob("given-*.arrow")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=rf"{path.name} is damaged .* delete it"):
        annotate(TEXTS, [GivenMarks(random_marks)], folder=tmp_path)


@pytest.mark.parametrize("folder", [None, "kept"])
def test_no_texts_have_no_annotations(tmp_path, folder):
    notes = annotate([], [GivenMarks(random_marks)], folder=folder and tmp_path / folder)
    assert notes.marks("given", "mentions").values.shape == (0, 2)
    assert notes.mentions("given").values.shape == (0, 2)
    assert notes.names("given")[1] == []
    assert len(notes.words.values) == 0


def test_a_source_must_answer_for_every_text():
    class Silent(GivenMarks):
        def mark(self, texts):
            return iter([])

    with pytest.raises(InputError, match="'given' gave 0 results for 1 texts"):
        annotate(["old"], [Silent(None)])


@pytest.mark.parametrize("span", [(-1, 2), (0, 4)])
def test_spans_outside_of_their_text_are_refused(span):
    with pytest.raises(InputError, match="has mentions outside of the 3 characters of 'old'"):
        annotate(["old"], [GivenMarks({"old": Marks(mentions=np.array([span], np.int32), names=("x",))})])


def test_a_text_that_was_not_annotated_is_named():
    with pytest.raises(InputError, match=r"'new york' was not annotated; give all inputs to KamProvider\.prepare"):
        annotate(["old"], []).row_of("new york")


def test_the_words_of_all_texts_are_those_of_each_alone(monkeypatch):
    monkeypatch.setattr(annotations, "_TOGETHER", 12)
    notes = Annotations(TEXTS, {})
    base = 0
    for row, text in enumerate(TEXTS):
        here = notes.words.values[notes.words.offsets[row] : notes.words.offsets[row + 1]] - base
        assert [text[start:end] for start, end in here.tolist()] == names.words(text)
        base += len(text) + 1


# links and taggers


def test_given_documents_must_cover_every_text():
    source = Links.given([Document("old york", (Link(4, 8, "york", "Q1"), Link(0, 3, "old", None)))])
    (marks,) = source.mark(["old york"])
    assert (marks.mentions.tolist(), marks.names) == ([[4, 8], [0, 3]], ("Q1", ""))
    with pytest.raises(InputError, match="no given document has the text 'new york'"):
        list(source.mark(["old york", "new york"]))


def test_other_labels_have_another_fingerprint():
    one, other = (Links.given([Document("old", (Link(0, 3, "old", entity),))]) for entity in ("Q1", "Q2"))
    assert one.fingerprint != other.fingerprint


def test_a_tagger_is_loaded_only_when_it_is_needed(tmp_path, monkeypatch):
    annotate(TEXTS, [GivenMarks(random_marks, name="spacy")], folder=tmp_path)
    monkeypatch.setattr(SpacyAnnotator, "fingerprint", lambda model=None: "given 1")
    monkeypatch.setattr(SpacyAnnotator, "__init__", None)  # would fail if it were loaded
    notes = annotate(TEXTS, [tagger("spacy")], folder=tmp_path)
    assert notes.marks("spacy", "mentions").values.any()
    assert tagger("spacy") is tagger("spacy")
    assert tagger("spacy") is not tagger("spacy", "another")


def test_a_tagger_is_loaded_once():
    loaded = []

    class Annotator:
        def __init__(self):
            loaded.append(self)

        def mark(self, texts):
            return (Marks() for _ in texts)

    source = Tagger("mine", Annotator, lambda: "1")
    assert not loaded
    for _ in range(3):
        annotate(TEXTS, [source])
    assert len(loaded) == 1


def test_a_linker_that_learned_anew_under_its_name_has_another_fingerprint(tmp_path):
    from wellread.kb.build import Origin, build
    from wellread.kb.records import Entity

    build(lambda tally: iter([Entity("a", "old")]), tmp_path / "one.kb", origin=Origin("test"))
    (tmp_path / "model").mkdir()
    recipe = MapsConfig(
        maps=("entity",), entities="linker", kb=str(tmp_path / "one.kb"), linker=str(tmp_path / "model")
    )
    prints = set()
    for weights in (b"first", b"second"):
        (tmp_path / "model" / "model.safetensors").write_bytes(weights)
        provider = KamProvider.build(recipe, word_piece(), linker=lambda texts: map(Document, texts))
        prints.add(provider.sources[0].fingerprint)
    assert len(prints) == 2


def test_another_model_has_another_fingerprint(tmp_path):
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
    prints = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text(f'{{"name": "{name}"}}')
        prints.add(SpacyAnnotator.fingerprint(tmp_path / name))
    assert len(prints) == 2
    assert SpacyAnnotator.fingerprint("no_such_model").endswith("no_such_model ")


def test_taggers_that_are_not_installed_say_how_to_install_them(monkeypatch):
    def nothing(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", nothing)
    for annotator in (SpacyAnnotator, StanzaAnnotator):
        with pytest.raises(MissingExtraError, match="pip install"):
            annotator.fingerprint()


@pytest.fixture(scope="module")
def spacy_model():
    """The default spaCy model where it was fetched."""
    pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
    try:
        return SpacyAnnotator(what="phrases")
    except AssetError as error:
        pytest.skip(f"the spaCy model was not fetched: {error}")


def test_spacy_marks_entities_chunks_and_heads(spacy_model):
    text = "The Academy of Fine Arts is located in Northern Maidan."
    marks, nothing, blank = spacy_model.mark([text, "", "  "])
    leaves = [text[start:end] for start, end in marks.leaves.tolist()]
    assert leaves == "The Academy of Fine Arts is located in Northern Maidan .".split()
    assert "Northern Maidan" in [text[start:end] for start, end in marks.mentions.tolist()]
    assert [text[start:end] for start, end in marks.chunks.tolist()] == ["The Academy", "Fine Arts", "Northern Maidan"]
    heads = {leaf: leaves[head] for leaf, (head,) in zip(leaves, marks.heads.tolist(), strict=True)}
    assert (heads["Fine"], heads["Arts"], heads["The"], heads["located"]) == ("Arts", "of", "Academy", "located")
    assert len(nothing.leaves) == len(nothing.heads) == 0
    assert len(blank.mentions) == len(blank.chunks) == 0


def test_a_pipeline_without_a_parser_has_no_trees(tmp_path):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
    spacy.blank("en").to_disk(tmp_path / "blank")
    (marks,) = SpacyAnnotator(tmp_path / "blank").mark(["old york"])
    assert (len(marks.leaves), len(marks.heads), len(marks.chunks)) == (2, 0, 0)
    with pytest.raises(InputError, match="finds no noun chunks"):
        list(SpacyAnnotator(tmp_path / "blank", what="phrases").mark(["old york"]))


def stanza_annotator(what, parsed):
    """One that has its parse already."""
    annotator = StanzaAnnotator.__new__(StanzaAnnotator)
    annotator.what, annotator.pipeline = what, lambda text: parsed
    return annotator


def test_stanza_marks_entities():
    parsed = SimpleNamespace(ents=[SimpleNamespace(start_char=4, end_char=8, text="york", type="GPE")])
    (marks,) = stanza_annotator("entities", parsed).mark(["old york"])
    assert (marks.mentions.tolist(), marks.names) == ([[4, 8]], ("GPE",))


def test_parts_of_a_contraction_stand_where_the_whole_stands():
    class Node:
        def __init__(self, *children):
            self.children = children

        def is_leaf(self):
            return not self.children

        def is_preterminal(self):
            return len(self.children) == 1 and self.children[0].is_leaf()

    whole = SimpleNamespace(start_char=3, end_char=5)
    parts = [SimpleNamespace(start_char=None, end_char=None, parent=whole) for _ in range(2)]
    words = [SimpleNamespace(start_char=0, end_char=2), *parts]
    first, second, third = (Node(Node()) for _ in range(3))
    sentences = [
        SimpleNamespace(words=words, constituency=Node(first, Node(second, third))),
        SimpleNamespace(words=[SimpleNamespace(start_char=6, end_char=7)], constituency=Node(Node(Node()))),
    ]
    (marks,) = stanza_annotator("phrases", SimpleNamespace(sentences=sentences)).mark(["il du x"])
    assert marks.leaves.tolist() == [[0, 2], [3, 5], [3, 5], [6, 7]]
    assert marks.constituents.tolist() == [[1, 3, 1], [0, 3, 2], [3, 4, 1]]


# recipes


def test_a_recipe_is_read_as_it_was_written():
    recipe = MapsConfig(maps=("entity", "correlation"), correlation="my.pmi", terms=8, entities="linker", kb="vital")
    assert config.from_dict(MapsConfig, config.to_dict(recipe)) == recipe
    assert config.from_dict(MapsConfig, {}) == MapsConfig()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maps": ("entity", "entity")}, "name each once"),
        ({"maps": ("correlation",)}, "the correlation map needs a table; make one with wellread correlate"),
        ({"terms": 8}, "auxiliary terms need a table"),
        ({"maps": ("graph",)}, "give kb"),
        ({"entities": "linker"}, "give kb"),
        ({"entities": "given"}, "give given"),
        ({"level": -1, "reading": "dependency"}, "level = -1 and terms = 0; expected 0 or more"),
        ({"level": 2}, "noun chunks have no level"),
    ],
)
def test_a_recipe_that_lacks_something_says_what(settings, message):
    with pytest.raises(UsageError, match=message):
        MapsConfig(**settings)


def test_a_typo_in_a_recipe_names_the_choices():
    with pytest.raises(InputError, match=r"entity.*phrase.*correlation.*graph"):
        config.from_dict(MapsConfig, {"maps": ["entitty"]})


def test_maps_that_need_a_linker_ask_for_one(tmp_path):
    from wellread.kb.build import Origin, build
    from wellread.kb.records import Entity

    path = tmp_path / "two.kb"
    entities = [Entity("a", "old", facts=(("of", "b"),)), Entity("b", "york")]
    build(lambda tally: iter(entities), path, origin=Origin("test"))
    recipe = MapsConfig(maps=("entity", "graph"), entities="linker", kb=str(path))
    assert recipe.needs_linker
    with pytest.raises(UsageError, match="need a linker"):
        KamProvider.build(recipe, word_piece())

    def link(texts):
        return (Document(text, (Link(0, 3, "old", "a"), Link(4, 8, "york", "b"))) for text in texts)

    provider = KamProvider.build(recipe, word_piece(), linker=link)
    assert [source.name for source in provider.sources] == ["links"]
    provided = provider.build_inputs(provider.segmenter.tokenize_many([("old york",)]))
    assert provided.maps[0, :, 1:3, 1:3].tolist() == [[[1, 0], [0, 1]], [[0, 1], [1, 0]]]


def test_given_links_make_a_linker_unnecessary(tmp_path):
    path = tmp_path / "linked.jsonl"
    path.write_text('{"text": "old york city", "mentions": [[4, 13, "a"]]}\n')
    recipe = MapsConfig(maps=("entity",), entities="given", given=str(path))
    assert not recipe.needs_linker
    provider = KamProvider.build(recipe, word_piece(), longest=4)
    provided = provider.build_inputs(provider.segmenter.tokenize_many([("old york city",)]))
    assert provided.maps[0, 0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("settings", "sources"),
    [
        ({}, ["spacy"]),
        ({"reading": "dependency"}, ["spacy"]),
        ({"reading": "constituency"}, ["spacy", "stanza-phrases"]),
        ({"reading": "constituency", "entities": "stanza"}, ["stanza", "stanza-phrases"]),
        ({"maps": ()}, []),
    ],
)
def test_a_recipe_asks_each_tagger_once(settings, sources):
    provider = KamProvider.build(MapsConfig(**settings), word_piece())
    assert [source.name for source in provider.sources] == sources


# terms


class Counting:
    """A table in which "york" goes with everything; counts how often it is asked for terms."""

    words, asked = ("city", "mayor", "york"), 0

    def __init__(self, file="table-1"):
        self.about = {"file": file}

    def ids_of(self, words):
        return np.array([self.words.index(word) if word in self.words else -1 for word in words], np.int64)

    def related(self, ids, k, leave_out):
        self.asked += 1
        return [(2, 0.5)][:k] if 2 not in ids else []


def test_terms_are_chosen_once_and_kept(tmp_path):
    segmenter = TextTokenizer(word_piece())
    inputs = [("the city",), ("old city",), ("york",), ("is",)]
    tables = []
    for file in ("table-1", "table-1", "table-2"):
        tables.append(Counting(file))
        source = GivenMarks(lambda text: Marks())
        provider = KamProvider([EntityMap(source)], segmenter, terms=TermChoice(tables[-1]))
        notes = provider.prepare(inputs, cache=tmp_path)
        requested = tables[-1].asked
        assert provider.build_inputs(segmenter.tokenize_many(inputs), notes).terms == [("york",), ("york",), (), ()]
        assert tables[-1].asked == requested
    assert [table.asked for table in tables] == [2, 0, 2]
    assert len(list(tmp_path.glob("terms-*.arrow"))) == 2
