"""`wellread adapt` on the command line."""

import csv
import json

import pytest

from tests.adaptation_data import copy_toy, unlabelled


@pytest.fixture(autouse=True)
def here(toy, tmp_path, monkeypatch):
    copy_toy(toy, tmp_path / "toy")
    monkeypatch.chdir(tmp_path)
    with open("tickets.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "body"), *enumerate(unlabelled(200))])
    return tmp_path


KB = ("adapt", "--kb", "toy/toy.kb", "--to", "runs/my")
TEXTS = (*KB, "--model", "toy/model", "--texts", "tickets.csv", "--field", "body")


def test_a_linker_is_adapted_marked_and_used(wellread, here):
    done = wellread(*TEXTS, "--sample", 10)
    assert done.code == 0, done.err
    assert "unambiguous rare names that it was not fitted to: linked (should be)" in done.out
    assert "upper limit" in done.out
    assert "no label was used" in done.err
    assert "--marks runs/my/sample.csv" in done.err
    used = wellread("link", "--kb", "toy/toy.kb", "--model", "runs/my/model", "what is zorbla", "--format", "json")
    assert [link["entity"] for link in json.loads(used.out)["links"]] == ["c0"]
    table = here / "runs/my/sample.csv"
    rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert len(rows) == 10
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "right": int(row["mention"] != "the")} for row in rows)
    marked = wellread(*KB, "--marks", table)
    assert marked.code == 0, marked.err
    assert "all links now (threshold" in marked.out
    assert "Recall is not measured" in marked.err
    info = json.loads(wellread(*KB, "--marks", table, "--json").out)
    assert info["before"]["marked"] <= 10
    assert 0 <= info["after"]["low"] <= info["after"]["share"] <= info["after"]["high"] <= 1


def test_figures_are_json(wellread):
    info = json.loads(wellread(*TEXTS, "--json").out)
    assert info["adapted"] is True
    assert (info["texts"], info["right"]["before"]) == (200, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (KB, 2, "no data to adapt to; give --texts PATH"),
        ((*KB, "--texts", "none/"), 3, "there is no none; give text, JSONL"),
        ((*TEXTS, "--marks", "x.csv"), 2, "--texts and --marks cannot be combined"),
        ((*KB, "--marks", "x.csv"), 3, "runs/my is not the folder of an adapted linker"),
        (
            (*TEXTS[:-1], "text"),
            3,
            "tickets.csv has no column text (it has id, body); name yours with --field",
        ),
        ((*KB, "--texts", "tickets.csv", "--model", "nowhere"), 2, "there is no model 'nowhere'"),
        ((*KB, "--texts", "empty.txt", "--model", "toy/model"), 3, "no text in the files of --texts"),
        ((*KB, "--texts", "other.txt", "--model", "toy/model"), 3, "no name of toy.kb is in the 1 texts"),
    ],
)
def test_errors_are_one_line_that_names_the_fix(wellread, here, arguments, code, message):
    if "none/" not in arguments:
        (here / "empty.txt").write_text("\n")
        (here / "other.txt").write_text("nothing of that\n")
    if "none/" in arguments:
        arguments = (*arguments, "--model", "toy/model")
    done = wellread(*arguments)
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert done.code == code
    assert len(lines) == 1
    assert message in lines[0]


def test_help_has_an_example(wellread):
    shown = wellread("adapt", "--help").out
    assert "wellread adapt --kb my.kb --texts my_texts/ --to runs/my" in shown
