"""The files of a LUKE's folder, in whichever layout: read as they are, or refused in a line that names the file.

They are downloads and copies, so that each of them may be broken, of another model, or not there at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.activations import ACT2FN

from wellread.encoders.foreign_checkpoint import IDLE, Weights, read_weights
from wellread.encoders.infusion.infuse import FAMILIES
from wellread.errors import InputError, WellreadError
from wellread.io.files import read_text
from wellread.models.luke.vocabulary import SETTINGS, EntityVocabulary

AUTHORS = "metadata.json"
TABLE, WORDS = "entity_embeddings.entity_embeddings.weight", "embeddings.word_embeddings.weight"
"""What every LUKE has, by the names that transformers has for it."""
DISAMBIGUATION, MASK_VECTOR = "ForEntityDisambiguation", "entity_embeddings.mask_embedding"
"""The authors' head for entity disambiguation, and what only its checkpoints have: a vector for [MASK] of its own."""
_OURS = "infused-"
_AGAIN = "copy or download it again"


def is_hf(folder: str | Path) -> bool:
    """Whether a folder has a LUKE of Hugging Face's layout."""
    try:
        return bool(json.loads((Path(folder) / "config.json").read_bytes())["model_type"] == "luke")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_ours(told: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a model that wellread saved."""
    return str(told["model_type"]).startswith(_OURS)


def family_of(told: Mapping[str, Any]) -> str:
    """The family of the encoder, as ours says it, or as their tokenizer tells; or what the authors started from."""
    if is_ours(told):
        return str(told["model_type"]).removeprefix(_OURS)
    if f"Luke{DISAMBIGUATION}" in (told.get("architectures") or ()):
        return "bert"
    named = (told.get("tokenizer_class") == "MLukeTokenizer", str(told.get("bert_model_name")).startswith("xlm-"))
    return "xlm-roberta" if any(named) else "roberta"


def config_file(folder: Path) -> Path:
    """The file that says what model it is; the authors' own is called otherwise."""
    found = next((folder / name for name in ("config.json", AUTHORS) if (folder / name).is_file()), None)
    if found is None:
        named = re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)) and not folder.exists()
        more = f"; one on the hub must be downloaded first: hf download {folder} --local-dir NEW" if named else ""
        raise InputError(f"{folder} has no config.json; give the folder of a LUKE, ours or Hugging Face's{more}")
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration; the authors' own is inside of another."""
    file = config_file(folder)
    try:
        told = json.loads(read_text(file))
        told = told if file.name == "config.json" else {"model_type": "luke", **told["model_config"]}
        kind = str(told["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is no configuration of a LUKE; copy it again") from error
    if kind != "luke" and kind not in {f"{_OURS}{family}" for family in FAMILIES}:
        raise InputError(
            f"{folder} has a model of the kind {kind!r}; give the folder of a LUKE, ours or Hugging Face's"
        )
    if str(told.get("hidden_act", "gelu")) not in ACT2FN:
        raise InputError(
            f"{file} has hidden_act {told['hidden_act']!r}, which transformers does not know; {_AGAIN}, or name one "
            "such as gelu"
        )
    if "tokenizer_class" not in told:
        told["tokenizer_class"] = read_settings(folder).get("tokenizer_class")
    return cast(dict[str, Any], told)


def read_settings(folder: Path) -> dict[str, Any]:
    """What the tokenizer's settings say; nothing where there are none."""
    return _read_object(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}


def saved_as(told: Mapping[str, Any], folder: Path) -> str | None:
    """The class that a model was saved as, if its configuration says: "LukeForMaskedLM"."""
    named = told.get("architectures")
    if not named:
        return None
    if not isinstance(named, list) or not isinstance(named[0], str):
        raise InputError(
            f"{config_file(folder)} has architectures {named!r}; expected a list with the class that it was saved as, "
            'such as ["LukeModel"]'
        )
    return named[0]


def read_files(folder: Path) -> Weights:
    """The weights of a folder by their names, from one file or several."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = _read_object(index).get("weight_map")
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise InputError(f"{index} has no weight_map that says which file has which weight; {_AGAIN}")
            files = [folder / part for part in sorted(set(parts.values()))]
        elif (folder / name).is_file():
            files = [folder / name]
        else:
            continue
        weights: Weights = {}
        for file in files:
            weights |= _read_safe(file) if file.suffix == ".safetensors" else read_weights(file, such_as=name)
        return weights
    raise InputError(f"{folder} has neither model.safetensors nor pytorch_model.bin; copy or download it again")


def read_encoder(folder: Path) -> Weights:
    """The weights of a LUKE of others; those of the encoder without what they begin with under a head."""
    weights = {name.removeprefix("luke."): weight for name, weight in read_files(folder).items()}
    weights = {name: weight for name, weight in weights.items() if not name.endswith(IDLE)}
    for name, what in ((TABLE, "entities"), (WORDS, "words")):
        if name not in weights or weights[name].dim() != 2:
            raise InputError(f"{folder} has weights, but no embeddings of {what}; give the folder of a LUKE")
    return weights


def find_vocabulary(folder: Path, entities: int) -> EntityVocabulary | None:
    """The entity vocabulary of a folder, if it has one, for a table of so many rows."""
    found = EntityVocabulary.find(folder)
    if found is not None and max(found.masks) >= entities:
        file = next(iter(sorted(folder.glob("entity_vocab.*"))), folder / SETTINGS)
        raise InputError(
            f"{file} has [MASK] or [MASK2] in row {max(found.masks)}, but the model's entity table has {entities} "
            "rows, from 0; copy vocabulary and weights again, of one model"
        )
    return found


@contextmanager
def buildable(folder: Path) -> Iterator[None]:
    """What a configuration that cannot be makes transformers raise, which may be anything, in one line."""
    try:
        yield
    except MemoryError:
        raise
    except WellreadError as error:
        if str(folder) in str(error):
            raise
        raise InputError(f"{config_file(folder)}: {error}") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip().rstrip(".")
        raise InputError(
            f"{config_file(folder)} is of no model that can be built ({reason or type(error).__name__}); {_AGAIN}, "
            "or mend that line"
        ) from error


def _read_object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(file))
    except ValueError as error:
        raise InputError(f"{file} is no JSON ({error}); {_AGAIN}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} is no JSON object; {_AGAIN}")
    return found


def _read_safe(file: Path) -> Weights:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {file}: {error}; copy or download it again") from error
