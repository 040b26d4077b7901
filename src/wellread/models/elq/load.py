"""Load ELQ linkers: their folder, the index of a KB, the entity encoder and the backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wellread import assets
from wellread.errors import UsageError
from wellread.index.entity_index import EntityIndex, build_index
from wellread.index.entity_vectors import Encoding
from wellread.index.folder import vectors_folder
from wellread.io import console
from wellread.io.extras import extra
from wellread.io.similar import suggestion
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding
from wellread.linking.link_scorer import LinkScorer, scorer_of
from wellread.models.elq.candidate_pool import Search
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower, Precision, fingerprint_of
from wellread.models.elq.inference import ElqInference, load_inference
from wellread.models.elq.linker import ElqBackend, window_tokenizer_of

if TYPE_CHECKING:
    from wellread.mapping.mapper import NameMapper

PACKAGED = Path(__file__).parents[2] / "weights" / "elq-minilm"
"""Folder of the packaged linker."""


def find_model(model: str | Path) -> Path:
    """Return the folder of a linker: the packaged one for "elq", else the folder given."""
    if str(model) == "elq":
        return PACKAGED
    if not Path(model).is_dir():
        similar = suggestion(str(model), ("elq", "knowbert", "prior"))
        raise UsageError(
            f"there is no model {str(model)!r}{f'{similar} Choose' if similar else '; choose'} elq, knowbert or prior, "
            "or give the folder of a trained model"
        )
    return Path(model)


def load_tower(model: str | Path | None = None) -> EntityTower:
    """Load the entity encoder of a linker, by default that of the packaged one."""
    return EntityTower.load(ElqConfig.read(find_model(model or "elq")), precision="auto")


def open_index(kb: KnowledgeBase, config: ElqConfig, tower: EntityTower | None = None) -> EntityIndex:
    """Open the index of a KB for a linker, and build it if missing; raise an error for one of another encoder."""
    if not (vectors_folder(kb) / "index.json").exists():
        progress = Encoding()
        console.note(f"encoding the {len(kb):,} entities of {kb.path.name}; this is done once and can be interrupted")
        with console.progress_bar("encoding", progress):
            build_index(kb, tower or EntityTower.load(config, precision="auto"), progress=progress)
    return EntityIndex.open(kb, fingerprint=fingerprint_of(config), stale="allow")


def load_mapper(kb: KnowledgeBase, model: str | Path = "elq", *, names_only: bool = False) -> NameMapper:
    """Load a mapper of strings to entities, with a linker's entity encoder; the index is built if it is missing."""
    from wellread.mapping.mapper import Meaning, NameMapper

    meaning = None
    if not names_only:
        config = ElqConfig.read(find_model(model))
        tower = EntityTower.load(config)
        meaning = Meaning(open_index(kb, config, tower).refresh(kb, tower), tower)
    return NameMapper.load(kb, meaning)


def load_backend(
    kb: KnowledgeBase,
    model: str | Path,
    *,
    search: Search,
    among: Iterable[str] | None,
    threshold: float | None,
    decoding: Decoding,
    trust: float | None,
    precision: Precision,
    name: str,
    device: str = "cpu",
    scorer: LinkScorer | None = None,
) -> ElqBackend:
    """Load a linker for inference, with merged adapters, and build the index of the KB if it is missing.

    `precision` "auto" is that of the model's config. `device` is for encoders that onnxruntime does not support.
    `scorer` replaces the link scorer in the model's folder.
    """
    if precision not in ("auto", "fp32", "int8"):
        raise UsageError(f"precision={precision!r} is not known; choose auto, fp32 or int8")
    folder = find_model(model)
    config = ElqConfig.read(folder)
    index = open_index(kb, config)
    elq = _load_text_side(folder, config, config.precision if precision == "auto" else precision, kb, device)
    if decoding.kind != "joint":
        scorer = None
    elif scorer is None:
        scorer = scorer_of(folder)
    if threshold is None:
        threshold = config.threshold if scorer is None else scorer.threshold
    return ElqBackend(
        elq,
        kb,
        index,
        search=search,
        among=among,
        decoding=replace(decoding, threshold=threshold),
        trust=trust,
        name=name,
        scorer=scorer,
    )


def _load_text_side(
    folder: Path, config: ElqConfig, precision: Precision, kb: KnowledgeBase, device: str
) -> ElqInference:
    """Load the text side for onnxruntime, or for torch in fp32 if the runtime does not support the encoder."""
    try:
        inference = load_inference(
            folder,
            config,
            precision="fp32" if precision == "fp32" else "int8",
            sample=partial(_calibration_sample, kb, config),
            cache=assets.home() / "graphs",
        )
    except UsageError:
        if precision == "int8":
            raise
    else:
        if device != "cpu":
            raise UsageError(
                f"device={device!r}: this linker runs on onnxruntime, on the CPU; leave device out (torch runs LUKE, "
                "and ELQ on an encoder that onnxruntime does not support)"
            )
        return inference
    with extra("train", f"the encoder {config.encoder}, which onnxruntime cannot run,"):
        from wellread.encoders.devices import find_device
        from wellread.encoders.load import merge_adapters
        from wellread.models.elq.model import Elq

    model = Elq.from_pretrained(folder).eval().requires_grad_(False)
    merge_adapters(model.encoder)
    return model.to(find_device(device)).inference()


def _calibration_sample(kb: KnowledgeBase, config: ElqConfig) -> list[NDArray[np.int64]]:
    """Return token ids of sample texts for the int8 calibration: titles and descriptions of entities."""
    with sqlite_errors(kb.path):
        rows = kb.connection.execute("SELECT title, description FROM entities LIMIT 64").fetchall()
    texts = [f"{title}: {description}" for title, description in rows] + [f"what is {row[0]}?".lower() for row in rows]
    return [windows[0].ids for windows in window_tokenizer_of(config).tokenize(texts) if windows]
