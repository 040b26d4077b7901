"""Documents made from a KB alone: exact spans, the same for the same seed, names where they belong and nowhere else."""

from collections import Counter
from itertools import islice, pairwise
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellread.data.synthetic.catalogue import SHARES, documents_from
from wellread.data.synthetic.templates import ENGLISH, genus, in_words, plural, relation_slots
from wellread.document import Document
from wellread.errors import KnowledgeBaseError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase

FILMS = [
    Entity(
        "alien",
        "Alien (film)",
        "1979 film by Ridley Scott. Alien is a horror film directed by Ridley Scott and starring Sigourney Weaver.",
        "film/film",
        aliases={"Alien": 5, "Alien (film)": 1},
        facts=(("/film/film/directed_by", "scott"), ("/film/film/starring", "weaver"), ("P136", "horror")),
    ),
    Entity("guest", "Alien (law)", "Person who is not a citizen of the country they are in.", aliases={"Alien": 1}),
    Entity("scott", "Ridley Scott", "Ridley Scott is an English film director.", "person", aliases={"Ridley Scott": 3}),
    Entity("weaver", "Sigourney Weaver", "American actress.", "person", aliases={"Sigourney Weaver": 3, "Weaver": 1}),
    Entity("horror", "Horror", "Genre of film that means to frighten.", aliases={"Horror": 1, "horror film": 1}),
    Entity("the", "The", "A song called so. It was on no album that anybody remembers.", aliases={"The": 1}),
    Entity("york", "New York", "State in the north-east. New York is a state.", "place", aliases={"New York": 1}),
    Entity("city", "New York City", "City in the state New York.", "place", aliases={"New York City": 1}),
]


