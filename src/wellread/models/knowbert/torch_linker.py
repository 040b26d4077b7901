"""Knowledge layers on torch: for layers with others below them, unsupported encoders, and evaluation as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from wellread.encoders.families import FAMILIES
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing
from wellread.encoders.pooling import TorchStates
from wellread.errors import InputError
from wellread.kb.packaged import open_kb
from wellread.models.knowbert.folder import LayerRequirements
from wellread.models.knowbert.inference import ScoreFunction
from wellread.models.knowbert.inputs import CandidateArrays
from wellread.models.knowbert.linker_vectors import EntityProjector, Int8Entities
from wellread.models.knowbert.loading import LinkerParts, OtherKb, SavedLayer
from wellread.models.knowbert.mention_linker import MentionLinker
from wellread.models.knowbert.model import KnowBert
from wellread.runtime.weights import Floats
from wellread.text.windows import TextWindow


@dataclass(frozen=True, slots=True)
class TorchLayer:
    """A knowledge layer and the encoder layers up to it."""

    saved: SavedLayer
    encoder: PreTrainedModel
    """If there are layers below, the encoder contains them and this one."""
    linker: MentionLinker
    below: tuple[KnowBert, ...]

    @classmethod
    def load(cls, saved: SavedLayer) -> TorchLayer:
        """Load the layer in a folder."""
        encoder, linker, below = _load_small(saved) if saved.number is None else _load_whole(saved)
        return cls(saved, encoder.train(False).requires_grad_(False), linker.train(False), below)

    def weights(self) -> dict[str, Floats]:
        """Return the weights of the mention linker in numpy."""
        state = self.linker.state_dict()
        return {name: weight.detach().float().cpu().numpy() for name, weight in state.items()}

    def take_table(self) -> Int8Entities | None:
        """Let the linker look its entities up in the folder's 8-bit table, if there is one, and return that."""
        weights = self.weights()
        own = {name.removeprefix("entities."): weights[name] for name in weights if name.startswith("entities.")}
        entities = self.saved.entities(EntityProjector.of(own))
        if not isinstance(entities, Int8Entities):
            return None
        self.linker.entities = _TableLookup(entities)  # type: ignore[assignment]  # it has the same look_up
        return entities


def load_parts(saved: SavedLayer) -> LinkerParts:
    """Load the linker of a layer that the runtime cannot compute."""
    layer = TorchLayer.load(saved)
    if not layer.below:
        return saved.parts(TorchStates(layer.encoder, saved.config.reads), layer.weights())
    others = []
    for part in layer.below:
        needs = LayerRequirements.of(saved.folder, part.config.kb)
        kb = open_kb(needs.kb)
        vectors = needs.open_vectors(kb)
        part.take_of(kb, vectors)
        others.append(OtherKb(part.config.kb, kb, vectors, needs.reading))
    layers = SeveralLayers(cast(InfusedEncoder, layer.encoder), saved.config.kb)
    entities: Any = layer.take_table() or layer.linker.entities
    tokenizer = load_tokenizer(saved.encoder)
    return LinkerParts(saved.settings, saved.config, layers, entities, tokenizer, tuple(others))


@dataclass(frozen=True, slots=True)
class SeveralLayers:
    """An infused encoder that has other knowledge layers below the linking one."""

    encoder: InfusedEncoder
    kb: str

    def __call__(self, windows: Sequence[TextWindow], candidates: Mapping[str, CandidateArrays]) -> ScoreFunction:
        """Wait for the candidates: those of the linking layer are input of the encoder."""
        return partial(self._scores, windows, candidates)

    def _scores(
        self, windows: Sequence[TextWindow], candidates: Mapping[str, CandidateArrays], left: CandidateArrays
    ) -> Floats:
        ids = torch.from_numpy(np.concatenate([window.input.ids for window in windows]))
        packing = Packing.of([len(window) for window in windows])
        given = {name: _tensors(some) for name, some in {**candidates, self.kb: left}.items()}
        with torch.inference_mode():
            output = self.encoder.read(ids, packing, None, offers=given)
        return np.asarray(output.outputs["links"][self.kb].float().numpy())


class _TableLookup(nn.Module):
    """Replacement of a layer's `EntityProjection` by an 8-bit table; inference only."""

    def __init__(self, entities: Int8Entities) -> None:
        super().__init__()
        self.entities = entities
        self.table = entities.table

    def look_up(
        self, entities: Int[Tensor, "mention cand"]
    ) -> tuple[Float[Tensor, "row dim"], Int[Tensor, "mention cand"]]:
        """Return the vectors of a batch's entities and the row of each candidate in them (-1: none)."""
        vectors, rows = self.entities.look_up(entities.cpu().numpy())
        return torch.from_numpy(vectors).to(entities.device), torch.from_numpy(rows).to(entities.device)


def _tensors(candidates: CandidateArrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in candidates.as_arrays().items() if name != "gold"}


def _load_whole(saved: SavedLayer) -> tuple[PreTrainedModel, MentionLinker, tuple[KnowBert, ...]]:
    encoder = load_encoder(str(saved.folder))
    layers = [cast(KnowBert, part) for part in cast(InfusedEncoder, encoder).infusions]
    assert saved.number is not None
    layer, position = layers[saved.number], saved.config.layer
    # Layers after the same encoder layer run in the order of their list.
    below = [part for part in layers if part.config.layer < position]
    below += [part for part in layers[: saved.number] if part.config.layer == position]
    kept = [part for part in layers if part in below or part is layer] if below else []
    cast(InfusedEncoder, encoder).set_infusions(nn.ModuleList(kept))
    keep_first_layers(encoder, position + 1)
    return encoder, layer.linker, tuple(below)


def _load_small(saved: SavedLayer) -> tuple[PreTrainedModel, MentionLinker, tuple[KnowBert, ...]]:
    encoder = load_encoder(saved.encoder)
    keep_first_layers(encoder, saved.config.layer + 1)
    linker = MentionLinker(saved.config, int(encoder.config.hidden_size))
    arrays = saved.arrays()
    weights = {name: torch.tensor(array) for name, array in saved.linker_arrays(arrays).items()}
    change = saved.changes(arrays)
    try:
        linker.load_state_dict({name: weight.float() for name, weight in weights.items()})
        with torch.no_grad():
            for name, weight in encoder.named_parameters():
                before: NDArray[Any] = weight.numpy()
                weight.copy_(torch.from_numpy(np.array(change(name, before))))
    except RuntimeError as error:
        raise InputError(f"{saved.weights_file} does not fit its layer ({error}); copy the linker again") from error
    change.check(saved.encoder)
    return encoder, linker, ()


def keep_first_layers(encoder: PreTrainedModel, count: int) -> None:
    """Remove all layers of an encoder after the first `count`."""
    family = FAMILIES[str(encoder.config.model_type).removeprefix("infused-")]
    layers = cast(nn.ModuleList, cast(nn.Module, encoder).get_submodule(family.layers))
    del layers[count:]
