"""The folder of a linker that is a knowledge layer (`models.knowbert.model`), and how little of it links need.

A link depends on the layers up to the one that the knowledge layer comes after, and on the linker inside of it. Three
kinds of folders have that:

- an infused encoder as `save_pretrained` writes it, with its tokenizer: also the run of a task, or its `model`, or what
  `convert knowbert` wrote
- the same with `linker.json` (`LinkerSettings`), which says how texts are read
- a small one: `linker.json` names the encoder that everybody has, `linker.safetensors` has what learning changed in it
  (differences in 4 bits, or of low rank) and the linker's own weights

With `entities.safetensors` (`models.knowbert.quantized_entities`) a folder needs no vectors of the knowledge base's
entities; else those that it names or has (`models.knowbert.requirements`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from wellread import config as configs
from wellread.encoders.infusion.infuse import FAMILIES, InfusedEncoder
from wellread.encoders.load import load_encoder, load_tokenizer, positions_of, save_tokenizer, silence
from wellread.errors import InputError, UsageError
from wellread.io.files import storage, write_atomically
from wellread.models.folder import SETTINGS, layers_told
from wellread.models.knowbert import four_bit
from wellread.models.knowbert.mention_cache import CandidateConfig
from wellread.models.knowbert.model import KnowBert, KnowBertConfig, MentionLinker
from wellread.models.knowbert.quantized_entities import ReadyTable
from wellread.models.knowbert.requirements import Needs, read_told

FORMAT = "wellread knowbert linker 1"
WEIGHTS, ENTITIES = "linker.safetensors", "entities.safetensors"

_FEW = 1 << 16
"""Numbers of a weight that is written whole if it changed; of more the difference is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkerSettings:
    """How a knowledge layer links texts; `linker.json`."""

    kb: str = "wordnet"
    """The name of its knowledge base in the encoder."""
    sentences: int = 1
    """Sentences that are read together, as the layer has learned; 0: windows, wherever sentences end."""
    width: int = 128
    """Pieces that are read at once."""
    threshold: float = 0.0
    """The probability that a link must exceed, unless another is asked for."""
    tags: Literal["spacy"] | None = None
    """Who tells the part of speech of words, to which their candidates are then restricted; None: nobody."""
    offers: CandidateConfig = field(default_factory=CandidateConfig)
    vectors: str | None = None
    """The folder of the entity vectors; None: beside the knowledge base."""
    fingerprint: str | None = None
    """That of the vectors it has learned with; None: nobody says."""
    encoder: str | None = None
    """The encoder that `linker.safetensors` tells the differences to; None: the folder has one."""
    layer: KnowBertConfig | None = None
    """What the layer is, where the folder has no encoder that says it."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What links are made with."""

    settings: LinkerSettings
    config: KnowBertConfig
    encoder: PreTrainedModel
    """Only its layers up to the knowledge layer."""
    linker: MentionLinker
    below: tuple[tuple[KnowBertConfig, Needs], ...]
    """Other knowledge layers that these states depend on; the encoder has them, and the knowledge layer itself."""
    tokenizer: Tokenizer
    ready: ReadyTable | None


def read_settings(folder: Path, kb: str) -> LinkerSettings:
    """What a folder says of how it links: `linker.json`, or what the recipe of its task says; `kb` chooses a layer."""
    if (folder / SETTINGS).is_file():
        try:
            told = json.loads((folder / SETTINGS).read_bytes())
            if told.pop("format", None) != FORMAT:
                raise ValueError("its format is another")
            return configs.from_dict(LinkerSettings, told)
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{folder / SETTINGS} cannot be read ({error}); copy the linker again") from error
    names = [str(entry["kb"]) for entry in layers_told(folder)]
    if kb not in names and len(names) > 1:
        raise UsageError(f"{folder} has knowledge layers of {', '.join(names)}, and none of {kb}; name the KB like one")
    mine = kb if kb in names else names[0]
    needs = Needs.of(folder, mine)
    settings = LinkerSettings(kb=mine, offers=needs.reading, vectors=needs.vectors, fingerprint=needs.fingerprint)
    recipe = read_told(folder).get("recipe")
    if not recipe:
        return settings
    return replace(
        settings,
        sentences=_sentences(recipe, mine),
        width=int(recipe.get("encoder", {}).get("longest", settings.width)),
    )


