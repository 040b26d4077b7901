"""KAM-BERT's fusion: maps of relevance between words in the attention of a pretrained encoder.

Bai et al. 2022, "Enhancing Self-Attention with Knowledge-Assisted Attention Maps". In every layer, before the softmax:

1. A_sa = Q K^T / sqrt(d) for m heads, over the tokens of a text and its auxiliary tokens (eq. 1).
2. Skip connection from the fused scores of the layer below: A = A_sa + beta S_below (`add`), (1 - beta) A_sa +
   beta S_below (`mix`), or none; beta is trained, one per layer, from 0 on.
3. A_sem = a 3 × 3 convolution of [A ; M_1 … M_c], from m + c channels to m.
4. S = alpha A_sem + (1 - alpha) A; the attention is softmax(S) over all positions but padding.
5. Auxiliary tokens (terms related to the text) are placed after its last token, enter every layer with their
   embeddings, and are dropped after it.

Unlike the paper: the kernel starts as the identity, so that the model starts as its checkpoint; the skip connection has
a weight; padding has no influence. For speed, alpha is folded into the kernel, so that one convolution gives S.
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

from wellread.encoders.attention import attend_with_scores, convolved_attention
from wellread.encoders.infusion.hooks import AttentionChunk, ExtraTokens, Flow, Infusion
from wellread.encoders.packing import Packing
from wellread.errors import UsageError


@dataclass(frozen=True, slots=True)
class KamConfig:
    """Maps that are fused, and how."""

    maps: tuple[str, ...] = ()
    """Names of the maps, in the order of the batch's arrays; none: the convolution alone, the baseline to compare with.
    """
    layers: tuple[int, ...] | None = None
    """Layers with fusion, from 0; None: all."""
    fusion: Literal["convolution", "mean", "none"] = "convolution"
    """mean: A_sem = (A + sum of maps) / (1 + c). none: maps are not used."""
    alpha: float = 0.2
    skip: Literal["none", "add", "mix"] = "none"
    start: Literal["identity", "random"] = "identity"
    """Initial kernel: the identity, which changes nothing, or random (as in the paper)."""
    map_init: float = 0.0
    """Initial weight of the maps at the centre of each kernel; from 0, training is slow to use them."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha is {self.alpha}; expected a share between 0 and 1")
        if not math.isfinite(self.map_init):
            raise UsageError(f"map_init is {self.map_init}; expected a number to start from, such as 0 or 1")
        if len(set(self.maps)) < len(self.maps):
            raise UsageError(f"maps = {list(self.maps)} names a map twice; name each once")
        if self.map_init and (self.start == "random" or self.fusion != "convolution"):
            raise UsageError(
                f"map_init = {self.map_init:g} needs start = 'identity' and fusion = 'convolution', not {self.start!r} "
                f"and {self.fusion!r}; change these, or set map_init = 0"
            )


class Kam(Infusion):
    """Fusion of maps into the attention of an encoder."""

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
        self.init_weights()

    def init_weights(self) -> None:
        """Set kernels to the identity on scores and `map_init` on maps (or to random numbers), and betas to 0."""
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
        """Return True for the layers of the configuration."""
        return layer in self.layers

    def extra_tokens(self, flow: Flow) -> ExtraTokens | None:
        """Return the embeddings of the auxiliary tokens, positioned after their texts, with the last token's type."""
        ids, mask = flow.knowledge.get("term_ids"), flow.knowledge.get("term_mask")
        if ids is None or flow.embed is None:
            return None
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        _check_texts("term_ids", ids, flow)
        if mask.shape != ids.shape:
            raise UsageError(f"term_mask is {tuple(mask.shape)} and term_ids is {tuple(ids.shape)}; shapes differ")
        packing = Packing.of(mask.sum(1), ids.device)
        lasts = flow.packing.starts + flow.packing.lengths - 1
        types = None if flow.types is None else flow.types[lasts][packing.text_of]
        places = flow.packing.lengths[packing.text_of] + packing.places
        return ExtraTokens(flow.embed(ids[mask], places, types), packing)

    def extra_rows(self) -> int | None:
        """Return 1, as the kernel sees the row after the last token; with a skip connection layers see ever more."""
        return 1 if self.config.skip == "none" else None

    def scores(
        self, flow: Flow, layer: int, chunk: AttentionChunk, scores: Float[Tensor, "text head row column"]
    ) -> Float[Tensor, "text head row column"]:
        """Return the fused scores, step by step as in the paper."""
        pair_mask = chunk.pair_mask
        scores = scores * pair_mask
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
        chunk: AttentionChunk,
        query: Float[Tensor, "text head row dim"],
        key: Float[Tensor, "text head column dim"],
        value: Float[Tensor, "text head column dim"],
        *,
        scaling: float,
        dropout: float,
    ) -> Float[Tensor, "text head row dim"]:
        """Compute the same by one convolution, for speed."""
        column_mask = None if chunk.full else chunk.column_mask
        if self.config.fusion != "convolution":
            scores = self.scores(flow, layer, chunk, (query * scaling) @ key.transpose(2, 3))
            return attend_with_scores(scores[:, :, : chunk.tokens], value, column_mask, dropout)[0]
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

    def _maps(
        self, flow: Flow, chunk: AttentionChunk, dtype: torch.dtype
    ) -> Float[Tensor, "text map row column"] | None:
        """Return the maps of a chunk's texts; zeros if the batch has no maps."""
        count = len(self.config.maps)
        if not count or self.config.fusion == "none":
            return None
        key = (self, "maps", int(chunk.texts[0]))
        if key not in flow.memory:
            rows, columns = chunk.rows, chunk.columns
            given = flow.knowledge.get("maps")
            if given is None:
                made = chunk.texts.new_zeros((), dtype=dtype).expand(len(chunk.texts), count, rows, columns)
            else:
                _check_texts("maps", given, flow)
                if given.dim() != 4:
                    raise UsageError(f"maps has {given.dim()} dimensions; expected texts, maps, rows, columns")
                if given.shape[1] != count:
                    names = ", ".join(self.config.maps)
                    raise UsageError(f"the batch has {given.shape[1]} maps; the model expects {count}: {names}")
                made = given[chunk.texts, :, :rows, :columns].to(dtype)
                made = pad(made, (0, columns - made.shape[3], 0, rows - made.shape[2]))
                made = made if chunk.full else made.masked_fill(~chunk.pair_mask, 0)
            flow.memory[key] = made
        maps: Tensor = flow.memory[key]
        return maps

    def _below(self, flow: Flow, layer: int, chunk: AttentionChunk) -> Float[Tensor, "text head row column"] | None:
        """Return the fused scores of the fusing layer below, zero at padding; None if there is no skip connection."""
        if str(layer) not in self.betas:
            return None
        below = self.layers[self.layers.index(layer) - 1]
        found: Tensor = flow.memory[(self, below, int(chunk.texts[0]))]
        return found

    def _remember(
        self, flow: Flow, layer: int, chunk: AttentionChunk, scores: Float[Tensor, "text head row column"]
    ) -> None:
        if self.config.skip != "none":
            kept = scores if chunk.full else scores * chunk.pair_mask
            flow.memory[(self, layer, int(chunk.texts[0]))] = kept


def _check_texts(name: str, given: Any, flow: Flow) -> None:
    if len(given) != len(flow.packing.lengths):
        raise UsageError(f"{name} has {len(given)} texts; the batch has {len(flow.packing.lengths)}")
