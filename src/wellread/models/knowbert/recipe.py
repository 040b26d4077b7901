"""The knowledge bases whose candidates a recipe offers, with their entity vectors; and the layers that take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import find_encoder
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.model import KnowBert, KnowBertConfig
from wellread.models.knowbert.requirements import Needs, own_vectors
from wellread.tasks.recipe import CandidateOptions, TaskRecipe


def open_candidate_kb(
    recipe: TaskRecipe, name: str, fingerprint: str | None = None
) -> tuple[KnowledgeBase, EntityVectors]:
    """A knowledge base by its name in a recipe, and its entity vectors; others than asked for are refused."""
    told = recipe.offers.get(name)
    kb = open_kb(name if told is None or told.kb is None else told.kb)
    try:
        return kb, EntityVectors.of_kb(kb, _vectors_of(recipe, name), fingerprint=fingerprint)
    except BaseException:
        kb.close()
        raise


def _vectors_of(recipe: TaskRecipe, name: str) -> str | None:
    """The folder of entity vectors: as the recipe says, else the encoder's own; None: beside the knowledge base."""
    told = recipe.offers.get(name)
    if told is not None and told.vectors is not None:
        return told.vectors
    return own_vectors(find_encoder(recipe.encoder.name), name)


def candidate_options(recipe: TaskRecipe, names: Iterable[str]) -> dict[str, CandidateOptions]:
    """The recipe's [offers] for the folder of a model, which does not take its encoder's own vectors along."""
    offers = dict(recipe.offers)
    for name in names:
        if (vectors := _vectors_of(recipe, name)) is not None:
            offers[name] = replace(offers.get(name, CandidateOptions()), vectors=vectors)
    return offers


def about_vectors(recipe: TaskRecipe, names: Iterable[str]) -> dict[str, Any]:
    """Which knowledge bases in which state, and which vectors of them, a model has learned with."""
    return {name: _about(recipe, name) for name in names}


def _about(recipe: TaskRecipe, name: str) -> dict[str, Any]:
    kb, vectors = open_candidate_kb(recipe, name)
    with kb:
        about = kb.metadata
    return {
        "uid": about["uid"],
        "revision": int(about["revision"]),
        "fingerprint": vectors.fingerprint,
        "file": vectors.file,
        "entities": len(vectors),
        "dim": vectors.dim,
    }


def check_vectors(recipe: TaskRecipe, names: Iterable[str]) -> None:
    """Refuse other vectors of these knowledge bases than those that the recipe's encoder has learned with."""
    folder = find_encoder(recipe.encoder.name)
    for name in names:
        kb, _ = open_candidate_kb(recipe, name, Needs.of(folder, name).fingerprint)
        kb.close()


def build_knowbert_provider(recipe: TaskRecipe, names: Iterable[str]) -> KnowBertProvider:
    """What offers the candidates of these knowledge bases."""
    parts = [(name, *open_candidate_kb(recipe, name)) for name in names]
    return KnowBertProvider(parts, {name: recipe.offers[name].reading for name, _, _ in parts if name in recipe.offers})


def load_knowbert_provider(folder: Path, encoder: Any, stack: ExitStack) -> KnowBertProvider | None:
    """What the layers of a saved encoder need, by what its folder tells; they are given their entity vectors.

    None for an encoder without knowledge layers. `stack` closes the knowledge bases.
    """
    parts, readings = [], {}
    for part in getattr(encoder, "infusions", ()):
        if not isinstance(part, KnowBert):
            raise UsageError(
                f"this encoder is lent more than candidates ({type(part).__name__}), and only a trained task says how; "
                "give the folder of its run"
            )
        name = part.config.kb
        needs = Needs.of(folder, name)
        kb = stack.enter_context(open_kb(needs.kb))
        vectors = needs.open_vectors(kb)
        part.take_of(kb, vectors)
        parts.append((name, kb, vectors))
        readings[name] = needs.reading
    return KnowBertProvider(parts, readings) if parts else None


def layers_of(recipe: TaskRecipe) -> list[KnowBertConfig]:
    """The layers of a recipe, as wide as the vectors that they will be given."""
    layers = []
    for name, layer in recipe.knowbert.items():
        kb, vectors = open_candidate_kb(recipe, name)
        kb.close()
        layers.append(replace(layer, kb=name, raw=vectors.dim))
    return layers


def give_tables(recipe: TaskRecipe, encoder: InfusedEncoder) -> None:
    """Give the layers of an encoder their entity vectors, which are no weights."""
    infusions: Iterable[Any] = encoder.infusions
    for infusion in infusions:
        if isinstance(infusion, KnowBert):
            kb, vectors = open_candidate_kb(recipe, infusion.config.kb)
            with kb:
                infusion.take_of(kb, vectors)


_FREE = ("margin", "threshold", "dropout", "start")
"""Settings of a layer that its weights do not depend on."""


def learned_in(encoder: Any) -> dict[str, Infusion]:
    """What an encoder was infused with before, by kind and knowledge base; nothing in a plain one."""
    if not isinstance(encoder, InfusedEncoder):
        return {}
    names = (_name_of(told) for told in encoder.config.infusions)
    return dict(zip(names, encoder.infusions, strict=True))  # type: ignore[arg-type]


def keep_learned(recipe: TaskRecipe, encoder: InfusedEncoder, before: Mapping[str, Infusion]) -> None:
    """Give infusions that an encoder has again what they had learned there, as KnowBERT's layers in pretraining."""
    infusions: Iterable[Any] = encoder.infusions
    for told, infusion in zip(encoder.config.infusions, infusions, strict=True):
        old: Any = before.get(_name_of(told))
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
            fix = f"say the same in [knowbert.{kb}], or take an encoder that has no such layer"
            if name == "raw":
                fix = f"give the vectors that it learned with, as vectors in [offers.{kb}]"
            raise UsageError(
                f"the encoder has learned a layer of {kb} with {name} = {was[name]}, and the recipe has one with "
                f"{name} = {now[name]}; {fix}"
            )


def _name_of(told: Mapping[str, Any]) -> str:
    return f"{told['kind']}.{told['kb']}" if "kb" in told else str(told["kind"])
