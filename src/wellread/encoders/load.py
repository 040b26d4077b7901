"""Pretrained encoders and tokenizers: found by name, loaded for packed texts, with optional adapters.

A name is an asset ("minilm"), a folder in the Hugging Face layout, or a model on the hub with its commit
("roberta-base@e2da8e2f811d1448a5b465c236feacd80ffbac7b"): nothing is downloaded that could change.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from wellread import assets
from wellread.encoders.packing import pack
from wellread.encoders.pretrained import UNREADABLE, load_auto, reason_of
from wellread.errors import AssetError, InputError
from wellread.text.tokenization import with_one_type, with_unknown

TOKENIZER_SETTINGS, AS_IT_IS = "tokenizer_config.json", "PreTrainedTokenizerFast"
_SPECIAL = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<s>", "[CLS]"),
    "sep": ("</s>", "[SEP]"),
    "mask": ("<mask>", "[MASK]"),
}
"""Special tokens of RoBERTa and of BERT."""


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


@contextmanager
def silence() -> Iterator[None]:
    """Switch off the progress bars and reports of transformers within a `with` block."""
    level = logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        logging.set_verbosity(level)


def load_encoder(name: str) -> PreTrainedModel:
    """Load an encoder for packed texts, without its pooler."""
    folder = find_encoder(name)
    _register_infused(folder)
    encoder: PreTrainedModel
    try:
        with silence():  # the report on missing weights names the unused pooler; checked below
            encoder, report = load_auto(AutoModel, folder, attn_implementation="sdpa", output_loading_info=True)
    except UNREADABLE as error:
        raise InputError(
            f"{folder} has no encoder that transformers can load: {reason_of(error)}; give a folder with config.json "
            "and model.safetensors"
        ) from error
    if missing := sorted(name for name in report["missing_keys"] if "pooler" not in name):
        raise InputError(
            f"{folder} lacks {len(missing)} weights of its encoder, e.g. {missing[0]}; its config.json and weights "
            "must be of one model: copy it again"
        )
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # type: ignore[assignment]
    return pack(encoder)


def _register_infused(folder: Path) -> None:
    """Register infused classes with transformers if the folder needs them; others save the second that it takes."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        infused, kind = "infusions" in config, config.get("model_type")
    except (OSError, ValueError, TypeError, AttributeError):
        return  # transformers raises the error
    if kind == "luke":  # its attention cannot be replaced
        raise InputError(
            f"{folder} is a LUKE in Hugging Face's layout; convert it first: wellread convert luke {folder} --to NEW"
        )
    if infused:
        import wellread.encoders.infusion.infuse  # noqa: F401


def width_of(name: str) -> int:
    """Return the size of an encoder's hidden states, without loading its weights."""
    return int(_config_of(name).hidden_size)


def positions_of(name: str) -> int:
    """Return an encoder's maximum number of tokens; RoBERTa and similar encoders count from padding id + 1."""
    return _positions_in(_config_of(name))


def _positions_in(config: Any) -> int:
    first = int(config.pad_token_id) + 1 if "roberta" in config.model_type else 0
    return int(config.max_position_embeddings) - first


def _config_of(name: str) -> PreTrainedConfig:
    folder = find_encoder(name)
    _register_infused(folder)
    try:
        config: PreTrainedConfig = load_auto(AutoConfig, folder)
        config.hidden_size, config.max_position_embeddings  # noqa: B018  # raises AttributeError for other models
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} has no encoder that transformers can load: {error}") from error
    return config


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


def save_tokenizer(tokenizer: Tokenizer, folder: Path, config: PreTrainedConfig) -> None:
    """Write a tokenizer for `load_tokenizer` and AutoTokenizer, next to an encoder with this configuration."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.dumps(tokenizer_settings(tokenizer, config), indent=2, ensure_ascii=False)
    (folder / TOKENIZER_SETTINGS).write_text(settings + "\n", "utf-8")


def tokenizer_settings(tokenizer: Tokenizer, config: PreTrainedConfig) -> dict[str, Any]:
    """Return tokenizer_config.json for a tokenizer.json: special tokens, maximum length and token types.

    The class is the one that uses the file as it is; those of families tokenize by rules of their own.
    """
    values: dict[str, Any] = {"tokenizer_class": AS_IT_IS}
    for name, tokens in _SPECIAL.items():
        values |= {f"{name}_token": token for token in tokens if tokenizer.token_to_id(token) is not None}
    types = ["token_type_ids"] if (getattr(config, "type_vocab_size", None) or 1) > 1 else []
    return values | {
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "model_max_length": _positions_in(config),
    }


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


def add_adapters(encoder: PreTrainedModel, rank: int, dropout: float = 0.0) -> None:
    """Freeze an encoder and add a LoRA adapter to each of its own linear layers, not to those of infusions."""
    encoder.requires_grad_(False)
    own = [(name, module) for name, module in encoder.named_modules() if not name.startswith("infusions.")]
    linear = [name for name, module in own if isinstance(module, nn.Linear)]
    inject_adapter_in_model(
        LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules=linear), encoder
    )


def set_dropout(encoder: nn.Module, rate: float) -> None:
    """Set the rate of every dropout module, including attention's."""
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate


def merge_adapters(encoder: nn.Module) -> None:
    """Add the adapters' updates to the weights and restore plain linear layers, so that nothing extra is computed."""
    for name, module in list(encoder.named_modules()):
        if isinstance(module, LoraLayer):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module.merge()
            parent = encoder.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())
