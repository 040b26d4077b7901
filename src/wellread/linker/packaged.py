"""Where linkers are that come with wellread, or are a knowledge layer in a folder; known without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wellread.errors import UsageError

WEIGHTS = Path(__file__).parent.parent / "weights"
SENSES = WEIGHTS / "knowbert-wordnet-minilm"
"""The linker of WordNet's senses (`model="knowbert"`)."""
SETTINGS = "linker.json"
"""What a linker that is a knowledge layer says of itself."""


def find_folder(model: str | Path) -> Path | None:
    """The folder of a linker that is a knowledge layer: "knowbert" is the packaged one; None: it is something else."""
    if str(model) == "knowbert":
        if not SENSES.is_dir():
            raise UsageError(
                "no knowbert comes with this wellread; give the folder of one that you trained, as with: "
                "wellread train recipes/knowbert-senses.toml"
            )
        return SENSES
    for folder in (Path(model), Path(model) / "model"):
        if (folder / SETTINGS).is_file() or layers_told(folder):
            return folder
    return None


def layers_told(folder: Path) -> list[dict[str, Any]]:
    """The knowledge layers that the encoder in a folder has."""
    try:
        told = json.loads((folder / "config.json").read_bytes())
        return [entry for entry in told.get("infusions", ()) if entry.get("kind") == "knowbert"]
    except (OSError, ValueError, AttributeError):
        return []
