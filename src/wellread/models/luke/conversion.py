"""Conversion of LUKE models between wellread's layout and that of transformers.

    model = load("luke-base")                          # either layout, with the head that the folder names
    to_hf(model, "mine-for-transformers")
    convert_luke("luke-base", "models/luke-base")      # folder to folder, with tokenizer and entity vocabulary

A BERT becomes a LUKE whose positions start behind its padding id, as RoBERTa's do. The head of a task trained with
`wellread train` is converted too if transformers' LUKE has the same. Reading is in `models.luke.checkpoint`.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LukeConfig as TheirConfig
from transformers import PreTrainedConfig, PreTrainedModel

from wellread.encoders.files import load_tokenizer
from wellread.encoders.foreign_checkpoint import Weights, rename_weights
from wellread.encoders.infusion.infuse import base_of, infused_class
from wellread.encoders.load import AS_IT_IS, silence, tokenizer_settings
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.models.elq.conversion import new_folder, refuse_full
from wellread.models.luke.checkpoint import (
    AUTHORS,
    DISAMBIGUATION,
    ENCODER,
    FIELDS,
    LUKE,
    MASK_VECTOR,
    PARTS,
    QUERIES,
    TABLE,
    build_strictly,
    configuration_errors,
    family_of,
    find_vocabulary,
    head_in,
    head_table,
    is_ours,
    read_config,
    read_encoder,
    read_files,
    read_hf,
    read_settings,
    saved_as,
)
from wellread.models.luke.heads import HEADS
from wellread.models.luke.model import luke_in, luke_of
from wellread.models.luke.vocabulary import FILE, IN_SETTINGS, SETTINGS, EntityVocabulary

Layout = Literal["hf", "wellread"]
_OWN = re.compile(rf"{re.escape(LUKE)}queries\.(\d+)\.(\w+)\.(\w+)")
_BESIDE = ("*.json", "*.txt", "*.model", "entity_vocab.*")
"""Files copied with the weights: tokenizers and the entity vocabulary."""
_TOKENIZERS = {"roberta": "LukeTokenizer", "xlm-roberta": "MLukeTokenizer"}
"""Tokenizer class of transformers for LUKE's inputs with a tokenizer.json; there is none for BERT."""
_TASKS = {
    "ner": ("ForEntitySpanClassification", "labels"),
    "tacred": ("ForEntityPairClassification", "labels"),
    "semeval2010": ("ForEntityPairClassification", "labels"),
    "entity-types": ("ForEntityClassification", "types"),
}
"""Tasks whose head transformers' LUKE has, and the key of their class names in `task.json`."""
_NO_ENTITY = "NIL"
"""Class of spans without an entity, as the authors call it."""


def from_hf(folder: str | Path, head: str | None = None) -> PreTrainedModel:
    """Load a folder of Hugging Face's layout, or of the authors, as an infused model.

    `head` is "Model", "ForMaskedLM", "ForEntitySpanClassification" and so on; by default the one it was saved with.
    """
    folder = Path(folder)
    config_dict = read_config(folder)
    saved, weights = saved_as(config_dict, folder), read_encoder(folder)
    if head is None:
        head = _guess_head(weights) if saved is None else saved.removeprefix("Luke")
    family = "bert" if MASK_VECTOR in weights else family_of(config_dict)
    return read_hf(folder, _class_of(folder, family, head), weights=weights)


def load(folder: str | Path, head: str | None = None) -> PreTrainedModel:
    """Load a LUKE folder of either layout; `head` is by default the one it was saved with."""
    folder = Path(folder)
    config_dict = read_config(folder)
    return _open_ours(folder, config_dict, head) if is_ours(config_dict) else from_hf(folder, head)


def _guess_head(weights: Mapping[str, Tensor]) -> str:
    """Return the head of the authors' files, which do not name it."""
    if MASK_VECTOR in weights:
        return DISAMBIGUATION
    return "ForMaskedLM" if "lm_head.dense.weight" in weights else "Model"


def _class_of(folder: Path, family: str, head: str) -> type[PreTrainedModel]:
    try:
        return HEADS.get(head, {}).get(family) or infused_class(family, head)
    except AttributeError:
        raise InputError(
            f"{folder} cannot be loaded: there is no head Luke{head} for {family}; use one of transformers' LUKE, "
            "or Model"
        ) from None


