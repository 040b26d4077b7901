"""The report of comparisons: one page with everything, where nothing is run, and rows for a README."""

import json
import math
import re

import lxml.html
import pytest

from tests.training.compare.test_linkers import made
from wellread.errors import InputError
from wellread.plots.report import Grid, Section, report_page
from wellread.training.compare.report import make_report, make_rows, read_comparison
from wellread.training.compare.tables import Cost, Unfit, make_table

EVIL = '<img src=x onerror="window.hit=1"></script><script>window.hit=1</script>&\''


@pytest.fixture
def folders(tmp_path):
    """Comparisons of arms and of linkers, as they are written."""
    scores = {"none": {"RTE": [0.5, 0.6], "ner": [0.3, 0.4]}, EVIL: {"RTE": [0.6, 0.6], "ner": [math.nan, math.nan]}}
    costs = {(arm, "RTE"): Cost(1000, 1000, 10, 0.1, 10**8, 10**7) for arm in scores}
    table = make_table(scores, [0, 1], metrics={"RTE": "accuracy", "ner": "f1"}, costs=costs,
                       unfit=[Unfit(EVIL, "ner", "it has no inputs")])  # fmt: skip
    tables = {"arms": table.to_dict() | {"command": f"wellread compare 'a & b' {EVIL}"}, "linkers": made()}
    for name, one in tables.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.json").write_text(json.dumps(one))
    return [tmp_path / "arms", tmp_path / "linkers"]


def test_a_page_has_the_tables_plots_costs_and_commands_of_all(folders):
    page = lxml.html.fromstring(make_report(folders, title="All of it"))
    assert page.findtext(".//h1/bdi") == "All of it"
    arms, linkers = page.findall(".//section")
    assert [one.text for one in arms.findall(".//caption")] == ["Scores", "Costs"]
    assert [one.text for one in linkers.findall(".//caption")] == ["Scores", "Costs", "Where they are from"]
    assert [one.text for one in linkers.findall(".//table")[-1].iter("bdi")][2:] == ["elq", "models/elq"]
    assert len(arms.findall(".//img")) == 2
    assert len(linkers.findall(".//img")) == 1
    assert all(
        image.get("src").startswith("data:image/svg+xml;base64,") and image.get("alt") for image in page.iter("img")
    )
    assert arms.findtext(".//pre/code") == f"wellread compare 'a & b' {EVIL}"
    cells = [" ".join(cell.itertext()) for cell in arms.find(".//tbody").findall(".//td")]
    assert cells[0] == "55.00 ± 7.07"
    assert "–" in cells
    assert "it has no inputs" in arms.text_content()
    assert [link.get("href") for link in page.iter("a")] == ["#s1", "#s2"]


def test_pictures_keep_their_size_and_only_wide_ones_scroll(folders):
    style = lxml.html.fromstring(make_report(folders)).findtext(".//style")
    (rule,) = re.findall(r"^img \{([^}]*)\}", style, re.MULTILINE)
    assert ("max-width: max(100%, 40rem)" in rule, "min-width" in rule) == (True, False)


def test_what_stands_in_a_table_is_text_and_nothing_is_fetched_or_run(folders):
    page = lxml.html.fromstring(make_report(folders))
    assert not list(page.iter("script"))
    assert EVIL in [one.text for one in page.iter("bdi")]
    assert {image.get("src").split(":")[0] for image in page.iter("img")} == {"data"}
    policy = page.find(".//meta[@http-equiv]").get("content")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 400)])
def test_a_browser_shows_the_page_whole_and_runs_nothing(folders, tmp_path, browser, scheme, width):
    (tmp_path / "report.html").write_text(make_report(folders))
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.documentElement.scrollWidth") == width  # wide tables scroll by themselves
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    paper, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    light, dark = "rgb(250, 248, 244)", "rgb(22, 24, 28)"
    assert paper == (light if scheme == "light" else dark)
    assert ink not in (light, dark)
    assert complaints == []


def test_notes_are_paragraphs_and_lists():
    notes = ["first", "- one", "- two", "last"]
    page = lxml.html.fromstring(report_page([Section("s", [Grid("g", ("a",), [("b",)], notes)])]))
    section = page.find(".//section")
    assert [item.text for item in section.iter("li")] == ["one", "two"]
    assert [one.text for one in section.findall(".//p")] == ["first", "last"]
    assert not page.findall(".//nav")  # one section needs no contents


def test_rows_for_a_readme_are_small_tables_with_their_gaps(folders):
    arms, linkers = make_rows(folders).split("\n\n| linker")
    assert arms.startswith("| arm | RTE | ner | mean | × time | × memory |\n| --- | ---: |")
    assert "| none | 55.00 ± 7.07 | 35.00 ± 7.07 | 45.00 ± 7.07 | 1.00 | 1.00 |" in arms
    assert "–: does not apply to the task:" in arms
    assert "| prior | .450 | .550 | .500 | 2.00 | 50 |" in linkers


def test_a_folder_that_has_no_comparison_names_the_fix(tmp_path):
    with pytest.raises(InputError, match=r"has no table\.json; give the folder of a comparison"):
        read_comparison(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file has no table\.json; give the folder of a comparison"):
        read_comparison(tmp_path / "file")
    for broken in ("{", "[]", '{"arms": {}}', '{"linkers": 3}', '{"arms": {"a": {"b": 1}}, "seeds": []}'):
        (tmp_path / "table.json").write_text(broken)
        with pytest.raises(InputError, match=r"is not the table of a comparison .*; run its command again"):
            read_comparison(tmp_path)
