"""Folders of models with knowledge layers: their requirements, and linkers made from them.

A link depends only on the encoder layers up to the knowledge layer, and on its mention linker. Three kinds of folders
can link:

- an infused encoder as `save_pretrained` writes it, with its tokenizer: also the run of a task, its `model` folder, or
  the output of `convert knowbert`
- the same with `linker.json` (`LinkerSettings`), the settings of a linker
- a small one: `linker.json` names a packaged encoder, and `linker.safetensors` has the trained changes of its weights
  (in 4 bits, or of low rank) and the weights of the mention linker

`ranges.safetensors` has the activation ranges for 8-bit integers; without it they are measured on texts of the KB.
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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from wellread import config as configs
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.folder import SETTINGS, knowbert_layers
from wellread.models.knowbert.config import CandidateConfig, KnowBertConfig

FORMAT = "wellread knowbert linker 1"
WEIGHTS, ENTITIES = "linker.safetensors", "entities.safetensors"
MANIFESTS = ("task.json", "knowledge.json")
"""Files with the recipe and vectors of a trained task, and of a pretrained model."""


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
