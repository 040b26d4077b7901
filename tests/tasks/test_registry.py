"""Relations, types and facts by recipe: the rows of the table, from a file to scores, predictions and answers."""

import json

import pytest

from tests.task_models import SEGMENTER, TOKENIZER, learner
from tests.toy_models import PEOPLE, PLACES
from wellread.errors import InputError, UsageError
from wellread.tasks.data_options import Data, EncoderOptions
from wellread.tasks.entity_typing import TypeOptions
from wellread.tasks.learner import ask
from wellread.tasks.registry import TASKS
from wellread.tasks.relations import SEMEVAL2010, RelationOptions
from wellread.tasks.task_type import TaskSettings

OPTIONS = {"relations": RelationOptions(markers=(":", "-")), "types": TypeOptions(markers=(":",)), "": None}


def written(task):
    """Twelve examples in a task's format."""
    rows = list(enumerate(zip(PEOPLE, PLACES, strict=True)))
    if task == "semeval2010":
        labels = ("Other", "Entity-Origin(e1,e2)")
        texts = [f'"<e1>{one}</e1> was born near <e2>{two}</e2>"\n{labels[n % 2]}' for n, (one, two) in rows]
        return "".join(f"{number}\t{text}\nComment:\n\n" for number, text in enumerate(texts))
    if task == "tacred":
        spans = {"subj_start": 0, "subj_end": 0, "obj_start": 4, "obj_end": 4}
        kinds = {"subj_type": "PERSON", "obj_type": "CITY"}
        labels = ("no_relation", "per:city_of_birth")
        words = [[one, "was", "born", "near", two] for _, (one, two) in rows]
        made = [{"token": some, **spans, **kinds, "relation": labels[n % 2]} for n, some in enumerate(words)]
        return json.dumps(made)
    if task == "entity-types":
        made = [
            {"sent": f"{one} wrote to {two}", "start": 0, "end": len(one), "labels": ["person", ("old", "new")[n % 2]]}
            for n, (one, two) in rows
        ]
        return "".join(json.dumps(record) + "\n" for record in made)
    return "".join(f"4 4\t{one} was born near {two}\n" for _, (one, two) in rows)


WAYS = ("micro", "macro")
EXPECTED = {
    "tacred": ({"labels": ["no_relation", "per:city_of_birth"]}, ["f1", "precision", "recall"]),
    "semeval2010": ({"labels": list(SEMEVAL2010)}, ["f1", "precision", "recall", "micro_f1", "accuracy"]),
    "entity-types": (
        {"types": ["new", "old", "person"]},
        [*(f"{way}_{part}" for way in WAYS for part in ("f1", "precision", "recall")), "strict"],
    ),
    "fact-probe": ({}, ["mrr", "macro_mrr", "precision", "precision@10", "facts"]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_leads_from_a_file_to_scores_and_predictions(name, encoder, tmp_path):
    (tmp_path / "train").write_text(written(name))
    kind, data = TASKS[name], Data(train=str(tmp_path / "train"), develop=4)
    settings = TaskSettings(name, data, EncoderOptions(encoder), OPTIONS[kind.options])
    facts, scores = kind.metadata(settings), EXPECTED[name][1]
    assert json.loads(json.dumps(facts)) == facts == EXPECTED[name][0]
    broken = []
    examples = list(kind.read(settings, facts, str(tmp_path / "train"), broken))
    assert (len(examples), broken) == (12, [])
    assert all(map(kind.has_gold, examples))
    rest, dev = kind.split(examples, 4)
    assert (len(rest), len(dev)) == (8, 4)
    task = kind.build(settings, facts, TOKENIZER)
    made = learner(task, rest, dev)
    for batch in made.batches(0):
        sum(made.loss(batch).values()).backward()
    assert made.model.encoder.embeddings.word_embeddings.weight.grad.any()
    assert list(made.evaluate()) == scores
    assert task.score == scores[0]
    if kind.write is not None:
        kind.write(tmp_path / "out", task, dev, ask(task, made.model, SEGMENTER, dev))
        output = (tmp_path / "out").read_text()
        assert len(json.loads(output) if name == "entity-types" else output.splitlines()) == 4


@pytest.mark.parametrize("name", ["tacred", "semeval2010", "entity-types"])
def test_a_text_with_tags_can_be_asked_about(name):
    text = "<e1>ada</e1> saw <e2>avon</e2>" if name != "entity-types" else "<e1>ada</e1> saw avon"
    example = TASKS[name].example("7", (text,))
    assert (example.id, example.text) == ("7", "ada saw avon")
    assert not TASKS[name].has_gold(example)
    with pytest.raises(UsageError, match="got 2 texts; give one"):
        TASKS[name].example("7", (text, text))
    with pytest.raises(InputError, match="expected one <e1></e1>"):
        TASKS[name].example("7", ("ada saw avon",))
