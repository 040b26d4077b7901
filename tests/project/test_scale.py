"""Documented costs at scale are arithmetic on figures of the log."""

from math import isclose, sqrt
from pathlib import Path

import pytest
from benchmarks.scale import Seen, day_table, entity_rows, power, size, table, text_rows, time

from benchmarks import scale

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = {name: figure for name, figure in vars(scale).items() if isinstance(figure, Seen)}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_was_seen(name):
    figure = FIGURES[name]
    assert figure.words in (DOCS / figure.page).read_text("utf-8"), f"{name} is no longer in docs/{figure.page}"
    assert figure.value > 0


def test_all_figures_are_found():
    assert len(FIGURES) >= 18


def test_the_page_has_the_tables_as_they_are_computed():
    page = (DOCS / "scale.md").read_text("utf-8")
    for lines in (table(entity_rows()), table(text_rows(), scale.CORES), day_table()):
        assert len(lines) >= 7
        assert "\n".join(lines) in page, "make them anew with: python -m benchmarks.scale"


def test_costs_grow_as_they_say():
    one, six = entity_rows(1_000_000), entity_rows(6_000_000)
    assert [row.what for row in one] == [row.what for row in six]
    grown = {row.what: big.value / row.value for row, big in zip(one, six, strict=True)}
    assert isclose(grown["build the KB, three names an entity"], 6)
    assert isclose(grown["search 80 mentions"], sqrt(6))
    assert isclose(grown["add 100 entities and link one"], 1)
    assert one[1].value == pytest.approx(scale.PEAK.value)
    assert entity_rows(500_000)[-1].value == pytest.approx(scale.LUKE.value)
    twice = zip(text_rows(10), text_rows(20), strict=True)
    assert all(isclose(more.value, 2 * less.value) for less, more in twice)


def test_figures_are_written_in_common_units():
    assert [time(seconds) for seconds in (0.13, 59, 540, 6 * 3600, 86_400 * 9, 1e9)] == [
        "130 ms", "59 s", "9 min", "6 h", "9 days", "32 years",
    ]  # fmt: skip
    assert [size(count) for count in (500, 2e6, 7e9, 18e12)] == ["500 B", "2 MB", "7 GB", "18 TB"]
    assert [power(number) for number in (1e12, 1.57e12, 9.996e11)] == ["1 × 10¹²", "1.57 × 10¹²", "1 × 10¹²"]


def test_other_sizes_can_be_asked_for(capsys):
    assert scale.main(["--entities", "1000000", "--terabytes", "1", "--cores", "16"]) == 0
    output = capsys.readouterr().out
    assert "on 16" in output
    assert "1,000,000 × 103 µs" in output
