"""ELQ: one pass of one encoder finds the mentions of a text and links them.

Li et al. 2020, "Efficient One-Pass End-to-End Entity Linking for Questions".

1. Entities are encoded beforehand from title and description; their vectors are frozen while the text side learns.
2. A text is encoded once; three logits a piece give the score of every span (`encoders.spans`): start + end + sum of
   inside.
3. A mention's vector is the mean of its pieces' states; the score of an entity is its dot product with that vector.
4. p(entity | mention) is a softmax over the entities scored for it, p(mention) a sigmoid; decoding multiplies both.
5. Loss: binary cross-entropy over all spans + cross-entropy over gold, hard negatives and the batch's other entities.

Unlike the authors' code: no padding is computed; spans have no loop; the optimizer sees the mention head; the text side
can learn by adapters alone; what a KB's names say of an entity (`names_head`) and NIL have a say in the softmax, where
the model was trained with them. The mention loss is summed over spans and divided by gold mentions (theirs: the mean
over spans). Hard negatives are dropped only where they are the mention's own gold entity (theirs: the n-th neighbour of
every mention of a text is dropped where the n-th neighbour of one mention is its gold entity). Measures of links
compare entity ids as they are (theirs: without case; `fold_ids` of `evaluation.linking`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from transformers import PreTrainedModel

from wellread import config as settings
from wellread.encoders.load import add_adapters, load_encoder, load_tokenizer, save_tokenizer, silence, width_of
from wellread.encoders.packing import Packing, encode
from wellread.encoders.spans import span_mask, span_means, span_scores
from wellread.errors import InputError
from wellread.io.files import storage, write_atomically
from wellread.models.folder import LINKER
from wellread.text.windows import Window

WEIGHTS = "model.safetensors"

FEATURES = ("named", "log_prior")
"""What names say of a candidate: whether the mention is one of its names, and how often the name means it."""


@dataclass(frozen=True, slots=True)
class ElqConfig:
    """What a linker is made of; saved as `config.json` beside its weights."""

    encoder: str = "minilm"
    """An asset's name, a folder, or a name on the hub: the encoder of texts."""
    entity_encoder: str | None = None
    """The encoder of entities; None: the text encoder as it was before it learned."""
    pooling: Literal["mean", "cls"] = "mean"
    """How an entity's pieces become its vector."""
    normalised: bool = True
    """Compare directions: vectors have length 1 and a learned scale takes the place of their length."""
    separator: str = ": "
    """Between an entity's title and its description."""
    entity_pieces: int = 64
    """Pieces of an entity that are read."""
    longest: int = 10
    """Pieces of the longest mention."""
    rank: int = 32
    """Rank of the adapters of the text encoder; 0: all its weights learn."""
    names: bool = True
    """Whether a KB's names have a say in which entity a mention means."""
    trust: float = 0.0
    """Added, when linking, to the score of an entity that the KB knows by the mention's name: more where names are
    distinctive (a catalogue), less where many of the text's names are of things that the KB does not hold."""
    context: float = 0.0
    """Weight of the text around a mention: times its mean state's direction, it is added to the mention's vector, so
    that entities whose description is like the text score higher."""
    nil: bool = True
    """Whether "none of them" is an answer."""
    whole_words: bool = True
    """Whether a mention begins and ends with a word, not within one."""
    calibration: tuple[float, float] = (1.0, 0.0)
    """Scale and shift that make scores of links the share of them that is right (`linking.decoding`)."""
    threshold: float = 0.5
    """The calibrated score with the best F1 on development data."""
    window: int | None = None
    """Tokens of a window, with [CLS] and [SEP], where the encoder was trained with fewer than 192; None: 192."""
    precision: Literal["auto", "fp32", "int8"] = "auto"
    """Precision of the text encoder unless the linker is loaded with another one; converted models have fp32."""

    @classmethod
    def read(cls, folder: Path) -> ElqConfig:
        """From the `config.json` in a folder; names that begin with "./" are of folders in it."""
        try:
            data = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{folder} has no linker: {error}; give a folder that wellread train linker wrote"
            ) from error
        if isinstance(data, dict):
            data.pop("model_type", None)
        return settings.from_dict(cls, data)._named(lambda name: _from(folder, name))

    def write(self, folder: Path) -> None:
        """To the `config.json` in a folder, which can be moved with the folders in it."""
        told = self._named(lambda name: _told_in(folder, name))
        with write_atomically(folder / "config.json") as file:
            file.write(json.dumps({"model_type": LINKER, **asdict(told)}, indent=2).encode() + b"\n")

    def _named(self, rename: Callable[[str], str]) -> ElqConfig:
        entity_encoder = None if self.entity_encoder is None else rename(self.entity_encoder)
        return replace(self, encoder=rename(self.encoder), entity_encoder=entity_encoder)


