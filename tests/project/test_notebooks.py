"""The notebooks are stored with the outputs of their code, which runs cell by cell in a kernel of its own."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))
_SPEC = importlib.util.spec_from_file_location("run_notebooks", FOLDER.parent / "tools" / "run_notebooks.py")
TOOL = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(TOOL)
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
def test_stored_outputs_are_those_of_the_code(file):
    notebook = json.loads(file.read_text("utf-8"))
    assert TOOL.stored_digest(notebook) == TOOL.digest_of(notebook), "run: make notebooks"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    printed = "\n".join(map(_text, outputs))
    assert [wanted for wanted in EXPECTED[file.name[0]] if not re.search(wanted, printed)] == []
    assert not re.search(r"/(tmp|root|home|work|Users)/|Traceback|Warning", printed)
    pictures = [kind for output in outputs for kind in output.get("data", {}) if kind.startswith("image/")]
    assert pictures or file.name[0] == "4"  # which ends with a table
    assert file.stat().st_size < 400_000


def test_changed_code_needs_another_run():
    notebook = json.loads(FILES[0].read_text("utf-8"))
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["source"].append("print(1)")
    assert TOOL.stored_digest(notebook) != TOOL.digest_of(notebook)


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
    from wellread.assets import is_cached
    from wellread.kb.packaged import kb_path

    number = file.name[0]
    if not is_cached("minilm") or not all(Path(f"{kb_path(name)}").exists() for name in NEEDED[number]):
        pytest.skip("the assets are not there; run: make assets")
    for name in TOOL.VARIABLES:  # which the tool sets
        monkeypatch.setenv(name, "")
    executed = TOOL.execute(file, tmp_path)
    outputs = [output for cell in executed["cells"] if cell["cell_type"] == "code" for output in cell["outputs"]]
    printed = "\n".join(_text(output) for output in outputs)
    assert [wanted for wanted in EXPECTED[number] if not re.search(wanted, printed)] == [], printed


def _text(output):
    """Return the printed text, or the text shown for a value."""
    data = output.get("data", {})
    parts = [output.get("text", ""), data.get("text/plain", ""), data.get("text/markdown", "")]
    return "".join("".join(part) for part in parts)
