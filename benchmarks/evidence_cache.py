"""Evidence of the spans of texts, kept on disk: variants of the link scorer are compared without reading texts again.

A file belongs to a linker's weights, a state of a KB and some texts. It is derived data; remove the folder after a
change of the code that finds spans and candidates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from wellread.io.files import write_atomically
from wellread.linking.evidence import Evidence
from wellread.linking.link_scorer import SCORER
from wellread.models.elq.linker import ElqBackend


class EvidenceCache:
    """Evidence of one linker's spans, by KB and texts."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, digest = folder, hashlib.sha256()
        for file in sorted(model.iterdir()):
            if file.is_file() and file.name != SCORER:  # the scorer reads evidence, and does not change it
                digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        self._model = digest.digest()

    def evidence(self, backend: ElqBackend, texts: Sequence[str]) -> Evidence:
        """Return the evidence of texts: from the folder, or read now and written there."""
        digest = hashlib.sha256(self._model)
        state = f"{backend.kb.metadata['uid']} {backend.kb.revision} {backend.pool.index.state}"
        for part in (state, *texts):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        path = self._folder / f"{digest.hexdigest()[:32]}.safetensors"
        found = _load(path)
        if found is None:
            found = backend.evidence(texts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(path) as file:
                arrays = {own.name: np.ascontiguousarray(getattr(found, own.name)) for own in fields(found)}
                file.write(save(arrays))
        return found


def _load(path: Path) -> Evidence | None:
    """Read evidence; None where there is none, or it is damaged."""
    try:
        return Evidence(**load(path.read_bytes()))
    except (OSError, SafetensorError, TypeError):
        return None
