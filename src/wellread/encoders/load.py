"""Pretrained encoders loaded for packed texts, with optional adapters."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from wellread.encoders.files import find_encoder, positions_in
from wellread.encoders.packing import pack
from wellread.encoders.pretrained import UNREADABLE, load_auto, reason_of
from wellread.errors import InputError

TOKENIZER_SETTINGS, AS_IT_IS = "tokenizer_config.json", "PreTrainedTokenizerFast"
_SPECIAL = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("<s>", "[CLS]"),
    "sep": ("</s>", "[SEP]"),
    "mask": ("<mask>", "[MASK]"),
}
"""Special tokens of RoBERTa and of BERT."""


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
        "model_max_length": positions_in(config.to_dict()),
    }


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
