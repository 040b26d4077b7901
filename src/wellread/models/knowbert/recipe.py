"""KBs, entity vectors and knowledge layers that a recipe names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer
from torch import nn

from wellread.encoders.files import find_encoder
from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.io import console
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.definitions import DefinitionEncoder, fingerprint_of_encoder
from wellread.models.knowbert.folder import LayerRequirements, own_vectors
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.model import KnowBert
from wellread.models.knowbert.sense_texts import sense_texts_by_entity
from wellread.tasks.recipe import CandidateOptions, TaskRecipe


def open_candidate_kb(
    recipe: TaskRecipe, name: str, fingerprint: str | None = None
) -> tuple[KnowledgeBase, EntityVectors]:
    """Open a KB by its name in a recipe, and its entity vectors; vectors with another fingerprint are refused."""
    options = recipe.offers.get(name)
    kb = open_kb(name if options is None or options.kb is None else options.kb)
    try:
        return kb, EntityVectors.of_kb(kb, _vectors_of(recipe, name), fingerprint=fingerprint)
    except BaseException:
        kb.close()
        raise


def _vectors_of(recipe: TaskRecipe, name: str) -> str | None:
    """Return the folder of entity vectors in the recipe, else in the encoder's folder; None: beside the KB."""
    options = recipe.offers.get(name)
    if options is not None and options.vectors is not None:
        return options.vectors
    return own_vectors(find_encoder(recipe.encoder.name), name)


def candidate_options(recipe: TaskRecipe, names: Iterable[str]) -> dict[str, CandidateOptions]:
    """Return the recipe's [offers] for a saved model, whose folder will not contain its encoder's own vectors."""
    options = dict(recipe.offers)
    for name in names:
        if (vectors := _vectors_of(recipe, name)) is not None:
            options[name] = replace(options.get(name, CandidateOptions()), vectors=vectors)
    return options


def describe_vectors(recipe: TaskRecipe, names: Iterable[str]) -> dict[str, Any]:
    """Return the state of each KB and of the entity vectors that a model is trained with, for its manifest."""
    described = {}
    for name in names:
        kb, vectors = open_candidate_kb(recipe, name)
        with kb:
            metadata = kb.metadata
        described[name] = {
            "uid": metadata["uid"],
            "revision": int(metadata["revision"]),
            "fingerprint": vectors.fingerprint,
            "file": vectors.file,
            "entities": len(vectors),
            "dim": vectors.dim,
        }
    return described


def check_vectors(recipe: TaskRecipe, names: Iterable[str]) -> None:
    """Refuse entity vectors with another fingerprint than those that the recipe's encoder was trained with."""
    folder = find_encoder(recipe.encoder.name)
    for name in names:
        kb, _ = open_candidate_kb(recipe, name, LayerRequirements.of(folder, name).fingerprint)
        kb.close()


def build_knowbert_provider(recipe: TaskRecipe, names: Iterable[str]) -> KnowBertProvider:
    """Build the provider of the candidates of some KBs."""
    parts = [(name, *open_candidate_kb(recipe, name)) for name in names]
    return KnowBertProvider(parts, {name: recipe.offers[name].reading for name, _, _ in parts if name in recipe.offers})


def load_knowbert_provider(folder: Path, encoder: Any, stack: ExitStack) -> KnowBertProvider | None:
    """Build the provider of a saved encoder and set the entity vectors of its layers, as its folder names them.

    None for an encoder without knowledge layers. `stack` closes the KBs.
    """
    parts, readings = [], {}
    for part in getattr(encoder, "infusions", ()):
        if not isinstance(part, KnowBert):
            raise UsageError(
                f"this encoder has another infusion ({type(part).__name__}), whose inputs only a trained task "
                "defines; give the folder of its run"
            )
        name = part.config.kb
        needs = LayerRequirements.of(folder, name)
        kb = stack.enter_context(open_kb(needs.kb))
        vectors = needs.open_vectors(kb)
        part.take_of(kb, vectors)
        parts.append((name, kb, vectors))
        readings[name] = needs.reading
    return KnowBertProvider(parts, readings) if parts else None


