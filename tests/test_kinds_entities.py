"""Names and cloze questions by recipe: the rows of the table, from a file to scores, predictions and answers."""

import json
from dataclasses import replace

import pytest

from tests.tasking import SCHEDULE
from tests.test_task_cloze import QUESTIONS, as_record
from tests.tiny import PEOPLE, PLACES
from wellread.pictures import plots
from wellread.tasks.conll import Columns, read_conll
from wellread.tasks.ner import NerOptions
from wellread.training.recipe import Data, EncoderOptions, TaskRecipe
from wellread.training.task import load_task, train_task

SAID = [f"{one} B-person\nwas O\nborn O\nnear O\n{two} B-place\n" for one, two in zip(PEOPLE, PLACES, strict=True)]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "draw_comparison", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


def recipe(task, train, encoder, **more):
    return TaskRecipe(task, batch=4, data=Data(str(train), develop=1), encoder=EncoderOptions(encoder, 48), **more)


def test_a_file_of_columns_leads_to_a_model_that_finds_names(encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    schedule = replace(SCHEDULE, steps=60, evaluate_every=30, learning_rate=1e-2, accumulate=1)
    made = recipe("ner", tmp_path / "train", encoder, schedule=schedule, ner=NerOptions(longest=4))
    scores = train_task(made, tmp_path / "run")
    assert next(iter(scores)) == "f1"
    model = load_task(tmp_path / "run")
    assert model.facts == {"labels": ["person", "place"]}
    sentences = model.read(tmp_path / "train")
    assert model.has_gold(sentences)
    answers = model.answers(sentences)
    assert model.score(sentences, answers)["f1"] > 0.4
    chosen = model.task.chosen(answers)
    model.write(tmp_path / "told", sentences, answers)
    assert [list(one.chunks) for one in read_conll(tmp_path / "told")] == chosen
    assert [one.chunks for one in read_conll(tmp_path / "told", Columns(tag=1))] == [one.chunks for one in sentences]
    *names, none = model.answer([*(one.text for one in sentences), " "])
    assert none == []
    told = [
        [(one.text[name["start"] : name["end"]], name["label"]) for name in some]
        for one, some in zip(sentences, names, strict=True)
    ]
    words = [
        [(" ".join(map(one.word, range(*chunk[:2]))), chunk.label) for chunk in some]
        for one, some in zip(sentences, chosen, strict=True)
    ]
    assert told == words


def test_a_file_of_cloze_questions_leads_to_predictions(encoder, tmp_path):
    (tmp_path / "train").write_text(json.dumps(as_record(QUESTIONS)))
    scores = train_task(recipe("record", tmp_path / "train", encoder, schedule=SCHEDULE), tmp_path / "run")
    assert list(scores)[:2] == ["exact", "f1"]
    model = load_task(tmp_path / "run")
    questions = model.read(tmp_path / "train")
    assert model.has_gold(questions)
    answers = model.answers(questions)
    model.write(tmp_path / "told", questions, answers)
    told = json.loads((tmp_path / "told").read_text())
    for one in questions:
        assert told[one.id] in {one.passage[slice(*span)] for span in one.entities}
