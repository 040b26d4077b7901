"""Conversion of the checkpoints released by ELQ's authors to a wellread linker with the same scores.

A checkpoint (facebookresearch/BLINK, elq/) is a state dict with two BERTs and a mention head, and a file of parameters.
The result is a self-contained folder:

    config.json          ./encoder and ./entities are folders in this one
    model.safetensors    the mention head
    encoder/             text encoder (BERT)
    entities/            entity encoder (BERT); its tokenizer has [unused2] as a special token

Details of their code that are not in the paper: with `max_mention_length` n a mention may have n + 1 tokens; the title
tag is added even if an entity has no description; `pull_from_layer` and `out_dim` have no effect.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import BertModel
from transformers.utils import logging

from wellread import config as settings
from wellread.encoders.files import load_tokenizer
from wellread.encoders.foreign_checkpoint import ELQ, build_bert, read_weights, sort_weights
from wellread.encoders.load import save_tokenizer
from wellread.errors import InputError, UsageError
from wellread.io.files import read_text, storage
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.model import Elq

TITLE_TAG = "[unused2]"
"""Token between title and description of an entity."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclasses.dataclass(frozen=True, slots=True)
class ElqParams:
    """Parameters of the authors' file that determine what a model computes; its other parameters are for training."""

    bert_model: str
    mention_aggregation_type: Literal["all_avg"]
    mention_scoring_method: Literal["qa_linear"] = "qa_linear"
    add_linear: Literal[False] = False
    max_context_length: int = 128
    max_cand_length: int = 128
    max_mention_length: int = 10
    lowercase: bool = True

    @classmethod
    def read(cls, file: str | Path) -> ElqParams:
        """Read the authors' file: JSON, or a printed Python dict, as their training writes it."""
        text = read_text(file)
        data: Any = None
        for parse in (json.loads, ast.literal_eval):
            try:
                data = parse(text)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
        fix = "give the parameters that came with the checkpoint, e.g. elq_large_params.txt"
        if not isinstance(data, dict):
            raise InputError(f"{file} is not a JSON object; {fix}")
        names = {field.name for field in dataclasses.fields(cls)}
        try:
            read = settings.from_dict(cls, {name: value for name, value in data.items() if name in names})
        except InputError as error:
            raise InputError(f"{file}: {error}; {fix}") from None
        if read.max_mention_length < 0:
            raise InputError(f"{file}: max_mention_length is {read.max_mention_length}; {fix}")
        return read


def convert_elq(
    weights: str | Path,
    params: str | Path,
    to: str | Path,
    *,
    vocab: str | Path | None = None,
    tokenizer: str | None = None,
    heads: int | None = None,
) -> ElqConfig:
    """Convert the authors' checkpoint to a linker in a new folder.

    The checkpoint has no vocabulary: give the `vocab.txt` of its `bert_model` (`vocab`), or folder or hub name of an
    encoder with the same tokenizer (`tokenizer`). `heads` is the number of attention heads, by default width / 64.
    """
    to = Path(to)
    refuse_full(to)
    elq_params = ElqParams.read(params)
    bert_tokenizer = _open_tokenizer(elq_params, vocab, tokenizer)
    prefixes = {part: prefix for prefix, part in ELQ.items()}
    parts = sort_weights(read_weights(weights), ELQ, weights)
    berts = {part: build_bert(parts.pop(part), heads, where=prefixes[part]) for part in ("encoder", "entities")}
    _check(berts, parts["mention_head"], bert_tokenizer, elq_params)
    with new_folder(to) as part:
        _write(part, _config(elq_params, part), berts, bert_tokenizer, parts["mention_head"])
    return ElqConfig.read(to)


