"""Entity typing: both formats of Open Entity, and a task with several right types."""

import json
from dataclasses import replace

import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, learner, teach, tiny_network
from wellread.errors import InputError, UsageError
from wellread.tasks.entity_typing import (
    EntityTyping,
    TypedMention,
    TypeOptions,
    find_types,
    parse_mention,
    read_types,
    split_mentions,
    write_types,
)
from wellread.tasks.learner import ask

OPTIONS = TypeOptions(markers=(":",))
TYPES = ("city", "person", "place")
MENTIONS = [
    TypedMention("0", "the mayor of avon was born", (0, 17), ("person",)),
    TypedMention("1", "the mayor of avon was born", (13, 17), ("place", "city")),
    TypedMention("2", "who is near the river ?", (12, 21), ("place",)),
    TypedMention("3", "a planet", (0, 8), ()),
]


def ultra(**changes):
    record = {
        "annot_id": "a1",
        "left_context_token": ["In", "-LRB-"],
        "mention_span": "New York",
        "right_context_token": ["-RRB-", "it", "rained"],
        "y_str": ["place", "city", "place"],
    }
    return {name: value for name, value in (record | changes).items() if value is not None}


OPEN = {"sent": "Ada saw him .", "start": 8, "end": 11, "labels": ["person"], "ents": []}


def test_mentions_of_both_formats_are_characters_of_their_text(tmp_path):
    records = [ultra(), ultra(left_context_token=[], annot_id=None, y_str=None)]
    (tmp_path / "test.json").write_text("\n".join(map(json.dumps, records)))
    first, second = read_types(tmp_path / "test.json")
    assert first == TypedMention("a1", "In ( New York ) it rained", (5, 13), ("place", "city"))
    assert second == TypedMention("2", "New York ) it rained", (0, 8), None)
    (tmp_path / "train.json").write_text(json.dumps([OPEN]))
    (third,) = read_types(tmp_path / "train.json")
    assert (third.text[slice(*third.mention)], third.types) == ("him", ("person",))


def test_broken_mentions_are_reported_or_left_out(tmp_path):
    bad = [
        OPEN | {"end": 99},
        OPEN | {"start": None},
        OPEN | {"labels": "person"},
        ultra(right_context_token="it"),
        ultra(mention_span=" "),
    ]
    (tmp_path / "bad.json").write_text(json.dumps([*bad, OPEN]))
    skipped = []
    assert len(list(read_types(tmp_path / "bad.json", skipped=skipped))) == 1
    for message, line in zip(
        (
            "mention is 8-99",
            "mention is -1-11",
            "expected a list of names",
            "is not a list of words",
            "expected a span inside it",
        ),
        skipped,
        strict=True,
    ):
        assert message in line


def test_a_mention_may_be_given_in_tags():
    one = parse_mention("7", "in <e1>old Avon</e1> .")
    assert (one.text, one.text[slice(*one.mention)], one.types) == ("in old Avon .", "old Avon", None)
    for text in ("Avon", "<e1> </e1>", "<e1>a</e1> <e1>b</e1>", "a</e1> b <e1>"):
        with pytest.raises(InputError, match="expected one <e1></e1>"):
            parse_mention("7", text)


def test_predictions_are_written_as_the_ultra_fine_scorer_reads_them(tmp_path):
    write_types(tmp_path / "out.json", [MENTIONS[1], replace(MENTIONS[2], types=None)], [("city",), ()])
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "1": {"gold": ["place", "city"], "pred": ["city"]},
        "2": {"gold": [], "pred": []},
    }


def test_types_are_those_of_the_data_and_texts_are_not_split():
    assert find_types(MENTIONS) == TYPES
    rest, dev = split_mentions(MENTIONS, 1)
    assert not {one.text for one in rest} & {one.text for one in dev}


def test_each_type_is_a_question_of_its_own():
    task = EntityTyping(TOKENIZER, TYPES, options=OPTIONS)
    made = learner(task, MENTIONS, batch=4)
    model = made.model.double()
    rows = []
    for one, (tokenized,) in zip(made.examples, made.tokenized, strict=True):
        with torch.no_grad():
            states = model.encoder(input_ids=torch.from_numpy(tokenized.ids)[None]).last_hidden_state[0]
            scores = model.head.out(states[tokenized.places[0]])
        (answer,) = ask(task, model, SEGMENTER, [one])[0]
        assert answer == tuple(name for name, score in zip(TYPES, scores.tolist(), strict=True) if score > 0)
        right = torch.tensor([name in one.types for name in TYPES])
        rows.append(-torch.where(right, scores.sigmoid(), 1 - scores.sigmoid()).log())
    (batch,) = made.batches(0)
    assert torch.allclose(made.loss(batch)["type"], torch.stack(rows).mean())


def test_the_threshold_and_the_best_type_decide_the_predictions():
    network = tiny_network(EntityTyping(TOKENIZER, TYPES, options=OPTIONS))
    with torch.no_grad():
        network.head.out.weight.zero_()
        network.head.out.bias.copy_(torch.tensor([-1.0, 1.5, 0.5]))

    def predict(**options):
        task = EntityTyping(TOKENIZER, TYPES, options=replace(OPTIONS, **options))
        return ask(task, network, SEGMENTER, MENTIONS[:1])[0][0]

    assert predict() == ("person", "place")
    assert predict(threshold=0.7) == ("person",)
    assert predict(threshold=0.9) == ()
    assert predict(threshold=0.9, at_least_one=True) == ("person",)
    assert predict(threshold=0.2) == TYPES
    with pytest.raises(UsageError, match=r"threshold is 1\.0"):
        TypeOptions(threshold=1.0)


def test_types_are_learned_and_scored_also_where_only_some_are_asked_for():
    task = EntityTyping(TOKENIZER, TYPES, options=OPTIONS)
    made = learner(task, MENTIONS)
    assert made.evaluate()["strict"] < 1
    teach(made, 25, rate=1e-2)
    assert set(made.evaluate().values()) == {1}
    some = EntityTyping(TOKENIZER, TYPES[:2], options=replace(OPTIONS, types=TYPES[:2]))
    found = some.scores(MENTIONS, [[("person",)], [("city",)], [()], [()]])
    assert found["micro_f1"] == found["strict"] == 1


def test_mentions_without_types_can_be_asked_about_but_not_learned_or_scored():
    task = EntityTyping(TOKENIZER, TYPES, options=OPTIONS)
    secret = replace(MENTIONS[0], types=None)
    assert len(ask(task, tiny_network(task), SEGMENTER, [secret])[0]) == 1
    with pytest.raises(InputError, match="no types to train on"):
        list(learner(task, [secret]).batches(0))
    with pytest.raises(InputError, match="no types to score against"):
        task.scores([secret], [[()]])
    with pytest.raises(InputError, match="one or more, each once"):
        EntityTyping(TOKENIZER, ("a", "a"), options=OPTIONS)
