"""Comparing linkers: what is linked and what is kept, what the table says, and that one failure is not the end."""

import json
import os
from dataclasses import asdict, replace

import pytest

from tests.toy_models import toy_documents
from wellread.errors import InputError, UsageError
from wellread.plots import curves as plots
from wellread.training.compare import linkers as module
from wellread.training.compare.linker_tables import LinkerCost, LinkerTable
from wellread.training.compare.linkers import DataSet, Loading, compare_linkers, peak_memory


@pytest.fixture
def here(monkeypatch):
    """Cells are linked in this process, and nothing is drawn."""
    monkeypatch.setattr(module, "_START", None)
    for name in ("draw_linkers", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


@pytest.fixture
def data(tmp_path):
    made = {}
    for name, seed in (("one", 1), ("two", 2)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(one.to_json() + "\n" for one in toy_documents(40, seed)))
        made[name] = DataSet(str(path))
    return made


@pytest.fixture
def linked(monkeypatch):
    """The models that linked something, in turn."""
    whole, models = module.link_cell, []

    def link(loading, model, texts, links):
        models.append(model)
        return whole(loading, model, texts, links)

    monkeypatch.setattr(module, "link_cell", link)
    return models


def test_linkers_are_scored_on_the_same_texts_and_what_is_linked_is_kept(toy, data, tmp_path, here, linked):
    loading, folder = Loading(str(toy / "toy.kb"), precision="fp32"), tmp_path / "c"
    models = {"names": "prior", "elq": str(toy / "model")}
    table = compare_linkers(models, {"one": data["one"]}, loading, folder, bootstrap=50, command="wellread …")
    assert linked == ["prior", str(toy / "model")]
    names, elq = (table.cells[linker, "one"] for linker in models)
    assert names.difference is None
    assert elq.difference.value == pytest.approx(elq.overlap.f1.value - names.overlap.f1.value)
    assert elq.difference.low <= elq.difference.value <= elq.difference.high
    assert (names.documents, names.gold) == (40, 40)
    assert names.overlap.f1.value > 0.9  # every name means one thing, but for mercury
    assert names.cost.index == names.cost.model == 0
    assert elq.cost.index > 0
    assert elq.cost.model > 0
    assert names.cost.kb == elq.cost.kb == sum(os.stat(toy / f"toy.kb{end}").st_size for end in ("", ".names"))
    again = compare_linkers(models, data, loading, folder, bootstrap=50)
    assert linked[2:] == ["prior", str(toy / "model")]  # the second data set
    assert again.cells["elq", "one"] == elq
    assert again.columns == ("one", "two", "mean")
    assert (folder / "table.md").read_text() == again.to_markdown()
    assert json.loads((folder / "table.json").read_text())["against"] == "names"


def test_a_cell_is_made_anew_when_what_it_was_made_of_has_changed(toy, data, tmp_path, here, linked):
    loading, one = Loading(str(toy / "toy.kb")), {"one": data["one"]}

    def run(loading=loading, data=one):
        linked.clear()
        compare_linkers({"prior": "prior"}, data, loading, tmp_path / "c", bootstrap=0)
        return len(linked)

    assert (run(), run()) == (1, 0)
    assert run(data={"one": replace(data["one"], limit=5)}) == 1
    assert run(loading=replace(loading, precision="fp32")) == 1
    (tmp_path / "c/one/prior/links.jsonl").unlink()
    assert run(loading=replace(loading, precision="fp32")) == 1
    (tmp_path / "c/one/prior/cell.json").write_text("{")
    assert run(loading=replace(loading, precision="fp32")) == 1


def test_a_linker_that_fails_leaves_a_gap_and_the_others_go_on(toy, data, tmp_path, here):
    models = {"prior": "prior", "lost": str(tmp_path / "nowhere"), "again": "prior"}
    table = compare_linkers(models, data, Loading(str(toy / "toy.kb")), tmp_path / "c", bootstrap=0)
    assert [(one.linker, one.data) for one in table.failed] == [("lost", "one"), ("lost", "two")]
    assert "there is no model" in table.failed[0].why
    assert table.cells["again", "two"].difference.value == 0
    (row,) = [row for row in table.rows() if row[0] == "lost"]
    assert set(row[1:]) == {"–"}
    assert "–: no links, because it failed:\n- one, lost: there is no model" in table.to_markdown()
    assert [row[0] for row in table.cost_rows()] == ["prior", "again"]
    first = compare_linkers({"lost": "nowhere", "prior": "prior"}, data, Loading(str(toy / "toy.kb")), tmp_path / "d")
    assert first.cells["prior", "one"].difference is None  # there is nothing to hold it against


def test_the_development_part_of_a_training_can_be_taken(data):
    every, part = data["one"].read(), replace(data["one"], develop=10).read()
    assert 10 <= len(part) < len(every)
    assert {one.text for one in part}.isdisjoint(
        one.text for one in module.split_by(every, 10, lambda document: document.text)[0]
    )
    assert len(replace(data["one"], develop=10, limit=4).read()) == 4
    assert replace(data["one"], prefix="x:").read()[0].links[0].entity.startswith("x:")


def test_what_cannot_be_read_or_named_names_the_fix(toy, data, tmp_path, here):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="has no documents; is it the right file"):
        DataSet(str(tmp_path / "empty.jsonl"), "jsonl").read()
    with pytest.raises(UsageError, match="two cells would share a folder among a/b, a:b, one"):
        compare_linkers({"a/b": "prior", "a:b": "prior"}, {"one": data["one"]}, Loading("x"), tmp_path)


