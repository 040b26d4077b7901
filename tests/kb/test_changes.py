"""Add, update, remove: all or nothing, noted under a new revision; and any sequence of them against a plain dict."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.kb.conftest import CITIES, build_kb, content, text_index
from wellread.errors import KnowledgeBaseError, UnknownEntityError
from wellread.kb.check import check
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.text import words as names


def test_what_is_added_is_found_by_id_name_word_and_neighbour(kb):
    kb.add([Entity("Q64", "Berlin", "capital of Germany", "city", 5, {"Spree-Athen": 2}, (("twin of", "Q90"),))])
    assert kb.get("Q64").aliases == {"Berlin": 1, "Spree-Athen": 2}
    assert [c.entity for c in kb.candidates("spree athen")] == ["Q64"]
    assert [e.id for e in kb.search("germany", how="text")] == ["Q64"]
    assert [n.entity for n in kb.neighbours("Q90", relation="twin of")] == ["Q64"]
    assert check(kb) == []


def test_an_update_replaces_all_but_incoming_facts(kb):
    kb.update([Entity("Q90", "Lutetia", "a town of the Parisii", "town", 3, {"Lutèce": 4}, (("in", "Q30"),))])
    changed = kb.get("Q90")
    assert (changed.title, changed.kind, changed.popularity) == ("Lutetia", "town", 3)
    assert changed.aliases == {"Lutetia": 1, "Lutèce": 4}
    assert [(n.relation, n.entity, n.outgoing) for n in kb.neighbours("Q90")] == [
        ("in", "Q30", True),
        ("capital", "Q142", False),
    ]
    assert [c.entity for c in kb.candidates("Paris")] == ["Q830149"]
    assert kb.search("city of light") == []
    assert [e.id for e in kb.search("parisii", how="text")] == ["Q90"]
    assert kb.search("capital of france", how="text") == []
    assert check(kb) == []


def test_a_removal_takes_names_text_and_facts_along(kb):
    kb.remove(["Q90"])
    assert "Q90" not in kb
    assert [c.entity for c in kb.candidates("Paris")] == ["Q830149"]
    assert kb.candidates("City of Light") == []
    assert kb.get("Q142").facts == ()
    assert kb.neighbours("Q142") == []
    assert kb.search("city of light") == []
    assert check(kb) == []


def test_facts_may_point_to_each_other_in_any_order(kb):
    kb.add([Entity("a", "A", facts=(("knows", "b"),)), Entity("b", "B", facts=(("knows", "a"),))])
    assert kb.get("a").facts == (("knows", "b"),)
    assert kb.get("b").facts == (("knows", "a"),)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda change: change.add(Entity("Q90", "Paris")), "there is an entity 'Q90' already; use update"),
        (lambda change: change.add(Entity("new", "New", facts=(("in", "Q0"),))), "there is no entity 'Q0'"),
        (lambda change: change.update(Entity("Q0", "Nothing")), "there is no entity 'Q0'"),
        (lambda change: change.remove("Q142", "Q142"), "there is no entity 'Q142'"),
        (lambda change: change.add(Entity("", "Nothing")), "'' .* has no id"),
        (lambda change: change.add(Entity("new", " _")), "has no name with a letter or sign"),
        (lambda change: change.add(Entity("new", "New", popularity=float("nan"))), "negative or not a number"),
        (lambda change: change.add(Entity("new", "New", aliases={"N": -1})), "negative or not a number"),
        (lambda change: change.update(Entity("Q90", "New", aliases={"N": float("inf")})), "negative or not a number"),
        (lambda change: change.add(Entity("new", "\ud83d")), "half a surrogate pair"),
        (lambda change: change.add(Entity("new", "New", facts=(("\ud83d", "Q90"),))), "half a surrogate pair"),
        (lambda change: change.add(Entity("new\0", "New")), r"'new\\x00' .* has a NUL character"),
        (lambda change: change.add(Entity("new", "New", "\0")), "has a NUL character"),
        (lambda change: change.update(Entity("Q90", "New", aliases={"N\0": 1})), "has a NUL character"),
        (lambda change: change.set_metadata(revision="9"), "metadata 'revision' is kept by wellread"),
    ],
)
def test_an_error_inside_a_change_undoes_all_of_it(kb, act, message):
    before, indexed = content(kb), text_index(kb)

    def attempt():
        with kb.change() as change:
            change.add(Entity("first", "First", aliases={"one": 1}))
            change.remove("Q937")
            act(change)

    with pytest.raises(KnowledgeBaseError, match=message):
        attempt()
    assert content(kb) == before
    assert text_index(kb) == indexed
    assert kb.revision == 1
    assert kb.changed_names(0) == kb.changed_entities(0) == []
    assert check(kb) == []
    kb.remove(["Q937"])
    assert kb.revision == 2


def test_an_error_of_the_caller_undoes_the_change_too(kb):
    def attempt():
        with kb.change() as change:
            change.remove("Q90")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        attempt()
    assert "Q90" in kb
    assert kb.revision == 1


def test_a_change_inside_a_change_is_refused_and_harms_nothing(kb):
    with kb.change() as change:
        change.remove("Q90")
        with pytest.raises(KnowledgeBaseError, match=r"a change of .* is open already"), kb.change():
            pass
    assert "Q90" not in kb
    assert kb.revision == 2


def test_the_last_word_on_an_entity_counts_within_one_change(kb):
    with kb.change() as change:
        change.add(Entity("a", "A", facts=(("in", "Q90"),)))
        change.update(Entity("a", "A", facts=(("in", "Q142"),)))
        change.add(Entity("b", "B", facts=(("in", "Q90"),)))
        change.remove("b")
        change.add(Entity("c", "C"), Entity("d", "D", facts=(("in", "Q90"),)))
        change.remove("d")
    assert kb.get("a").facts == (("in", "Q142"),)
    assert kb.get("c").facts == ()
    assert check(kb) == []


def test_a_fact_said_twice_is_one_fact(kb):
    kb.add([Entity("a", "A", facts=(("in", "Q90"), ("in", "Q90")))])
    assert kb.get("a").facts == (("in", "Q90"),)


def test_metadata_can_be_set(kb):
    with kb.change() as change:
        change.set_metadata(licence="MIT", owner="me")
    assert (kb.metadata["licence"], kb.metadata["owner"]) == ("MIT", "me")


def test_every_change_raises_the_revision_and_says_what_it_touched(kb):
    def signed(*texts):
        return {names.as_signed(names.key(text)) for text in texts}

    assert (kb.revision, kb.changed_names(0), kb.changed_entities(0)) == (1, [], [])
    kb.add([Entity("a", "Alpha", aliases={"First Letter": 1})])
    assert (kb.revision, set(kb.changed_entities(1))) == (2, {"a"})
    assert set(kb.changed_names(1)) == signed("alpha", "first letter")
    kb.update([Entity("a", "Aleph")])
    assert (kb.revision, kb.changed_entities(2)) == (3, ["a"])
    assert set(kb.changed_names(2)) == signed("alpha", "first letter", "aleph")
    kb.remove(["Q937", "a"])
    assert (kb.revision, set(kb.changed_entities(3))) == (4, {"Q937", "a"})
    assert set(kb.changed_names(3)) == signed("aleph", "albert einstein", "einstein")
    assert kb.changed_names(4) == kb.changed_entities(4) == []
    assert set(kb.changed_entities(1)) == {"a", "Q937"}


def test_another_connection_sees_a_change_when_it_is_whole(path, kb):
    with KnowledgeBase.open(path) as reader:
        with kb.change() as change:
            change.remove("Q90")
            assert "Q90" in reader
            assert reader.revision == 1
        assert "Q90" not in reader
        assert reader.revision == 2


# Any sequence of changes, against a plain dict.

WORDS = st.sampled_from(
    ["alpha", "Beta", "GAMMA", "Ünder", "東京", "C++", "x_y", "U.S.", "a-b", "o\x01o", "ﬁsh", "Ǆ", "\n"]
)
NAMES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join).filter(names.key)
ALIASES = st.dictionaries(NAMES, st.integers(0, 9).map(float), max_size=3)
FACTS = st.lists(st.tuples(st.sampled_from(["in", "of"]), st.integers(0, 20)), max_size=3)


class Changes(RuleBasedStateMachine):
    """The same adds, updates and removals to a KB and to a dict of entities; both must say the same throughout."""

    ids = Bundle("ids")

    @initialize()
    def build(self):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "x.kb"
        build_kb(path, CITIES[:4])
        self.kb = KnowledgeBase.open(path, writable=True)
        self.kb.connection.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here
        self.model = {entity.id: entity for entity in self.kb.entities()}
        self.numbers = iter(range(10**6))
        self.revision = 1

    def teardown(self):
        if hasattr(self, "kb"):
            self.kb.close()
            self.folder.cleanup()

    def entity(self, id, title, description, aliases, facts):
        known = [*sorted(self.model), id]
        facts = tuple(dict.fromkeys((relation, known[number % len(known)]) for relation, number in facts))
        return Entity(id, title, description, "kind", 1.0, {title: 1.0, **aliases}, facts)

    @rule(target=ids, title=NAMES, description=NAMES, aliases=ALIASES, facts=FACTS)
    def add(self, title, description, aliases, facts):
        entity = self.entity(f"new{next(self.numbers)}", title, description, aliases, facts)
        self.kb.add([entity])
        self.model[entity.id] = entity
        self.revision += 1
        return entity.id

    @rule(id=ids, title=NAMES, description=NAMES, aliases=ALIASES, facts=FACTS)
    def update(self, id, title, description, aliases, facts):
        if id in self.model:
            entity = self.entity(id, title, description, aliases, facts)
            self.kb.update([entity])
            self.model[id] = entity
            self.revision += 1

    @rule(id=consumes(ids))
    def remove(self, id):
        self.kb.remove([id])
        self.forget(id)
        self.revision += 1

    @rule(id=ids, title=NAMES, aliases=ALIASES)
    def fail(self, id, title, aliases):
        def attempt():
            with self.kb.change() as change:
                change.add(Entity("passing", title, aliases=aliases))
                change.remove(id)
                change.remove("never there")

        with pytest.raises(UnknownEntityError):
            attempt()

    @rule(target=ids, id=consumes(ids), title=NAMES, facts=FACTS)
    def remove_and_add_at_once(self, id, title, facts):
        with self.kb.change() as change:
            change.remove(id)
            self.forget(id)
            entity = self.entity(f"new{next(self.numbers)}", title, "", {}, facts)
            change.add(entity)
            self.model[entity.id] = entity
        self.revision += 1
        return entity.id

    def forget(self, id):
        del self.model[id]
        for entity in list(self.model.values()):
            facts = tuple(fact for fact in entity.facts if fact[1] != id)
            self.model[entity.id] = Entity(
                entity.id, entity.title, entity.description, entity.kind, entity.popularity, entity.aliases, facts
            )

    @invariant()
    def entities_are_the_same(self):
        found = {entity.id: entity for entity in self.kb.entities()}
        assert found.keys() == self.model.keys()
        for id, entity in self.model.items():
            assert (found[id].title, found[id].description) == (entity.title, entity.description)
            assert found[id].aliases == entity.aliases
            assert set(found[id].facts) == set(entity.facts)
        assert self.kb.revision == self.revision

    @invariant()
    def candidates_are_the_same(self):
        spelled = {name for entity in self.model.values() for name in entity.aliases}
        for name in spelled:
            expected = {
                id: sum(count for other, count in entity.aliases.items() if names.key(other) == names.key(name))
                for id, entity in self.model.items()
                if any(names.key(other) == names.key(name) for other in entity.aliases)
            }
            total = sum(expected.values())
            found = {c.entity: c.prior for c in self.kb.candidates(name, limit=100)}
            assert found == pytest.approx({id: n / total if total else 1 / len(expected) for id, n in expected.items()})

    @invariant()
    def neighbours_are_the_same(self):
        for id in self.model:
            expected = {(relation, other, True) for relation, other in self.model[id].facts}
            expected |= {(r, e.id, False) for e in self.model.values() for r, other in e.facts if other == id}
            assert {(n.relation, n.entity, n.outgoing) for n in self.kb.neighbours(id)} == expected

    @invariant()
    def words_are_found(self):
        for word in ("alpha", "beta", "gamma", "under", "fish"):
            found = {entity.id for entity in self.kb.search(word, how="prefix", limit=100)}
            spelled = {id for id, e in self.model.items() if any(word in _index_words(name) for name in e.aliases)}
            assert spelled <= found
            assert all(any(_starts(name, word) for name in self.model[id].aliases) for id in found)

    @invariant()
    def the_file_is_sound(self):
        assert check(self.kb) == []


def _index_words(name):
    """Return the words of a name as the full-text index has them: lower case, no diacritics, ligatures kept."""
    return name.lower().replace("ü", "u").replace("\x01", " ").split()


def _starts(name, word):
    return any(part.startswith(word) for part in _index_words(name))


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)


def test_a_changed_kb_has_the_text_index_of_one_built_at_once(tmp_path, kb):
    kb.update([Entity("Q90", "Lutetia", "old name", aliases={"Lutèce": 2})])
    kb.remove(["Q142"])
    kb.add([Entity("x", "Ex", "a letter")])
    build_kb(tmp_path / "anew.kb", kb.entities())
    with KnowledgeBase.open(tmp_path / "anew.kb") as anew:
        assert text_index(kb) == text_index(anew)
        assert content(anew)[0] == content(kb)[0]


def test_a_change_is_over_when_its_block_ends(kb):
    with kb.change() as change:
        change.add(Entity("in", "In time"))
    revision = kb.revision
    for late in (
        lambda: change.add(Entity("late", "Late")),
        lambda: change.remove("in"),
        lambda: change.set_metadata(a="b"),
    ):
        with pytest.raises(KnowledgeBaseError, match="is over"):
            late()
    assert "late" not in kb
    assert kb.revision == revision


def test_one_entity_or_id_need_not_be_in_a_list(kb):
    kb.add(Entity("12", "Twelve"))
    kb.add([Entity("1", "One"), Entity("2", "Two")])
    kb.update(Entity("12", "A dozen"))
    assert kb.get("12").title == "A dozen"
    kb.remove("12")
    assert "12" not in kb
    assert "1" in kb
    assert "2" in kb


def test_a_name_that_folds_to_nothing_is_no_name(kb):
    with pytest.raises(KnowledgeBaseError, match="no name"):
        kb.add(Entity("x", "´"))