def refuse_full(folder: Path) -> None:
    """Raise a UsageError unless the folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; choose another folder, or remove it")


@contextmanager
def new_folder(to: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `to`; it is renamed to `to` at the end, or removed after an error."""
    part = to.absolute().with_name(f".{to.absolute().name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with storage(to):
            part.mkdir(parents=True)
            yield part
            if to.is_dir():
                to.rmdir()
            os.replace(part, to)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _config(elq_params: ElqParams, folder: Path) -> ElqConfig:
    longest = elq_params.max_mention_length + 1  # their code compares the difference of inclusive ends
    return ElqConfig(
        encoder=str((folder / "encoder").resolve()),
        entity_encoder=str((folder / "entities").resolve()),
        pooling="cls",
        normalised=False,
        separator=f" {TITLE_TAG} ",
        entity_pieces=elq_params.max_cand_length,
        longest=longest,
        rank=0,
        names=False,
        nil=False,
        whole_words=False,
        threshold=math.exp(-2.9),  # the authors' choice for both datasets
        window=elq_params.max_context_length,
        precision="fp32",
    )


def _write(
    folder: Path,
    config: ElqConfig,
    berts: dict[str, BertModel],
    bert_tokenizer: Tokenizer,
    mention_head: dict[str, Tensor],
) -> None:
    with_tag = Tokenizer.from_str(bert_tokenizer.to_str())
    with_tag.add_special_tokens([AddedToken(TITLE_TAG, normalized=False, special=True)])
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        for name, own_tokenizer in (("encoder", bert_tokenizer), ("entities", with_tag)):
            berts[name].save_pretrained(folder / name)
            save_tokenizer(own_tokenizer, folder / name, berts[name].config)
        model = Elq(config, berts["encoder"])
        model.mention_head.load_state_dict(mention_head)
        model.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _open_tokenizer(elq_params: ElqParams, vocab: str | Path | None, tokenizer: str | None) -> Tokenizer:
    """Return the tokenizer of both encoders, without the title tag as a special token."""
    if (vocab is None) == (tokenizer is None):
        raise UsageError(
            f"the checkpoint has no vocabulary; give either the vocab.txt of {elq_params.bert_model} (--vocab) or the "
            "folder or hub name of an encoder with its tokenizer (--tokenizer)"
        )
    bert_tokenizer = (
        load_tokenizer(tokenizer) if tokenizer is not None else read_vocab(str(vocab), elq_params.lowercase)
    )
    where = tokenizer if tokenizer is not None else vocab
    needed = [token for token in ("[CLS]", "[SEP]", "[UNK]", TITLE_TAG) if bert_tokenizer.token_to_id(token) is None]
    if needed:
        raise InputError(f"{where} has no token {', '.join(needed)}; give the vocabulary of {elq_params.bert_model}")
    return bert_tokenizer


def read_vocab(file: str, lowercase: bool) -> Tokenizer:
    """Build BERT's tokenizer from its vocabulary, a token per line."""
    lines = read_text(file).removesuffix("\n").split("\n")
    ids = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    if len(ids) < len(lines):
        raise InputError(f"{file} has a token twice; give BERT's vocab.txt, a token per line")
    bert_tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    bert_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    bert_tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert_tokenizer.decoder = decoders.WordPiece()
    if "[CLS]" in ids and "[SEP]" in ids:
        around = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
        bert_tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
    bert_tokenizer.add_special_tokens([token for token in _SPECIAL if token in ids])
    return bert_tokenizer


def _check(
    berts: dict[str, BertModel], mention_head: dict[str, Tensor], bert_tokenizer: Tokenizer, elq_params: ElqParams
) -> None:
    """Raise an InputError if encoders, mention head, vocabulary and parameters do not fit together."""
    text, entity = (berts[name].config for name in ("encoder", "entities"))
    if text.hidden_size != entity.hidden_size:
        raise InputError(
            f"texts have a width of {text.hidden_size} and entities of {entity.hidden_size}, but scores are dot "
            "products; convert a checkpoint whose encoders have the same width"
        )
    shapes = {name: tuple(weight.shape) for name, weight in mention_head.items()}
    if shapes != {"weight": (3, text.hidden_size), "bias": (3,)}:
        raise InputError(
            f"the mention head has {shapes}; expected a weight of (3, {text.hidden_size}) and a bias of (3,): convert "
            "a model with mention_scoring_method qa_linear"
        )
    if 4 * elq_params.max_mention_length + 6 > text.max_position_embeddings:  # windows overlap by two mentions
        raise InputError(
            f"max_mention_length is {elq_params.max_mention_length}, too long for an encoder of "
            f"{text.max_position_embeddings} positions; give at most a quarter of that"
        )
    lengths = {"max_context_length": elq_params.max_context_length, "max_cand_length": elq_params.max_cand_length}
    for config, (name, length) in zip((text, entity), lengths.items(), strict=True):
        if not 3 <= length <= config.max_position_embeddings:
            raise InputError(
                f"{name} is {length}, but the encoder has {config.max_position_embeddings} positions; give the "
                "parameters that came with the checkpoint"
            )
        if bert_tokenizer.get_vocab_size() != config.vocab_size:
            raise InputError(
                f"the vocabulary has {bert_tokenizer.get_vocab_size()} tokens and the weights {config.vocab_size}; "
                f"give the vocabulary of {elq_params.bert_model}"
            )
