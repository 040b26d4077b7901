"""Terms of OBO files: names with their scope, facts, other ids; obsolete ones skipped and counted."""

import gzip
import lzma

import pytest

from tests.kb.conftest import build_kb
from wellread import KnowledgeBase
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.kb.readers.obo import read_obo, read_obo_header
from wellread.kb.records import XREF, Entity, OtherId, Tally

ONTOLOGY = r"""format-version: 1.2
data-version: beasts/releases/2026-01-01
default-namespace: beasts
property_value: terms:license https://example.org/licence
property_value: dc:title "Ontology of \"beasts\"" xsd:string

! a comment of its own

[Term]
id: B:1 ! the root
name: beast

[Term]
id: B:2
name: lion
alt_id: B:20
alt_id: B:21
def: "A \"large\" cat,\nwith a mane." [BOOK:1 "a, b", https://example.org/x]
comment: not read
synonym: "Panthera leo" EXACT latin [BOOK:2]
synonym: "king of beasts" RELATED []
synonym: "big cat" BROAD []
synonym: "lion" RELATED []
synonym: "leo" EXACT obsolete_synonym []
synonym: "leu" []
xref: WIKI:Lion "the animal"
is_a: B:3 {source="x"} ! cat
relationship: R:1 B:4 ! grass
property_value: x y

[Term]
id: B:3
name: cat
namespace: pets
narrow_synonym: "kitten" []
is_a: B:1 ! beast

[Term]
id: B:4
name: grass

[Term]
id: B:5
name: obsolete lyon
is_obsolete: true
replaced_by: B:2

[Term]
id: B:6
name: obsolete creature
is_obsolete: true
replaced_by: B:2
replaced_by: B:3

[Term]
id: B:7

[Typedef]
id: R:1
name: stands in

[Instance]
id: simba
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "beasts.obo").write_text(ONTOLOGY, "utf-8")
    return tmp_path / "beasts.obo"


def read(path, **how):
    tally = Tally()
    return list(read_obo(path, tally, **how)), tally


def test_a_term_is_an_entity_with_names_facts_and_other_ids(path):
    records, tally = read(path)
    assert records[1] == Entity(
        "B:2",
        "lion",
        'A "large" cat, with a mane.',
        "beasts",
        aliases={"lion": 2, "Panthera leo": 1, "king of beasts": 0.5, "big cat": 0.5, "leu": 0.5},
        facts=(("is_a", "B:3"), ("stands in", "B:4")),
    )
    assert [record for record in records if isinstance(record, OtherId)] == [
        OtherId("B:20", "B:2"),
        OtherId("B:21", "B:2"),
        OtherId("WIKI:Lion", "B:2", XREF),
        OtherId("B:5", "B:2"),  # an obsolete id with one replacement
    ]
    (cat,) = (record for record in records if isinstance(record, Entity) and record.id == "B:3")
    assert (cat.kind, cat.aliases) == ("pets", {"cat": 2, "kitten": 0.5})
    assert tally.read == 4
    assert tally.skipped == {
        "obsolete term": 2,
        "obsolete synonym": 1,
        "term without an id or a name": 1,
        "Instance, not a term": 1,
    }


def test_scopes_choose_the_synonyms(path):
    records, tally = read(path, scopes=("exact",))
    assert records[1].aliases == {"lion": 2, "Panthera leo": 1}
    assert tally.skipped["related synonym"] == 3
    with pytest.raises(UsageError, match="scope 'same' is not known; choose from exact"):
        read(path, scopes=("same",))


def test_below_keeps_what_is_below_a_term(path):
    assert [record.id for record in read(path, below=["B:3"])[0] if isinstance(record, Entity)] == ["B:2"]
    records, tally = read(path, below=["B:1"])
    assert [record.id for record in records if isinstance(record, Entity)] == ["B:2", "B:3"]
    assert tally.skipped["term not below B:1"] == 3
    with pytest.raises(InputError, match=r"beasts.obo has no B:9 to be below of; give ids as in the file"):
        read(path, below=["B:9"])
    with pytest.raises(UsageError, match="a file that can be read twice, not standard input"):
        read("-", below=["B:1"])


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_compressed_file_is_the_same(tmp_path, path, pack):
    packed = tmp_path / "beasts.obo.packed"
    packed.write_bytes(pack(path.read_bytes()))
    assert read(packed) == read(path) or read(packed)[0] == read(path)[0]


def test_the_header_names_version_title_and_licence(path):
    assert read_obo_header(path) == {
        "version": "beasts/releases/2026-01-01",
        "title": 'Ontology of "beasts"',
        "licence": "https://example.org/licence",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not OBO"),
        (b"id,name\nB:1,lion\n", "is not OBO: it has no stanza"),
        (b"<rdf:RDF/>", "for RDF or OWL: wellread kb build skos"),
        (b"[Term]\nid: B:1\nname: li\xf6n\n", "line 3 is not UTF-8"),
    ],
)
def test_what_is_not_obo_is_refused(tmp_path, content, message):
    (tmp_path / "x.obo").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "x.obo")


def test_a_kb_from_obo_finds_entities_by_their_other_ids(path):
    with KnowledgeBase.from_obo(path) as kb:
        assert kb.metadata["licence"] == "https://example.org/licence"
        assert kb.metadata["version"] == "beasts/releases/2026-01-01"
        assert [kb.resolve(id) for id in ("B:2", "B:20", "B:5", "WIKI:Lion", "B:6")] == ["B:2"] * 4 + [None]
        assert kb.get("B:20").title == "lion"
        assert "B:20" not in kb
        with pytest.raises(KnowledgeBaseError, match="has no entity 'WIKI:Lion'"):
            kb.get("WIKI:Lion")
        assert [(one.id, one.kind) for one in kb.other_ids("B:2")] == [
            ("B:20", "former"),
            ("B:21", "former"),
            ("B:5", "former"),
            ("WIKI:Lion", "xref"),
        ]
        kb.remove("B:2")
        assert (kb.resolve("B:20"), list(kb.other_ids())) == (None, [])


def test_an_id_of_two_entities_resolves_to_none(tmp_path):
    records = [Entity("a", "A"), Entity("b", "B"), OtherId("x", "a", XREF), OtherId("x", "b", XREF), OtherId("y", "b")]
    build_kb(tmp_path / "ab.kb", records)
    with KnowledgeBase.open(tmp_path / "ab.kb") as kb:
        assert (kb.resolve("x"), kb.resolve("y")) == (None, "b")


def test_other_ids_of_entities_that_are_not_there_are_counted(tmp_path):
    tally = build_kb(tmp_path / "a.kb", [Entity("a", "A"), OtherId("x", "gone")])
    assert tally.skipped["other id of an entity that is not there"] == 1


def test_a_kb_without_the_table_has_no_other_ids(tmp_path):
    build_kb(tmp_path / "a.kb", [Entity("a", "A")])
    with KnowledgeBase.open(tmp_path / "a.kb", writable=True) as kb:
        kb.connection.execute("DROP TABLE other_ids")  # as in a KB of an older wellread
        assert (kb.resolve("a"), kb.resolve("x"), list(kb.other_ids())) == ("a", None, [])
        kb.remove("a")
        assert len(kb) == 0
