"""Detection of linker folders, packaged or trained, without importing torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wellread.errors import InputError, UsageError

LINKER = "wellread-elq"
"""`model_type` in the config.json of an ELQ linker."""
WEIGHTS = Path(__file__).parent.parent / "weights"
SENSES = WEIGHTS / "knowbert-wordnet-minilm"
"""Packaged linker of WordNet's senses (`model="knowbert"`)."""
SETTINGS = "linker.json"
"""File name of the settings of a KnowBERT linker."""


def find_folder(model: str | Path) -> Path | None:
    """Return the folder of a KnowBERT linker, "knowbert" being the packaged one; None for other models."""
    if str(model) == "knowbert":
        if not SENSES.is_dir():
            raise UsageError(
                "this installation does not contain knowbert; give the folder of a trained one, e.g. from: "
                "wellread train recipes/knowbert-senses.toml"
            )
        return SENSES
    for folder in (Path(model), Path(model) / "model"):
        if (folder / SETTINGS).is_file() or knowbert_layers(folder):
            return folder
    return None


def knowbert_layers(folder: Path) -> list[dict[str, Any]]:
    """Return the configurations of the KnowBERT layers of the encoder in a folder."""
    return [entry for entry in read_model_config(folder).get("infusions", ()) if entry.get("kind") == "knowbert"]


def refuse_unready_luke(model: str | Path) -> None:
    """Raise an InputError for a LUKE model that must be converted or completed before it can link."""
    for folder in (Path(model), Path(model) / "model"):
        config = read_model_config(folder)
        if config.get("model_type") == "luke":
            raise InputError(
                f"{folder} is a LUKE model in Hugging Face's format; convert it first: wellread convert luke {folder} "
                "--to NEW"
            )
        kinds = {entry.get("kind") for entry in config.get("infusions", ())}
        if "luke" in kinds and "knowbert" not in kinds and not (folder / "entity_vocab.json").is_file():
            raise InputError(
                f"{folder} has a LUKE model, but no entity_vocab.json with its entities; copy that file "
                "from the folder of the original model, or convert that again: wellread convert luke"
            )


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return the config.json in a folder; {} if it is missing or not that of a model."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        valid = all(isinstance(entry, dict) for entry in config.get("infusions", ()))
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return config if valid else {}
