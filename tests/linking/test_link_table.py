"""Links as a flat table, from tables of texts in several libraries."""

import csv
import io

import pyarrow as pa
import pytest

from tests.kb.conftest import CITIES, build_kb
from wellread import Linker
from wellread.document import Document, Link
from wellread.errors import InputError, UsageError
from wellread.linking.link_rows import csv_lines, link_row
from wellread.linking.link_table import LINK_FIELDS, LINK_SCHEMA
from wellread.linking.multi import Linkers

TEXTS = ["Paris saw Einstein.", None, "nowhere", "東京 and France"]
ROWS = [(0, "Paris", "Q90"), (0, "Einstein", "Q937"), (3, "東京", "Q1490"), (3, "France", "Q142")]


@pytest.fixture
def path(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    return str(tmp_path / "cities.kb")


@pytest.fixture
def linker(path):
    with Linker.load(path, "prior") as linker:
        yield linker


class Stream:
    """A frame of another library: all that is known of it is Arrow's interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def pandas_frame(table):
    return pytest.importorskip("pandas").DataFrame(table.to_pydict() | {"mixed": [1, "a", None, b"x"]})


@pytest.mark.parametrize(
    "frame",
    [
        lambda table: table,
        lambda table: table.combine_chunks().to_batches()[0],
        lambda table: table.to_reader(),
        lambda table: table.set_column(1, "message", table["message"].dictionary_encode()),
        Stream,
        pandas_frame,
    ],
)
def test_the_links_of_a_column_are_a_flat_table(linker, frame):
    table = pa.table({"ticket": ["a", "b", "c", "d"], "message": TEXTS})
    found = linker.link_frame(frame(table), "message", id="ticket")
    assert found.column_names == ["row", "ticket", *(name for name, _ in LINK_FIELDS)]
    rows = found.to_pylist()
    assert [(row["row"], row["mention"], row["entity"]) for row in rows] == ROWS
    assert [row["ticket"] for row in rows] == ["a", "a", "d", "d"]
    assert all(TEXTS[row["row"]][row["start"] : row["end"]] == row["mention"] for row in rows)


def test_rows_count_over_batches(linker):
    table = pa.table({"message": pa.chunked_array([["Paris"], [], ["nowhere", "Paris"] * 3000])})
    found = linker.link_frame(table, "message")
    assert found.column_names[:2] == ["row", "start"]
    assert found["row"].to_pylist() == [0, *range(2, 6001, 2)]


def test_a_frame_without_links_has_its_columns(linker):
    found = linker.link_frame(pa.table({"id": [1, 2], "message": ["nowhere", ""]}), "message", id="id")
    assert (found.num_rows, found.schema.field("id").type) == (0, pa.int64())
    assert linker.link_frame(pa.table({"message": pa.array([], pa.string())}), "message").num_rows == 0


def test_an_id_called_like_a_column_of_links_is_called_id(linker):
    found = linker.link_frame(pa.table({"row": ["x"], "message": ["Paris"]}), "message", id="row")
    assert found.select(["row", "id"]).to_pylist() == [{"row": 0, "id": "x"}]


def test_several_knowledge_bases_are_in_one_table(path, tmp_path):
    build_kb(tmp_path / "other.kb", CITIES)
    with Linkers.load([path, tmp_path / "other.kb"], "prior") as linkers:
        found = linkers.link_frame(pa.table({"message": ["Paris"]}), "message")
    assert found["kb"].to_pylist() == ["cities", "other"]


@pytest.mark.parametrize(
    ("frame", "column", "error", "message"),
    [
        (pa.table({"Message": ["a"]}), "mesage", UsageError, r"has no column mesage .* did you mean Message\?"),
        (pa.table({"text": [1]}), "text", InputError, "the column text is int64, expected texts"),
        (["Paris"], "text", UsageError, "link_frame was given list; give a pandas"),
        (pa.table([["a"], ["b"]], names=["text", "text"]), "text", UsageError, "several columns called text"),
    ],
)
def test_a_frame_that_does_not_fit_names_the_fix(linker, frame, column, error, message):
    with pytest.raises(error, match=message):
        linker.link_frame(frame, column)


def test_a_pandas_column_with_other_values_names_the_fix(linker):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="convert its column to strings"):
        linker.link_frame(pandas.DataFrame({"text": ["Paris", 3]}), "text")


def test_csv_is_quoted_where_it_must_be():
    link = Link(0, 9, 'a "b",\nc', None, None, 0.5)
    lines = csv_lines([LINK_SCHEMA.names, ["=1+2", *link_row(link).values()]])
    (row,) = csv.DictReader(io.StringIO(lines, newline=""))
    assert (row["id"], row["mention"], row["entity"], row["score"]) == ("=1+2", 'a "b",\nc', "", "0.5")
    assert set(link_row(link)) == {name for name, _ in LINK_FIELDS}
    assert Document('a "b",\nc', (link,)).links[0].text == row["mention"]
