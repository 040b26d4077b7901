"""Shared data of the tests of pretraining: a tiny encoder with masks, two knowledge bases with vectors, and texts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.sense_data import TEXTS, Hashing, write_vectors, write_wordnet
from tests.task_models import TOKENIZER, tiny_encoder
from tests.toy_models import write_kb
from wellread.data.readers.raganato import write_lines_of_senses
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.records import Entity
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.pretraining import PretrainingRecipe
from wellread.models.knowbert.pretraining_task import LinksData, WordsData
from wellread.tasks.recipe import CandidateOptions, EncoderOptions
from wellread.training.schedule import Schedule

CITIES = "avon brno cork dover essen fargo genoa hanoi".split()
NAMED = [
    *(Entity(f"c-{name}", name, f"the city of {name}", "city", 1, {name: 3}) for name in [*CITIES, "paris", "rome"]),
    Entity("h-paris", "paris", "he who was born in old troy", "person", 1, {"paris": 1}),
    Entity("c-new-rome", "new rome", "the city of the east", "city", 1, {"new rome": 2}),
]
LINES = [
    f"the mayor of {one} was born in {other} near the old river bank"
    for one in CITIES
    for other in CITIES
    if one != other
]
SIZES: dict[str, Any] = {"dim": 8, "heads": 2, "inner": 12, "prior_width": 4}


def linked(text: str, **names: str) -> dict[str, Any]:
    """A line of linked text: linked("in rome", rome="c-rome")."""
    spans = [[text.index(name), text.index(name) + len(name), id] for name, id in names.items()]
    return {"text": text, "mentions": sorted(spans)}


LINKED = [
    *(linked(f"{city} is a city near {other}", **{city: f"c-{city}"}) for city, other in pairwise(CITIES)),
    *(linked(f"paris of {city} wrote to me", paris="h-paris", **{city: f"c-{city}"}) for city in CITIES),
    *(linked(f"the old mayor of paris buy {city}", paris="c-paris") for city in CITIES),
]


def write_names(folder: Path) -> EntityVectors:
    """A knowledge base of cities, and of one person with the name of one."""
    kb = write_kb(folder / "names.kb", NAMED)
    vectors = EntityVectors.build(kb, Hashing())
    kb.close()
    return vectors


def write_encoder(folder: Path, **options: Any) -> str:
    """A tiny encoder whose tokenizer can mask."""
    from transformers import BertModel

    from wellread.encoders.load import silence

    encoder = tiny_encoder(**options)
    plain = BertModel(
        BertModel.config_class(**{k: v for k, v in encoder.config.to_dict().items() if k != "model_type"}),
        add_pooling_layer=False,
    )
    plain.load_state_dict(encoder.state_dict())
    with silence():
        plain.save_pretrained(folder)
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return str(folder)


def write_recipe(folder: Path, **changes: Any) -> PretrainingRecipe:
    """A moment of pretraining with the layer of names, and all that it needs."""
    write_names(folder)
    (folder / "texts").mkdir()
    (folder / "texts" / "lines.txt").write_text("\n\n".join(LINES))
    (folder / "linked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINKED))
    options: dict[str, Any] = {
        "knowbert": {"names": KnowBertConfig(layer=0, mode="margin", **SIZES)},
        "encoder": EncoderOptions(write_encoder(folder / "encoder"), longest=24),
        "offers": {"names": CandidateOptions(kb=str(folder / "names.kb"))},
        "words": WordsData((str(folder / "texts"),), develop=8),
        "links": (LinksData("names", str(folder / "linked.jsonl"), develop=4, judged="near"),),
        "batch": 4,
        "linker": Schedule(steps=3, learning_rate=1e-3, evaluate_every=3),
        "schedule": Schedule(steps=6, learning_rate=1e-3, evaluate_every=3, seed=3),
    }
    return PretrainingRecipe("knowbert", **options | changes)


def with_senses(recipe: PretrainingRecipe, folder: Path) -> PretrainingRecipe:
    """The same with a second layer, of senses, above."""
    write_vectors(folder)
    write_lines_of_senses(folder / "senses.jsonl", TEXTS)
    wordnet = str(write_wordnet(folder / "wndb"))
    senses = LinksData(
        "senses", str(folder / "senses.jsonl"), "senses", dev=str(folder / "senses.jsonl"), wordnet=wordnet
    )
    return replace(
        recipe,
        knowbert={"senses": KnowBertConfig(layer=1, **SIZES)},
        offers={**recipe.offers, "senses": CandidateOptions(kb=str(folder / "senses.kb"))},
        links=(*recipe.links, senses),
    )
