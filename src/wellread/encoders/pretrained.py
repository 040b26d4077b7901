"""Load configurations, models and tokenizers by transformers' Auto classes, without running code from their folder.

Every call of an Auto class in wellread goes through this module. Left to themselves, these classes ask on standard
input whether to run Python files that come with a model, and a text that is piped into a command could answer yes.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from wellread.errors import InputError

UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError)
"""Errors that transformers raises for folders it cannot load."""
_SETTINGS = ("config.json", "tokenizer_config.json")


def load_auto(auto: Any, folder: Path, **options: Any) -> Any:
    """Return `auto.from_pretrained(folder)`; raise InputError if the folder needs Python code of its own."""
    try:
        return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error) and not _names_code(folder):
            raise
        raise InputError(
            f"{folder} brings Python code of its own (auto_map in {' or '.join(_SETTINGS)}), which wellread never "
            "runs; give an encoder of an architecture that transformers has itself"
        ) from error


def build_auto(auto: Any, config: Any) -> Any:
    """Return `auto.from_config(config)`, a model with new weights, of a class that transformers or wellread has."""
    return auto.from_config(config, trust_remote_code=False)


def reason_of(error: BaseException) -> str:
    """Return one line on why a folder or file could not be loaded, without torch's advice to allow any pickle."""
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return "its weights are damaged, or a pickle of more than tensors"
    return str(error).strip() or type(error).__name__


def _names_code(folder: Path) -> bool:
    for name in _SETTINGS:
        try:
            settings = json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(settings, dict) and settings.get("auto_map"):
            return True
    return False
