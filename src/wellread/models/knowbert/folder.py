"""Folders of models with knowledge layers: their requirements, and linkers made from them.

A link depends only on the encoder layers up to the knowledge layer, and on its mention linker. Three kinds of folders
can link:

- an infused encoder as `save_pretrained` writes it, with its tokenizer: also the run of a task, its `model` folder, or
  the output of `convert knowbert`
- the same with `linker.json` (`LinkerSettings`), the settings of a linker
- a small one: `linker.json` names a packaged encoder, and `linker.safetensors` has the trained changes of its weights
  (in 4 bits, or of low rank) and the weights of the mention linker

With `entities.safetensors` (`models.knowbert.quantization`) a folder needs no entity vectors of the KB. Otherwise
`LayerRequirements` names them: by the recipe in `task.json` or `knowledge.json`, or as `vectors/NAME` in the folder of
a converted model. They are checked by fingerprint: vectors of another encoder are incompatible even if the dimensions
match.

    wellread train recipes/knowbert-senses.toml --to runs/senses
    wellread convert linker runs/senses --kb wordnet --to models/senses      # some megabytes
    wellread link --kb wordnet --model models/senses "…"
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
from wellread.encoders.files import load_tokenizer, positions_of
from wellread.encoders.infusion.infuse import FAMILIES, InfusedEncoder
from wellread.encoders.load import load_encoder, save_tokenizer, silence
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.io.files import storage, write_atomically
from wellread.kb.store import KnowledgeBase
from wellread.models.folder import SETTINGS, find_folder, knowbert_layers
from wellread.models.knowbert.config import CandidateConfig, KnowBertConfig
from wellread.models.knowbert.entity_tables import kind_names
from wellread.models.knowbert.mention_linker import MentionLinker
from wellread.models.knowbert.model import KnowBert
from wellread.models.knowbert.quantization import Int8EntityTable, decode_4bit, encode_4bit

FORMAT = "wellread knowbert linker 1"
WEIGHTS, ENTITIES = "linker.safetensors", "entities.safetensors"
MANIFESTS = ("task.json", "knowledge.json")
"""Files with the recipe and vectors of a trained task, and of a pretrained model."""

_SMALL = 1 << 16
"""Maximum number of elements of a changed weight that is written whole instead of as a difference."""


@dataclass(frozen=True, slots=True)
class LayerRequirements:
    """KB, entity vectors and candidate options that a saved knowledge layer needs."""

    kb: str
    """Name or path of the KB."""
    vectors: str | None
    """Folder of its entity vectors; None: beside the KB."""
    fingerprint: str | None
    """Fingerprint of the entity vectors used in training; None if unknown."""
    reading: CandidateConfig

    @classmethod
    def of(cls, folder: Path, name: str) -> LayerRequirements:
        """Read the requirements of the layer with this name, with defaults for what the folder does not say."""
        manifest = read_manifest(folder)
        options = _table(_table(_table(manifest, "recipe"), "offers"), name)
        return cls(
            options.get("kb") or name,
            options.get("vectors") or own_vectors(folder, name),
            _table(_table(manifest, "vectors"), name).get("fingerprint"),
            configs.from_dict(CandidateConfig, options.get("reading") or {}),
        )

    def open_vectors(self, kb: KnowledgeBase) -> EntityVectors:
        """Open the vectors of a KB; those with another fingerprint are refused."""
        return EntityVectors.of_kb(kb, self.vectors, fingerprint=self.fingerprint)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the recipe and vectors that a folder's model was trained with; empty if it has no manifest."""
    for name in MANIFESTS:
        try:
            manifest = json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict):
            return manifest
    return {}


def own_vectors(folder: Path, name: str) -> str | None:
    """Return the folder of entity vectors inside that of a converted model; None if it has none."""
    path = folder / "vectors" / name
    return str(path.resolve()) if (path / "vectors.json").is_file() else None