def _open_ours(folder: Path, config_dict: Mapping[str, Any], head: str | None) -> PreTrainedModel:
    """Load a model that wellread saved."""
    saved = saved_as(config_dict, folder)
    if head is None and saved is None:
        raise InputError(
            f"{folder / 'config.json'} does not say in architectures which head the model was saved with; copy it "
            'again, or name a head: wellread.models.luke.conversion.load(folder, "Model")'
        )
    model_class = _class_of(folder, family_of(config_dict), head or head_in(str(saved)))
    weights, kind = read_files(folder), cast(type[PreTrainedConfig], model_class.config_class)
    with configuration_errors(folder):
        config = kind.from_pretrained(folder, local_files_only=True)
    model = build_strictly(model_class, config, weights, folder)
    if (luke := luke_in(model)) is not None:
        find_vocabulary(folder, luke.config.entities)
    return model


def to_hf(model: PreTrainedModel, folder: str | Path) -> None:
    """Write a model with entities to a new folder, in the layout of transformers' LUKE."""
    to = Path(folder)
    refuse_full(to)
    config, weights = _as_theirs(model)
    with new_folder(to) as part:
        config.save_pretrained(part)
        save_file(weights, part / "model.safetensors", metadata={"format": "pt"})


def convert_luke(source: str | Path, to: str | Path, layout: Layout | None = None) -> Layout:
    """Write a LUKE to a new folder in the other layout, "wellread" or "hf" (transformers'); return that layout."""
    source, to = Path(source), Path(to)
    refuse_full(to)
    if not (source / "config.json").exists() and (source / "model" / "config.json").exists():
        source = source / "model"  # a run folder
    ours = is_ours(read_config(source))
    new_layout: Layout = "hf" if ours else "wellread"
    if layout is not None and layout != new_layout:
        raise UsageError(f"{source} has the layout {layout} already; copy it, or convert it to the layout {new_layout}")
    model = load(source)
    if ours and (source / "task.json").exists():
        model = _with_head(model, source)
    with new_folder(to) as part:
        if ours:
            to_hf(model, part / "new")
            for file in (part / "new").iterdir():
                file.rename(part / file.name)
            (part / "new").rmdir()
            _copy_beside(source, part)
            _set_tokenizer_class(part, model.config, source)
        else:
            with silence():
                model.save_pretrained(part)
            _copy_beside(source, part)
    return new_layout


def _with_head(model: PreTrainedModel, source: Path) -> PreTrainedModel:
    """Return the encoder of a trained task under the task's head, if transformers' LUKE has one."""
    try:
        saved = json.loads((source / "task.json").read_bytes())
        task, facts = str(saved["recipe"]["task"]), saved["facts"]
        weights = load_file(source / "head.safetensors")
        if task in _TASKS:
            head, key = _TASKS[task]
            names = [_NO_ENTITY, *facts[key]] if task == "ner" else list(facts[key])
            weight, bias = weights["out.weight"], weights.get("out.bias")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"{source} has no complete head of its task ({error}); copy it again, or train it again"
        ) from error
    if task not in _TASKS:
        console.note(f"transformers' LUKE has no head for {task}: only the encoder is written")
        return model
    config = copy.deepcopy(model.config)
    config.id2label, config.label2id = dict(enumerate(names)), {name: number for number, name in enumerate(names)}
    with_head: Any = HEADS[head][str(config.model_type).removeprefix("infused-")](config)
    base_of(with_head).load_state_dict(model.state_dict())
    with_head.classifier.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return cast(PreTrainedModel, with_head)


