"""ELQ: finds the mentions of a text and links them in one pass of an encoder.

Li et al. 2020, "Efficient One-Pass End-to-End Entity Linking for Questions".

1. Entities are encoded in advance from title and description; their vectors are frozen while the text side is trained.
2. A text is encoded once; three logits per token give the score of every span (`encoders.spans`): start + end + sum of
   inside.
3. A mention's vector is the mean of its tokens' states; the score of an entity is its dot product with that vector.
4. p(entity | mention) is a softmax over the entities scored for it, p(mention) a sigmoid; decoding uses their product.
5. Loss: binary cross-entropy over all spans + cross-entropy over gold, hard negatives and the batch's other entities.

Differences from the authors' code: texts are packed, without padding; span scores are computed without a loop; the
optimizer updates the mention head; the text side can be trained with adapters only; aliases of the KB (`names_head`)
and NIL contribute to the softmax, if the model was trained with them. The mention loss is summed over spans and divided
by gold mentions (theirs: the mean over spans). Hard negatives are dropped only if they are the mention's own gold
entity (theirs: the n-th neighbour of every mention of a text is dropped if the n-th neighbour of one
mention is its gold entity). Link metrics compare entity ids exactly (theirs: ignoring case; `fold_ids` of
`evaluation.linking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from transformers import PreTrainedModel

from wellread.encoders.files import load_tokenizer, width_of
from wellread.encoders.load import add_adapters, load_encoder, save_tokenizer, silence
from wellread.encoders.packing import Packing, encode
from wellread.encoders.spans import span_mask, span_means, span_scores
from wellread.errors import InputError
from wellread.io.files import storage, write_atomically
from wellread.models.elq.config import FEATURES, WEIGHTS, ElqConfig
from wellread.models.elq.inference import HEADS, ElqHeads, ElqInference
from wellread.text.windows import Window


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of mentions: their entity vectors, their features by name, and a mask of those that exist."""

    vectors: Float[Tensor, "mention cand dim"]
    features: Float[Tensor, "mention cand feature"]
    there_mask: Bool[Tensor, "mention cand"]


def pack_windows(
    windows: Sequence[Window], longest: int
) -> tuple[Int[Tensor, " token"], Packing, Bool[Tensor, "token width"]]:
    """Return the concatenated token ids of windows, their packing, and a mask of the spans that may be mentions.

    Spans have at most `longest` tokens.
    """
    packing = Packing.of([len(window) for window in windows])
    special, begins, ends = (
        torch.from_numpy(np.concatenate(masks))
        for masks in zip(*((w.special_mask, w.begins_mask, w.ends_mask) for w in windows), strict=True)
    )
    asked = span_mask(packing, special, longest, begins_mask=begins, ends_mask=ends)
    return torch.from_numpy(np.concatenate([window.ids for window in windows])), packing, asked