def test_memory_is_reported():
    assert peak_memory() > 10_000_000


@pytest.mark.slow
def test_a_cell_has_a_process_of_its_own(toy, data, tmp_path):
    table = compare_linkers({"prior": "prior"}, {"one": data["one"]}, Loading(str(toy / "toy.kb")), tmp_path / "c")
    cost = table.cells["prior", "one"].cost
    assert cost.texts == 40
    assert cost.cpu_seconds > 0
    assert cost.memory < peak_memory()  # this one has torch in it
    assert (tmp_path / "c/table.png").stat().st_size > 1000


# The table.


def made(**changes):
    """A table of two linkers on two data sets, with figures that can be checked by eye."""

    def measures(f1):
        return {name: {"value": f1, "low": f1 - 0.01, "high": f1 + 0.01} for name in ("precision", "recall", "f1")}

    def cell(f1, difference, seconds):
        cost = LinkerCost(100, seconds, 2 * seconds, 1.5, 50_000_000, 3_000_000, 1_000_000, 0)
        scores = {"documents": 100, "gold": 120, "overlap": measures(f1), "exact": measures(f1 - 0.1)}
        return {**scores, "difference": difference, "cost": asdict(cost)}

    return {
        "kb": "toy",
        "against": "prior",
        "models": {"prior": "prior", "elq": "models/elq"},
        "data": {"one": "one.jsonl", "two": "two.jsonl"},
        "settings": {},
        "linkers": {
            "prior": {"one": cell(0.45, None, 0.1), "two": cell(0.55, None, 0.1)},
            "elq": {"one": cell(0.89, {"value": 0.44, "low": 0.4, "high": 0.48}, 2.0)},
        },
        "failed": [{"linker": "elq", "data": "two", "why": "no\nvectors"}],
        "command": "wellread compare linkers …",
    } | changes


def test_a_table_of_linkers_is_read_as_it_was_written():
    assert json.loads(LinkerTable.from_dict(made()).to_json()) == made()


def test_a_table_of_linkers_has_scores_differences_costs_and_gaps():
    table = LinkerTable.from_dict(made())
    assert table.header() == ("linker", "one", "one, exact", "Δ one", "two", "two, exact", "Δ two", "mean")
    prior, elq = table.rows()
    assert prior == ("prior", ".450 (.440–.460)", ".350", "", ".550 (.540–.560)", ".450", "", ".500")
    assert elq == ("elq", ".890 (.880–.900)", ".790", "+.440 [+.400, +.480]", "–", "–", "–", "–")
    assert table.screen()[1][1][1] == ".890 (.880–.900)\nexact .790\nΔ +.440 [+.400, +.480]"
    assert table.cost_rows() == [
        ("prior", "1,000", "2.00", "1.5", "50", "3.0", "1.0", "0.0"),
        ("elq", "50", "40.00", "1.5", "50", "3.0", "1.0", "0.0"),
    ]
    assert table.gaps()[-1] == "- two, elq: no vectors"
    early = LinkerTable.from_dict(made(failed=[]))
    assert early.gaps() == ["–: not linked yet; run the same command again:", "- two, elq"]
    assert table.brief()[1] == [
        ("prior", ".450", ".550", ".500", "2.00", "50"),
        ("elq", ".890", "–", "–", "40.00", "50"),
    ]


def test_linkers_are_drawn_by_data_set_and_cost():
    figure = plots.draw_linkers(made())
    one, two, cost = figure.axes
    assert [label.get_text() for label in one.get_yticklabels()] == ["prior", "elq"]
    assert [text.get_text() for text in two.texts] == ["–"]
    assert [round(bar.get_width(), 6) for bar in cost.patches] == [2, 40]
    assert plots.to_svg(figure).lstrip().startswith(b"<?xml")
    assert len(plots.draw_linkers(made(linkers={"prior": {}, "elq": {}})).axes) == 3