def _as_theirs(model: PreTrainedModel) -> tuple[TheirConfig, Weights]:
    """Return configuration and weights of a model of ours by transformers' names."""
    luke = luke_of(model)
    kind, head = str(model.config.model_type).removeprefix("infused-"), head_in(type(model).__name__)
    if kind not in HEADS["ForMaskedLM"] or len(cast(Any, base_of(model)).infusions) > 1:
        raise UsageError(
            f"transformers' LUKE does not support {kind} or other infusions; only BERT, RoBERTa and XLM-R with LUKE "
            "alone can be written for it"
        )
    if head == DISAMBIGUATION and kind != "bert":
        raise UsageError(
            f"the authors' {DISAMBIGUATION} is a BERT, not a {kind}; keep wellread's layout, or write the model "
            'without that head: to_hf(load(folder, "Model"), to)'
        )
    if not luke.config.seen:
        raise UsageError(
            "words of transformers' LUKE attend to entities, but this model has seen = false; keep wellread's layout"
        )
    prefix = "" if head == "Model" else f"{model.base_model_prefix}."
    begin = "" if head == "Model" else "luke."
    weights: Weights = {}
    back = {ours: theirs for theirs, ours in ENCODER.items()}
    table = {ours: theirs for theirs, ours in head_table(type(model), head).items()}
    for name, weight in model.state_dict().items():
        inside = name.removeprefix(prefix)
        known = {_OWN.sub(_name_theirs, inside): weight} if name.startswith(prefix) else {name: weight}
        (renamed,) = rename_weights(known, back if name.startswith(prefix) else table)
        in_encoder = renamed.startswith(PARTS) and not renamed.startswith("entity_predictions.")
        weights[f"{begin if in_encoder else ''}{renamed}"] = weight.detach().clone().contiguous()
    if head not in ("ForMaskedLM", DISAMBIGUATION):  # other classes have no entity head
        weights = {name: weight for name, weight in weights.items() if not name.startswith("entity_predictions.")}
    if head == DISAMBIGUATION:  # the authors' class: a BERT with positions from 0, and [MASK] beside the table
        weights[f"{begin}{MASK_VECTOR}"] = weights[f"{begin}{TABLE}"][luke.masks[0]].clone()
    first = _start_behind_padding(weights, model, begin) if kind == "bert" and head != DISAMBIGUATION else 0
    fields = {name: getattr(model.config, name) for name in FIELDS if hasattr(model.config, name)}
    fields["max_position_embeddings"] += first
    config = TheirConfig(
        **fields,
        entity_vocab_size=luke.config.entities,
        entity_emb_size=luke.config.dim,
        use_entity_aware_attention=luke.config.aware,
        architectures=[f"Luke{head}"],
    )
    return config, weights


def _name_theirs(match: re.Match[str]) -> str:
    query = next(theirs for theirs, ours in QUERIES.items() if ours == match[2])
    return f"encoder.layer.{match[1]}.attention.self.{query}.{match[3]}"


def _start_behind_padding(weights: Weights, model: PreTrainedModel, begin: str) -> int:
    """Add position rows, before those of words and after those of entities; return their number.

    BERT's positions start at 0, LUKE's behind the padding id.
    """
    first = int(model.config.pad_token_id) + 1
    for part, order in (("embeddings", 1), ("entity_embeddings", -1)):
        name = f"{begin}{part}.position_embeddings.weight"
        rows = weights[name].new_zeros(first, weights[name].shape[1])
        weights[name] = torch.cat((rows, weights[name])[::order])
    return first


def _copy_beside(source: Path, to: Path) -> None:
    """Copy tokenizer and entity vocabulary, the latter in a form that transformers reads."""
    for file in sorted({file for pattern in _BESIDE for file in source.glob(pattern)}):
        weighty = file.name.endswith(".index.json") or file.name == AUTHORS
        if file.is_file() and not weighty and not (to / file.name).exists():
            shutil.copyfile(file, to / file.name)
    if not (to / FILE).exists() and (vocabulary := EntityVocabulary.find(source)) is not None:
        vocabulary.save(to)
    if (to / SETTINGS).is_file():  # transformers would prefer its vocabulary to the file
        settings = read_settings(source)
        if settings.pop(IN_SETTINGS, None) is not None:
            _write_settings(to, settings)


def _write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _set_tokenizer_class(folder: Path, config: PreTrainedConfig, source: Path) -> None:
    """Name the tokenizer class of tokenizer.json unless the settings do; for BERT also its special tokens."""
    file, settings = folder / "tokenizer.json", folder / SETTINGS
    own = _TOKENIZERS.get(str(config.model_type).removeprefix("infused-"))
    named = read_settings(folder).get("tokenizer_class")
    if not file.is_file() or (settings.exists() and (own is None or named != AS_IT_IS)):
        return
    new = (
        {"tokenizer_class": own}
        if own is not None
        else tokenizer_settings(load_tokenizer(str(source.resolve())), config)
    )
    _write_settings(folder, new)
