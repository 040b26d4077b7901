"""Entities from JSONL and CSV, facts from tables, a KB out and in again; and what is broken, named by its line."""

import bz2
import gzip
import io
import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kb.conftest import CITIES, build_kb, content, text_index
from wellread.errors import InputError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.export import write_jsonl
from wellread.kb.readers.tables import parse_columns, read_csv, read_facts, read_header, read_jsonl
from wellread.kb.records import Entity, Fact, Tally
from wellread.kb.store import KnowledgeBase
from wellread.text import words as names


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def jsonl(path, *objects):
    return write(path, *(json.dumps(data, ensure_ascii=False) for data in objects))


def test_every_field_of_an_entity_is_read(tmp_path):
    data = {
        "id": "Q90",
        "title": "Paris",
        "description": "capital",
        "kind": "city",
        "popularity": 412,
        "aliases": {"Paris": 310, "City of Light": 4},
        "facts": [["in", "Q142"]],
    }
    (entity,) = read_jsonl(jsonl(tmp_path / "x", data), Tally())
    assert entity == Entity(
        "Q90", "Paris", "capital", "city", 412, {"Paris": 310, "City of Light": 4}, (("in", "Q142"),)
    )


@pytest.mark.parametrize("field", ["id", "title", "description", "kind", "aliases"])
def test_a_line_with_a_nul_is_broken_and_named(tmp_path, field):
    sound, odd = {"id": "a", "title": "A"}, {"id": "b", "title": "B", field: "b\0"}
    path = jsonl(tmp_path / "x", sound, odd)
    with pytest.raises(InputError, match=r"x, line 2: the entity has a NUL character \(\\0\) in its text; correct it"):
        list(read_jsonl(path, Tally()))
    tally = Tally()
    assert [entity.id for entity in read_jsonl(path, tally, on_broken="skip")] == ["a"]
    assert tally.skipped == {"broken line": 1}
    table = write(tmp_path / "x.csv", f"id,title,{field}2", "a,A,a", "b,B,b\0")
    with pytest.raises(InputError, match=r"x\.csv, line 3: the entity has a NUL"):
        list(read_csv(table, Tally(), columns={field: (f"{field}2",)}))
    with pytest.raises(InputError, match=r"facts\.tsv, line 1: the fact has a NUL"):
        list(read_facts(write(tmp_path / "facts.tsv", "a\tne\0ar\tb"), Tally()))
    with pytest.raises(InputError, match="line 1: the form has a NUL"):
        list(read_jsonl(jsonl(tmp_path / "x", {"form": "gee\0se", "word": "goose"}), Tally()))


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        (["Paname", "Paree"], {"Paname": 1, "Paree": 1}),
        ([["Paname", 3], "Paree"], {"Paname": 3, "Paree": 1}),
        ("Paname | Paree|", {"Paname": 1, "Paree": 1}),
        ({"Paname": "2"}, {"Paname": 2}),
        (None, {}),
        ([], {}),
    ],
)
def test_aliases_may_be_given_in_many_ways(tmp_path, given_as, expected):
    (entity,) = read_jsonl(jsonl(tmp_path / "x", {"id": 1, "title": "Paris", "aliases": given_as}), Tally())
    assert (entity.id, entity.aliases) == ("1", expected)


def test_columns_with_other_names_are_mapped_and_joined(tmp_path):
    columns = parse_columns(["id=sku", "title=name", "description=short,text", "aliases=other,more", "popularity=n"])
    data = {
        "sku": 7,
        "name": "Lamp",
        "short": "A lamp.",
        "text": "It shines.",
        "n": 3,
        "other": ["Light"],
        "more": "L|M",
    }
    (entity,) = read_jsonl(jsonl(tmp_path / "x", data), Tally(), columns=columns)
    assert entity == Entity("7", "Lamp", "A lamp. It shines.", "", 3, {"Light": 1, "L": 1, "M": 1})


def test_a_column_that_has_the_name_of_our_own_lines_is_still_an_entity(tmp_path):
    columns = parse_columns(["id=sku"])
    rows = [{"sku": "a", "title": "A", "kb": {"x": 1}}, {"sku": "b", "title": "B", "form": "c", "word": "d"}]
    assert [e.id for e in read_jsonl(jsonl(tmp_path / "x", *rows), Tally(), columns=columns)] == ["a", "b"]


@pytest.mark.parametrize("pair", ["title", "title=", "=name", "tittle=name"])
def test_a_mapping_that_cannot_be_is_a_usage_error(pair):
    with pytest.raises(UsageError, match=r"cannot map .*; write FIELD=COLUMN with a field of id, title"):
        parse_columns([pair])


