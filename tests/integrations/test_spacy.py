"""The spaCy component: links in documents, alone and in streams, in other processes, saved and loaded."""

import shutil
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.kb.conftest import CITIES, build_kb
from wellread.errors import InputError, KnowledgeBaseError, StorageError, UsageError
from wellread.kb.records import Entity

spacy = pytest.importorskip("spacy", reason="spaCy is not installed; run: pip install -e '.[spacy]'")

from spacy.tokens import Doc, DocBin, Span  # noqa: E402

from wellread.integrations.spacy import NAME, SpacyLinker  # noqa: E402

TEXT = "Einstein left Paris for the US."
LINKED = [("Einstein", "person", "Q937"), ("Paris", "city", "Q90"), ("US", "country", "Q30")]


@pytest.fixture
def kb(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    return str(tmp_path / "cities.kb")


@pytest.fixture
def make(kb):
    """An English pipeline with the component, and with rules that know some entities if wanted."""
    made = []

    def make(rules=(), **config):
        nlp = spacy.blank("en")
        if rules:
            nlp.add_pipe("entity_ruler").add_patterns([{"label": label, "pattern": name} for name, label in rules])
        nlp.add_pipe(NAME, config={"kb": kb, "model": "prior", **config})
        made.append(nlp)
        return nlp

    yield make
    for nlp in made:
        if (linker := nlp.get_pipe(NAME)._linker) is not None:
            linker.close()


def entities_of(doc):
    return [(ent.text, ent.label_, ent.kb_id_) for ent in doc.ents]


def test_links_are_entities_with_all_that_the_linker_says(make):
    doc = make()(TEXT)
    assert entities_of(doc) == LINKED
    paris = doc.ents[1]
    assert (paris._.wellread["title"], paris._.wellread["kb"]) == ("Paris", "cities")
    assert [one["entity"] for one in paris._.wellread["candidates"]] == ["Q90", "Q830149"]
    assert TEXT[paris._.wellread["start"] : paris._.wellread["end"]] == "Paris"
    assert doc[0:1]._.wellread["entity"] == "Q937"
    assert doc[1:2]._.wellread is None
    assert [(span.text, span.kb_id_) for span in doc.spans["wellread"]] == [(name, id) for name, _, id in LINKED]


def test_entities_that_were_there_stay_where_no_link_is(make):
    doc = make(rules=[("Einstein left", "EVENT"), ("left", "VERB"), ("Paris", "GPE"), ("for", "X")])(TEXT)
    assert entities_of(doc) == [("Einstein", "person", "Q937"), ("Paris", "GPE", "Q90"), ("for", "X", ""), *LINKED[2:]]


def test_nil_is_shown_and_ruled_out_on_demand(make, toy):
    """The toy linker takes "planet" for a mention without an entity."""
    model = {"kb": str(toy / "toy.kb"), "model": str(toy / "model")}
    text = "mayor of planet"
    ids = lambda doc: [ent.kb_id_ for ent in doc.ents]  # noqa: E731
    assert ids(make(**model, options={"precision": "fp32"})(text)) == []
    assert ids(make(**model, options={"precision": "fp32", "nil": True})(text)) == ["NIL"]
    given = {**model, "rules": [("planet", "X")], "entities": "spacy", "options": {"precision": "fp32"}}
    assert ids(make(**given)(text)) == ["NIL"]
    (never,) = make(**given, never_nil=True)(text).ents
    assert never.kb_id_ == never._.wellread["candidates"][0]["entity"]
    with pytest.raises(UsageError, match='set entities="spacy" too'):
        SpacyLinker(never_nil=True)


def test_only_spacys_own_entities_are_linked_if_wanted(make):
    doc = make(rules=[("Paris", "GPE"), ("left", "VERB")], entities="spacy")(TEXT)
    assert entities_of(doc) == [("left", "VERB", "NIL"), ("Paris", "GPE", "Q90")]
    assert [ent._.wellread["entity"] for ent in doc.ents] == [None, "Q90"]
    assert [token.ent_kb_id_ for token in doc if token.ent_type_] == ["NIL", "Q90"]
    assert len(doc.spans["wellread"]) == 2


def test_links_that_end_within_a_word_take_all_of_it(make):
    nlp = make()
    doc = Doc(nlp.vocab, words=["Paris-Texas", "Einstein"], spaces=[True, False])
    nlp.get_pipe(NAME)(doc)
    assert [(ent.text, ent.kb_id_) for ent in doc.ents] == [("Paris-Texas", "Q90"), ("Einstein", "Q937")]
    assert doc.ents[0]._.wellread["text"] == "Paris"


def test_entities_can_be_left_alone(make):
    doc = make(rules=[("left", "VERB")], set_ents=False, key="places")(TEXT)
    assert entities_of(doc) == [("left", "VERB", "")]
    assert [span.kb_id_ for span in doc.spans["places"]] == ["Q937", "Q90", "Q30"]
    assert doc.spans["places"][1]._.places["title"] == "Paris"


def test_a_stream_gives_the_same_in_any_batches(make):
    nlp = make()
    texts = [TEXT, "", "nothing", "Paris " * 3, " \n"] * 4
    alone = [entities_of(nlp(text)) for text in texts]
    for size in (1, 3, 100):
        assert [entities_of(doc) for doc in nlp.pipe(texts, batch_size=size)] == alone
    with_context = list(nlp.pipe([(TEXT, 7)], as_tuples=True))
    assert [(entities_of(doc), context) for doc, context in with_context] == [(LINKED, 7)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # fork is spaCy's choice
def test_other_processes_give_the_same(make):
    nlp = make()
    nlp("")
    texts = [TEXT, "", "Paris"] * 3
    found = list(nlp.pipe(texts, n_process=2, batch_size=2))
    assert [entities_of(doc) for doc in found] == [entities_of(doc) for doc in nlp.pipe(texts)]
    assert found[0].ents[1]._.wellread["candidates"][1]["entity"] == "Q830149"


def test_another_process_that_links_by_name_needs_no_torch(make, monkeypatch):
    nlp = make()
    nlp("")
    nlp.get_pipe(NAME)._loaded_by = 0  # as a child finds it
    monkeypatch.setitem(sys.modules, "torch", None)  # to import it would fail
    assert entities_of(nlp(TEXT)) == LINKED


def test_documents_are_saved_with_their_links(make):
    nlp = make()
    kept = DocBin(store_user_data=True, docs=[nlp(TEXT)]).to_bytes()
    (doc,) = DocBin().from_bytes(kept).get_docs(nlp.vocab)
    assert entities_of(doc) == LINKED
    assert doc.ents[1]._.wellread["title"] == "Paris"


def test_a_pipeline_is_saved_and_loaded(make, kb, tmp_path):
    nlp = make(threshold=0.5)
    assert entities_of(nlp(TEXT)) == [LINKED[1]]
    nlp.to_disk(tmp_path / "saved")
    again = spacy.load(tmp_path / "saved")
    assert entities_of(again(TEXT)) == [LINKED[1]]
    blank = spacy.blank("en")
    blank.add_pipe(NAME)
    assert entities_of(blank.from_bytes(nlp.to_bytes())(TEXT)) == [LINKED[1]]
    for opened in (again, blank):
        opened.get_pipe(NAME).linker.close()


def test_a_bundle_needs_nothing_but_itself(make, kb, tmp_path):
    nlp = make(bundle=True)
    nlp.get_pipe(NAME).linker.kb.add(Entity("new", "Xyzzy", "a place", "city", 1, {"Xyzzy": 1}))
    nlp.to_disk(tmp_path / "saved")
    nlp.to_disk(tmp_path / "saved")  # over itself
    shutil.move(tmp_path / "saved", tmp_path / "moved")
    for file in Path(kb).parent.glob("cities.kb*"):
        file.unlink()
    again = spacy.load(tmp_path / "moved")
    doc = again(f"Xyzzy: {TEXT}")
    assert [ent.kb_id_ for ent in doc.ents] == ["new", "Q937", "Q90", "Q30"]
    assert doc.ents[0]._.wellread["kb"] == "cities"
    again.get_pipe(NAME).linker.close()


def test_a_bundle_that_is_loaded_and_saved_again_is_one_still(make, kb, tmp_path):
    make(bundle=True).to_disk(tmp_path / "first")
    for file in Path(kb).parent.glob("cities.kb*"):
        file.unlink()
    for before, after in (("first", "second"), ("second", "third")):
        nlp = spacy.load(tmp_path / before)
        nlp.to_disk(tmp_path / after)
        nlp.get_pipe(NAME).linker.close()
        shutil.rmtree(tmp_path / before)
    again = spacy.load(tmp_path / "third")
    doc = again(TEXT)
    assert entities_of(doc) == LINKED
    assert doc.ents[0]._.wellread["kb"] == "cities"
    assert again.get_pipe(NAME).settings["kb"] == kb  # as it was given
    other = spacy.blank("en")
    other.add_pipe(NAME)
    assert entities_of(other.from_bytes(again.to_bytes())(TEXT)) == LINKED  # of the same bundle
    for opened in (again, other):
        opened.get_pipe(NAME).linker.close()


def test_a_bundle_can_be_saved_onto_itself(make, kb, tmp_path):
    make(bundle=True).to_disk(tmp_path / "saved")
    (tmp_path / "saved" / NAME / "bundle.kb.vectors").mkdir()
    (tmp_path / "saved" / NAME / "bundle.kb.vectors" / "index.json").write_text("{}")
    for file in Path(kb).parent.glob("cities.kb*"):
        file.unlink()
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    nlp = spacy.load(tmp_path / "saved")
    nlp.get_pipe(NAME).linker.kb.add(Entity("new", "Xyzzy", "a place", "city", 1, {"Xyzzy": 1}))
    for place in ("saved", "link", "saved"):
        nlp.to_disk(tmp_path / place)
        assert [ent.kb_id_ for ent in nlp(f"Xyzzy: {TEXT}").ents] == ["new", "Q937", "Q90", "Q30"]
    nlp.get_pipe(NAME).linker.close()
    again = spacy.load(tmp_path / "saved")
    assert [ent.kb_id_ for ent in again(f"Xyzzy: {TEXT}").ents] == ["new", "Q937", "Q90", "Q30"]
    again.get_pipe(NAME).linker.close()
    kept = tmp_path / "saved" / NAME
    assert (kept / "bundle.kb.vectors" / "index.json").read_text() == "{}"
    assert not list(kept.glob(".*"))


def test_a_bundle_that_cannot_be_written_leaves_the_one_before(make, kb, tmp_path, monkeypatch):
    nlp = make(bundle=True)
    nlp.to_disk(tmp_path / "saved")
    before = (tmp_path / "saved" / NAME / "bundle.kb").stat().st_ino
    vectors = Path(f"{kb}.vectors")
    vectors.mkdir()
    (vectors / "rows").write_text("")

    def fail(*_, **__):
        raise shutil.Error([("rows", "there", "[Errno 13] Permission denied")])

    monkeypatch.setattr(shutil, "copytree", fail)
    with pytest.raises(StorageError, match=r"cannot copy rows: .* denied; check its permissions"):
        nlp.to_disk(tmp_path / "saved")
    assert (tmp_path / "saved" / NAME / "bundle.kb").stat().st_ino == before
    assert not list((tmp_path / "saved" / NAME).glob(".*"))
    again = spacy.load(tmp_path / "saved")
    assert entities_of(again(TEXT)) == LINKED
    again.get_pipe(NAME).linker.close()


def test_a_bundled_model_stays_with_a_pipeline_that_is_saved_again(make, kb, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("learned")
    nlp = make(bundle=True)
    nlp("")
    nlp.get_pipe(NAME).settings["model"] = str(tmp_path / "model")  # as if it had been loaded with it
    nlp.to_disk(tmp_path / "first")
    shutil.rmtree(tmp_path / "model")
    read = SpacyLinker(kb=kb, model=str(tmp_path / "model"), bundle=True)
    read.from_disk(tmp_path / "first" / NAME)
    read._linker = nlp.get_pipe(NAME).linker
    read.to_disk(tmp_path / "second")
    read.to_disk(tmp_path / "first" / NAME)  # onto itself
    for folder in (tmp_path / "second", tmp_path / "first" / NAME):
        assert (folder / "model" / "weights").read_text() == "learned"


def test_another_knowledge_base_can_be_named_when_loading(make, tmp_path):
    make(bundle=True).to_disk(tmp_path / "saved")
    build_kb(tmp_path / "other.kb", [Entity("only", "left", "a side", "side", 1, {"left": 1})])
    config = {f"components.{NAME}.kb": str(tmp_path / "other.kb")}
    again = spacy.load(tmp_path / "saved", config=config)
    doc = again(TEXT)
    assert entities_of(doc) == [("left", "side", "only")]
    assert doc.ents[0]._.wellread["kb"] == "other"  # and not what the bundled one is called
    again.get_pipe(NAME).linker.close()


@pytest.mark.parametrize("bundle", [False, True], ids=["alone", "bundled"])
def test_what_is_given_when_loading_wins_even_if_it_is_the_default(make, kb, tmp_path, bundle):
    make(bundle=bundle, threshold=0.99, options={"name": "places"}).to_disk(tmp_path / "saved")
    overrides = {"kb": "vital", "model": "auto", "threshold": 0.0, "options.name": "mine"}
    config = {f"components.{NAME}.{name}": value for name, value in overrides.items()}
    loading = spacy.load(tmp_path / "saved", config=config).get_pipe(NAME)._loading()
    assert loading == {"kb": "vital", "model": "auto", "threshold": 0.0, "name": "mine"}


def test_what_is_not_given_when_loading_is_as_it_was_saved(make, kb, tmp_path):
    make(threshold=0.99, options={"name": "places"}).to_disk(tmp_path / "saved")
    loading = {"kb": kb, "model": "prior", "threshold": 0.99, "name": "places"}
    again = spacy.load(tmp_path / "saved", config={f"components.{NAME}.threshold": None})
    blank = spacy.blank("en")
    blank.add_pipe(NAME)
    assert blank.get_pipe(NAME)._loading() == {}  # all is as the linker has it
    blank.from_disk(tmp_path / "saved")
    assert again.get_pipe(NAME)._loading() == blank.get_pipe(NAME)._loading() == loading


def test_what_changes_in_the_knowledge_base_is_linked_at_once(make):
    nlp = make()
    assert entities_of(nlp("Xyzzy")) == []
    nlp.get_pipe(NAME).linker.kb.add(Entity("new", "Xyzzy", "a place", "", 1, {"Xyzzy": 1}))
    assert entities_of(nlp("Xyzzy")) == [("Xyzzy", "ENTITY", "new")]


def test_what_fails_goes_to_the_handler(make, tmp_path):
    (tmp_path / "broken.kb").write_text("not a database")
    nlp = make(kb=str(tmp_path / "broken.kb"))
    with pytest.raises(KnowledgeBaseError):
        nlp(TEXT)
    failed = []
    nlp.set_error_handler(lambda name, component, docs, error: failed.append((name, len(docs), type(error))))
    assert list(nlp.pipe([TEXT] * 3, batch_size=2)) == []
    assert failed == [(NAME, 2, KnowledgeBaseError), (NAME, 1, KnowledgeBaseError)]


def test_a_missing_kb_is_reported_when_the_component_is_added(make, tmp_path):
    (tmp_path / "cities.kb").touch()
    with pytest.raises(KnowledgeBaseError, match=r"did you mean cities\.kb\?"):
        make(kb=str(tmp_path / "citis.kb"))
    assert make(kb=str(tmp_path / "elsewhere.kb"), bundle=True)  # the bundle has its own


def test_invalid_settings_are_reported(tmp_path):
    for options, message in (
        ({"entities": "mine"}, "choose wellread or spacy"),
        ({"key": "a b"}, "cannot be an attribute"),
        ({"key": "set"}, "cannot be an attribute"),
        ({"threshold": 2.0}, "threshold=2.0 is not a probability"),
        ({"options": {"trsut": 2}}, "options has trsut; it takes what Linker.load takes .*: among, device, kind, "),
        ({"options": {"kb": "wordnet"}}, "options has kb; .* which have settings of their own"),
    ):
        with pytest.raises(UsageError, match=message):
            SpacyLinker(**options)
    with pytest.raises(InputError, match="has no settings of a linker"):
        SpacyLinker().from_disk(tmp_path)
    with pytest.raises(InputError, match="these bytes have no settings of a linker"):
        SpacyLinker().from_bytes(b"[]")
    assert Span.has_extension("wellread")


def test_spacy_finds_the_factory_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["spacy_factories"][NAME].partition(":")
    assert callable(getattr(import_module(module), name))
    assert spacy.blank("en").has_factory(NAME)
