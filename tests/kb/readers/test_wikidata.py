"""The Wikidata reader, on small dumps in Wikidata's own format."""

import bz2
import gzip
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest

from wellread.errors import InputError
from wellread.kb.readers.wikidata import read_wikidata
from wellread.kb.records import Entity, Tally


def statement(relation: str, value: str | None, rank: str = "normal", snaktype: str = "value") -> dict:
    snak = {"snaktype": snaktype, "property": relation, "hash": "abc", "datatype": "wikibase-item"}
    if value is not None:
        inner = {"entity-type": "item", "numeric-id": int(value[1:]), "id": value}
        snak["datavalue"] = {"value": inner, "type": "wikibase-entityid"}
    return {"mainsnak": snak, "type": "statement", "id": "Q1$abc", "rank": rank, "references": []}


def literal(relation: str, value: object, kind: str) -> dict:
    snak = {"snaktype": "value", "property": relation, "datavalue": {"value": value, "type": kind}, "datatype": kind}
    return {"mainsnak": snak, "type": "statement", "id": "Q1$def", "rank": "normal"}


def item(id: str, *, labels=None, aliases=None, descriptions=None, statements=(), sitelinks=None, **more) -> dict:
    """An item as the dump has it: an empty map is an empty list, for so PHP writes it."""
    claims: dict[str, list] = {}
    for given in statements:
        claims.setdefault(given["mainsnak"]["property"], []).append(given)
    return {
        "type": "item",
        "id": id,
        "labels": {key: {"language": key, "value": value} for key, value in (labels or {}).items()} or [],
        "descriptions": {key: {"language": key, "value": value} for key, value in (descriptions or {}).items()} or [],
        "aliases": {
            key: [{"language": key, "value": value} for value in values] for key, values in (aliases or {}).items()
        }
        or [],
        "claims": claims or [],
        "sitelinks": {site: {"site": site, "title": title, "badges": []} for site, title in (sitelinks or {}).items()}
        or [],
        "pageid": 138,
        "ns": 0,
        "lastrevid": 2000000,
        "modified": "2024-05-01T00:00:00Z",
        **more,
    }


def dump(*entities: dict | str) -> bytes:
    lines = (
        entity if isinstance(entity, str) else json.dumps(entity, separators=(",", ":"), ensure_ascii=False)
        for entity in entities
    )
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def read(folder: Path, data: bytes, **options) -> tuple[list[Entity], Tally]:
    path = folder / "dump.json"
    path.write_bytes(data)
    tally = Tally()
    return list(read_wikidata(path, tally, **options)), tally


MERCURY = item(
    "Q308",
    labels={"en": "Mercury", "de": "Merkur", "ja": "水星"},
    aliases={"en": ["Planet Mercury", "☿"], "de": ["Planet Merkur"]},
    descriptions={"en": "first planet from the Sun", "ja": "太陽系の惑星"},
    statements=[
        statement("P31", "Q3504248"),
        statement("P31", "Q128207", rank="preferred"),
        statement("P31", "Q17362350", rank="deprecated"),
        statement("P361", "Q544"),
        statement("P361", "Q544"),
        statement("P398", None, snaktype="somevalue"),
        statement("P397", "Q525", rank="deprecated"),
        statement("P399", None, snaktype="novalue"),
        literal("P2067", {"amount": "+330.11", "unit": "1"}, "quantity"),
        literal("P7", {"entity-type": "property", "numeric-id": 9, "id": "P9"}, "wikibase-entityid"),
        literal("P8", {"entity-type": "form", "id": "L1-F1"}, "wikibase-entityid"),
    ],
    sitelinks={"enwiki": "Mercury (planet)", "dewiki": "Merkur (Planet)", "commonswiki": "Category:Mercury"},
)