BROKEN = {
    "{": "not JSON",
    "[1]": "expected a JSON object",
    '{"id": 1}': "an entity needs 'id' and 'title'",
    '{"title": "x"}': "an entity needs 'id' and 'title'",
    '{"id": "", "title": "x"}': "an entity needs 'id' and 'title'",
    '{"id": [1], "title": "x"}': "an entity needs 'id' and 'title'",
    '{"id": 1, "title": "x", "popularity": "much"}': "popularity is 'much', expected a number",
    '{"id": 1, "title": "x", "popularity": -1}': "popularity is -1, expected a number from 0 on",
    '{"id": 1, "title": "x", "popularity": "nan"}': "expected a number from 0 on",
    '{"id": 1, "title": "x", "aliases": {"y": null}}': "the count of alias 'y' is None, expected a number",
    '{"id": 1, "title": "x", "aliases": {"y": "inf"}}': "expected a number from 0 on",
    '{"id": 1, "title": "x", "aliases": 5}': "aliases are an object",
    '{"id": 1, "title": "x", "aliases": [5]}': "aliases in a list are names or",
    '{"id": 1, "title": "x", "aliases": [["y"]]}': "aliases in a list are names or",
    '{"id": 1, "title": "x", "aliases": [[["y"], 1]]}': "aliases in a list are names or",
    '{"id": 1, "title": "x", "facts": 5}': r"facts are \[relation, object id\] pairs",
    '{"id": 1, "title": "x", "facts": ["in"]}': r"facts are \[relation, object id\] pairs",
    '{"id": 1, "title": "x", "facts": [["in"]]}': r"facts are \[relation, object id\] pairs",
    '{"id": 1, "title": "\\ud83d"}': "not JSON",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_refused_by_its_number_or_skipped_and_counted(tmp_path, line):
    path = write(tmp_path / "x.jsonl", '{"id": 0, "title": "zero"}', "", line, '{"id": 9, "title": "nine"}')
    with pytest.raises(InputError, match=rf"x\.jsonl, line 3: .*{BROKEN[line]}.*; correct it, or skip"):
        list(read_jsonl(path, Tally()))
    tally = Tally()
    assert [entity.id for entity in read_jsonl(path, tally, on_broken="skip")] == ["0", "9"]
    assert tally.skipped == {"broken line": 1}
    assert "line 3" in tally.report()[0]
    assert tally.read == 2


def test_a_wrong_encoding_is_named_by_its_line(tmp_path):
    (tmp_path / "x").write_bytes('{"id": 1, "title": "x"}\n{"id": 2, "title": "é"}\n'.encode("latin1"))
    with pytest.raises(InputError, match=r"x, line 2: not UTF-8; convert it, e\.g\. iconv"):
        list(read_jsonl(tmp_path / "x", Tally()))
    (tmp_path / "x").write_bytes('{"id": 1, "title": "x"}\n'.encode("utf-16"))
    with pytest.raises(InputError, match="x, line 1: not UTF-8"):
        list(read_jsonl(tmp_path / "x", Tally()))


@pytest.mark.parametrize("read", [read_jsonl, read_csv])
def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path, read):
    text = '{"id": "a", "title": "A"}\r\n' if read is read_jsonl else 'id,title\r\na,"A"\r\n'
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list(read(tmp_path / "x", Tally())) == [Entity("a", "A")]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("read", [read_jsonl, read_csv, read_facts])
def test_archives_are_read_and_truncated_ones_refused(tmp_path, pack, read):
    rows = "".join(f'{{"id": "{n}", "title": "t{n * n}"}}\n' for n in range(3000))
    if read is not read_jsonl:
        rows = "id,title,x\n" + "".join(f"{n},t{n * n},x\n" for n in range(3000))
    data = pack(rows.encode())
    (tmp_path / "x").write_bytes(data)
    tally = Tally()
    assert len(list(read(tmp_path / "x", tally))) == (3001 if read is read_facts else 3000)
    assert tally.done_bytes == tally.total_bytes == len(data)
    (tmp_path / "x").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"x is truncated or damaged after line \d+: .*; fetch or copy it again"):
        list(read(tmp_path / "x", Tally()))


# CSV and facts.


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_is_read_by_its_header(tmp_path, delimiter):
    rows = [["title", "id", "aliases", "popularity"], ["Paris", "Q90", "Paname|City of Light", "3"], ["x", "y", "", ""]]
    path = write(tmp_path / "x.csv", *(delimiter.join(row) for row in rows))
    assert list(read_csv(path, Tally())) == [
        Entity("Q90", "Paris", popularity=3, aliases={"Paname": 1, "City of Light": 1}),
        Entity("y", "x"),
    ]


