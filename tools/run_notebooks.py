"""Run the notebooks and store their outputs, with a digest of their sources that tells when they must run again.

    python tools/run_notebooks.py [--stale] [NOTEBOOK ...]      # make notebooks

A notebook runs in a temporary folder, in a kernel of this Python. What it writes to stderr (progress, warnings) is not
stored. `--stale` runs only those whose digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "notebooks"
DIGEST = "sources"
"""Key of the digest, in the notebook's metadata under "wellread"."""
VARIABLES = ("JUPYTER_PLATFORM_DIRS", "TMPDIR", "IPYTHONDIR", "PYTHONPATH")
"""Environment variables that `execute` sets."""
_SHOWN = ("text/plain", "text/markdown", "text/html", "image/png", "image/svg+xml")
"""Types of output that are stored."""
_FALLBACK = re.compile(r"<(IPython|matplotlib|Figure size)[^>]*>|\[?<matplotlib[^\n]*")
"""Plain text that names an object which is also shown as a picture."""


def digest_of(notebook: dict[str, Any]) -> str:
    """Return the digest of a notebook's code, which its stored outputs belong to."""
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def stored_digest(notebook: dict[str, Any]) -> str | None:
    """Return the digest stored with the outputs; None for a notebook that was never run by this tool."""
    digest: str | None = notebook["metadata"].get("wellread", {}).get(DIGEST)
    return digest


def execute(path: Path, folder: Path) -> dict[str, Any]:
    """Run a notebook in a folder, and return it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    python = os.pathsep.join(path for path in sys.path if path)
    os.environ |= dict(zip(VARIABLES, ("1", str(folder), str(folder / "ipython"), python), strict=True))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=1500, resources={"metadata": {"path": str(folder)}}
    )
    client.create_kernel_manager().kernel_spec.argv[0] = sys.executable
    client.execute()
    executed: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return executed


def with_outputs(notebook: dict[str, Any], executed: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with the outputs of a run of it."""
    for cell, done in zip(notebook["cells"], executed["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"] = _joined([_stored(one) for one in done["outputs"] if one.get("name") != "stderr"])
            cell["execution_count"] = done["execution_count"]
    notebook["metadata"]["wellread"] = {DIGEST: digest_of(notebook)}
    return notebook


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join printed parts that follow each other; where they are divided differs from run to run."""
    joined = list[dict[str, Any]]()
    for output in outputs:
        if joined and output["output_type"] == joined[-1]["output_type"] == "stream":
            joined[-1]["text"] = [*joined[-1]["text"], *output["text"]]
        else:
            joined.append(output)
    return joined


def _stored(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output without what differs between runs."""
    kept = {key: value for key, value in output.items() if key != "metadata"}
    if "data" in output:
        kept["metadata"] = {}
        kept["data"] = {kind: output["data"][kind] for kind in _SHOWN if kind in output["data"]}
        plain = "".join(kept["data"].get("text/plain", ""))
        if len(kept["data"]) > 1 and _FALLBACK.match(plain):
            kept["data"]["text/plain"] = ["a picture"]
    return kept


def main() -> None:
    """Run notebooks and write them back."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--stale", action="store_true", help="run only notebooks whose code has changed")
    given = parser.parse_args()
    for path in given.notebooks or sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        if given.stale and stored_digest(notebook) == digest_of(notebook):
            print(f"{path.name}: up to date")  # noqa: T201
            continue
        with tempfile.TemporaryDirectory() as folder:
            executed = execute(path, Path(folder))
        written = json.dumps(with_outputs(notebook, executed), ensure_ascii=True, indent=1) + "\n"
        path.write_text(written, "utf-8")
        print(f"{path.name}: {len(written) / 1000:.0f} kB")  # noqa: T201


if __name__ == "__main__":
    main()