def test_an_item_is_an_entity_with_its_names_facts_and_popularity(tmp_path):
    [mercury], tally = read(tmp_path, dump(MERCURY))
    assert mercury == Entity(
        id="Q308",
        title="Mercury",
        description="first planet from the Sun",
        kind="Q128207",
        popularity=3.0,
        aliases={"Mercury": 2.0, "Mercury (planet)": 1.0, "Planet Mercury": 1.0, "☿": 1.0},
        facts=(("P31", "Q128207"), ("P31", "Q3504248"), ("P361", "Q544")),
    )
    assert (tally.read, tally.skipped) == (1, {})


def test_another_language_has_other_names(tmp_path):
    [mercury], _ = read(tmp_path, dump(MERCURY), language="de")
    assert (mercury.title, mercury.description) == ("Merkur", "")
    assert mercury.aliases == {"Merkur": 2.0, "Merkur (Planet)": 1.0, "Planet Merkur": 1.0}
    [mercury], _ = read(tmp_path, dump(MERCURY), language="ja")
    assert (mercury.title, mercury.description, mercury.aliases) == ("水星", "太陽系の惑星", {"水星": 1.0})


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ({"labels": {"en": "Ann", "mul": "Anna"}, "sitelinks": {"enwiki": "Ann (singer)"}}, "Ann"),
        ({"labels": {"mul": "Anna", "fr": "Anne"}, "sitelinks": {"enwiki": "Ann (singer)"}}, "Anna"),
        ({"labels": {"fr": "Anne"}, "sitelinks": {"enwiki": "Ann (singer)"}}, "Ann (singer)"),
    ],
)
def test_the_title_falls_back_on_the_label_for_all_languages_and_then_on_the_page(tmp_path, given, title):
    [ann], _ = read(tmp_path, dump(item("Q1", aliases={"mul": ["A. N. N."], "fr": ["Annette"]}, **given)))
    assert ann.title == title
    assert set(ann.aliases) == {title, "Ann (singer)", "Ann", "A. N. N."}


def test_what_gives_no_entity_is_counted_with_its_reason_and_first_line(tmp_path):
    entities, tally = read(
        tmp_path,
        dump(
            item("P31", labels={"en": "instance of"}, type="property", datatype="wikibase-item"),
            {"type": "lexeme", "id": "L1", "lemmas": {}, "lexicalCategory": "Q1"},
            item("Q1", labels={"fr": "sans"}),
            '{"type":"item","id":"Q2","labels":{"en":{"langu',
            "not json",
            "[1, 2]",
            '{"type":"item","id":"Q3","labels":{"en":"text"}}',
            '{"type":"item","labels":{"en":{"language":"en","value":"no id"}}}',
            item("Q4", labels={"en": "good"}),
            item("Q5"),
        ),
    )
    assert [entity.id for entity in entities] == ["Q4"]
    assert tally.read == 1
    assert tally.skipped == {
        "property, not an item": 1,
        "lexeme, not an item": 1,
        "no label in en": 2,
        "broken line": 5,
    }
    assert tally.first_place == {
        "property, not an item": "line 2",
        "lexeme, not an item": "line 3",
        "no label in en": "line 4",
        "broken line": "line 5",
    }


def test_only_direct_instances_of_the_classes_are_kept(tmp_path):
    human = item("Q1", labels={"en": "Ann"}, statements=[statement("P31", "Q9"), statement("P31", "Q5")])
    once = item("Q2", labels={"en": "Odysseus"}, statements=[statement("P31", "Q5", rank="deprecated")])
    unknown = item("Q3", labels={"en": "Anon"}, statements=[statement("P31", None, snaktype="somevalue")])
    other = item("Q4", labels={"en": "Rex"}, statements=[statement("P31", "Q144"), statement("P279", "Q5")])
    city = item("Q6", labels={"en": "Rome"}, statements=[statement("P31", "Q515")])
    entities, tally = read(tmp_path, dump(human, once, unknown, other, city), classes={"Q5", "Q515"})
    assert [entity.id for entity in entities] == ["Q1", "Q6"]
    assert tally.skipped == {"not an instance of the classes": 3}
    assert len(read(tmp_path, dump(human, once), classes=None)[0]) == 2