def _table(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = mapping.get(name)
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkerSettings:
    """Settings of a linker that is a knowledge layer; `linker.json`."""

    kb: str = "wordnet"
    """Name of the KB in the encoder."""
    sentences: int = 1
    """Number of sentences read together, as in training; 0: windows, regardless of sentences."""
    width: int = 128
    """Maximum number of tokens of a window."""
    threshold: float = 0.0
    """Default probability that a link must exceed."""
    tags: Literal["spacy"] | None = None
    """Part-of-speech tagger that restricts the candidates of words; None for no restriction."""
    offers: CandidateConfig = field(default_factory=CandidateConfig)
    vectors: str | None = None
    """Folder of the entity vectors; None: beside the KB."""
    fingerprint: str | None = None
    """Fingerprint of the entity vectors used in training; None if unknown."""
    encoder: str | None = None
    """Encoder that `linker.safetensors` has the differences to; None: the folder has an encoder."""
    layer: KnowBertConfig | None = None
    """Configuration of the layer, if the folder has no encoder."""


@dataclass(frozen=True, slots=True)
class LinkerParts:
    """Loaded model and settings of a linker."""

    settings: LinkerSettings
    config: KnowBertConfig
    encoder: PreTrainedModel
    """Encoder with only its layers up to the knowledge layer."""
    linker: MentionLinker
    below: tuple[tuple[KnowBertConfig, LayerRequirements], ...]
    """Knowledge layers of other KBs that the states depend on; if there are any, the encoder contains them and the
    linking layer."""
    tokenizer: Tokenizer
    entities: Int8EntityTable | None


def read_settings(folder: Path, kb: str) -> LinkerSettings:
    """Return the settings in `linker.json`, else those of the recipe; `kb` selects one of several layers."""
    if (folder / SETTINGS).is_file():
        try:
            data = json.loads((folder / SETTINGS).read_bytes())
            if data.pop("format", None) != FORMAT:
                raise ValueError("its format is another")
            return configs.from_dict(LinkerSettings, data)
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{folder / SETTINGS} cannot be read ({error}); copy the linker again") from error
    names = [str(entry["kb"]) for entry in knowbert_layers(folder)]
    if kb not in names and len(names) > 1:
        raise UsageError(f"{folder} has knowledge layers of {', '.join(names)}, and none of {kb}; name the KB like one")
    name = kb if kb in names else names[0]
    needs = LayerRequirements.of(folder, name)
    settings = LinkerSettings(kb=name, offers=needs.reading, vectors=needs.vectors, fingerprint=needs.fingerprint)
    recipe = read_manifest(folder).get("recipe")
    if not recipe:
        return settings
    width = int(recipe.get("encoder", {}).get("longest", settings.width))
    return replace(settings, sentences=_sentences(recipe, name), width=width)


def _sentences(recipe: dict[str, Any], kb: str) -> int:
    """Return the number of sentences a layer was trained on together; 0 if its texts were not sentences."""
    senses = [recipe.get("senses", {})] if recipe.get("task") == "senses" else []
    senses += [data for data in recipe.get("links", ()) if data.get("kb") == kb and data.get("form") == "senses"]
    return int(senses[0].get("together", 1)) if senses else 0


def load_parts(folder: Path, kb: str) -> LinkerParts:
    """Load the model that links to a KB of this name (or to any, if the folder has one layer)."""
    settings = read_settings(folder, kb)
    entities = Int8EntityTable.load(folder / ENTITIES) if (folder / ENTITIES).is_file() else None
    if settings.encoder is not None:
        encoder, config, linker = _load_small(folder, settings)
        below: tuple[tuple[KnowBertConfig, LayerRequirements], ...] = ()
        name = settings.encoder
    else:
        encoder, config, linker, others = _load_whole(folder, settings)
        below = tuple((other, LayerRequirements.of(folder, other.kb)) for other in others)
        name = str(folder)
    settings = replace(settings, width=min(settings.width, positions_of(name)))
    encoder = encoder.train(False).requires_grad_(False)
    return LinkerParts(settings, config, encoder, linker.train(False), below, load_tokenizer(name), entities)


def _load_whole(
    folder: Path, settings: LinkerSettings
) -> tuple[PreTrainedModel, KnowBertConfig, MentionLinker, tuple[KnowBertConfig, ...]]:
    encoder = load_encoder(str(folder))
    infusions = list(encoder.infusions) if isinstance(encoder, InfusedEncoder) else []
    layers = [part for part in infusions if isinstance(part, KnowBert)]
    layer = next((part for part in layers if part.config.kb == settings.kb), None)
    if layer is None:
        raise UsageError(f"{folder} has no knowledge layer of {settings.kb}; give a folder that has one")
    if other := [type(part).__name__ for part in infusions if not isinstance(part, KnowBert)]:
        raise UsageError(
            f"{folder} was trained with other infusions ({', '.join(other)}); only KnowBERT layers can be used as a "
            "linker: train one without"
        )
    # Layers after the same encoder layer run in the order of their list.
    position = layer.config.layer
    below = [part for part in layers if part.config.layer < position]
    below += [part for part in layers[: layers.index(layer)] if part.config.layer == position]
    kept = [part for part in layers if part in below or part is layer] if below else []
    cast(InfusedEncoder, encoder).set_infusions(nn.ModuleList(kept))
    keep_first_layers(encoder, position + 1)
    return encoder, layer.config, layer.linker, tuple(part.config for part in below)


def _load_small(folder: Path, settings: LinkerSettings) -> tuple[PreTrainedModel, KnowBertConfig, MentionLinker]:
    config = settings.layer
    if config is None:
        raise InputError(f"{folder / SETTINGS} does not say what its layer is; copy the linker again")
    encoder = load_encoder(str(settings.encoder))
    keep_first_layers(encoder, config.layer + 1)
    linker = MentionLinker(config, int(encoder.config.hidden_size))
    try:
        weights = load_file(folder / WEIGHTS)
        names = [name for name in weights if name.startswith("linker.")]
        linker.load_state_dict({name.removeprefix("linker."): weights.pop(name).float() for name in names})
        with torch.no_grad():
            for name, weight in encoder.named_parameters():
                if f"{name}.up" in weights:
                    weight.add_(weights.pop(f"{name}.up").float() @ weights.pop(f"{name}.down").float())
                elif f"{name}.codes" in weights:
                    codes, scales = weights.pop(f"{name}.codes"), weights.pop(f"{name}.scales")
                    weight.add_(decode_4bit(codes, scales, weight.shape[1]))
                elif name in weights:
                    weight.copy_(weights.pop(name))
        if weights:
            raise ValueError(f"{settings.encoder} has no {sorted(weights)[0]}")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder / WEIGHTS} cannot be read ({error}); copy the linker again") from error
    return encoder, config, linker


def keep_first_layers(encoder: PreTrainedModel, count: int) -> None:
    """Remove all layers of an encoder after the first `count`."""
    family = FAMILIES[str(encoder.config.model_type).removeprefix("infused-")]
    layers = cast(nn.ModuleList, cast(nn.Module, encoder).get_submodule(family.layers))
    del layers[count:]


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
    return save_linker(folder, encoder, load_tokenizer(str(found)), settings, entities=entities, base=base, rank=rank)


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
        return SavedLinker(sum(path.stat().st_size for path in folder.iterdir()), error)


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
            codes, scales = encode_4bit(change)
            lost = float((change - decode_4bit(codes, scales, change.shape[1])).norm() / change.norm())
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