def layer_configs(recipe: TaskRecipe) -> list[KnowBertConfig]:
    """Return the knowledge layers of a recipe, with `raw` set from their entity vectors."""
    layers = []
    for name, layer in recipe.knowbert.items():
        kb, vectors = open_candidate_kb(recipe, name)
        kb.close()
        layers.append(replace(layer, kb=name, raw=vectors.dim))
    return layers


def save_defined_vectors(
    recipe: TaskRecipe, name: str, encoder: InfusedEncoder, tokenizer: Tokenizer, folder: Path
) -> TaskRecipe:
    """Encode the entities of a KB by the encoder trained with their definitions, and save them in the model's folder.

    Return the recipe that names these vectors.
    """
    infusions: Iterable[Any] = encoder.infusions
    layer = next(part for part in infusions if isinstance(part, KnowBert) and part.config.kb == name)
    plain = cast(nn.Module, encoder)
    was_training = plain.training
    plain.train(False)
    kb, _ = open_candidate_kb(recipe, name)
    with kb, encoder.without():
        made = DefinitionEncoder(
            plain,
            tokenizer,
            layer.config,
            fingerprint_of_encoder(plain, layer.config),
            sense_texts_by_entity(kb),
            bf16=recipe.schedule.precision == "bf16",
        )
        console.note(f"encoding the definitions of {kb.path.stem}")
        layer.take_of(kb, EntityVectors.build(kb, made, folder / "vectors" / name))
    plain.train(was_training)
    options = recipe.offers.get(name, CandidateOptions())
    return replace(recipe, offers={**recipe.offers, name: replace(options, vectors=None)})


def load_entity_tables(recipe: TaskRecipe, encoder: InfusedEncoder) -> None:
    """Set the entity vectors of an encoder's layers, which are not part of its weights."""
    infusions: Iterable[Any] = encoder.infusions
    for infusion in infusions:
        if isinstance(infusion, KnowBert):
            kb, vectors = open_candidate_kb(recipe, infusion.config.kb)
            with kb:
                infusion.take_of(kb, vectors)


_FREE = ("margin", "threshold", "dropout", "start")
"""Settings of a layer that may differ from those its weights were trained with."""


def trained_infusions(encoder: Any) -> dict[str, Infusion]:
    """Return the infusions of an encoder by kind and KB; empty for a plain encoder."""
    if not isinstance(encoder, InfusedEncoder):
        return {}
    names = map(_name_of, encoder.config.infusions)
    return dict(zip(names, encoder.infusions, strict=True))  # type: ignore[arg-type]


def restore_trained(recipe: TaskRecipe, encoder: InfusedEncoder, before: Mapping[str, Infusion]) -> None:
    """Copy the weights of former infusions into the same infusions of a newly infused encoder.

    A KnowBERT layer with other sizes or settings is an error.
    """
    infusions: Iterable[Any] = encoder.infusions
    for entry, infusion in zip(encoder.config.infusions, infusions, strict=True):
        old: Any = before.get(_name_of(entry))
        if old is None:
            continue
        was, now = asdict(old.config), asdict(infusion.config)
        differ = [name for name in now if was[name] != now[name] and name not in _FREE]
        if not differ:
            infusion.load_state_dict(old.state_dict())
            if isinstance(infusion, KnowBert):
                check_vectors(recipe, [infusion.config.kb])
        elif isinstance(infusion, KnowBert):
            name, kb = differ[0], infusion.config.kb
            fix = f"set the same in [knowbert.{kb}], or use an encoder without this layer"
            if name == "raw":
                fix = f"give the vectors that it was trained with, as vectors in [offers.{kb}]"
            raise UsageError(
                f"the encoder has a layer of {kb} trained with {name} = {was[name]}, but the recipe sets "
                f"{name} = {now[name]}; {fix}"
            )


def _name_of(entry: Mapping[str, Any]) -> str:
    return f"{entry['kind']}.{entry['kb']}" if "kb" in entry else str(entry["kind"])
