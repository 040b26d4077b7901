"""The table of linking accuracy."""

import json

import pytest
from benchmarks.accuracy import Result, predictions, report

from benchmarks import accuracy
from wellread.document import Document, Link


def result(**changes):
    usual = {
        "set": "webqsp",
        "kind": "questions",
        "kb": "shared",
        "model": "runs/seed1/model",
        "variant": "as written",
        "complete": True,
        "bar": 0.9,
        "documents": 1000,
        "gold": 900,
        "prior_f1": 0.6,
        "precision": 0.95,
        "recall": 0.93,
        "f1": 0.94,
        "best_f1": 0.95,
        "best_threshold": 0.4,
        "calibration_error": 0.03,
    }
    return Result(**(usual | changes))


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_all_figures_and_no_mark_when_all_limits_are_kept():
    header, _, row = map(cells, report([result()]))
    assert dict(zip(header, row, strict=True)) == {
        "set": "webqsp",
        "kind": "questions",
        "KB": "shared",
        "documents": "1,000",
        "gold in KB": "900",
        "model": "seed1",
        "prior F1": ".600",
        "P": ".950",
        "R": ".930",
        "F1": ".940",
        "vs prior": "+.340",
        "best F1": ".950",
        "gap": ".010",
        "ECE": ".030",
        "bar": ".900",
    }


@pytest.mark.parametrize(
    ("changes", "column", "shown"),
    [
        ({"prior_f1": 0.96}, "vs prior", "-.020!"),
        ({"prior_f1": 0.945}, "vs prior", "-.005"),
        ({"best_f1": 0.98}, "gap", ".040!"),
        ({"calibration_error": 0.1}, "ECE", ".100!"),
        ({"bar": 0.95}, "bar", ".950!"),
        ({"bar": None}, "bar", ""),
        ({"complete": False}, "set", "webqsp*"),
        ({"f1": 1.0, "best_f1": 1.0}, "F1", "1.000"),
    ],
)
def test_figures_that_miss_a_limit_are_marked(changes, column, shown):
    header, _, row = map(cells, report([result(**changes)]))
    assert dict(zip(header, row, strict=True))[column] == shown


def test_only_links_that_the_gold_can_judge_count_for_calibration():
    text = "Ada met Bob in Rome"
    gold = Document(text, (Link(0, 3, "Ada", "Q1"), Link(8, 11, "Bob", "Q9")), meta={"optional": [[15, 19]]})
    links = (
        Link(0, 3, "Ada", "Q1", score=0.9),
        Link(8, 11, "Bob", "Q2", score=0.4),
        Link(15, 19, "Rome", "Q3", score=0.7),
    )
    found = predictions([gold], [Document(text, links)], {"Q1", "Q2", "Q3"}.__contains__)
    assert (list(found.scores), list(found.right), found.gold) == ([0.9, 0.4], [True, False], 1)


def test_variants_are_held_against_the_text_as_written():
    lines = report([result(), result(variant="typo", f1=0.7, prior_f1=0.1), result(variant="lower case", f1=0.93)])
    assert cells(lines[6]) == ["webqsp", "seed1", ".600", ".100", ".940", ".700", "-.240!"]
    assert cells(lines[-1]) == ["webqsp", "seed1", ".600", ".600", ".940", ".930", "-.010"]


def test_the_products_are_measured_by_name_from_the_command_line(tmp_path, capsys):
    given = [
        "prior",
        "--sets",
        "products_dev",
        "--typos",
        "--folder",
        str(tmp_path),
        "--json",
        str(tmp_path / "out.json"),
    ]
    assert accuracy.main(given) == 0
    written, typo = json.loads((tmp_path / "out.json").read_text())
    assert (written["set"], written["documents"], written["variant"], typo["variant"]) == (
        *("products_dev", 50, "as written", "typo"),
    )
    assert written["f1"] == written["prior_f1"] <= written["best_f1"]
    assert 0.5 < written["f1"] < 1
    assert typo["f1"] < written["f1"]
    assert "| products_dev" in capsys.readouterr().out
