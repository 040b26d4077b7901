"""`wellread link` as a person types it, and what it says when the text cannot be linked."""

import json
import subprocess
import sys

import pytest

from tests.mentions.conftest import NAMES, entity
from wellread import Document
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kbs")
    build(lambda tally: map(entity, NAMES), folder / "names.kb", origin=Origin("test"))
    build(lambda tally: iter([Entity("w1", "city", "a large town")]), folder / "words.kb", origin=Origin("test"))
    return folder


def run(*arguments, stdin=None):
    """Links by names alone, which needs no model; `test_linker_elq.py` has the other."""
    model = ("--model", "prior") if "--kb" in arguments and "--model" not in arguments else ()
    command = [sys.executable, "-m", "wellread.cli", "link", *model, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, input=stdin, errors="surrogateescape", check=False, timeout=60
    )


def test_a_table_for_people(kbs):
    result = run("--kb", kbs / "names.kb", "NYC and 東京")
    assert result.returncode == 0
    assert all(word in result.stdout for word in ("NYC", "Q60", "New York City", "東京", "Q1490"))


def test_json_for_machines_round_trips(kbs):
    result = run("--kb", kbs / "names.kb", "--format", "json", "NYC and 東京")
    document = Document.from_json(result.stdout)
    assert [link.entity for link in document.links] == ["Q60", "Q1490"]


def test_several_kbs_are_layers_of_one_document(kbs):
    result = run("--kb", kbs / "names.kb", "--kb", kbs / "words.kb", "--format", "json", "New York City")
    document = Document.from_json(result.stdout)
    assert [(link.text, link.kb) for link in document.links] == [("New York City", "names"), ("City", "words")]


def test_the_text_may_come_from_a_file_or_a_pipe(kbs, tmp_path):
    (tmp_path / "in.txt").write_text("From Tokyo\n", "utf-8-sig")
    from_file = run("--kb", kbs / "names.kb", "--format", "json", "--file", tmp_path / "in.txt")
    from_pipe = run("--kb", kbs / "names.kb", "--format", "json", stdin="From Tokyo\n")
    assert from_file.stdout == from_pipe.stdout
    assert json.loads(from_file.stdout)["links"][0]["start"] == 5


def test_every_line_can_be_a_text_of_its_own(kbs):
    result = run("--kb", kbs / "names.kb", "--format", "json", "--lines", stdin="Tokyo\n\nNYC\n")
    assert [len(json.loads(line)["links"]) for line in result.stdout.splitlines()] == [1, 0, 1]


def test_a_page_is_written_whole(kbs, tmp_path):
    result = run("--kb", kbs / "names.kb", "--format", "html", "--to", tmp_path / "out.html", "<b>NYC</b>")
    page = (tmp_path / "out.html").read_text("utf-8")
    assert result.returncode == 0
    assert page.lower().startswith("<!doctype html>")
    assert "<b>NYC" not in page


@pytest.mark.parametrize(("format", "expected"), [("brat", "T1\t"), ("conll", "B\t")])
def test_other_peoples_formats(kbs, format, expected):
    assert expected in run("--kb", kbs / "names.kb", "--format", format, "In NYC today").stdout


