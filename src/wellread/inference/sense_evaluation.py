"""Word sense disambiguation by a linker, on a dataset with given lemmas and parts of speech.

    wellread evaluate senses semeval2007.data.xml --model knowbert

A linker with a knowledge layer gets the inputs it was trained on (`tasks.senses`), in full precision. Scored by the
official rule, with the first sense as back-off.

    wellread evaluate senses semeval2007.data.xml --as-linked

`answer_as_linked` evaluates links of running text instead: without lemmas and parts of speech, with mention detection
and tagging errors, and possibly with an int8 encoder.
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
from wellread.evaluation.senses import back_off
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.kb.store import KnowledgeBase
from wellread.linking.linker import Linker
from wellread.models.folder import find_folder
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.linker_entities import LinkerEntities
from wellread.models.knowbert.loading import SavedLayer
from wellread.models.knowbert.torch_linker import TorchLayer
from wellread.tasks.learner import ask
from wellread.tasks.senses import SenseHead, SenseOptions, Senses, instances_of, score_answers
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


def answer_as_linked(
    linker: Linker, keys: SenseKeys, texts: Sequence[SenseText]
) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """Return keys and scores of any linker on the plain text of whole documents; `answered` is the share it linked.

    The answer to an instance is the link with exactly its characters; without one, the first sense.
    """
    documents = list(join_sentences(texts, max(1, len(texts))))
    given: dict[str, tuple[str, ...]] = {}
    for document, linked in zip(documents, linker.link_many(one.text for one in documents), strict=True):
        entities = {(link.start, link.end): link.entity for link in linked.links}
        for mark in document.marks:
            entity = entities.get((mark.start, mark.end))
            key = None if entity is None else keys.key(mark.instance.lemma, entity)
            if key is not None:
                given[mark.instance.id] = (key,)
    instances = instances_of(texts)
    chosen = back_off(instances, given, keys.first)
    return chosen, score_answers(instances, given, keys) if all(text.has_gold for text in texts) else {}