@pytest.fixture
def films(tmp_path):
    build(lambda tally: iter(FILMS), tmp_path / "films.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "films.kb") as kb:
        yield kb


def built(folder, entities):
    build(lambda tally: iter(entities), folder / "made.kb", origin=Origin("test"))
    return KnowledgeBase.open(folder / "made.kb")


def check(document):
    for link in document.links:
        assert document.text[link.start : link.end] == link.text != ""
    for one, next_one in pairwise(document.links):
        assert one.end <= next_one.start
    for start, end in document.meta["unsure"]:
        assert all(end <= link.start or link.end <= start for link in document.links)
    assert Document.from_json(document.to_json()) == document


def test_spans_are_exact_sorted_and_apart(films):
    documents = list(documents_from(films, count=500, seed=1))
    assert len(documents) == 500
    for document in documents:
        check(document)


def test_the_same_seed_gives_the_same_documents_and_another_seed_others(films):
    first = list(documents_from(films, count=300, seed=7))
    assert first == list(documents_from(films, count=300, seed=7))
    assert first[:40] == list(documents_from(films, count=40, seed=7))
    assert first != list(documents_from(films, count=300, seed=8))


def test_documents_stream(films):
    assert len(list(islice(documents_from(films, count=10**12, seed=0), 10))) == 10


def test_each_kind_has_about_its_share(films):
    kinds = Counter(document.meta["kind"] for document in documents_from(films, count=3000, seed=0))
    assert kinds["fact"] + kinds["about"] == pytest.approx(3000 * (SHARES["fact"] + SHARES["about"]), rel=0.2)
    assert kinds["text"] == pytest.approx(3000 * SHARES["text"], rel=0.35)
    assert kinds["plain"] >= 3000 * SHARES["plain"] * 0.7
    assert all(not d.links for d in documents_from(films, count=500, seed=0) if d.meta["kind"] == "plain")


def test_every_entity_with_a_name_of_its_own_is_asked_about(films):
    linked = {link.entity for document in documents_from(films, count=1000, seed=0) for link in document.links}
    assert linked >= {"alien", "guest", "scott", "weaver", "horror", "york", "city"}


def test_a_name_is_used_for_each_of_its_meanings_between_even_and_prior(films):
    links = [link for document in documents_from(films, count=4000, seed=0) for link in document.links]
    meant = Counter(link.entity for link in links if link.text.lower() == "alien")
    assert 0.5 < meant["alien"] / (meant["alien"] + meant["guest"]) < 5 / 6


def test_an_everyday_word_is_no_link_in_a_question_though_it_is_a_name(films):
    for document in documents_from(films, count=1000, seed=0):
        assert all(link.text != "the" for link in document.links)
    assert any("the" in document.text.split() for document in documents_from(films, count=50, seed=0))


def test_words_of_templates_are_never_links(tmp_path):
    entities = [
        Entity("a", "Tell", aliases={"Tell": 1}),
        Entity("b", "Ada Lovelace", aliases={"Ada Lovelace": 1}),
        Entity("c", "More", aliases={"More": 1}),
    ]
    with built(tmp_path, entities) as kb:
        documents = list(documents_from(kb, count=300, seed=0, templates=["tell me more of {subject}"]))
    matching = [document for document in documents if document.text.lower().startswith("tell me more of")]
    assert len(matching) > 100
    assert all(link.start == len("tell me more of ") for document in matching for link in document.links)


def test_a_name_that_became_part_of_a_longer_one_is_not_asked_for(tmp_path):
    with built(tmp_path, FILMS[-2:]) as kb:
        documents = list(documents_from(kb, count=200, seed=0, templates=["{subject} city"]))
    counts = Counter(link.entity for d in documents if d.text.lower() == "new york city" for link in d.links)
    assert counts["york"] == 0
    assert "new york city city" in {d.text.lower() for d in documents}


def test_what_facts_support_is_linked_in_a_description(films):
    linked = {
        (link.text, link.entity)
        for document in documents_from(films, count=600, seed=0)
        if "starring Sigourney Weaver" in document.text
        for link in document.links
    }
    assert {("Ridley Scott", "scott"), ("Sigourney Weaver", "weaver"), ("Alien", "alien")} <= linked


def test_an_ambiguous_name_without_support_is_neither_link_nor_unlinked(tmp_path):
    entities = [
        Entity("a", "Paris", "City.", aliases={"Paris": 1}),
        Entity("b", "Paris (Texas)", "Town.", aliases={"Paris": 1}),
        Entity("c", "Zebedee", "Zebedee has never been to Paris. Zebedee is a toy.", aliases={"Zebedee": 1}),
    ]
    with built(tmp_path, entities) as kb:
        texts = {document.text for document in documents_from(kb, count=500, seed=0, templates=())}
    assert "Zebedee is a toy." in texts
    assert not any("been to" in text for text in texts)


def test_possible_mentions_are_distinguished(tmp_path):
    entities = [
        Entity("a", "Saw", "Tool.", aliases={"saw": 1}),
        Entity("b", "Saw (film)", "Film.", aliases={"saw": 1}),
        Entity("c", "Zebedee", "Zebedee saw a toy.", aliases={"Zebedee": 1}),
    ]
    with built(tmp_path, entities) as kb:
        documents = list(documents_from(kb, count=200, seed=0, templates=()))
    (unsure,) = {tuple(map(tuple, d.meta["unsure"])) for d in documents if d.text == "Zebedee saw a toy."}
    assert unsure == ((8, 11),)


def test_without_templates_all_is_made_of_descriptions_and_names(films):
    own_words = " ".join(f"{entity.title} {entity.description} {' '.join(entity.aliases)}" for entity in FILMS).lower()
    for document in documents_from(films, count=300, seed=0, templates=()):
        assert all(word.strip(".,:()-") in own_words for word in document.text.lower().split())


def test_a_catalogue_of_bare_names_is_enough(tmp_path):
    with built(tmp_path, [Entity(str(n), f"Gadget {n}", aliases={f"Gadget {n}": 1}) for n in range(20)]) as kb:
        documents = list(documents_from(kb, count=400, seed=0))
        bare = list(documents_from(kb, count=50, seed=0, templates=()))
    assert len({link.entity for document in documents for link in document.links}) == 20
    assert all(document.text.lower() == document.links[0].text.lower() for document in bare)


def test_a_removed_entity_leaves_no_gap(tmp_path):
    build(lambda tally: iter(FILMS), tmp_path / "films.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "films.kb", writable=True) as kb:
        kb.remove(["alien", "city"])
        linked = {link.entity for document in documents_from(kb, count=300, seed=0) for link in document.links}
    assert linked
    assert linked.isdisjoint({"alien", "city"})


def test_a_change_of_the_kb_in_between_is_refused(tmp_path):
    built(tmp_path, FILMS).close()
    with KnowledgeBase.open(tmp_path / "made.kb", writable=True) as kb:
        documents = documents_from(kb, count=10_000, seed=0)
        next(documents)
        kb.remove("the")
        with pytest.raises(KnowledgeBaseError, match="begin again"):
            list(documents)


def test_an_empty_kb_is_refused_with_the_fix(tmp_path):
    built(tmp_path, FILMS[5:6]).close()
    with KnowledgeBase.open(tmp_path / "made.kb", writable=True) as kb:
        kb.remove("the")
        with pytest.raises(KnowledgeBaseError, match="add some"):
            next(documents_from(kb, count=1, seed=0))


def test_what_cannot_be_made_is_refused_with_the_fix(tmp_path, films):
    with pytest.raises(UsageError, match="count=-1"):
        documents_from(films, count=-1, seed=0)
    with pytest.raises(UsageError, match=r"\{colour\}"):
        next(documents_from(films, count=1, seed=0, templates=["a {colour} {subject}"]))
    with (
        built(tmp_path, [Entity("the", "the", aliases={"the": 1})]) as kb,
        pytest.raises(KnowledgeBaseError, match="add aliases"),
    ):
        next(documents_from(kb, count=1, seed=0, templates=()))


WORDS = st.sampled_from(
    ["new", "York", "City", "the", "The", "film", "Ada", "İstanbul", "東京", "C++", "O'Hara", "(film)"]
)
NAMES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
TEXTS = st.lists(WORDS | st.sampled_from(["is a", "of", ". ", '; "', ","]), max_size=12).map(" ".join)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(NAMES, TEXTS, st.dictionaries(NAMES, st.integers(0, 5), max_size=3)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["P1", "part of", "films"]), st.integers(0, 7)), max_size=10),
    st.integers(0, 99),
)
def test_any_kb_gives_documents_with_exact_spans(rows, facts, seed):
    size = len(rows)
    entities = [
        Entity(
            str(num),
            title,
            description,
            aliases={title: 1} | aliases,
            facts=tuple({(relation, str(end % size)) for start, relation, end in facts if start % size == num}),
        )
        for num, (title, description, aliases) in enumerate(rows)
    ]
    with TemporaryDirectory() as folder:
        build(lambda tally: iter(entities), f"{folder}/any.kb", origin=Origin("test"))
        with KnowledgeBase.open(f"{folder}/any.kb") as kb:
            documents = list(documents_from(kb, count=60, seed=seed))
            assert documents == list(documents_from(kb, count=60, seed=seed))
            assert all(link.entity in kb for document in documents for link in document.links)
    for document in documents:
        check(document)


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        ("/people/person/place_of_birth", "place of birth"),
        ("/people/person/spouse_s./people/marriage/type_of_union", "type of union"),
        ("/people/person/spouse_s", "spouses"),
        ("film.film.directed_by", "directed by"),
        ("hasAuthor", "author"),
        ("isPartOf", "part of"),
        ("schema:birthPlace", "birth place"),
        ("http://www.wikidata.org/prop/direct/P19", None),
        ("P19", None),
        ("place of birth", "place of birth"),
        ("Unit Price", "unit price"),
        ("ISBN", "ISBN"),
        ("mentions", None),
        ("derivationally related", None),
        ("", None),
        ("///", None),
    ],
)
def test_a_relation_is_put_in_words(relation, words):
    assert in_words(relation) == words


def test_a_relation_fills_the_slots_of_its_form():
    assert relation_slots("place of birth") == {"relation": "place of birth"}
    assert relation_slots("films") == {"relations": "films", "relation": "film"}
    assert relation_slots("places of birth") == {"relations": "places of birth", "relation": "place of birth"}
    assert relation_slots("directed by") == {"done": "directed by", "relation": "director"}
    assert relation_slots("part of") == {"done": "part of"}
    assert relation_slots("contains") == {"does": "contains"}
    assert plural("port city") == "port cities"
    assert plural("person") == "people"


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("Riga is a port city on the Gulf of Riga.", "port city"),
        ("Emperor of Ethiopia from 1855 to 1868", "Emperor"),
        ("(telecommunication) the frequency of sampling", "frequency"),
        ("a large, domesticated animal", None),
        ("in an elegant manner", None),
        ("", None),
    ],
)
def test_a_description_tells_what_a_thing_is(description, kind):
    assert genus(description) == kind


def test_templates_are_many_and_none_stands_alone_as_a_name():
    assert len(set(ENGLISH)) > 100
    assert not any("{subject}{object}" in template for template in ENGLISH)
