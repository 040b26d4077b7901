"""Masked language model head for any encoder, with pretrained weights if the checkpoint has them.

The head is BERT's: a dense layer, its activation, a norm, then a score per vocabulary token by the encoder's own
embeddings (tied weights) and a bias. For an encoder without a pretrained head, such as MiniLM, it is trained from
scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.activations import ACT2FN

from wellread.encoders.files import find_encoder
from wellread.encoders.foreign_checkpoint import read_weights
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import InputError, UsageError

NAMES: Mapping[str, tuple[str, ...]] = {
    "dense.": (
        "cls.predictions.transform.dense.",
        "lm_head.dense.",
        "generator_predictions.dense.",
        "vocab_transform.",
    ),
    "norm.": (
        "cls.predictions.transform.LayerNorm.",
        "lm_head.layer_norm.",
        "generator_predictions.LayerNorm.",
        "vocab_layer_norm.",
    ),
    "bias": (
        *("cls.predictions.bias", "lm_head.bias", "generator_lm_head.bias", "vocab_projector.bias"),
        *("cls.predictions.decoder.bias", "lm_head.decoder.bias"),
    ),
}
"""Names of the head's parts in checkpoints of BERT, RoBERTa and XLM-R, ELECTRA's generators, DistilBERT."""

DECODERS = (
    "cls.predictions.decoder.weight",
    "lm_head.decoder.weight",
    "generator_lm_head.weight",
    "vocab_projector.weight",
)
"""Names of the copy of the embeddings in these checkpoints."""

MASKS = ("[MASK]", "<mask>")
"""Names of the mask token."""


class WordHead(nn.Module):
    """Score of every vocabulary token for given states."""

    def __init__(self, encoder: InfusedEncoder) -> None:
        super().__init__()
        config: Any = encoder.config
        self._encoder = (encoder,)  # in a tuple: its weights are its own, not part of the head
        vocabulary, width = self.embeddings.shape
        self.dense = nn.Linear(int(config.hidden_size), width)
        self.act = ACT2FN[getattr(config, "hidden_act", getattr(config, "activation", "gelu"))]
        self.norm = nn.LayerNorm(width, eps=float(getattr(config, "layer_norm_eps", 1e-12)))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    @property
    def embeddings(self) -> Float[Tensor, "vocabulary width"]:
        """Token embeddings of the encoder."""
        weight: Tensor = cast(Any, self._encoder[0].embeddings).word_embeddings.weight
        return weight

    def forward(self, states: Float[Tensor, "masked dim"]) -> Float[Tensor, "masked vocabulary"]:
        """Return scores for the states of masked positions only; for all tokens of a batch they would be too large."""
        return linear(self.norm(self.act(self.dense(states))), self.embeddings, self.bias)


def load_word_head(head: WordHead, name: str) -> bool:
    """Load the head's weights from an encoder's checkpoint; return False, unchanged, if it has none."""
    folder = find_encoder(name)
    weights = _weights(folder)
    found: dict[str, Tensor] = {}
    for part in head.state_dict():
        begin = next(begin for begin in NAMES if part.startswith(begin))
        names = (begin_there + part.removeprefix(begin) for begin_there in NAMES[begin])
        there = next((weights[name] for name in names if name in weights), None)
        if there is not None:
            found[part] = there.float()
    if not found:
        return False
    own = head.state_dict()
    if wrong := [part for part in own if part not in found or found[part].shape != own[part].shape]:
        raise InputError(
            f"{folder} has a head for masked words, but its {wrong[0]} is missing or of another shape; copy the "
            "checkpoint again"
        )
    decoder = next((weights[name] for name in DECODERS if name in weights), None)
    embeddings = head.embeddings
    if decoder is not None and not (
        decoder.shape == embeddings.shape and torch.equal(decoder.to(embeddings), embeddings)
    ):
        raise InputError(
            f"{folder} has a head that is not tied to its embeddings, which is not supported: load the "
            "encoder from there too, or train the head from scratch"
        )
    head.load_state_dict(found)
    return True


def mask_of(tokenizer: Tokenizer) -> tuple[str, int]:
    """Return the mask token and its id."""
    for mask in MASKS:
        if (id := tokenizer.token_to_id(mask)) is not None and id in tokenizer.encode(mask).ids:
            return mask, id
    raise UsageError(
        f"the tokenizer has no mask token (one of {', '.join(MASKS)}); use the tokenizer that the "
        "encoder came with, or add one to its special tokens"
    )


def ordinary_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of all tokens except special ones, such as masks and separators."""
    return sorted(set(tokenizer.get_vocab().values()) - tokenizer.get_added_tokens_decoder().keys())


def words_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the words that are one token inside a text, with its id: {"paris": 3000, …}."""
    ids = ordinary_ids(tokenizer)
    words = [word.strip() for word in tokenizer.decode_batch([[id] for id in ids])]
    codes = tokenizer.encode_batch([f" {word}" for word in words], add_special_tokens=False)
    return {word: id for word, id, code in zip(words, ids, codes, strict=True) if word and code.ids == [id]}


def _weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint that may belong to a head, with current names of norms."""
    wanted = (*(name for some in NAMES.values() for name in some), *DECODERS)
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                names = [name for name in weights.keys() if name.startswith(wanted)]  # noqa: SIM118  # not a dict
                found |= {_today(name): weights.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} cannot be read: {error}; copy the checkpoint again") from error
    if not any(folder.glob("*.safetensors")) and (file := folder / "pytorch_model.bin").exists():
        found = {_today(name): weight for name, weight in read_weights(file).items() if name.startswith(wanted)}
    return found


def _today(name: str) -> str:
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
