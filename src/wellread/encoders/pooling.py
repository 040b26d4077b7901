"""States and pooled vectors of tokenized texts from a torch encoder, for encoders that the runtime does not support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import normalize

from wellread.data.batches import gather
from wellread.encoders.packing import Packing, encode

_TOKENS = 4096
"""Maximum number of tokens of a batch."""


class TorchPooler:
    """Encodes tokenized texts to one vector each, with the interface of `runtime.session.EncoderSession`."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder.eval()
        self.dim = int(encoder.config.hidden_size)  # type: ignore[arg-type, union-attr]

    def pooled(
        self,
        windows: Sequence[NDArray[np.int64]],
        pooling: Literal["mean", "cls"] = "mean",
        *,
        normalise: bool = True,
    ) -> NDArray[np.float32]:
        """Return one vector per window: the mean of its states or its first one, of length 1 if normalised."""
        vectors = np.zeros((len(windows), self.dim), np.float32)
        longest_first = sorted(
            (row for row in range(len(windows)) if len(windows[row])), key=lambda r: -len(windows[r])
        )
        with torch.inference_mode():
            for rows in gather(longest_first, largest=_TOKENS, size=lambda row: len(windows[row])):
                packing = Packing.of([len(windows[row]) for row in rows])
                states = encode(self.encoder, torch.from_numpy(np.concatenate([windows[row] for row in rows])), packing)
                pooled = packing.mean(states) if pooling == "mean" else states[packing.starts]
                vectors[rows] = (normalize(pooled, dim=-1) if normalise else pooled).numpy()
        return vectors


class TorchStates:
    """Runs a torch encoder on windows of tokens, with the interface of `runtime.session.EncoderSession`."""

    def __init__(self, encoder: nn.Module, layers: int = 1) -> None:
        self.encoder, self.layers = encoder, layers

    def states(self, windows: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the mean state of the last layers for every token, windows concatenated."""
        device = next(self.encoder.parameters()).device
        packing = Packing.of([len(window) for window in windows], device)
        with torch.inference_mode():
            states = encode(self.encoder, torch.from_numpy(np.concatenate(windows)).to(device), packing, self.layers)
        return np.asarray(states.float().cpu().numpy())