@pytest.mark.parametrize("spaced", [False, True])
def test_only_items_with_a_page_of_the_language_are_kept(tmp_path, spaced):
    with_page = item("Q1", labels={"en": "Ann"}, sitelinks={"enwiki": "Ann", "dewiki": "Anna"})
    without = item("Q2", labels={"en": "Bob"}, sitelinks={"dewiki": "Bob", "enwikiquote": "Bob"})
    named_so = item("Q3", labels={"en": "enwiki"})
    given = [
        with_page,
        without,
        named_so,
        item("P1", labels={"en": "x"}, type="property"),
        '{"type":"item","id":"Q4","la',
    ]
    lines = [json.dumps(entity) if spaced and isinstance(entity, dict) else entity for entity in given]
    entities, tally = read(tmp_path, dump(*lines), with_page=True)
    assert [entity.id for entity in entities] == ["Q1"]
    assert tally.skipped == {"no page in enwiki": 2, "property, not an item": 1, "broken line": 1}


def test_the_wiki_of_a_language_with_a_hyphen_is_found(tmp_path):
    cantonese = item("Q1", labels={"zh-yue": "香港"}, sitelinks={"zh_yuewiki": "香港"})
    assert len(read(tmp_path, dump(cantonese), language="zh-yue", with_page=True)[0]) == 1


def test_old_dumps_that_have_only_the_number_of_an_item_are_understood(tmp_path):
    old = literal("P31", {"entity-type": "item", "numeric-id": 5}, "wikibase-entityid")
    [ann], _ = read(tmp_path, dump(item("Q1", labels={"en": "Ann"}, statements=[old])))
    assert (ann.kind, ann.facts) == ("Q5", (("P31", "Q5"),))


def test_lines_without_brackets_and_commas_are_a_dump_too(tmp_path):
    data = "\r\n".join(json.dumps(item(f"Q{number}", labels={"en": "x"})) for number in (1, 2)).encode()
    assert [entity.id for entity in read(tmp_path, data)[0]] == ["Q1", "Q2"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_dumps_of_any_compression_give_the_same_and_move_the_bar_to_its_end(tmp_path, pack):
    packed = pack(dump(MERCURY, item("Q2", labels={"en": "Earth"})))
    entities, tally = read(tmp_path, packed)
    assert [entity.title for entity in entities] == ["Mercury", "Earth"]
    assert tally.done_bytes == tally.total_bytes == len(packed)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_truncated_archive_is_an_error_that_names_the_line(tmp_path, pack):
    packed = pack(dump(*(item(f"Q{number}", labels={"en": f"name {number**3}"}) for number in range(20_000))))
    with pytest.raises(InputError, match=r"dump\.json is truncated or damaged after line \d+"):
        read(tmp_path, packed[: len(packed) * 2 // 3])


@pytest.mark.parametrize(
    "data", [b"", b"[\n]\n", b"a,b\n1,2\n", b'{"type":"Feature","id":"x"}\n', b"<mediawiki>\n" * 500]
)
def test_what_is_not_a_dump_is_refused_with_what_was_expected(tmp_path, data):
    with pytest.raises(InputError, match="is not a Wikidata dump: expected a line for each item"):
        read(tmp_path, data)


def test_a_wrong_file_is_given_up_early(tmp_path):
    path = tmp_path / "wrong.json"
    path.write_bytes(b"something else\n" * 100_000)
    tally = Tally()
    with pytest.raises(InputError):
        list(read_wikidata(path, tally))
    assert tally.skipped["broken line"] == 100


def test_memory_does_not_grow_with_the_number_of_items(tmp_path):
    def peak(items: int) -> int:
        path = tmp_path / f"{items}.json.gz"
        path.write_bytes(gzip.compress(dump(*({**MERCURY, "id": f"Q{number}"} for number in range(items)))))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_wikidata(path, Tally())) == items
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(50)  # what is imported and cached on the way is paid once
    assert peak(3000) < 1.2 * peak(500)
