"""`wellread evaluate linking`, from the files to the table, with a linker that stands in for the real one."""

import json
import sys
from functools import partial
from types import ModuleType

import pytest

from wellread.document import Document, Link
from wellread.errors import UsageError

LINES = [
    {"id": "a", "text": "Rome and Oz", "mentions": [[0, 4, "Q220"], [9, 11, None]]},
    {"id": "b", "text": "Bonn", "mentions": [[0, 4, "Q586"]]},
]


@pytest.fixture
def gold(tmp_path):
    path = tmp_path / "gold.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def run(wellread):
    return partial(wellread, "evaluate", "linking")


@pytest.fixture
def linker(monkeypatch):
    """A linker that links every first word to Q220, in a KB that holds nothing else; gives how it was loaded."""
    loads = []

    class Linker:
        kb = frozenset(["Q220"])

        @classmethod
        def load(cls, kb, model, **settings):
            loads.append((kb, model))
            assert settings["nil"]  # the scope with NIL needs them
            made = cls()
            made.threshold = settings["threshold"] or 0.0
            return made

        def score_many(self, texts):
            raise UsageError("names alone have no scores")

        def link_many(self, texts):
            for text in texts:
                word = text.split()[0]
                links = (Link(0, len(word), word, "Q220", score=0.5),)
                yield Document(text, links if self.threshold <= 0.5 else ())

    module = ModuleType("wellread.linking.linker")
    module.Linker = Linker
    monkeypatch.setitem(sys.modules, "wellread.linking.linker", module)
    return loads


def score(result, dataset=0, **wanted):
    wanted = {"match": "exact", "scope": "in_kb", "average": "micro"} | wanted
    scores = json.loads(result.out)["datasets"][dataset]["scores"]
    (found,) = [one for one in scores if all(one[key] == value for key, value in wanted.items())]
    return found


def test_the_linker_is_loaded_and_its_links_are_scored_against_its_kb(run, gold, linker):
    result = run("--kb", "mine", "--json", gold)
    assert result.code == 0
    assert linker == [("mine", "auto")]
    found = score(result)
    # Q586 is not in the KB: it is not asked for, and the link on it is a false alarm.
    assert (found["linked"], found["predicted"], found["gold"]) == (1, 2, 1)
    assert found["linking"]["precision"]["value"] == 0.5
    assert score(result, scope="with_nil")["gold"] == 3
    assert "linked 2 documents" in result.err


def test_ids_can_be_compared_without_case(run, gold, tmp_path):
    lower = tmp_path / "lower.jsonl"
    lower.write_text(gold.read_text().replace('"Q', '"q'))
    found = {fold: score(run("--predictions", lower, "--json", *fold, gold)) for fold in ((), ("--fold-ids",))}
    assert found[()]["linked"] == 0
    assert found["--fold-ids",]["linked"] == found[()]["gold"] > 0


def test_saved_predictions_score_the_same_again(run, gold, linker, tmp_path):
    saved = tmp_path / "new" / "predicted.jsonl"
    first = run("--kb", "mine", "--model", "prior", "--save", saved, "--json", gold, gold)
    assert [json.loads(line)["id"] for line in saved.read_text().splitlines()] == ["a", "b", "a", "b"]
    again = run("--kb", "mine", "--predictions", saved, "--json", gold, gold)
    assert json.loads(again.out) == json.loads(first.out)
    assert len(json.loads(again.out)["datasets"]) == 2


def test_perfect_predictions_need_no_kb_and_make_a_table(run, gold):
    result = run("--predictions", gold, gold)
    assert result.code == 0
    rows = [line for line in result.out.splitlines() if "gold.jsonl" in line]
    assert len(rows) == 4
    assert all("1.000 (1.000–1.000)" in row for row in rows)
    assert ["overlap" in row for row in rows] == [False, True, False, True]


def test_the_threshold_leaves_links_out_of_the_score_but_not_of_the_file(run, gold, linker, tmp_path):
    saved = tmp_path / "p.jsonl"
    assert score(run("--kb", "mine", "--threshold", "0.5", "--json", gold))["predicted"] == 2
    assert score(run("--kb", "mine", "--threshold", "0.51", "--save", saved, "--json", gold))["predicted"] == 0
    assert len(json.loads(saved.read_text().splitlines()[0])["links"]) == 1


def test_predictions_on_optional_spans_are_not_counted(run, tmp_path):
    gold, predicted = tmp_path / "gold.jsonl", tmp_path / "p.jsonl"
    row = {"id": "a", "text": "Rome and Oz", "mentions": [[0, 4, "Q220"]]}
    predicted.write_text(json.dumps(row | {"mentions": [[0, 4, "Q220"], [9, 11, "Q5"]]}))
    for optional, precision in (([], 0.5), ([[9, 11]], 1.0)):
        gold.write_text(json.dumps(row | {"optional": optional}))
        assert score(run("--predictions", predicted, "--json", gold))["linking"]["precision"]["value"] == precision


def test_limit_takes_the_first_documents_and_predictions_are_found_by_id(run, gold, tmp_path):
    predictions = tmp_path / "p.jsonl"
    predictions.write_text("".join(json.dumps(line) + "\n" for line in reversed(LINES)))
    result = run("--predictions", predictions, "--limit", "1", "--json", gold)
    assert json.loads(result.out)["datasets"][0]["documents"] == 1
    assert score(result, scope="with_nil")["linking"]["f1"]["value"] == 1


