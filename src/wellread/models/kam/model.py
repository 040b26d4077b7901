"""KAM-BERT: knowledge as maps of relevance between words, fused into the attention of a pretrained encoder.

Bai et al. 2022, "Enhancing Self-Attention with Knowledge-Assisted Attention Maps". In every layer, before the softmax:

1. A_sa = Q K^T / sqrt(d) for m heads, over the pieces of a text and its auxiliary pieces.
2. Skip from the fused scores of the layer below: A = A_sa + beta S_below (`add`), (1 - beta) A_sa + beta S_below
   (`mix`), or none; beta is learned, one a layer, and starts at 0.
3. A_sem = a 3x3 convolution of [A ; M_1 … M_c], from m + c channels to m.
4. S = alpha A_sem + (1 - alpha) A; the attention is softmax(S) over what is there.
5. Auxiliary pieces (terms related to the text) stand behind its last piece, enter every layer anew with what the
   embedding layer makes of them, and are cut off after it.

Unlike the paper: the kernel starts as the identity, so that the model starts as its checkpoint; the skip has a weight;
padding has no say. Unlike a plain writing of it: alpha is folded into the kernel and one convolution gives S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad
from transformers import PreTrainedConfig
from transformers import initialization as init

from wellread.encoders.attention import convolved_attention, mix
from wellread.encoders.infusion.hooks import Chunk, ExtraTokens, Flow, Infusion
from wellread.encoders.packing import Packing
from wellread.errors import UsageError


@dataclass(frozen=True, slots=True)
class KamConfig:
    """Which maps are fused, where and how."""

    maps: tuple[str, ...] = ()
    """Their names, in the order in which a batch brings them; none: the convolution alone, the arm to compare with."""
    layers: tuple[int, ...] | None = None
    """The layers that fuse, from 0; None: all."""
    fusion: Literal["convolution", "mean", "none"] = "convolution"
    """mean: A_sem = (A + sum of maps) / (1 + c). none: maps are not used."""
    alpha: float = 0.2
    skip: Literal["none", "add", "mix"] = "none"
    start: Literal["identity", "random"] = "identity"
    """The kernel's weights: nothing changes at the start, or drawn anew (as in the paper)."""
    map_init: float = 0.0
    """A start weight on the maps, in the middle of each kernel; at 0 they are slow to be used."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha is {self.alpha}; expected a share between 0 and 1")
        if not math.isfinite(self.map_init):
            raise UsageError(f"map_init is {self.map_init}; expected a number to start from, such as 0 or 1")
        if len(set(self.maps)) < len(self.maps):
            raise UsageError(f"maps = {list(self.maps)} names a map twice; name each once")
        if self.map_init and (self.start == "random" or self.fusion != "convolution"):
            raise UsageError(
                f"map_init = {self.map_init:g} is for kernels that start as the identity; set map_init = 0, or take "
                f"back start = {self.start!r} and fusion = {self.fusion!r}"
            )


class Kam(Infusion):
    """The maps' share in the attention of an encoder."""

    config_class: ClassVar[type[KamConfig]] = KamConfig
    _identity: Tensor
    inputs = ("maps", "term_ids", "term_mask")

    def __init__(self, config: KamConfig, encoder: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        count, self.heads = int(encoder.num_hidden_layers), int(encoder.num_attention_heads)
        self.layers = tuple(range(count)) if config.layers is None else tuple(sorted(set(config.layers)))
        if wrong := [layer for layer in self.layers if not 0 <= layer < count]:
            raise UsageError(f"layer {wrong[0]} is not one of the encoder's {count}, which count from 0")
        shape = (self.heads, self.heads + len(config.maps), 3, 3)
        with_kernel = self.layers if config.fusion == "convolution" else ()
        self.kernels = nn.ParameterDict({str(layer): nn.Parameter(torch.empty(shape)) for layer in with_kernel})
        skipping = self.layers[1:] if config.skip != "none" else ()
        self.betas = nn.ParameterDict({str(layer): nn.Parameter(torch.empty(())) for layer in skipping})
        self.register_buffer("_identity", nn.init.dirac_(torch.empty(shape)), persistent=False)
        self.start()

    def start(self) -> None:
        """Kernels as the identity on scores and `map_init` on maps (or drawn anew), betas 0."""
        for kernel in self.kernels.values():
            if self.config.start == "random":
                init.kaiming_uniform_(kernel, a=5**0.5)
            else:
                first = nn.init.dirac_(torch.empty_like(kernel, device="cpu"))
                first[:, self.heads :, 1, 1] = self.config.map_init
                init.copy_(kernel, first)
        for beta in self.betas.values():
            init.zeros_(beta)
        if self._identity.device.type != "meta":
            init.copy_(self._identity, nn.init.dirac_(torch.empty_like(self._identity, device="cpu")))

    def attends(self, layer: int) -> bool:
        """In the layers of the configuration."""
        return layer in self.layers

    def extra_tokens(self, flow: Flow) -> ExtraTokens | None:
        """The auxiliary pieces as the embedding layer has them, placed behind their texts with their last type."""
        ids, mask = flow.knowledge.get("term_ids"), flow.knowledge.get("term_mask")
        if ids is None or flow.embed is None:
            return None
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        _check_texts("term_ids", ids, flow)
        if mask.shape != ids.shape:
            raise UsageError(f"term_mask is {tuple(mask.shape)} and term_ids is {tuple(ids.shape)}; make them alike")
        packing = Packing.of(mask.sum(1), ids.device)
        lasts = flow.packing.starts + flow.packing.lengths - 1
        types = None if flow.types is None else flow.types[lasts][packing.text_of]
        places = flow.packing.lengths[packing.text_of] + packing.places
        return ExtraTokens(flow.embed(ids[mask], places, types), packing)

    def extra_rows(self) -> int | None:
        """The kernel sees the row below the last piece; by the skip, every layer sees one further."""
        return 1 if self.config.skip == "none" else None

    def scores(
        self, flow: Flow, layer: int, chunk: Chunk, scores: Float[Tensor, "text head row column"]
    ) -> Float[Tensor, "text head row column"]:
        """The fused scores, step by step as the paper has them."""
        there = chunk.there_mask
        scores = scores * there
        below = self._below(flow, layer, chunk)
        if below is not None:
            beta = self.betas[str(layer)]
            scores = scores * (1 - beta if self.config.skip == "mix" else 1) + beta * below
        maps = self._maps(flow, chunk, scores.dtype)
        alpha = self.config.alpha
        if self.config.fusion == "convolution":
            channels = scores if maps is None else torch.cat((scores, maps), 1)
            semantic = conv2d(channels, self.kernels[str(layer)].to(scores.dtype), padding=1)
            scores = alpha * semantic + (1 - alpha) * scores
        elif self.config.fusion == "mean" and maps is not None:
            semantic = (scores + maps.sum(1, keepdim=True)) / (1 + maps.shape[1])
            scores = alpha * semantic + (1 - alpha) * scores
        self._remember(flow, layer, chunk, scores)
        return scores

    def attend(
        self,
        flow: Flow,
        layer: int,
        chunk: Chunk,
        query: Float[Tensor, "text head row dim"],
        key: Float[Tensor, "text head column dim"],
        value: Float[Tensor, "text head column dim"],
        *,
        scaling: float,
        dropout: float,
    ) -> Float[Tensor, "text head row dim"]:
        """The same by one convolution, for speed."""
        column_mask = None if chunk.full else chunk.column_mask
        if self.config.fusion != "convolution":
            scores = self.scores(flow, layer, chunk, (query * scaling) @ key.transpose(2, 3))
            return mix(scores[:, :, : chunk.tokens], value, column_mask, dropout)[0]
        alpha = self.config.alpha
        kernel = (alpha * self.kernels[str(layer)] + (1 - alpha) * self._identity).to(query.dtype)
        below = self._below(flow, layer, chunk)
        beta = self.betas[str(layer)] if below is not None else None
        mixed, fused = convolved_attention(
            query,
            key,
            value,
            self._maps(flow, chunk, query.dtype),
            kernel,
            scaling=scaling,
            mixed_rows=chunk.tokens,
            below=below,
            own=1 - beta if beta is not None and self.config.skip == "mix" else None,
            carry=beta,
            column_mask=column_mask,
            drop=dropout,
        )
        self._remember(flow, layer, chunk, fused)
        return mixed

    def _maps(self, flow: Flow, chunk: Chunk, dtype: torch.dtype) -> Float[Tensor, "text map row column"] | None:
        """The maps of a chunk's texts; a text of which nothing is told has maps of zeros."""
        count = len(self.config.maps)
        if not count or self.config.fusion == "none":
            return None
        key = (self, "maps", int(chunk.texts[0]))
        if key not in flow.memory:
            rows, columns = chunk.rows, chunk.columns
            told = flow.knowledge.get("maps")
            if told is None:
                made = chunk.texts.new_zeros((), dtype=dtype).expand(len(chunk.texts), count, rows, columns)
            else:
                _check_texts("maps", told, flow)
                if told.dim() != 4:
                    raise UsageError(f"maps has {told.dim()} dimensions; expected texts, maps, rows, columns")
                if told.shape[1] != count:
                    raise UsageError(f"the batch brings {told.shape[1]} maps, the model fuses {count}: {self._told()}")
                made = told[chunk.texts, :, :rows, :columns].to(dtype)
                made = pad(made, (0, columns - made.shape[3], 0, rows - made.shape[2]))
                made = made if chunk.full else made.masked_fill(~chunk.there_mask, 0)
            flow.memory[key] = made
        maps: Tensor = flow.memory[key]
        return maps

    def _below(self, flow: Flow, layer: int, chunk: Chunk) -> Float[Tensor, "text head row column"] | None:
        """What the layer below of those that fuse left: its fused scores, zero where nothing is."""
        if str(layer) not in self.betas:
            return None
        below = self.layers[self.layers.index(layer) - 1]
        found: Tensor = flow.memory[(self, below, int(chunk.texts[0]))]
        return found

    def _remember(self, flow: Flow, layer: int, chunk: Chunk, scores: Float[Tensor, "text head row column"]) -> None:
        if self.config.skip != "none":
            kept = scores if chunk.full else scores * chunk.there_mask
            flow.memory[(self, layer, int(chunk.texts[0]))] = kept

    def _told(self) -> str:
        return ", ".join(self.config.maps)


def _check_texts(name: str, given: Any, flow: Flow) -> None:
    if len(given) != len(flow.packing.lengths):
        raise UsageError(f"{name} tells of {len(given)} texts, the batch has {len(flow.packing.lengths)}")
