"""Given spans, NIL and trust on the command line: `link`, `annotate` and `evaluate linking`."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from tests.mentions.conftest import NAMES, entity
from wellread import Document
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity

TEXT = "NYC and Nowhere, 東京"


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kbs")
    build(lambda tally: map(entity, NAMES), folder / "names.kb", origin=Origin("test"))
    build(lambda tally: iter([Entity("w1", "city", "a large town")]), folder / "words.kb", origin=Origin("test"))
    return folder


@pytest.fixture(scope="module")
def doubting(toy, tmp_path_factory):
    """A copy of the toy linker that takes nearly every mention for NIL."""
    folder = shutil.copytree(toy, tmp_path_factory.mktemp("doubting") / "toy")
    weights = load_file(folder / "model" / "model.safetensors")
    weights["nil_head"] = weights["nil_head"] + 8.0
    save_file(weights, folder / "model" / "model.safetensors")
    return folder


def load_options(folder):
    return "--kb", folder / "toy.kb", "--model", folder / "model", "--precision", "fp32"


def documents(result):
    assert result.code == 0, result.err
    return [Document.from_json(line) for line in result.out.splitlines()]


@pytest.fixture
def link(wellread, kbs):
    def link(*arguments, stdin=""):
        return wellread("link", "--kb", kbs / "names.kb", "--model", "prior", *arguments, stdin=stdin)

    return link


def test_spans_of_one_text_are_json_or_a_file_of_it(link, tmp_path):
    spans = "[[8, 15], [0, 3], [17, 19]]"
    (document,) = documents(link("--spans", spans, "--format", "json", TEXT))
    shown = [(one.text, one.entity, one.found_by) for one in document.links]
    assert shown == [("NYC", "Q60", "exact"), ("Nowhere", None, "given"), ("東京", "Q1490", "exact")]
    (tmp_path / "spans.json").write_text(spans)
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    given = ("--spans", tmp_path / "spans.json", "--format", "json")
    assert documents(link(*given, TEXT)) == [document]
    assert documents(link(*given, "--file", tmp_path / "text.txt")) == [document]
    assert documents(link(*given, "-", stdin=TEXT)) == [document]


def test_texts_come_with_their_spans_and_keep_their_ids(link, tmp_path):
    lines = [
        {"text": "NYC or NYC", "spans": [[7, 10]], "id": "a"},
        {"text": "in Tokyo", "mentions": [[3, 8, "Q1", "title"], [0, 2, None]], "id": 7},
        {"text": "東京", "links": [{"start": 0, "end": 2, "text": "東京", "entity": None}]},
        {"text": "NYC", "spans": []},
    ]
    (tmp_path / "texts.jsonl").write_text("\n\n".join(json.dumps(line) for line in lines))
    found = documents(link("--spans", tmp_path / "texts.jsonl", "--format", "json"))
    assert [(one.id, [(x.start, x.entity) for x in one.links]) for one in found] == [
        ("a", [(7, "Q60")]),
        ("7", [(0, None), (3, "Q1490")]),
        (None, [(0, "Q1490")]),
        (None, []),
    ]
    piped = link("--spans", "-", "--format", "json", stdin=(tmp_path / "texts.jsonl").read_text())
    assert documents(piped) == found


def test_many_texts_with_spans_come_in_their_order(link, tmp_path):
    lines = [json.dumps({"text": f"NYC {number}", "spans": [[0, 3]], "id": str(number)}) for number in range(600)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    found = documents(link("--spans", tmp_path / "many.jsonl", "--format", "json"))
    assert [one.id for one in found] == [str(number) for number in range(600)]


def test_several_kbs_give_one_nil_for_a_span(link, kbs):
    given = ("--kb", kbs / "words.kb", "--spans", "[[0, 3], [8, 15], [17, 21]]", "NYC and Nowhere, city")
    (document,) = documents(link(*given, "--format", "json"))
    shown = [(one.text, one.entity, one.kb) for one in document.links]
    assert shown == [("NYC", "Q60", "names"), ("Nowhere", None, None), ("city", "w1", "words")]
    table = link(*given, "--verbose").out
    assert "not in the knowledge base" in table
    assert "None" not in table


def test_nil_is_ruled_out_on_demand(wellread, doubting):
    given = ("link", *load_options(doubting), "--format", "json", "--spans", "[[3, 7]]", "in cork ?")
    (with_nil,), (never,) = documents(wellread(*given)), documents(wellread(*given, "--never-nil"))
    assert with_nil.links[0].entity is None
    assert never.links[0].entity == with_nil.links[0].candidates[0].entity


def test_nil_links_are_shown_only_where_asked_for(wellread, doubting):
    given = ("link", *load_options(doubting), "--format", "json", "who is the mayor of cork")
    (quiet,), (old,), (loud,) = (documents(wellread(*given, *option)) for option in ((), ("--no-nil",), ("--nil",)))
    assert quiet.links == old.links == ()
    assert {one.entity for one in loud.links} == {None}


def test_annotate_shows_nil_where_asked_for_and_takes_trust(wellread, doubting, tmp_path):
    (tmp_path / "in.txt").write_text("who is the mayor of cork\n")
    entities = {}
    for name, options in (("quiet", ()), ("loud", ("--nil",)), ("trusting", ("--trust", "40"))):
        result = wellread("annotate", tmp_path / "in.txt", "--to", tmp_path / name, *load_options(doubting), *options)
        assert result.code == 0, result.err
        (part,) = (tmp_path / name).glob("part-*")
        entities[name] = [link["entity"] for link in json.loads(part.read_text())["links"]]
    assert (entities["quiet"], set(entities["loud"])) == ([], {None})
    assert all(entities["trusting"])
    assert entities["trusting"]


def test_evaluate_asks_for_nil_itself_and_takes_trust(wellread, doubting, tmp_path):
    text = "who is the mayor of cork"
    (tmp_path / "gold.jsonl").write_text(json.dumps({"text": text, "mentions": [[20, 24, None]]}))
    saved = tmp_path / "saved.jsonl"

    def scores(*options):
        result = wellread(
            "evaluate", "linking", tmp_path / "gold.jsonl", *load_options(doubting), "--json", "--save", saved, *options
        )
        assert result.code == 0, result.err
        (data,) = json.loads(result.out)["datasets"]
        return {(one["scope"], one["match"]): one["linked"] for one in data["scores"] if one["average"] == "micro"}

    assert scores()["with_nil", "exact"] == 1
    assert {link["entity"] for link in json.loads(saved.read_text())["links"]} == {None}
    assert scores("--trust", "40")["with_nil", "exact"] == 0


def test_nil_takes_no_place_from_a_link_in_an_evaluation(wellread, toy, tmp_path):
    """The in-KB scores are those of the links that `wellread link` shows by default."""
    texts = [f"who is the mayor of {place}" for place in ("cork", "avon", "dover")]
    lines = [json.dumps({"text": text, "mentions": []}) for text in texts]
    (tmp_path / "gold.jsonl").write_text("\n".join(lines))
    saved = tmp_path / "saved.jsonl"
    assert wellread("evaluate", "linking", tmp_path / "gold.jsonl", *load_options(toy), "--save", saved).code == 0
    shown = documents(wellread("link", *load_options(toy), "--format", "json", "--lines", "\n".join(texts)))
    made = [Document.from_json(line) for line in saved.read_text().splitlines()]
    linked = [[(one.start, one.entity) for one in document.links if one.entity is not None] for document in made]
    assert linked == [[(one.start, one.entity) for one in document.links] for document in shown]
    assert any(linked)


def test_verbose_tables_say_how_a_span_was_found(link):
    assert "found by" not in link("nyc").out
    table = link("--verbose", "nyc").out
    assert "found by" in table
    assert "case" in table


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["--spans", "[[0, 3]]"], "", 2, "there is no text"),
        (["--spans", "[[0, 3]", "NYC"], "", 3, "--spans is not JSON"),
        (["--spans", "[[0, 9]]", "NYC"], "", 3, "the span 0:9 is not in the text of 3 characters"),
        (["--spans", "[[0, 3, 4]]", "NYC"], "", 3, "[0, 3, 4] is not a span"),
        (["--spans", "[0, 3]", "NYC"], "", 3, "0 is not a span; expected a list of [start, end] pairs"),
        (["--spans", "[[0, true]]", "NYC"], "", 3, "[0, true] is not a span"),
        (["--spans", "none.jsonl"], "", 3, "none.jsonl"),
        (["--spans", "-"], "\n", 3, "standard input has no texts"),
        (["--spans", "-"], "[[0, 3]]\n", 3, 'line 1: expected an object with "text" and "spans"'),
        (["--spans", "-"], '{"text": "NYC"}', 3, 'expected "spans", "mentions" or "links"'),
        (["--spans", "-"], '{"text": "NYC", "links": [3]}', 3, "have no start and end"),
        (["--spans", "-"], '{"text": "NYC", "spans": {}}', 3, "expected a list of [start, end] pairs"),
        (["--spans", "-", "-"], "NYC", 2, "cannot both come from standard input"),
        (["--spans", "[[0, 3]]", "--lines", "NYC"], "", 2, "cannot be combined with --lines or --mentions"),
        (["--never-nil", "NYC"], "", 2, "add --spans"),
    ],
)
def test_spans_that_cannot_be_read_are_one_line_that_names_the_fix(link, arguments, stdin, code, message):
    result = link(*arguments, stdin=stdin)
    assert (result.code, len(result.err.strip().splitlines())) == (code, 1)
    assert message in result.err