def test_cells_in_quotes_may_hold_anything(tmp_path):
    path = write(tmp_path / "x.csv", "id,title,description", 'a,"A, B; ""C""","two', 'lines"', "", "b,B,", "")
    assert list(read_csv(path, Tally())) == [Entity("a", 'A, B; "C"', "two\nlines"), Entity("b", "B")]


@pytest.mark.parametrize(
    ("lines", "columns", "message"),
    [
        ([], {}, "x.csv is empty; expected a header row such as id,title"),
        (["Q90,Paris"], {}, r"x.csv has no column id, title \(it has Q90, Paris\); map yours with --map id=COLUMN"),
        (["id,name"], {}, "x.csv has no column title"),
        (["word " * 999], {}, r"x.csv has no column id, title \(it has (word ){1,40}…\); map"),
        (["id,title"], {"aliases": ("syn",)}, "x.csv has no column syn"),
        (["sku,title"], {"id": ("sku",), "kind": ("type",)}, "x.csv has no column type"),
        (["id,title", "a,A", "b"], {}, r"x.csv, line 3: 1 cells, the header has 2; correct it"),
        (["id,title", "a,A", '"b', 'b",B', "c,"], {}, "x.csv, line 5: an entity needs 'id' and 'title'"),
        (["id,title", "a,b\rc"], {}, "x.csv, line 2: new-line character seen in unquoted field"),
    ],
)
def test_a_table_that_cannot_be_read_says_what_is_missing_and_where(tmp_path, lines, columns, message):
    with pytest.raises(InputError, match=message):
        list(read_csv(write(tmp_path / "x.csv", *lines), Tally(), columns=columns))


def test_broken_rows_can_be_passed_over(tmp_path):
    tally = Tally()
    path = write(tmp_path / "x.csv", "id,title", "a,A", "b", ",C", "d,D")
    assert [entity.id for entity in read_csv(path, tally, on_broken="skip")] == ["a", "d"]
    assert (tally.read, tally.skipped) == (2, {"broken line": 2})


def test_a_table_in_another_encoding_is_named_by_its_line(tmp_path):
    (tmp_path / "x.csv").write_bytes("id,title\na,A\nb,é\n".encode("latin1"))
    with pytest.raises(InputError, match=r"x\.csv, line 3 is not UTF-8 \(byte 2: 0xe9\); convert it"):
        list(read_csv(tmp_path / "x.csv", Tally()))


def test_facts_are_three_cells_and_what_follows_is_ignored(tmp_path):
    path = write(tmp_path / "x.tsv", "Q1\tis, was, and will be,\tQ2\ttrain", "", "Q2\tin\tQ3")
    assert list(read_facts(path, Tally())) == [Fact("Q1", "is, was, and will be,", "Q2"), Fact("Q2", "in", "Q3")]
    path = write(tmp_path / "x.csv", "Q1,in,Q2", "Q1,in", "Q1,,Q2")
    with pytest.raises(InputError, match=r"x\.csv, line 2: expected subject, relation and object"):
        list(read_facts(path, Tally()))
    tally = Tally()
    assert list(read_facts(path, tally, on_broken="skip")) == [Fact("Q1", "in", "Q2")]
    assert tally.skipped == {"broken line": 2}


@pytest.mark.parametrize("read", [read_jsonl, read_csv, read_facts])
def test_a_file_that_is_not_there_or_a_folder_is_an_input_error(tmp_path, read):
    with pytest.raises(InputError, match=r"cannot read .*none: No such file or directory; check the path"):
        list(read(tmp_path / "none", Tally()))
    with pytest.raises(InputError, match="is a folder; give a file in it"):
        list(read(tmp_path, Tally()))


# Out and in again.


def export(kb):
    buffer = io.BytesIO()
    count = write_jsonl(kb, buffer)
    assert count == len(kb)
    return buffer.getvalue()


def test_an_exported_kb_comes_back_equal(tmp_path, kb):
    kb.update([Entity("Q90", "Paris", 'née Lutetia\n"Paname"', "", 0.1 + 0.2, {"Paname": 1e-6, "東京": 1e12})])
    kb.remove(["Q30"])
    (tmp_path / "x.jsonl").write_bytes(export(kb))
    about = read_header(tmp_path / "x.jsonl")
    assert about == {"source": "test", "licence": "CC0", "language": "en"}
    build(lambda tally: read_jsonl(tmp_path / "x.jsonl", tally), tmp_path / "again.kb", origin=Origin(**about))
    with KnowledgeBase.open(tmp_path / "again.kb") as again:
        assert content(again) == content(kb)
        assert [e.id for e in again.entities()] == [e.id for e in kb.entities()]
        assert text_index(again) == text_index(kb)
        assert {k: again.metadata[k] for k in about} == about
        assert export(again) == export(kb)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMED = TEXT.filter(names.key)
