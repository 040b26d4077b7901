"""Files of pretrained encoders: found by name, their sizes, tokenizer and digest, without torch.

A name is an asset ("minilm"), a folder in the Hugging Face layout, or a model on the hub with its commit
("roberta-base@e2da8e2f811d1448a5b465c236feacd80ffbac7b"): nothing is downloaded that could change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from wellread import assets
from wellread.encoders.pretrained import load_auto
from wellread.errors import AssetError, InputError
from wellread.io.extras import extra
from wellread.text.tokenization import with_one_type, with_unknown


def find_encoder(name: str) -> Path:
    """Return the folder of an encoder; an asset or a model on the hub is downloaded if needed."""
    if name in assets.ASSETS:
        return assets.fetch(name)
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{name} is not a folder with an encoder; give one with config.json and model.safetensors")
    model, _, commit = name.partition("@")
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise InputError(
            f"{name!r} is neither an asset nor a folder; for a model on the hub, add its commit: {model}@COMMIT, the "
            "40 digits on its page of commits"
        )
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.model"]
        return Path(snapshot_download(model, revision=commit, allow_patterns=patterns))
    except Exception as error:
        raise AssetError(
            f"{name!r} is neither an asset nor a folder, and could not be downloaded from the hub "
            f"({type(error).__name__}); check the name, or download the model elsewhere and give its folder"
        ) from error


def width_of(name: str) -> int:
    """Return the size of an encoder's hidden states, without loading its weights."""
    config = read_config(find_encoder(name))
    return int(config["hidden_size"] if "hidden_size" in config else config["dim"])


def positions_of(name: str) -> int:
    """Return an encoder's maximum number of tokens."""
    return positions_in(read_config(find_encoder(name)))


def positions_in(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens by a config.json; RoBERTa and similar encoders count from padding id + 1."""
    first = int(config.get("pad_token_id", 1)) + 1 if "roberta" in config["model_type"] else 0
    return int(config["max_position_embeddings"]) - first


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of an encoder; raise an InputError if the folder has none of a text encoder."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        if config["model_type"] == "luke":  # its attention cannot be replaced
            raise InputError(
                f"{folder} is a LUKE in Hugging Face's layout; convert it first: "
                f"wellread convert luke {folder} --to NEW"
            )
        positions_in(config)
        int(config["hidden_size"] if "hidden_size" in config else config["dim"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{folder} has no encoder that transformers can load: {error}; give a folder with config.json and "
            "model.safetensors"
        ) from error
    settings: dict[str, Any] = config
    return settings


def load_tokenizer(name: str) -> Tokenizer:
    """Load an encoder's tokenizer, without truncation and padding."""
    folder = find_encoder(name)
    file = folder / "tokenizer.json"
    if file.exists():
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers has no exception of its own
            raise InputError(f"{file} is not a tokenizer ({error}); copy it again from the encoder's folder") from error
    else:
        with extra("train", f"{folder} has no tokenizer.json, so its tokenizer"):
            from transformers import AutoTokenizer

        try:
            if not any(
                path.name in {"vocab.txt", "vocab.json"} or path.suffix == ".model" for path in folder.iterdir()
            ):
                raise OSError("it has no vocabulary")  # transformers would make an empty tokenizer
            tokenizer = load_auto(AutoTokenizer, folder).backend_tokenizer
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{folder} has no fast tokenizer; add its tokenizer.json") from error
    tokenizer = with_unknown(tokenizer)
    tokenizer = with_one_type(tokenizer) if _types_of(folder) == 1 else tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _types_of(folder: Path) -> int | None:
    """Return an encoder's number of token types, or None if its configuration has none."""
    try:
        types = json.loads((folder / "config.json").read_bytes()).get("type_vocab_size")
    except (OSError, ValueError, AttributeError):
        return None  # loading the encoder raises the error
    return types if isinstance(types, int) else None


def encoder_digest(name: str) -> str:
    """Return a digest of an encoder's weights and vocabulary: encoders with the same digest give the same vectors."""
    if name in assets.ASSETS:
        pinned = assets.ASSETS[name].files
        files = sorted((file, digest) for file, digest in pinned.items() if _matters(file))
        return hashlib.sha256(repr(files).encode()).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(path for path in find_encoder(name).iterdir() if _matters(path.name)):
        about = file.stat()
        digest.update(_digest_of_file(file.resolve(), about.st_size, about.st_mtime_ns))
    return digest.hexdigest()


@cache
def _digest_of_file(file: Path, size: int, changed_at: int) -> bytes:
    """Return the digest of a file's bytes; size and time are only the key of the cache."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _matters(file: str) -> bool:
    return file in {"config.json", "tokenizer.json", "vocab.txt"} or file.endswith((".safetensors", ".bin"))
