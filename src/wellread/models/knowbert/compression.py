"""A trained knowledge layer as a small linker: entities in 8 bits, of the encoder only what learning changed.

wellread train recipes/knowbert-senses.toml --to runs/senses
wellread convert linker runs/senses --kb wordnet --to models/senses      # some megabytes
wellread link --kb wordnet --model models/senses "…"
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import load_encoder, load_tokenizer
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.folder import find_folder
from wellread.models.knowbert.entity_types import kind_names
from wellread.models.knowbert.folder import Saved, read_settings, save_linker
from wellread.models.knowbert.model import KnowBert
from wellread.models.knowbert.quantized_entities import ReadyTable


def shrink(
    model: str | Path,
    kb: KnowledgeBase,
    folder: str | Path,
    *,
    base: str | None = None,
    rank: int | None = None,
    tags: Literal["spacy"] | None = None,
    threshold: float = 0.0,
) -> Saved:
    """Write the knowledge layer that a model has of a knowledge base as a linker that needs no entity vectors.

    `base` is the encoder that the model was before it learned; None: the whole encoder is written. What changed since
    is written in 4 bits, or with a `rank` as differences of that rank.
    """
    if Path(folder).exists():
        raise UsageError(f"{folder} is there already; name a new folder")
    found = find_folder(model)
    if found is None:
        raise UsageError(f"{model} has no knowledge layer; give the folder of an encoder that has, or of its run")
    settings = read_settings(found, kb.path.stem)
    encoder = load_encoder(str(found))
    layers = [part for part in cast(InfusedEncoder, encoder).infusions if isinstance(part, KnowBert)]
    mine = next(part for part in layers if part.config.kb == settings.kb)
    if base is not None and len(layers) > 1:
        raise UsageError(f"{model} has {len(layers)} knowledge layers, so its encoder must be kept; leave --base out")
    vectors = EntityVectors.of_kb(kb, settings.vectors, fingerprint=settings.fingerprint)
    mine.take_of(kb, vectors)
    ready = ReadyTable.build(
        mine.linker.entities,
        vectors.ids.take(range(len(vectors))),
        fingerprint=vectors.fingerprint,
        kinds=kind_names(kb) if mine.config.kinds and vectors.kinds is None else (),
    )
    settings = replace(settings, vectors=None, fingerprint=None, tags=tags, threshold=threshold)
    return save_linker(folder, encoder, load_tokenizer(str(found)), settings, ready=ready, base=base, rank=rank)