def _sentences(recipe: dict[str, Any], kb: str) -> int:
    """How many sentences a layer has read together; 0 where what it learned from was no sentences."""
    told = [recipe.get("senses", {})] if recipe.get("task") == "senses" else []
    told += [one for one in recipe.get("links", ()) if one.get("kb") == kb and one.get("form") == "senses"]
    return int(told[0].get("together", 1)) if told else 0


def load_parts(folder: Path, kb: str) -> Parts:
    """What a folder has, for linking to a KB of this name (or to any, where it has one layer)."""
    settings = read_settings(folder, kb)
    ready = ReadyTable.load(folder / ENTITIES) if (folder / ENTITIES).is_file() else None
    if settings.encoder is not None:
        encoder, config, linker = _load_small(folder, settings)
        below: tuple[tuple[KnowBertConfig, Needs], ...] = ()
        name = settings.encoder
    else:
        encoder, config, linker, others = _load_whole(folder, settings)
        below = tuple((other, Needs.of(folder, other.kb)) for other in others)
        name = str(folder)
    tokenizer = load_tokenizer(name)
    settings = replace(settings, width=min(settings.width, positions_of(name)))
    return Parts(
        settings, config, encoder.train(False).requires_grad_(False), linker.train(False), below, tokenizer, ready
    )


def _load_whole(
    folder: Path, settings: LinkerSettings
) -> tuple[PreTrainedModel, KnowBertConfig, MentionLinker, tuple[KnowBertConfig, ...]]:
    encoder = load_encoder(str(folder))
    infusions = list(cast(InfusedEncoder, encoder).infusions) if isinstance(encoder, InfusedEncoder) else []
    mine = [part for part in infusions if isinstance(part, KnowBert) and part.config.kb == settings.kb]
    if not mine:
        raise UsageError(f"{folder} has no knowledge layer of {settings.kb}; give a folder that has one")
    config = mine[0].config
    if other := [type(part).__name__ for part in infusions if not isinstance(part, KnowBert)]:
        raise UsageError(
            f"{folder} is lent more than candidates ({', '.join(other)}), which a linker is not; train one without"
        )
    layers = [part for part in infusions if isinstance(part, KnowBert)]
    # Of layers at one place those that come first are read first.
    earlier = layers[: layers.index(mine[0])]
    below = [part for part in layers if part.config.layer < config.layer]
    below += [part for part in earlier if part.config.layer == config.layer]
    kept = [part for part in layers if part in below or part is mine[0]] if below else []
    cast(InfusedEncoder, encoder).set_infusions(nn.ModuleList(kept))
    cut_layers(encoder, config.layer + 1)
    return encoder, config, mine[0].linker, tuple(part.config for part in below)


def _load_small(folder: Path, settings: LinkerSettings) -> tuple[PreTrainedModel, KnowBertConfig, MentionLinker]:
    config = settings.layer
    if config is None:
        raise InputError(f"{folder / SETTINGS} does not say what its layer is; copy the linker again")
    encoder = load_encoder(str(settings.encoder))
    cut_layers(encoder, config.layer + 1)
    linker = MentionLinker(config, int(encoder.config.hidden_size))
    try:
        weights = load_file(folder / WEIGHTS)
        own = {
            name.removeprefix("linker."): weights.pop(name).float() for name in list(weights) if name[:7] == "linker."
        }
        linker.load_state_dict(own)
        with torch.no_grad():
            for name, weight in encoder.named_parameters():
                if f"{name}.up" in weights:
                    weight.add_(weights.pop(f"{name}.up").float() @ weights.pop(f"{name}.down").float())
                elif f"{name}.codes" in weights:
                    codes, scales = weights.pop(f"{name}.codes"), weights.pop(f"{name}.scales")
                    weight.add_(four_bit.decode(codes, scales, weight.shape[1]))
                elif name in weights:
                    weight.copy_(weights.pop(name))
        if weights:
            raise ValueError(f"{settings.encoder} has no {sorted(weights)[0]}")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder / WEIGHTS} cannot be read ({error}); copy the linker again") from error
    return encoder, config, linker


