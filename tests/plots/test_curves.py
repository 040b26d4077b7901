"""Plots: what is drawn is what was given, in files that can be read, without pyplot."""

import subprocess
import sys

import lxml.etree
import numpy as np
import pytest

from wellread.errors import StorageError
from wellread.plots.curves import draw_curves, draw_pr_curve, draw_reliability, save

LOG = [
    {"step": 1, "loss": 3.0, "losses": {"mention": 1.0, "entity": 2.0}},
    {"step": 2, "loss": 2.0, "losses": {"mention": 0.5, "entity": 1.5}, "dev": {"f1": 0.4, "precision": 0.5}},
    {"step": 4, "loss": 1.5, "losses": {"mention": 0.5, "entity": 1.0}, "dev": {"f1": 0.6, "precision": 0.7}},
]


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_curves_have_every_loss_and_score_at_its_step():
    losses, scores = draw_curves(LOG).axes
    assert lines(losses) == {
        "total": ([1, 2, 4], [3.0, 2.0, 1.5]),
        "mention": ([1, 2, 4], [1.0, 0.5, 0.5]),
        "entity": ([1, 2, 4], [2.0, 1.5, 1.0]),
    }
    assert lines(scores) == {"f1": ([2, 4], [0.4, 0.6]), "precision": ([2, 4], [0.5, 0.7])}


def test_one_loss_has_no_total_beside_it():
    losses, _ = draw_curves([{"step": 1, "loss": 1.0, "losses": {"loss": 1.0}}]).axes
    assert lines(losses) == {"loss": ([1], [1.0])}


def test_lines_differ_in_colour_and_dashes():
    log = [{"step": 1, "loss": 0, "losses": {str(n): n for n in range(6)}, "dev": {str(n): n for n in range(7)}}]
    for axes in draw_curves(log).axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
        assert len(looks) == len(axes.get_lines()) == 7


def test_the_best_point_is_marked_with_its_threshold():
    (axes,) = draw_pr_curve([0.2, 0.5, 0.6], [1.0, 0.8, 0.5], best=(0.37, 0.5, 0.8)).axes
    assert any("F1 0.615\nat threshold 0.37" in text.get_text() for text in axes.texts)
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    assert ([0.2, 0.5, 0.6], [1.0, 0.8, 0.5]) in drawn
    assert ([0.5], [0.8]) in drawn


def test_the_title_of_a_reliability_diagram_tells_the_error():
    above, below = draw_reliability([0.2, 0.8], [0.4, 0.8], [1, 3]).axes
    assert above.get_title(loc="left") == "Calibration (expected error 0.050)"
    assert [bar.get_height() for bar in below.patches] == [1, 3]


@pytest.mark.parametrize(
    "figure",
    [lambda: draw_curves([]), lambda: draw_pr_curve([], [], best=(np.inf, 0, 0)), lambda: draw_reliability([], [], [])],
)
def test_nothing_to_show_is_said(tmp_path, figure):
    drawn = figure()
    assert any(text.get_text() == "nothing to show" for axes in drawn.axes for text in axes.texts)
    save(drawn, tmp_path / "x")


def test_a_figure_is_saved_twice_over_with_the_same_bytes(tmp_path):
    files = [save(draw_curves(LOG), tmp_path / name) for name in ("a.b", "c")]
    assert [path.name for path in files[0]] == ["a.b.png", "a.b.svg"]
    for ours, theirs in zip(*files, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()
    assert files[0][0].read_bytes().startswith(b"\x89PNG")
    assert lxml.etree.parse(files[0][1]).getroot().tag.endswith("svg")


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        save(draw_curves(LOG), tmp_path / "file" / "x")


def test_drawing_leaves_pyplot_alone():
    code = "import sys, wellread.plots.curves; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
