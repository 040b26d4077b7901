"""The texts that pretraining learns from: read, split into those to learn from and to develop on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wellread.data.formats import read_linked
from wellread.data.readers.raganato import join_sentences, read_senses
from wellread.data.splits import split_by
from wellread.errors import InputError
from wellread.io import console
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.knowbert.pretraining_task import GoldText
from wellread.tasks.masked_lm import read_texts
from wellread.tasks.task_type import find_file, find_files
from wellread.text.tokenization import TextTokenizer

if TYPE_CHECKING:
    from wellread.models.knowbert.pretraining import LinksData, PretrainingRecipe


def read_words(recipe: PretrainingRecipe, name: str, segmenter: TextTokenizer) -> tuple[list[str], list[str]]:
    """Texts to mask words of, to learn from and to develop on, in parts that fit the encoder."""
    data = recipe.words

    def texts(paths: tuple[str, ...]) -> list[str]:
        found = [find_file(data.root, path) for path in paths]
        return list(dict.fromkeys(read_texts(found, segmenter, unit=data.unit, fields=data.fields)))

    rest, dev = split_by(texts(data.train), data.develop, lambda text: text)
    if not rest:
        raise InputError(f"{', '.join(data.train)} has no text left to learn from; lower develop in [words]")
    return rest[: data.most], dev + texts(data.dev) if data.dev else dev


def read_gold(recipe: PretrainingRecipe, name: str, segmenter: TextTokenizer) -> tuple[list[GoldText], list[GoldText]]:
    """Texts linked to one knowledge base, from all its files."""
    examples: list[GoldText] = []
    dev: list[GoldText] = []
    for data in recipe.links:
        if data.kb != name:
            continue
        rest, kept = split_by(list(_texts(data, data.train)), data.develop, lambda one: one.text)
        if not rest:
            raise InputError(f"{data.train} has no text left to learn from; lower develop in its [[links]]")
        examples += rest[: data.most]
        dev += kept
        if data.dev is not None:
            dev += _texts(data, data.dev)
    return examples, dev


def _texts(data: LinksData, name: str) -> Iterator[GoldText]:
    broken: list[str] = []
    for one in find_files(data.root, name):
        if data.form == "senses":
            keys = SenseKeys.read(data.wordnet or None)
            yield from (
                GoldText.of_senses(text, keys)
                for text in join_sentences(read_senses(one, skipped=broken), data.together)
            )
        else:
            yield from (GoldText.of_links(document, data.judged) for document in read_linked(one, skipped=broken))
    if broken:
        console.note(f"left out {len(broken):,} broken texts; the first: {broken[0]}")