def cut_layers(encoder: PreTrainedModel, count: int) -> None:
    """Leave an encoder only its first layers."""
    family = FAMILIES[str(encoder.config.model_type).removeprefix("infused-")]
    layers = cast(nn.ModuleList, cast(nn.Module, encoder).get_submodule(family.layers))
    del layers[count:]


@dataclass(frozen=True, slots=True)
class Saved:
    """How a linker was written."""

    bytes: int
    error: float
    """The largest share of a weight's change that was lost; 0 where the encoder was written whole."""


def save_linker(
    folder: str | Path,
    encoder: PreTrainedModel,
    tokenizer: Tokenizer,
    settings: LinkerSettings,
    *,
    ready: ReadyTable | None = None,
    base: str | None = None,
    rank: int | None = None,
) -> Saved:
    """Write the knowledge layer of an infused encoder as a linker.

    With a `base`, the encoder it was before it learned ("minilm"), only what changed is written: in 4 bits, or with a
    `rank` as differences of it, which is exact where adapters of that rank learned. Without one the whole encoder is.
    """
    folder = Path(folder)
    found = [
        part
        for part in cast(InfusedEncoder, encoder).infusions
        if isinstance(part, KnowBert) and part.config.kb == settings.kb
    ]
    if not found:
        raise UsageError(f"the encoder has no knowledge layer of {settings.kb}; give one that has")
    layer, error = found[0], 0.0
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if base is None:
            with silence():
                encoder.save_pretrained(folder)
            save_tokenizer(tokenizer, folder, encoder.config)
        else:
            settings = replace(settings, encoder=base, layer=layer.config)
            weights = {f"linker.{name}": weight for name, weight in layer.linker.state_dict().items()}
            for name, part, lost in _changes(encoder, base, layer.config.layer + 1, rank):
                weights[name], error = part, max(error, lost)
            save_file({name: _half(weight).contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
        if ready is not None:
            ready.save(folder / ENTITIES)
        with write_atomically(folder / SETTINGS) as file:
            file.write(json.dumps({"format": FORMAT, **configs.to_dict(settings)}, indent=2).encode() + b"\n")
        return Saved(sum(path.stat().st_size for path in folder.iterdir()), error)


def _changes(encoder: PreTrainedModel, base: str, layers: int, rank: int | None) -> Iterator[tuple[str, Tensor, float]]:
    """(name, weight, share that is lost) of what differs from the base in the embeddings and first layers."""
    before = load_encoder(base)
    cut_layers(before, layers)
    now = dict(encoder.named_parameters())
    for name, old in before.named_parameters():
        new = now[name].detach().cpu().to(old.dtype)
        if torch.equal(new, old):
            continue
        if old.numel() <= _FEW:
            yield name, new, 0.0
            continue
        change = (new - old.detach()).double()
        if rank is None:
            codes, scales = four_bit.code(change)
            lost = float((change - four_bit.decode(codes, scales, change.shape[1])).norm() / change.norm())
            yield f"{name}.codes", codes, lost
            yield f"{name}.scales", scales, lost
            continue
        left, sizes, right = torch.linalg.svd(change, full_matrices=False)
        root = sizes[:rank].sqrt()
        lost = float(sizes[rank:].norm() / sizes.norm())
        yield f"{name}.up", (left[:, :rank] * root), lost
        yield f"{name}.down", (root[:, None] * right[:rank]), lost


def _half(weight: Tensor) -> Tensor:
    return weight.detach().cpu().to(torch.float16 if weight.is_floating_point() else weight.dtype)
