"""Write a trained knowledge layer as a small linker (`models.knowbert.folder`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from wellread import config as configs
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import load_encoder, save_tokenizer, silence
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.io.files import storage, write_atomically
from wellread.kb.store import KnowledgeBase
from wellread.models.folder import SETTINGS, find_folder
from wellread.models.knowbert.entity_kinds import kind_names
from wellread.models.knowbert.folder import ENTITIES, FORMAT, WEIGHTS, LinkerSettings, read_settings
from wellread.models.knowbert.loading import SavedLayer
from wellread.models.knowbert.model import KnowBert
from wellread.models.knowbert.quantization import Int8EntityTable, decode_4bit, encode_4bit
from wellread.models.knowbert.torch_linker import keep_first_layers

_SMALL = 1 << 16
"""Maximum number of elements of a changed weight that is written whole instead of as a difference."""


@dataclass(frozen=True, slots=True)
class SavedLinker:
    """Size and precision of a written linker."""

    bytes: int
    error: float
    """Largest relative error of a weight's change; 0 if the encoder was written whole."""


def shrink(
    model: str | Path,
    kb: KnowledgeBase,
    folder: str | Path,
    *,
    base: str | None = None,
    rank: int | None = None,
    tags: Literal["spacy"] | None = None,
    threshold: float = 0.0,
) -> SavedLinker:
    """Write a model's knowledge layer of a KB as a linker that needs no entity vectors.

    `base` is the encoder before training; without it the whole encoder is written. The trained changes are written in 4
    bits, or with a `rank` as differences of that rank.
    """
    if Path(folder).exists():
        raise UsageError(f"{folder} is there already; name a new folder")
    found = find_folder(model)
    if found is None:
        raise UsageError(f"{model} has no knowledge layer; give the folder of an encoder that has, or of its run")
    settings = read_settings(found, kb.path.stem)
    encoder = load_encoder(str(found))
    layers = _knowledge_layers(encoder)
    layer = next(part for part in layers if part.config.kb == settings.kb)
    if base is not None and len(layers) > 1:
        raise UsageError(f"{model} has {len(layers)} knowledge layers, so its encoder must be kept; leave --base out")
    vectors = EntityVectors.of_kb(kb, settings.vectors, fingerprint=settings.fingerprint)
    layer.take_of(kb, vectors)
    entities = Int8EntityTable.build(
        layer.linker.entities,
        vectors.ids.take(range(len(vectors))),
        fingerprint=vectors.fingerprint,
        kinds=kind_names(kb) if layer.config.kinds and vectors.kinds is None else (),
    )
    settings = replace(settings, vectors=None, fingerprint=None, tags=tags, threshold=threshold)
    tokenizer = load_tokenizer(str(found))
    saved = save_linker(folder, encoder, tokenizer, settings, entities=entities, base=base, rank=rank)
    written = SavedLayer.of(Path(folder), kb.path.stem)
    if written.precision == "fp32" or written.has_below:
        return saved
    with suppress(UsageError):  # the runtime does not know the encoder, which then runs in fp32
        written.write_ranges(kb)
    return replace(saved, bytes=_size(Path(folder)))


def save_linker(
    folder: str | Path,
    encoder: PreTrainedModel,
    tokenizer: Tokenizer,
    settings: LinkerSettings,
    *,
    entities: Int8EntityTable | None = None,
    base: str | None = None,
    rank: int | None = None,
) -> SavedLinker:
    """Write the knowledge layer of an infused encoder as a linker.

    With a `base`, the encoder before training ("minilm"), only the changes are written: in 4 bits, or with a `rank` as
    differences of that rank, which is exact for adapters of that rank. Without it the whole encoder is written.
    """
    folder = Path(folder)
    layer = next((part for part in _knowledge_layers(encoder) if part.config.kb == settings.kb), None)
    if layer is None:
        raise UsageError(f"the encoder has no knowledge layer of {settings.kb}; give one that has")
    error = 0.0
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if base is None:
            with silence():
                encoder.save_pretrained(folder)
            save_tokenizer(tokenizer, folder, encoder.config)
        else:
            settings = replace(settings, encoder=base, layer=layer.config)
            weights = {f"linker.{name}": weight for name, weight in layer.linker.state_dict().items()}
            for name, weight, lost in _changes(encoder, base, layer.config.layer + 1, rank):
                weights[name], error = weight, max(error, lost)
            save_file({name: _half(weight).contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
        if entities is not None:
            entities.save(folder / ENTITIES)
        with write_atomically(folder / SETTINGS) as file:
            file.write(json.dumps({"format": FORMAT, **configs.to_dict(settings)}, indent=2).encode() + b"\n")
        return SavedLinker(_size(folder), error)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _knowledge_layers(encoder: PreTrainedModel) -> list[KnowBert]:
    return [part for part in cast(InfusedEncoder, encoder).infusions if isinstance(part, KnowBert)]


def _changes(encoder: PreTrainedModel, base: str, layers: int, rank: int | None) -> Iterator[tuple[str, Tensor, float]]:
    """Yield (name, weight, relative error) of embeddings and first layers that differ from the base encoder."""
    before = load_encoder(base)
    keep_first_layers(before, layers)
    now = dict(encoder.named_parameters())
    for name, old in before.named_parameters():
        new = now[name].detach().cpu().to(old.dtype)
        if torch.equal(new, old):
            continue
        if old.numel() <= _SMALL:
            yield name, new, 0.0
            continue
        change = (new - old.detach()).double()
        if rank is None:
            codes, scales = encode_4bit(change.numpy())
            rounded = torch.from_numpy(decode_4bit(codes, scales, change.shape[1]))
            lost = float((change - rounded).norm() / change.norm())
            yield f"{name}.codes", torch.from_numpy(codes), lost
            yield f"{name}.scales", torch.from_numpy(scales), lost
            continue
        left, sizes, right = torch.linalg.svd(change, full_matrices=False)
        root = sizes[:rank].sqrt()
        lost = float(sizes[rank:].norm() / sizes.norm())
        yield f"{name}.up", (left[:, :rank] * root), lost
        yield f"{name}.down", (root[:, None] * right[:rank]), lost


def _half(weight: Tensor) -> Tensor:
    return weight.detach().cpu().to(torch.float16 if weight.is_floating_point() else weight.dtype)
