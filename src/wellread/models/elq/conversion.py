"""The released checkpoints of ELQ's authors as a linker of ours, with the same scores.

Theirs (facebookresearch/BLINK, elq/) is a state dict with two BERTs and a mention head, and a file of parameters. What
it becomes is a folder that needs nothing outside of itself:

    config.json          ./encoder and ./entities are folders in this one
    model.safetensors    the mention head
    encoder/             the BERT of texts
    entities/            the BERT of entities, whose tokenizer knows [unused2] as one piece

Facts of their code that are not in the paper: a mention of `max_mention_length` n may have n + 1 pieces; the
title tag is written also where an entity has no description; `pull_from_layer` and `out_dim` have no say.
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
from wellread.encoders.foreign_checkpoint import ELQ, build_bert, read_weights, sort_weights
from wellread.encoders.load import load_tokenizer, save_tokenizer
from wellread.errors import InputError, UsageError
from wellread.io.files import read_text, storage
from wellread.models.elq.model import Elq, ElqConfig

TITLE_TAG = "[unused2]"
"""The piece between a title and a description."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclasses.dataclass(frozen=True, slots=True)
class ElqParams:
    """The authors' parameters that say what a model computes; the others in their file are about its training."""

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
        """From their file: JSON, or a dict as Python prints it, which is what their training writes."""
        text = read_text(file)
        data: Any = None
        for parse in (json.loads, ast.literal_eval):
            try:
                data = parse(text)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
        fix = "give the parameters that came with the checkpoint, as elq_large_params.txt"
        if not isinstance(data, dict):
            raise InputError(f"{file} is no JSON object; {fix}")
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
    """Write the authors' checkpoint as a linker to a new folder.

    Their files have no vocabulary: give the `vocab.txt` of their `bert_model`, or an encoder with its tokenizer.
    """
    to = Path(to)
    refuse_full(to)
    theirs = ElqParams.read(params)
    pieces = _find_pieces(theirs, vocab, tokenizer)
    begins = {part: begin for begin, part in ELQ.items()}
    parts = sort_weights(read_weights(weights), ELQ, weights)
    berts = {part: build_bert(parts.pop(part), heads, where=begins[part]) for part in ("encoder", "entities")}
    _check(berts, parts["mention_head"], pieces, theirs)
    with new_folder(to) as part:
        _write(part, _config(theirs, part), berts, pieces, parts["mention_head"])
    return ElqConfig.read(to)


def refuse_full(folder: Path) -> None:
    """Only a folder that is new or empty is written to."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; choose another folder, or remove it")


@contextmanager
def new_folder(to: Path) -> Iterator[Path]:
    """A folder beside `to` that takes its place when all is written, and is gone when something fails."""
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


def _config(theirs: ElqParams, folder: Path) -> ElqConfig:
    longest = theirs.max_mention_length + 1  # they compare the difference of both ends, which are inclusive
    return ElqConfig(
        encoder=str((folder / "encoder").resolve()),
        entity_encoder=str((folder / "entities").resolve()),
        pooling="cls",
        normalised=False,
        separator=f" {TITLE_TAG} ",
        entity_pieces=theirs.max_cand_length,
        longest=longest,
        rank=0,
        names=False,
        nil=False,
        whole_words=False,
        threshold=math.exp(-2.9),  # theirs, on both data sets
        window=theirs.max_context_length,
        precision="fp32",
    )


def _write(
    folder: Path, config: ElqConfig, berts: dict[str, BertModel], pieces: Tokenizer, mention_head: dict[str, Tensor]
) -> None:
    with_tag = Tokenizer.from_str(pieces.to_str())
    with_tag.add_special_tokens([AddedToken(TITLE_TAG, normalized=False, special=True)])
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        for name, own in (("encoder", pieces), ("entities", with_tag)):
            berts[name].save_pretrained(folder / name)
            save_tokenizer(own, folder / name, berts[name].config)
        model = Elq(config, berts["encoder"])
        model.mention_head.load_state_dict(mention_head)
        model.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _find_pieces(theirs: ElqParams, vocab: str | Path | None, tokenizer: str | None) -> Tokenizer:
    """The tokenizer of both encoders, without the title tag."""
    if (vocab is None) == (tokenizer is None):
        raise UsageError(
            f"the checkpoint has no vocabulary; give either the vocab.txt of {theirs.bert_model} (--vocab) or the "
            "folder or hub name of an encoder with its tokenizer (--tokenizer)"
        )
    pieces = load_tokenizer(tokenizer) if tokenizer is not None else read_vocab(str(vocab), theirs.lowercase)
    where = tokenizer if tokenizer is not None else vocab
    needed = [piece for piece in ("[CLS]", "[SEP]", "[UNK]", TITLE_TAG) if pieces.token_to_id(piece) is None]
    if needed:
        raise InputError(f"{where} has no piece {', '.join(needed)}; give the vocabulary of {theirs.bert_model}")
    return pieces


def read_vocab(file: str, lowercase: bool) -> Tokenizer:
    """BERT's tokenizer from its vocabulary, a piece a line."""
    lines = read_text(file).removesuffix("\n").split("\n")
    ids = {line.removesuffix("\r"): number for number, line in enumerate(lines)}
    if len(ids) < len(lines):
        raise InputError(f"{file} has a piece twice; give BERT's vocab.txt, a piece a line")
    pieces = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    pieces.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    if "[CLS]" in ids and "[SEP]" in ids:
        around = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
        pieces.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
    pieces.add_special_tokens([piece for piece in _SPECIAL if piece in ids])
    return pieces


def _check(berts: dict[str, BertModel], mention_head: dict[str, Tensor], pieces: Tokenizer, theirs: ElqParams) -> None:
    """Refuse what fits together only by its names."""
    text, entity = (berts[name].config for name in ("encoder", "entities"))
    if text.hidden_size != entity.hidden_size:
        raise InputError(
            f"texts have a width of {text.hidden_size} and entities of {entity.hidden_size}: their dot product is no "
            "score; convert a checkpoint whose encoders are of one size"
        )
    shapes = {name: tuple(weight.shape) for name, weight in mention_head.items()}
    if shapes != {"weight": (3, text.hidden_size), "bias": (3,)}:
        raise InputError(
            f"the mention head has {shapes}; expected a weight of (3, {text.hidden_size}) and a bias of (3,): convert "
            "a model with mention_scoring_method qa_linear"
        )
    if 4 * theirs.max_mention_length + 6 > text.max_position_embeddings:  # windows share the longest mention twice
        raise InputError(
            f"max_mention_length is {theirs.max_mention_length}, too long for an encoder of "
            f"{text.max_position_embeddings} positions; give a quarter of them at most"
        )
    lengths = {"max_context_length": theirs.max_context_length, "max_cand_length": theirs.max_cand_length}
    for config, (name, length) in zip((text, entity), lengths.items(), strict=True):
        if not 3 <= length <= config.max_position_embeddings:
            raise InputError(
                f"{name} is {length}, but the encoder has {config.max_position_embeddings} positions; give the "
                "parameters that came with the checkpoint"
            )
        if pieces.get_vocab_size() != config.vocab_size:
            raise InputError(
                f"the vocabulary has {pieces.get_vocab_size()} pieces and the weights {config.vocab_size}; give that "
                f"of {theirs.bert_model}"
            )
