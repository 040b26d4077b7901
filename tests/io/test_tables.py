import csv
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wellread.errors import InputError
from wellread.io.tables import TableReader, read_rows_at


def table(tmp_path, data, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return TableReader(path)


def cells(reader):
    return [row.cells for row in reader]


def test_rows_have_their_cells_number_line_and_bytes(tmp_path):
    data = '\ufeffid,message\r\n1,"hi, ""you""\nagain"\r\n\r\n2,café\r\n'.encode()
    reader = table(tmp_path, data)
    assert reader.columns == ("id", "message")
    rows = list(reader)
    assert [(row.cells, row.number, row.line) for row in rows] == [
        (["1", 'hi, "you"\nagain'], 0, 2),
        (["2", "café"], 1, 5),
    ]
    assert data[rows[0].begin : rows[0].end] == b'1,"hi, ""you""\nagain"\r\n'
    assert data[rows[1].begin : rows[1].end].decode() == "2,café\r\n"


def test_rows_can_be_read_twice(tmp_path):
    reader = table(tmp_path, "\n\na,b\n1,2\n")
    assert cells(reader) == cells(reader) == [["1", "2"]]


@pytest.mark.parametrize(
    ("name", "data"),
    [("t.csv", "a,b\n1,2\n"), ("t.csv", "a;b\n1;2\n"), ("t.csv", "a\tb\n1\t2\n"), ("t.tsv", "a\tb\n1\t2\n")],
)
def test_separator_is_that_of_the_header(tmp_path, name, data):
    assert cells(table(tmp_path, data, name)) == [["1", "2"]]


def test_separators_inside_quotes_do_not_decide(tmp_path):
    assert table(tmp_path, '"a,x,y";b\n1;2\n').columns == ("a,x,y", "b")


def test_a_tsv_of_one_column_may_have_commas(tmp_path):
    assert cells(table(tmp_path, "message\nhello, you\n", "t.tsv")) == [["hello, you"]]


def test_a_cell_may_be_longer_than_the_default_limit_of_csv(tmp_path):
    assert cells(table(tmp_path, f"a\n{'x' * 200_000}\n")) == [["x" * 200_000]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; expected a header"),
        (b"\n\n", "is empty; expected a header"),
        ("a,b\n1,2\n".encode("utf-16"), "is UTF-16; convert it"),
        (b"PK\x03\x04\0\0,a", "not a table but a binary file"),
        (b"caf\xe9,b\n", "line 1 is not UTF-8"),
        (b"a,b,a\n", "several columns called a"),
        (b",,\n1,2,3\n", "no names of columns"),
        (b"a\rb\r1\r2", "carriage return"),
    ],
)
def test_a_file_without_a_header_is_refused(tmp_path, data, message):
    with pytest.raises(InputError, match=message):
        table(tmp_path, data)


def test_a_quotation_mark_that_is_not_closed_ends_the_reading(tmp_path):
    with pytest.raises(InputError, match=r"line 3: a quotation mark is not closed"):
        list(table(tmp_path, 'a,b\n1,2\n3,"x\n4,y\n'))


def test_a_broken_row_says_why_and_hides_no_other(tmp_path):
    rows = list(table(tmp_path, b'a,b\n1\n2,"x" y\n3,caf\xe9\n4,ok\n'))
    assert rows[3].text(1, "b", "t.csv") == "ok"
    for row, reason in zip(rows, ("1 cell, expected 2", "double the quotation marks", "b is not UTF-8"), strict=False):
        with pytest.raises(InputError, match=reason):
            row.text(1, "b", "t.csv")
    assert rows[2].text(0, "a", "t.csv") == "3"


def test_a_missing_column_names_the_nearest(tmp_path):
    with pytest.raises(InputError, match=r"has no column mesage \(it has id, Message\); did you mean Message\?"):
        table(tmp_path, "id,Message\n").position("mesage")
    with pytest.raises(InputError, match="name yours with --column"):
        table(tmp_path, "id,body\n").position("xyz", "--column")


def test_records_are_dicts_by_column(tmp_path):
    assert list(table(tmp_path, "a,b\n1,2\n").records()) == [{"a": "1", "b": "2"}]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(alphabet='ab",;\n\té '), min_size=2, max_size=2), max_size=5))
@example([['"', "\n"], ["a\n\n", '","'], ["", "x"]])
def test_every_row_can_be_read_from_its_own_bytes(tmp_path_factory, rows):
    out = io.StringIO(newline="")
    csv.writer(out).writerows([["first", "second"], *rows])
    data = out.getvalue().encode()
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(data)
    read = list(TableReader(path))
    assert [row.cells for row in read] == rows
    for row in read:
        again = read_rows_at(data[row.begin :], 2, ",", number=row.number, line=row.line, begin=row.begin)
        assert next(again) == row
