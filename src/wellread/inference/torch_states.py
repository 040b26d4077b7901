"""States of plain and infused encoders on torch, with the knowledge that their infusions need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float32
from transformers import PreTrainedModel

from wellread.data.batches import gather
from wellread.encoders.infusion.infuse import InfusedEncoder, infuse
from wellread.encoders.infusion.providers import KnowledgeProvider
from wellread.encoders.packing import Packing, first_position
from wellread.tasks.task import as_tensors
from wellread.text.tokenization import Tokenization

_TOKENS = 2048
"""Tokens in one forward pass."""
_GIVEN = ("ids", "types")


class TorchStates:
    """Computes token states with an encoder on torch (an `inference.embed.TokenStates`)."""

    def __init__(self, encoder: PreTrainedModel, provider: KnowledgeProvider | None = None) -> None:
        infused = encoder if isinstance(encoder, InfusedEncoder) else infuse(encoder, [])
        infused.train(False).requires_grad_(False)
        self.encoder, self.provider = cast(InfusedEncoder, infused), provider
        self.dim = int(self.encoder.config.hidden_size)
        self.positions = int(self.encoder.config.max_position_embeddings) - first_position(infused)

    def prepare(self, inputs: Sequence[Tokenization]) -> Any:
        """Return what the knowledge provider found in the inputs."""
        return None if self.provider is None else self.provider.prepare(inputs)

    def states(self, inputs: Sequence[Tokenization], notes: Any) -> list[Float32[np.ndarray, "token dim"]]:
        """Return the token states of each input; inputs of similar length are encoded together."""
        states: list[Any] = [None] * len(inputs)
        order = sorted(range(len(inputs)), key=lambda place: len(inputs[place]))
        with torch.inference_mode():
            for places in gather(order, largest=_TOKENS, size=lambda place: len(inputs[place])):
                some = [inputs[place] for place in places]
                provided = {} if self.provider is None else as_tensors(self.provider.collate(some, notes))
                packing = Packing.of([len(one) for one in some])
                ids, types = (torch.from_numpy(np.concatenate([getattr(one, n) for one in some])) for n in _GIVEN)
                found = self.encoder.states(ids, packing, types, **provided).float()
                parts = torch.split(found, [len(one) for one in some])
                for place, part in zip(places, parts, strict=True):
                    states[place] = part.numpy()
        return states