ENTITIES = st.dictionaries(
    TEXT.filter(bool),
    st.tuples(NAMED, TEXT, TEXT, st.floats(0, 1e300), st.dictionaries(NAMED, st.floats(0, 1e300), max_size=3)),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(ENTITIES, st.randoms())
def test_any_kb_comes_back_equal(tmp_path_factory, entities, random):
    folder = tmp_path_factory.mktemp("tables")
    ids = sorted(entities)
    facts = {id: tuple({(random.choice("ab"), random.choice(ids)) for _ in range(2)}) for id in ids}
    build_kb(folder / "a.kb", [Entity(id, *given_as, facts[id]) for id, given_as in entities.items()])
    with KnowledgeBase.open(folder / "a.kb") as kb:
        (folder / "x.jsonl").write_bytes(export(kb))
        build_kb(folder / "b.kb", read_jsonl(folder / "x.jsonl", Tally()))
        with KnowledgeBase.open(folder / "b.kb") as again:
            assert content(again) == content(kb)
            assert len(again) == len(entities)


@pytest.mark.parametrize("first", ["", "[]", "{", '{"id": 1}', '{"kb": 3}', '{"kb": {"uid": "x", "done": "3"}}'])
def test_a_file_that_was_not_exported_says_nothing_of_itself(tmp_path, first):
    assert read_header(write(tmp_path / "x", first)) == {}
    assert read_header(tmp_path / "none") == {}


def test_the_cities_are_what_the_documentation_shows(tmp_path):
    line = {"id": "Q90", "title": "Paris", "aliases": {"Paris": 310, "City of Light": 4}}
    (entity,) = read_jsonl(jsonl(tmp_path / "x", line), Tally())
    assert entity.aliases == CITIES[0].aliases


def test_a_quote_that_is_not_closed_does_not_swallow_the_rest_in_silence(tmp_path):
    write(tmp_path / "x.csv", "id,title", "a,A", '"b,B', "c,C", "d,D")
    with pytest.raises(InputError, match=r"x\.csv, line 3: a quote is not closed"):
        list(read_csv(tmp_path / "x.csv", Tally()))
    tally = Tally()
    assert [entity.id for entity in read_csv(tmp_path / "x.csv", tally, on_broken="skip")] == ["a"]
    assert "line 3: a quote is not closed, all that follows" in tally.report()[0]


def test_a_row_that_is_no_csv_is_a_broken_line(tmp_path):
    write(tmp_path / "x.csv", "id,title", 'a,"A"x', '"b\n",B', "c,C")
    with pytest.raises(InputError, match=r"x\.csv, line 2: .*--broken skip"):
        list(read_csv(tmp_path / "x.csv", Tally()))
    tally = Tally()
    assert [entity.id for entity in read_csv(tmp_path / "x.csv", tally, on_broken="skip")] == ["b\n", "c"]
    assert tally.skipped == {"broken line": 1}


def test_a_cell_may_be_as_long_as_an_article(tmp_path):
    write(tmp_path / "x.csv", "id,title,description", f"a,A,{'x' * 200_000}")
    (entity,) = read_csv(tmp_path / "x.csv", Tally())
    assert len(entity.description) == 200_000


def test_what_is_mapped_or_named_twice_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"aliases is mapped twice; .* --map aliases=x,y"):
        parse_columns(["aliases=x", "aliases=y"])
    with pytest.raises(InputError, match="has several columns title; give each a name"):
        list(read_csv(write(tmp_path / "x.csv", "id,title,title,,", "a,A,B,,"), Tally()))


def test_the_column_that_is_missing_is_the_one_to_map(tmp_path):
    with pytest.raises(
        InputError, match=r"has no column title \(it has id, name\); map yours with --map title=COLUMN$"
    ):
        list(read_csv(write(tmp_path / "x.csv", "id,name", "a,A"), Tally()))


def test_utf16_is_detected_by_its_byte_order_mark(tmp_path):
    (tmp_path / "x").write_text('{"id": 1, "title": "x"}', "utf-16")
    with pytest.raises(InputError, match=r"line 1: not UTF-8; convert it, e\.g\. iconv -f UTF-16"):
        list(read_jsonl(tmp_path / "x", Tally()))