def test_case_overlaps_and_threshold_are_options(kbs):
    arguments = ("--kb", kbs / "names.kb", "--format", "json")
    entities = lambda result: [link["text"] for link in json.loads(result.stdout)["links"]]  # noqa: E731
    assert entities(run(*arguments, "--case", "exact", "nyc NYC")) == ["NYC"]
    assert entities(run(*arguments, "--overlaps", "all", "New York City")) == ["New York City", "New York"]
    assert entities(run(*arguments, "--threshold", "0.9", "New York, NYC")) == ["NYC"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["--kb", "{}/none.kb", "x"], None, 5, "there is no knowledge base"),
        (["--kb", "{}/names.kb", ""], None, 3, "empty"),
        (["--kb", "{}/names.kb"], " \n", 3, "empty"),
        (["--kb", "{}/names.kb", "--file", "{}/none.txt"], None, 3, "none.txt"),
        (["--kb", "{}/names.kb", "--file", "{}"], None, 3, "folder"),
        (["--kb", "{}/names.kb", "--file", "a", "text"], None, 2, "not both"),
        (["--kb", "{}/names.kb", "--to", "{}/x.txt", "Tokyo"], None, 2, "--format"),
        (["--kb", "{}/names.kb", "--kb", "{}/./names.kb", "Tokyo"], None, 2, "given twice; give each --kb once"),
        (["--kb", "{}/names.kb", "--format", "brat", "--lines", "Tokyo"], None, 2, "leave out --lines"),
        (["--kb", "{}/names.kb", "--threshold", "nan", "Tokyo"], None, 2, "nan is not a number"),
        (["--kb", "{}/names.kb", "--lines"], "Tokyo\n\udce9", 3, "standard input, line 2 is not UTF-8"),
    ],
)
def test_what_goes_wrong_is_one_line_that_names_the_fix(kbs, arguments, stdin, code, message):
    result = run(*(argument.format(kbs) for argument in arguments), stdin=stdin)
    assert result.returncode == code
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_file_in_another_encoding_is_refused_with_the_place(kbs, tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    result = run("--kb", kbs / "names.kb", "--file", tmp_path / "latin.txt")
    assert result.returncode == 3
    assert "not UTF-8" in result.stderr
    assert "byte 3" in result.stderr


def test_a_reader_that_goes_away_is_no_error(kbs):
    link = f"{sys.executable} -m wellread.cli link --model prior --kb {kbs / 'names.kb'} --format json --lines"
    text = "Tokyo and New York City\n" * 20_000
    result = subprocess.run(
        f"{link} | head -1", shell=True, input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""


def test_help_is_quick_and_every_verb_has_an_example():
    verbs = [["fetch"], ["link"], ["evaluate", "linking"]]
    verbs += [["kb", verb] for verb in "build merge add remove show search stats check export".split()]
    for verb in verbs:
        command = [sys.executable, "-X", "importtime", "-m", "wellread.cli", *verb, "--help"]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert "Example" in result.stdout, verb
        imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
        assert not imported & {"torch", "numpy", "spacy", "requests", "rdflib", "transformers"}, verb
    assert len(verbs) == 12


@pytest.fixture
def twins(kbs, tmp_path):
    """Two knowledge bases whose files have the same name."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        build(
            lambda tally, folder=folder: iter([Entity(folder, "city", f"described in {folder}")]),
            tmp_path / folder / "same.kb",
            origin=Origin("test"),
        )
    return tmp_path


def test_knowledge_bases_with_one_name_go_by_their_paths(twins, kbs):
    given = ("--kb", twins / "a" / "same.kb", "--kb", twins / "b" / "same.kb", "--kb", kbs / "words.kb")
    document = Document.from_json(run(*given, "--format", "json", "city").stdout)
    names = [str(twins / "a" / "same.kb"), str(twins / "b" / "same.kb"), "words"]
    assert [link.kb for link in document.links] == names
    assert document.meta["kb"] == names
    table = run(*given, "city")
    assert all(words in table.stdout for words in ("described in a", "described in b", "a large town"))


def test_a_table_ends_before_it_is_endless(kbs):
    result = run("--kb", kbs / "words.kb", "city " * 502)
    assert result.stdout.count("a large town") == 500
    assert result.stderr == "… 2 more links; use --format json\n"


def test_conll_says_that_it_keeps_one_link_a_place(kbs):
    result = run("--kb", kbs / "names.kb", "--kb", kbs / "words.kb", "--format", "conll", "New York City")
    assert "the longest of all knowledge bases is written" in result.stderr
    assert "w1" not in result.stdout


def test_short_names_and_stop_words_are_found_on_demand(tmp_path):
    build(lambda tally: iter([Entity("1", "Who"), Entity("2", "X")]), tmp_path / "x.kb", origin=Origin("test"))
    linked = lambda *options: [  # noqa: E731
        link.entity
        for link in Document.from_json(
            run("--kb", tmp_path / "x.kb", "--format", "json", *options, "who is x").stdout
        ).links
    ]
    assert linked() == []
    assert linked("--stop-words", "none") == ["1"]
    assert linked("--min-chars", "1") == ["2"]


def test_lines_of_an_argument_are_those_of_a_file(kbs):
    text = "Tokyo\u2028NYC\r\nNYC\x0cTokyo\n"
    options = ("--kb", kbs / "names.kb", "--format", "json", "--lines")
    assert run(*options, text).stdout == run(*options, stdin=text).stdout
    assert run(*options, text).stdout.count("\n") == 2
