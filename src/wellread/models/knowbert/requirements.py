"""What the knowledge layers of a saved model need: which knowledge base, which vectors of its entities, how it is read.

A folder tells it by the recipe in its `task.json` or `knowledge.json`. The vectors that a layer has learned with are
known by their fingerprint: those of another encoder would mean nothing to it, though they be as wide. A converted model
has the vectors in its own folder, in `vectors/NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellread import config
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.mention_cache import CandidateConfig

TOLD = ("task.json", "knowledge.json")
"""The files that may tell it, of a trained task and of a pretrained model."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the layer of one knowledge base needs."""

    kb: str
    """The knowledge base, by its name or path."""
    vectors: str | None
    """The folder of its entity vectors; None: beside the knowledge base."""
    fingerprint: str | None
    """That of the vectors it has learned with; None: nobody says."""
    reading: CandidateConfig

    @classmethod
    def of(cls, folder: Path, name: str) -> Needs:
        """What a folder tells of the layer with this name; where it tells nothing, what is usual."""
        told = read_told(folder)
        offered = _table(_table(_table(told, "recipe"), "offers"), name)
        return cls(
            offered.get("kb") or name,
            offered.get("vectors") or own_vectors(folder, name),
            _table(_table(told, "vectors"), name).get("fingerprint"),
            config.from_dict(CandidateConfig, offered.get("reading") or {}),
        )

    def open_vectors(self, kb: KnowledgeBase) -> EntityVectors:
        """The vectors of a knowledge base that the layer can take."""
        return EntityVectors.of_kb(kb, self.vectors, fingerprint=self.fingerprint)


def read_told(folder: Path) -> dict[str, Any]:
    """What a folder tells of how its model was made: its recipe and vectors; nothing where nobody wrote it down."""
    for name in TOLD:
        try:
            told = json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(told, dict):
            return told
    return {}


def own_vectors(folder: Path, name: str) -> str | None:
    """The entity vectors of a knowledge base in the folder of a converted model; None: it has none."""
    place = folder / "vectors" / name
    return str(place.resolve()) if (place / "vectors.json").is_file() else None


def _table(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}