class TorchStates:
    """Runs the encoder of a torch model on windows (`models.elq.inference.StateEncoder`)."""

    def __init__(self, model: Elq) -> None:
        self.model = model

    def states(self, windows: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return the last state of every token, windows concatenated."""
        device = self.model.log_scale.device
        packing = Packing.of([len(window) for window in windows], device)
        with torch.inference_mode():
            states = self.model.states(torch.from_numpy(np.concatenate(windows)).to(device), packing)
        return np.asarray(states.float().cpu().numpy())


class Elq(nn.Module):
    """ELQ's text encoder with its heads for mentions and entities."""

    def __init__(self, config: ElqConfig, encoder: PreTrainedModel, entity_dim: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        dim = int(encoder.config.hidden_size)
        self.mention_head = nn.Linear(dim, 3)
        nn.init.constant_(self.mention_head.bias, -1.0)  # most spans are not mentions
        self.entity_head = nn.Linear(dim, entity_dim or dim, bias=False)
        nn.init.eye_(self.entity_head.weight)
        self.log_scale = nn.Parameter(torch.tensor(3.0 if config.normalised else 0.0))
        self.names_head = nn.Linear(len(FEATURES), 1, bias=False)
        self.names_head.weight.data.copy_(torch.tensor([[2.0, 1.0]]))  # initially: 2 for an alias, plus the log prior
        self.nil_head = nn.Parameter(torch.tensor(10.0 if config.normalised else 0.0))

    @classmethod
    def create(cls, config: ElqConfig) -> Elq:
        """Build an untrained model: pretrained encoder, new heads, and adapters that do not change its outputs yet."""
        encoder = load_encoder(config.encoder)
        if config.rank:
            add_adapters(encoder, config.rank)
        entity_dim = None
        if config.entity_encoder is not None:
            entity_dim = width_of(config.entity_encoder)
        return cls(config, encoder, entity_dim)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Elq:
        """Load a model written by `save_pretrained`."""
        folder = Path(folder)
        config = ElqConfig.read(folder)
        model = cls.create(config)
        model.load_weights(folder / WEIGHTS)
        return model

    def load_weights(self, file: Path) -> None:
        """Load the trained weights from a file; raise an InputError if some are missing or unexpected."""
        try:
            weights = load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{file} cannot be read as safetensors ({error}); copy or train the model again"
            ) from error
        wanted = set(self.learned())
        if wanted != set(weights):
            wrong = sorted(wanted ^ set(weights))
            raise InputError(
                f"{file} does not fit its config.json: {len(wrong)} weights are missing or unexpected, e.g. "
                f"{wrong[0]}; use weights and config.json of the same run"
            )
        try:
            self.load_state_dict(weights, strict=False)
        except RuntimeError as error:
            raise InputError(f"{file} does not fit its encoder: {str(error).splitlines()[-1].strip()}") from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and the trained weights; an encoder trained without adapters is saved in `encoder/`.

        The original encoder stays the entity encoder then.
        """
        folder, config = Path(folder), self.config
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not config.rank:
                own = folder.resolve() / "encoder"
                with silence():
                    self.encoder.save_pretrained(own)
                save_tokenizer(load_tokenizer(config.encoder), own, self.encoder.config)
                config = replace(config, encoder=str(own), entity_encoder=config.entity_encoder or config.encoder)
            with write_atomically(folder / WEIGHTS) as file:
                file.write(save({name: part.detach().contiguous() for name, part in self.learned().items()}))
            config.write(folder)

    def calibrate(self, scale: float, shift: float, threshold: float) -> None:
        """Set the calibration and the threshold that were fitted on validation data."""
        self.config = replace(self.config, calibration=(scale, shift), threshold=threshold)

    def learned(self) -> dict[str, Tensor]:
        """Return the weights outside the pretrained encoder: heads and adapters."""
        state: dict[str, Tensor] = self.state_dict()
        return {name: part for name, part in state.items() if not name.startswith("encoder.") or ".lora_" in name}

    def inference(self) -> ElqInference:
        """Return the text side for inference, which runs this model's encoder with the present heads."""
        state = self.state_dict()
        heads = ElqHeads.of({name: state[name].detach().float().cpu().numpy() for name in HEADS})
        return ElqInference(self.config, TorchStates(self), heads)

    def states(self, ids: Int[Tensor, " token"], packing: Packing) -> Float[Tensor, "token dim"]:
        """Return the last hidden state of every token."""
        return encode(self.encoder, ids, packing)

    def mention_scores(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token width"]:
        """Return the mention logit of every span: first token, width - 1."""
        start, end, inside = self.mention_head(states).unbind(-1)
        return span_scores(start, end, inside, self.config.longest)

    def mention_vectors(
        self,
        states: Float[Tensor, "token dim"],
        firsts: Int[Tensor, " mention"],
        lasts: Int[Tensor, " mention"],
        packing: Packing,
    ) -> Float[Tensor, "mention dim"]:
        """Return the mentions' query vectors; their dot products with entity vectors are the scores."""
        vectors: Tensor = self.entity_head(span_means(states, firsts, lasts))
        if self.config.normalised:
            vectors = normalize(vectors, dim=-1) * self.log_scale.exp()
        if self.config.context:
            vectors = vectors + self.config.context * self.context_vectors(states, packing)[packing.text_of[firsts]]
        return vectors

    def context_vectors(self, states: Float[Tensor, "token dim"], packing: Packing) -> Float[Tensor, "window dim"]:
        """Return the direction of the mean state of each window, without its first and last token ([CLS], [SEP])."""
        firsts = packing.starts + (packing.lengths > 2)
        lasts = packing.starts + packing.lengths - 1 - (packing.lengths > 2).long()
        return normalize(span_means(states, firsts, lasts), dim=-1)

    def entity_scores(
        self, vectors: Float[Tensor, "mention dim"], candidates: Candidates, trust: float = 0.0
    ) -> Float[Tensor, "mention cand"]:
        """Return the logit of every candidate, -inf for padding; `trust` is added if the mention is an alias of it."""
        scores = torch.einsum("md,mcd->mc", vectors, candidates.vectors)
        if self.config.names:
            scores = scores + self.names_head(candidates.features).squeeze(-1) + trust * candidates.features[..., 0]
        return scores.masked_fill(~candidates.there_mask, -torch.inf)

    def nil_scores(self, scores: Float[Tensor, "mention cand"]) -> Float[Tensor, "mention cand1"]:
        """Append the logit of NIL as the last column; -inf for a model without NIL."""
        nil = self.nil_head if self.config.nil else self.nil_head.new_tensor(-torch.inf)
        return torch.cat([scores, nil.expand(len(scores), 1)], dim=1)

    def entity_log_p(
        self, vectors: Float[Tensor, "mention dim"], candidates: Candidates, trust: float = 0.0
    ) -> Float64[Tensor, "mention cand1"]:
        """Return log p(entity | mention) of every candidate and, last, of NIL; all -inf if there is neither."""
        scores = self.nil_scores(self.entity_scores(vectors, candidates, trust)).double()
        return scores.log_softmax(-1).nan_to_num(-torch.inf)


def mention_loss(
    scores: Float[Tensor, "token width"],
    gold_mask: Bool[Tensor, "token width"],
    asked_mask: Bool[Tensor, "token width"],
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy, summed over the spans in `asked_mask` and divided by the gold mentions."""
    losses = binary_cross_entropy_with_logits(
        scores[asked_mask], gold_mask[asked_mask].to(scores.dtype), reduction="sum"
    )
    return losses / gold_mask.sum().clamp(min=1)


def entity_loss(
    scores: Float[Tensor, "mention cand"], gold: Int[Tensor, " mention"], kind: Literal["softmax", "bce"] = "softmax"
) -> Float[Tensor, ""]:
    """Return the cross-entropy of the gold column (softmax, the paper), or a binary one (bce, the released models).

    The latter is the mean over all pairs of mention and candidate, as in the authors' code.
    """
    if kind == "softmax":
        return cross_entropy(scores, gold)
    there_mask = scores.isfinite()
    right = torch.zeros_like(scores).scatter(1, gold[:, None], 1.0)
    return binary_cross_entropy_with_logits(scores[there_mask], right[there_mask])