def test_seed_and_bootstrap_are_passed_on(run, tmp_path):
    gold, predicted = tmp_path / "g.jsonl", tmp_path / "p.jsonl"
    gold.write_text('{"text": "Rome", "mentions": [[0, 4, "Q220"]]}\n' * 30)
    predicted.write_text(
        ('{"text": "Rome", "mentions": []}\n' + '{"text": "Rome", "mentions": [[0, 4, "Q220"]]}\n') * 15
    )
    one, two, none = (
        score(run("--predictions", predicted, "--json", *options, gold))["linking"]["recall"]
        for options in (
            ["--seed", "1", "--bootstrap", "50"],
            ["--seed", "2", "--bootstrap", "50"],
            ["--bootstrap", "0"],
        )
    )
    assert one["value"] == two["value"] == none["value"] == 0.5
    assert one != two
    assert none["low"] is None


def test_format_and_ids_reach_the_reader(run, gold, tmp_path):
    aida = tmp_path / "aida.txt"
    aida.write_text("-DOCSTART- (1)\nRome\tB\tRome\tRome\thttp://en.wikipedia.org/wiki/Rome\t25458\t/m/06c62\n")
    predicted = tmp_path / "p.jsonl"
    predicted.write_text('{"id": "1", "text": "Rome", "mentions": [[0, 4, "25458"]]}\n')
    result = run("--predictions", predicted, "--format", "aida", "--ids", "number", "--json", aida)
    assert score(result)["linked"] == 1
    assert run("--predictions", predicted, "--format", "jsonl", aida).code == 3
    assert run("--predictions", predicted, "--ids", "number", gold).code == 2


def test_broken_documents_stop_it_or_are_left_out_on_demand(run, gold):
    with gold.open("a") as file:
        file.write('{"id": "c", "text": "x", "mentions": [[-1, 1, "Q1"]]}\n')
    predictions = gold.with_name("p.jsonl")
    predictions.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    stopped = run("--predictions", predictions, gold)
    assert (stopped.code, stopped.out) == (3, "")
    assert "gold.jsonl, line 3" in stopped.err
    left_out = run("--predictions", predictions, "--skip-broken", "--json", gold)
    assert json.loads(left_out.out)["datasets"][0]["documents"] == 2
    assert "skipped 1 broken" in left_out.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{gold}"], 2, "give --kb"),
        (["--predictions", "{gold}", "--save", "x", "{gold}"], 2, "cannot be combined with --save"),
        (["--predictions", "{gold}", "--model", "prior", "{gold}"], 2, "cannot be combined with --save and --model"),
        (["--predictions", "{gold}"], 2, "FILE"),
        (["--predictions", "{gold}", "--limit", "0", "{gold}"], 2, "--limit"),
        (["--predictions", "{gold}", "{gold}x"], 3, "cannot read"),
        (["--predictions", "{empty}", "{gold}"], 3, "no prediction for id 'a'"),
        (["--predictions", "{empty}", "{empty}"], 3, "empty.jsonl: there are no documents"),
        (["--predictions", "{other}", "{gold}"], 3, "gold.jsonl: document 1 (a): the predicted text 'Roma'"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_an_exit_code(run, gold, tmp_path, arguments, code, message):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text('{"text": "Roma", "mentions": []}\n' * 2)
    names = {name: tmp_path / f"{name}.jsonl" for name in ("gold", "empty", "other")}
    result = run(*(argument.format(**names) for argument in arguments))
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_the_help_pages_show_an_example(run, wellread):
    assert "wellread evaluate linking --kb" in run("--help").out
    assert "Example: wellread evaluate linking" in wellread("evaluate", "--help").out


@pytest.mark.parametrize("option", [("--seed", "-1"), ("--threshold", "nan")])
def test_numbers_that_cannot_be_are_refused(run, gold, option):
    result = run("--predictions", gold, *option, gold)
    assert (result.code, result.out) == (2, "")
    assert option[0] in result.err


def test_a_prefix_makes_gold_ids_those_of_the_kb(run, linker, tmp_path):
    gold = tmp_path / "gold.jsonl"
    gold.write_text('{"text": "Rome in Oz", "mentions": [[0, 4, "220"], [8, 10, null]]}\n')
    strange, same = run("--kb", "mine", "--json", gold), run("--kb", "mine", "--prefix", "Q", "--json", gold)
    assert [score(result)["linked"] for result in (strange, same)] == [0, 1]
    assert "none of the 1 gold entities is in mine; do the ids need --prefix wp: or --ids?" in strange.err
    assert "gold entities" not in same.err


@pytest.mark.parametrize(("strangers", "is_reported"), [(19, False), (20, True)])
def test_gold_that_the_kb_hardly_knows_is_reported(run, linker, tmp_path, strangers, is_reported):
    gold = tmp_path / "gold.jsonl"
    names = ["Q220", *(f"x{number}" for number in range(strangers))]
    gold.write_text("".join(json.dumps({"text": "Rome", "mentions": [[0, 4, name]]}) + "\n" for name in names))
    assert (f"1 of the {len(names)} gold entities is in mine" in run("--kb", "mine", gold).err) == is_reported


def test_without_gold_there_is_no_score_to_show(run, tmp_path):
    gold = tmp_path / "gold.jsonl"
    gold.write_text('{"text": "Rome", "mentions": []}\n')
    rows = [line for line in run("--predictions", gold, gold).out.splitlines() if "gold.jsonl" in line]
    assert [(row.count("–"), "1.000" in row) for row in rows] == [(6, False)] * 4


def test_a_text_without_gold_is_refused_with_its_line(run, gold):
    with gold.open("a") as file:
        file.write('{"id": "c", "text": "x"}\n')
    result = run("--predictions", gold, gold)
    assert result.code == 3
    assert 'gold.jsonl, line 3: there are no gold links; expected "mentions" or "links"' in result.err


def test_a_span_outside_its_text_says_how_to_go_on(run, gold):
    gold.write_text('{"text": "x", "mentions": [[0, 2, "Q1"]]}\n')
    assert "with --skip-broken" in run("--predictions", gold, gold).err
