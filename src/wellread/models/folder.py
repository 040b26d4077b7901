"""Where linkers are that come with wellread, or are a knowledge layer in a folder; known without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wellread.errors import InputError, UsageError

LINKER = "wellread-elq"
"""`model_type` of a linker's folder in its config.json."""
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
    return [entry for entry in _told(folder).get("infusions", ()) if entry.get("kind") == "knowbert"]


def refuse_unready_luke(model: str | Path) -> None:
    """Say what a LUKE lacks that cannot link as it is; what is something else passes."""
    for folder in (Path(model), Path(model) / "model"):
        told = _told(folder)
        if told.get("model_type") == "luke":
            raise InputError(
                f"{folder} is a LUKE of Hugging Face's layout; convert it first: wellread convert luke {folder} "
                "--to NEW"
            )
        kinds = {entry.get("kind") for entry in told.get("infusions", ())}
        if "luke" in kinds and "knowbert" not in kinds and not (folder / "entity_vocab.json").is_file():
            raise InputError(
                f"{folder} has a LUKE, but no entity_vocab.json to say which entities it knows; copy it from the "
                "folder that the model was made in, or convert that again: wellread convert luke"
            )


def _told(folder: Path) -> dict[str, Any]:
    """What the configuration in a folder says; nothing where there is none that could be a model's."""
    try:
        told = json.loads((folder / "config.json").read_bytes())
        fine = all(isinstance(entry, dict) for entry in told.get("infusions", ()))
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return told if fine else {}
