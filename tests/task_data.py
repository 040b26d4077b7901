"""Shared data of the tests of trained tasks: tiny data of every task in its own format, and recipes of a few steps."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.toy_models import PEOPLE, PLACES
from wellread.models.kam.inputs import MapsConfig
from wellread.models.kam.model import KamConfig
from wellread.tasks.recipe import Data, EncoderOptions, LabelledOptions, QuestionOptions, TaskRecipe
from wellread.training.schedule import Schedule

SCHEDULE = Schedule(steps=6, learning_rate=5e-3, accumulate=2, evaluate_every=3, seed=3)


def pairs(count: int = 60, seed: int = 0) -> list[tuple[str, str, str]]:
    """Two texts, and whether the second says what the first says: all different, half of them true."""
    chance = random.Random(seed)
    names = [(person, place) for person in PEOPLE for place in PLACES]
    chance.shuffle(names)
    rows = []
    for number, (person, place) in enumerate(names[:count]):
        right = number % 2 == 0
        other = place if right else chance.choice([name for name in PLACES if name != place])
        rows.append(
            (f"{person} was born near {place}", f"{person} is of {other}", ("not_entailment", "entailment")[right])
        )
    return rows


def write_rte(path: Path, rows: list[tuple[str, str, str]], *, labels: bool = True) -> str:
    header = ["index", "sentence1", "sentence2", *(["label"] if labels else [])]
    lines = [[str(number), *(row if labels else row[:2])] for number, row in enumerate(rows)]
    path.write_text("".join("\t".join(line) + "\n" for line in [header, *lines]))
    return str(path)


def write_links(path: Path, rows: list[tuple[str, str, str]]) -> str:
    """A file that says of every text what is named in it: its first word and its last."""
    texts = dict.fromkeys(text for row in rows for text in row[:2])
    with path.open("w") as file:
        for text in texts:
            last = text.rindex(" ") + 1
            mentions = [[0, text.index(" "), "one"], [last, len(text), "two"]]
            file.write(json.dumps({"text": text, "mentions": mentions}) + "\n")
    return str(path)


def rte_recipe(folder: Path, encoder: str, **changes: Any) -> TaskRecipe:
    """A short training on pairs, with a map of the names in a file."""
    rows = pairs()
    return replace(
        TaskRecipe(
            "RTE",
            "kam",
            batch=8,
            data=Data(write_rte(folder / "train.tsv", rows), develop=20),
            encoder=EncoderOptions(encoder, longest=32),
            maps=MapsConfig(maps=("entity",), entities="given", given=write_links(folder / "links.jsonl", rows)),
            kam=KamConfig(map_init=1.0),
            schedule=SCHEDULE,
        ),
        **changes,
    )


def recipes(folder: Path, encoder: str) -> dict[str, TaskRecipe]:
    """A recipe of every kind that is no GLUE task, with its data."""
    rows = pairs(40)
    base = TaskRecipe(
        "labelled", batch=8, data=Data(develop=10), encoder=EncoderOptions(encoder, longest=32), schedule=SCHEDULE
    )

    def of(task: str, file: str, text: str, **changes: Any) -> TaskRecipe:
        (folder / file).write_text(text)
        return replace(base, task=task, data=Data(str(folder / file), develop=10), **changes)

    def lines(objects: list[Any]) -> str:
        return "".join(json.dumps(each) + "\n" for each in objects)

    own = [{"said": first, "then": second, "right": label == "entailment"} for first, second, label in rows]
    numbers = [{"text": first, "label": len(first) / 10} for first, _, _ in rows]
    names = {"title": "mayor", "brand": None, "bullet_points": None, "description": None}
    esci = [
        {"query": second, **names, "title": first, "esci": "EI"[label != "entailment"], "asin": str(number)}
        for number, (first, second, label) in enumerate(rows)
    ]
    squad = [
        {"title": f"t{number}", "paragraphs": [{"context": first, "qas": [_asked(number, first)]}]}
        for number, (first, _, _) in enumerate(rows)
    ]
    found = [
        {
            "question": f"who was born near {first.split()[-1]} {number}",
            "answer": first.split()[0],
            "search_results": [{"snippet": first}, {"snippet": "the river of the old city"}],
        }
        for number, (first, _, _) in enumerate(rows)
    ]
    with (folder / "choices.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "context", "question", "answer0", "answer1", "label"])
        for number, (first, _, _) in enumerate(rows):
            answers = [first.split()[-1], "river"]
            table.writerow([number, first, "where", *answers[:: 1 - 2 * (number % 2)], number % 2])
    return {
        "labelled": of(
            "labelled", "own.jsonl", lines(own), labelled=LabelledOptions(text="said", text_b="then", label="right")
        ),
        "numbers": of("labelled", "n.jsonl", lines(numbers), labelled=LabelledOptions(numbers=True, low=0, high=9)),
        "relevance": of("relevance", "esci.jsonl", lines(esci)),
        "choice": replace(base, task="choice", data=Data(str(folder / "choices.csv"), develop=10)),
        "squad": of("squad", "squad.json", json.dumps({"version": "1.1", "data": squad})),
        "openqa": of("openqa", "found.jsonl", lines(found), questions=QuestionOptions(layout="searchqa", sampled=2)),
    }


def _asked(number: int, context: str) -> dict[str, Any]:
    place = context.split()[-1]
    answer = {"text": place, "answer_start": context.rindex(place)}
    return {"id": f"q{number}", "question": f"where was {context.split()[0]} born", "answers": [answer]}
