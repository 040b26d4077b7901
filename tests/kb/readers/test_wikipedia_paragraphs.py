"""The paragraphs that the Wikipedia reader writes to train on: every mention stands exactly on its anchor."""

import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kb.readers.test_wikipedia import PARIS, dump, page, read
from wellread.errors import InputError

PARAGRAPHS = [
    page("Paris", f"{PARIS}\nA paragraph of fifty characters, but not one link in it."),
    page("東京", "東京都（{{読み}}）は日本の[[首都]]であり、😀 [[関東地方|関東]]に位置する。" + "あ" * 30),
    page("Mercury (disambiguation)", "* [[Mercury (planet)]] " + "x" * 80 + "\n\nProse [[link]] " + "x" * 80),
]


def test_paragraphs_are_written_with_links_at_exact_places(tmp_path):
    to = tmp_path / "deep" / "paragraphs.jsonl"
    _, tally = read(tmp_path, dump(*PARAGRAPHS), paragraphs_to=to)
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert [(row["id"], row["doc"]) for row in rows] == [
        ("Paris#0", "wp:Paris"),
        ("Paris#1", "wp:Paris"),
        ("東京#0", "wp:東京"),
    ]
    assert rows[0]["text"] == "Paris is the capital of France. Its rivers are the Seine and the Marne."
    assert rows[0]["mentions"][0] == [13, 20, "wp:Capital city"]
    named = [[(row["text"][start:end], target) for start, end, target in row["mentions"]] for row in rows]
    assert named[1] == [("Parisii", "wp:Parisii"), ("france", "wp:France"), ("Seine", "wp:Seine")]
    assert named[2] == [("首都", "wp:首都"), ("関東", "wp:関東地方")]
    assert tally.skipped == {"paragraph without links": 1, "paragraph with broken markup": 1}


def test_short_paragraphs_are_left_out_and_an_open_file_stays_open(tmp_path):
    file = io.BytesIO()
    _, tally = read(tmp_path, dump(page("A", "Short [[b]].")), paragraphs_to=file)
    assert file.getvalue() == b""
    assert tally.skipped == {"paragraph of less than 50 characters": 1}
    read(tmp_path, dump(page("A", "Short [[b]].")), paragraphs_to=file, min_paragraph_chars=5)
    assert json.loads(file.getvalue())["mentions"] == [[6, 7, "wp:B"]]


def test_no_paragraph_file_is_left_behind_when_the_dump_breaks(tmp_path):
    to = tmp_path / "out" / "paragraphs.jsonl"
    with pytest.raises(InputError):
        read(tmp_path, dump(*PARAGRAPHS)[:-200], paragraphs_to=to)
    assert list(to.parent.iterdir()) == []


NAME = st.text(st.sampled_from("abcXYZ059éжに東한"), min_size=1, max_size=6)
ANCHOR = st.lists(NAME, min_size=1, max_size=3).map(" ".join)
NOISE = st.sampled_from(
    "{{cite|[[x]]|{{y}}}}@<ref>z [[w]]</ref>@<ref name='q' />@<!-- [[c]] -->@[[File:A.jpg|thumb|an [[inner]] link]]@"
    "[[Category:C]]@&nbsp;@<span>@''@   ".split("@")
)
PIECE = st.one_of(
    NAME.map(lambda name: (name, name, None)),
    NAME.map(lambda name: (f"\n{name}", name, None)),
    NOISE.map(lambda noise: (noise, "", None)),
    ANCHOR.map(lambda name: (f"[[{name}]]", name, name)),
    st.tuples(NAME, ANCHOR).map(lambda pair: (f"[[{pair[0]}|{pair[1]}]]", pair[1], pair[0])),
    st.tuples(NAME, ANCHOR).map(lambda pair: (f"'''[[{pair[0]} (x)#s| {pair[1]}]]'''", pair[1], f"{pair[0]} (x)")),
    st.tuples(NAME, ANCHOR).map(lambda pair: (f"[[{pair[0]}|''{pair[1]}'' &amp; co]]s", f"{pair[1]} & cos", pair[0])),
    st.tuples(NAME, ANCHOR).map(lambda pair: (f"{{{{lang|fr|[[{pair[0]}|{pair[1]}]]}}}}", pair[1], pair[0])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECE, min_size=1, max_size=12))
def test_every_mention_stands_exactly_on_its_anchor(pieces):
    text = "Begin " + " ".join(written for written, _, _ in pieces) + " [[End]]"
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        read(Path(folder), dump(page("T", text)), paragraphs_to=file, min_paragraph_chars=0)
    row = json.loads(file.getvalue())
    links = [(shown, f"wp:{target[0].title()}{target[1:]}") for _, shown, target in pieces if target is not None]
    assert row["text"] == " ".join(["Begin", *(shown for _, shown, _ in pieces if shown), "End"])
    assert [(row["text"][start:end], target) for start, end, target in row["mentions"]] == [*links, ("End", "wp:End")]