def _from(folder: Path, name: str) -> str:
    return str((folder / name).resolve()) if name.startswith("./") else name


def _told_in(folder: Path, name: str) -> str:
    path, root = Path(_from(Path(), name)), folder.resolve()  # "./" in a recipe is where the training began
    return f"./{path.relative_to(root).as_posix()}" if path.is_relative_to(root) else _from(Path(), name)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The entities scored for each mention: rows of the entity vectors, and what names say of them."""

    vectors: Float[Tensor, "mention cand dim"]
    features: Float[Tensor, "mention cand feature"]
    there_mask: Bool[Tensor, "mention cand"]


def pack_windows(
    windows: Sequence[Window], longest: int
) -> tuple[Int[Tensor, " token"], Packing, Bool[Tensor, "token width"]]:
    """The pieces of windows end to end, how they lie, and which spans of at most `longest` pieces may be mentions."""
    packing = Packing.of([len(window) for window in windows])
    special, begins, ends = (
        torch.from_numpy(np.concatenate(masks))
        for masks in zip(*((w.special_mask, w.begins_mask, w.ends_mask) for w in windows), strict=True)
    )
    asked = span_mask(packing, special, longest, begins_mask=begins, ends_mask=ends)
    return torch.from_numpy(np.concatenate([window.ids for window in windows])), packing, asked


class Elq(nn.Module):
    """The text side, and how it scores mentions and entities."""

    def __init__(self, config: ElqConfig, encoder: PreTrainedModel, entity_dim: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        dim = int(encoder.config.hidden_size)
        self.mention_head = nn.Linear(dim, 3)
        nn.init.constant_(self.mention_head.bias, -1.0)  # most spans are no mentions
        self.entity_head = nn.Linear(dim, entity_dim or dim, bias=False)
        nn.init.eye_(self.entity_head.weight)
        self.log_scale = nn.Parameter(torch.tensor(3.0 if config.normalised else 0.0))
        self.names_head = nn.Linear(len(FEATURES), 1, bias=False)
        self.names_head.weight.data.copy_(torch.tensor([[2.0, 1.0]]))  # a name is evidence, its prior the odds
        self.nil_head = nn.Parameter(torch.tensor(10.0 if config.normalised else 0.0))

    @classmethod
    def create(cls, config: ElqConfig) -> Elq:
        """A linker that has not learned yet: a pretrained encoder, fresh heads, adapters that change nothing."""
        encoder = load_encoder(config.encoder)
        if config.rank:
            add_adapters(encoder, config.rank)
        entity_dim = None
        if config.entity_encoder is not None:
            entity_dim = width_of(config.entity_encoder)
        return cls(config, encoder, entity_dim)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Elq:
        """The linker that `save_pretrained` wrote."""
        folder = Path(folder)
        config = ElqConfig.read(folder)
        model = cls.create(config)
        model.load_weights(folder / WEIGHTS)
        return model

    def load_weights(self, file: Path) -> None:
        """Take the weights that learned from a file; one that lacks some, or has others, is refused."""
        try:
            weights = load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{file} cannot be read as safetensors ({error}); copy or train the model again"
            ) from error
        wanted = set(self.learned())
        if wanted != set(weights):
            odd = sorted(wanted ^ set(weights))
            raise InputError(
                f"{file} does not fit its config.json: {len(odd)} weights are missing or too many, e.g. {odd[0]}; "
                "they must come from the same run"
            )
        try:
            self.load_state_dict(weights, strict=False)
        except RuntimeError as error:
            raise InputError(f"{file} does not fit its encoder: {str(error).splitlines()[-1].strip()}") from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and the weights that learned; an encoder that learned as a whole goes to `encoder/`.

        Its entities are still read by the encoder that it was before.
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
        """Keep what development data said of the scores."""
        self.config = replace(self.config, calibration=(scale, shift), threshold=threshold)

    def learned(self) -> dict[str, Tensor]:
        """The weights that are not the pretrained encoder's: heads and adapters."""
        state: dict[str, Tensor] = self.state_dict()
        return {name: part for name, part in state.items() if not name.startswith("encoder.") or ".lora_" in name}

    def states(self, ids: Int[Tensor, " token"], packing: Packing) -> Float[Tensor, "token dim"]:
        """The last state of every piece."""
        return encode(self.encoder, ids, packing)

    def mention_scores(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token width"]:
        """The logit of every span being a mention."""
        start, end, inside = self.mention_head(states).unbind(-1)
        return span_scores(start, end, inside, self.config.longest)

    def mention_vectors(
        self,
        states: Float[Tensor, "token dim"],
        firsts: Int[Tensor, " mention"],
        lasts: Int[Tensor, " mention"],
        packing: Packing,
    ) -> Float[Tensor, "mention dim"]:
        """Return the vectors that the index is searched with: dot products with entity vectors are scores."""
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
        """The logit of every candidate; -inf where there is none. `trust` is added where it is known by the name."""
        scores = torch.einsum("md,mcd->mc", vectors, candidates.vectors)
        if self.config.names:
            scores = scores + self.names_head(candidates.features).squeeze(-1) + trust * candidates.features[..., 0]
        return scores.masked_fill(~candidates.there_mask, -torch.inf)

    def nil_scores(self, scores: Float[Tensor, "mention cand"]) -> Float[Tensor, "mention cand1"]:
        """The same with the logit of NIL as the last column."""
        nil = self.nil_head if self.config.nil else self.nil_head.new_tensor(-torch.inf)
        return torch.cat([scores, nil.expand(len(scores), 1)], dim=1)

    def entity_log_p(
        self, vectors: Float[Tensor, "mention dim"], candidates: Candidates, trust: float = 0.0
    ) -> Float64[Tensor, "mention cand1"]:
        """Log p(entity | mention) of every candidate and, last, of NIL; all -inf where there is nothing to choose."""
        scores = self.nil_scores(self.entity_scores(vectors, candidates, trust)).double()
        return scores.log_softmax(-1).nan_to_num(-torch.inf)


def mention_loss(
    scores: Float[Tensor, "token width"],
    gold_mask: Bool[Tensor, "token width"],
    asked_mask: Bool[Tensor, "token width"],
) -> Float[Tensor, ""]:
    """Binary cross-entropy over the spans that are asked for, summed, per gold mention."""
    losses = binary_cross_entropy_with_logits(
        scores[asked_mask], gold_mask[asked_mask].to(scores.dtype), reduction="sum"
    )
    return losses / gold_mask.sum().clamp(min=1)


def entity_loss(
    scores: Float[Tensor, "mention cand"], gold: Int[Tensor, " mention"], kind: Literal["softmax", "bce"] = "softmax"
) -> Float[Tensor, ""]:
    """Cross-entropy of the gold column among the candidates (the paper), or each on its own (the released models).

    The latter is the mean over all pairs of mention and candidate, as in the authors' code.
    """
    if kind == "softmax":
        return cross_entropy(scores, gold)
    there_mask = scores.isfinite()
    right = torch.zeros_like(scores).scatter(1, gold[:, None], 1.0)
    return binary_cross_entropy_with_logits(scores[there_mask], right[there_mask])
