"""The notebooks are run, cell by cell, in a kernel of their own, and say what they are about."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))
NEEDED = {"1": (), "2": (), "3": ("vital", "wordnet"), "4": ()}
"""The packaged knowledge bases that a notebook needs, by its number."""
EXPECTED = {
    "1": [r"'Monkey King' is W06", r"'Monkey King' is T05", r"\('lidded bowl', 'W01'", r"\['T15'\]"],
    "2": [
        r"weigh 0: states move by 0\.0000",
        r"weigh 5: states move by [1-9]\.",
        r"Northern looks at Maidan +0\.1",
    ],
    "3": [
        r"vital +Vienna +wp:Vienna",
        r"bank +09213565-n",
        r"bank +08420278-n",
        r"reads +00017222-n",
        r"senses: scores of 3",
    ],
    "4": [r"\| none \| [345]\d\.\d\d ±", r"\| knowbert \| (9\d|100)\.\d\d ±"],
}
"""Regular expressions that the output of each notebook must match."""


def cells(file):
    return json.loads(file.read_text("utf-8"))["cells"]


def test_there_are_four_and_the_docs_list_them():
    listed = (FOLDER.parent / "docs" / "notebooks.md").read_text("utf-8")
    assert [file.name[0] for file in FILES] == ["1", "2", "3", "4"] == list(NEEDED) == list(EXPECTED)
    assert all(file.name in listed for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_is_kept_without_outputs(file):
    code = [cell for cell in cells(file) if cell["cell_type"] == "code"]
    assert len(code) >= 4
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert file.stat().st_size < 20_000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_links_of_a_notebook_lead_somewhere(file):
    text = "".join("".join(cell["source"]) for cell in cells(file) if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [link for link in links if "://" not in link and not (FOLDER / link).exists()] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_runs_and_tells_what_it_should(file, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    from wellread.assets import is_cached
    from wellread.kb.packaged import kb_path

    number = file.name[0]
    if not is_cached("minilm") or not all(Path(f"{kb_path(name)}").exists() for name in NEEDED[number]):
        pytest.skip("the assets are not there; run: make assets")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    notebook = nbformat.read(file, as_version=4)
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=1500, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.create_kernel_manager().kernel_spec.argv[0] = sys.executable  # its own, so that it also ends it
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "\n".join(_text(output) for output in outputs)
    assert [wanted for wanted in EXPECTED[number] if not re.search(wanted, printed)] == [], printed


def _text(output):
    """Return the printed text, or the text shown for a value."""
    data = output.get("data", {})
    return output.get("text", "") + data.get("text/plain", "") + data.get("text/markdown", "")
