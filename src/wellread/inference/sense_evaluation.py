"""Word sense disambiguation by a linker, on a dataset with given lemmas and parts of speech.

    wellread evaluate senses semeval2007.data.xml --model knowbert

A linker with a knowledge layer gets the inputs it was trained on (`tasks.senses`), in full precision. Scored by the
official rule, with the first sense as back-off.

Links of running text are evaluated by `linking.sense_answers` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

from wellread.data.readers.raganato import SenseText, join_sentences
from wellread.encoders.files import load_tokenizer
from wellread.encoders.packing import encode
from wellread.errors import UsageError
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.kb.store import KnowledgeBase
from wellread.models.folder import find_folder
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.linker_entities import LinkerEntities
from wellread.models.knowbert.loading import SavedLayer
from wellread.models.knowbert.torch_linker import TorchLayer
from wellread.tasks.learner import ask
from wellread.tasks.senses import SenseHead, SenseOptions, Senses
from wellread.tasks.task import Batch, EncoderWithHead
from wellread.text.tokenization import TextTokenizer


class LinkerSenses(Senses):
    """Sense task over a linker's own entities."""

    def __init__(self, keys: SenseKeys, entities: LinkerEntities, kb: str) -> None:
        super().__init__(keys, cast(Any, entities), SenseOptions(kb=kb))
        self.entities = entities
        self._encoder_takes = False

    def _id(self, row: int) -> str:
        return self.entities.state.ids[row]


class LinkerNetwork(EncoderWithHead):
    """Encoder and mention linker of a folder, with the layers that the linker was trained on."""

    def __init__(self, layer: TorchLayer) -> None:
        super().__init__(cast(Any, layer.encoder), SenseHead.of(layer.linker))
        self.reads = layer.saved.config.reads

    def read(self, batch: Batch) -> tuple[Float[Tensor, "token dim"], Batch, dict[str, Tensor]]:
        """Return the states that the linker uses."""
        return encode(self.encoder, batch.ids, batch.packing, self.reads), batch, {}


def answer_senses(
    model: str | Path, kb: KnowledgeBase, keys: SenseKeys, texts: Sequence[SenseText]
) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """Return the key of every instance by its id, and the scores (`Senses.scores`); no scores without gold keys."""
    folder = find_folder(model)
    if folder is None:
        raise UsageError(
            f"{model} has no knowledge layer; give knowbert, or the folder of a linker or encoder with one"
        )
    saved = SavedLayer.of(folder, kb.path.stem)
    name, settings = saved.config.kb, saved.settings
    if saved.has_below:
        raise UsageError(f"{model} has knowledge layers below that of {name}; use its run: wellread evaluate RUN DATA")
    layer = TorchLayer.load(saved)
    entities = LinkerEntities(kb, settings, layer.take_table() or layer.linker.entities)
    entities.follow()
    task = LinkerSenses(keys, entities, name)
    provider = KnowBertProvider([(name, kb, entities)], {name: settings.offers})
    joined = list(join_sentences(texts, max(1, settings.sentences)))
    tokenizer = TextTokenizer(load_tokenizer(saved.encoder), longest=settings.width)
    answers = ask(task, LinkerNetwork(layer), tokenizer, joined, provider=provider)
    chosen = task.chosen(joined, answers)
    return chosen, task.scores(joined, answers) if all(text.has_gold for text in texts) else {}
