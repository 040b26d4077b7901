"""Relation classification: the files of TACRED and SemEval-2010 task 8, and a task that reads both entities."""

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, learner, provider, teach, tiny_network
from wellread.errors import InputError
from wellread.evaluation.relations import score_semeval2010
from wellread.tasks.learner import ask
from wellread.tasks.relations import (
    SEMEVAL2010,
    EntityPair,
    Relating,
    RelationOptions,
    find_relations,
    join_words,
    parse_pair,
    read_semeval2010,
    read_tacred,
    split_pairs,
    write_semeval2010,
    write_tacred,
)

SHARED = Path(__file__).parents[3] / "shared" / "data" / "relations" / "semeval2010_task8_train.txt.xz"
SEMEVAL = (
    '1\t"The <e1>mayor</e1> wrote of a \\"<e2>river</e2>\\"."\r\nMessage-Topic(e1,e2)\r\nComment: fine\r\n\r\n'
    '2\t"<e2>Cork</e2> is near <e1>old Avon</e1>, who?"\nOther\nComment:\nand one more line\n\n'
    '8001\t"A <e1>city</e1> <e2>river</e2>"\n\n'
)
MARKERS = RelationOptions(markers=(":", "-"))
LABELS = ("Other", "Near(e1,e2)", "Near(e2,e1)")
PAIRS = [
    parse_pair("0", "<e1>avon</e1> is near <e2>brno</e2>", "Near(e1,e2)"),
    parse_pair("1", "<e2>avon</e2> is near <e1>brno</e1>", "Near(e2,e1)"),
    parse_pair("2", "<e1>cork</e1> wrote <e2>dover</e2>", "Other"),
    parse_pair("3", "who is <e1>essen</e1> near the <e2>river of rome</e2> ?", "Near(e1,e2)"),
]


def tacred(**changes):
    record = {
        "id": "e7",
        "token": ["Ada", "-LRB-", "born", "in", "New", "York", "-RRB-", "wrote"],
        "subj_start": 0,
        "subj_end": 0,
        "obj_start": 4,
        "obj_end": 5,
        "subj_type": "PERSON",
        "obj_type": "STATE_OR_PROVINCE",
        "relation": "per:city_of_birth",
    }
    return {name: value for name, value in (record | changes).items() if value is not None}


def said(pair):
    return pair.text[slice(*pair.subject)], pair.text[slice(*pair.object)]


def test_semevals_texts_lose_their_tags_and_quotes_and_keep_their_entities(tmp_path):
    (tmp_path / "train.txt").write_bytes(SEMEVAL.encode())
    first, second, third = read_semeval2010(tmp_path / "train.txt")
    assert first == EntityPair("1", 'The mayor wrote of a \\"river\\".', (4, 9), (23, 28), "Message-Topic(e1,e2)")
    assert said(first) == ("mayor", "river")
    assert (second.text, said(second), second.relation) == (
        "Cork is near old Avon, who?",
        ("old Avon", "Cork"),
        "Other",
    )
    assert (third.id, said(third), third.relation) == ("8001", ("city", "river"), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('1\t"a <e1>b</e1> c"\nOther\n', "line 1: expected one <e1></e1> and one <e2></e2>"),
        ('\n1\t"a <e1>b</e1> <e2></e2>"\nOther\n', "line 2: expected one .* that are not empty"),
        ('1\t"<e1>a</e1> <e2>b</e2> <e1>c</e1>"\nOther\n', "<e1> occurs twice"),
        ('1\t"<e1>a</e1> <e2>b</e2>"\nCause Effect\n', "the relation is 'Cause Effect'"),
        ('"<e1>a</e1> <e2>b</e2>"\nOther\n', "expected a number, a tab and a text in quotes"),
    ],
)
def test_broken_pairs_are_reported_or_left_out(tmp_path, text, message):
    (tmp_path / "bad.txt").write_text(text + '\n9\t"<e1>a</e1> <e2>b</e2>"\nOther\n')
    with pytest.raises(InputError, match=message):
        list(read_semeval2010(tmp_path / "bad.txt"))
    skipped = []
    assert [pair.id for pair in read_semeval2010(tmp_path / "bad.txt", skipped=skipped)] == ["9"]
    assert len(skipped) == 1


@pytest.mark.parametrize("form", ["list", "lines"])
def test_tacreds_words_become_a_text_and_its_spans_characters(tmp_path, form):
    records = [tacred(), tacred(id=None, relation=None, subj_type=None)]
    lines = "\n".join(json.dumps(record) for record in records)
    (tmp_path / "train.json").write_text(json.dumps(records, indent=1) if form == "list" else lines)
    first, second = read_tacred(tmp_path / "train.json")
    assert first.text == "Ada ( born in New York ) wrote"
    assert said(first) == ("Ada", "New York")
    assert (first.id, first.relation, first.kinds) == ("e7", "per:city_of_birth", ("PERSON", "STATE_OR_PROVINCE"))
    assert (second.id, second.relation, second.kinds) == ("2", None, None)


def test_broken_records_of_tacred_are_reported_or_left_out(tmp_path):
    bad = [tacred(obj_end=8), tacred(subj_start=2, subj_end=1), tacred(token="Ada"), 3]
    (tmp_path / "bad.json").write_text(json.dumps([*bad, tacred()]))
    skipped = []
    assert len(list(read_tacred(tmp_path / "bad.json", skipped=skipped))) == 1
    assert [f"example {number}: " in line for number, line in enumerate(skipped, 1)] == [True] * 4
    assert "obj_start is 4 and obj_end is 8; expected two of 8 words" in skipped[0]
    with pytest.raises(InputError, match="example 1"):
        list(read_tacred(tmp_path / "bad.json"))


def test_words_of_a_treebank_are_joined_by_blanks():
    assert join_words(["``", "a", "-RSB-"]) == ('" a ]', [(0, 1), (2, 3), (4, 5)])


def test_predictions_are_written_as_official_scorers_read_them(tmp_path):
    write_semeval2010(tmp_path / "s.txt", PAIRS[:2], ["Other", "Cause-Effect(e2,e1)"])
    assert (tmp_path / "s.txt").read_bytes() == b"0\tOther\n1\tCause-Effect(e2,e1)\n"
    write_tacred(tmp_path / "t.txt", ["no_relation", "per:age"])
    assert (tmp_path / "t.txt").read_bytes() == b"no_relation\nper:age\n"


def test_relations_are_those_of_the_data_or_all_official_ones():
    assert len(SEMEVAL2010) == len(set(SEMEVAL2010)) == 19
    assert find_relations([replace(PAIRS[0], relation="Cause-Effect(e2,e1)")], "semeval2010") == SEMEVAL2010
    assert find_relations(PAIRS, "semeval2010") == ("Near(e1,e2)", "Near(e2,e1)", "Other")
    assert find_relations([replace(PAIRS[0], relation="per:age")], "tacred") == ("no_relation", "per:age")


def test_a_text_has_all_its_pairs_on_one_side():
    pairs = [replace(pair, id=f"{pair.id}{copy}") for pair in PAIRS[1:] for copy in "ab"]
    rest, dev = split_pairs(pairs, 3)
    assert len(dev) == 4
    assert not {pair.text for pair in rest} & {pair.text for pair in dev}


def test_kinds_are_a_second_segment_where_the_data_has_them():
    pair = replace(PAIRS[0], kinds=("PERSON", "STATE_OR_PROVINCE"))
    for options, texts in ((MARKERS, (pair.text, "person , state or province")), (replace(MARKERS, kinds=False), None)):
        task = Relating(TOKENIZER, LABELS, rule="semeval2010", options=options)
        ((one,), (other,)) = task.tokenize(SEGMENTER, [pair, PAIRS[1]], learning=True)
        assert one.texts == (texts or (pair.text,))
        assert other.texts == (PAIRS[1].text,)
        assert one.mentions == (pair.subject, pair.object)


def test_answers_and_loss_are_those_of_the_two_markers_states():
    task = Relating(TOKENIZER, LABELS, rule="semeval2010", options=MARKERS)
    made = learner(task, PAIRS, batch=4)
    model = made.model.double()
    naive, losses = {}, []
    for pair, (one,) in zip(made.examples, made.tokenized, strict=True):
        with torch.no_grad():
            states = model.encoder(input_ids=torch.from_numpy(one.ids)[None]).last_hidden_state[0]
            scores = model.head.out(torch.cat([states[place] for place in one.places.tolist()]))
        naive[pair.id] = LABELS[int(scores.argmax())]
        losses.append(-scores.log_softmax(0)[LABELS.index(pair.relation)])
    assert {pair.id: some[0] for pair, some in zip(PAIRS, ask(task, model, SEGMENTER, PAIRS), strict=True)} == naive
    (batch,) = made.batches(0)
    assert torch.allclose(made.loss(batch)["relation"], torch.stack(losses).mean())


@pytest.mark.parametrize("knowing", [False, True])
def test_relations_and_their_directions_are_learned(knowing):
    task = Relating(TOKENIZER, LABELS, rule="semeval2010", options=MARKERS)
    made = learner(task, PAIRS, knowing=knowing)
    assert made.evaluate()["f1"] < 1
    teach(made, 25, rate=1e-2)
    assert made.evaluate() == dict.fromkeys(("f1", "precision", "recall", "micro_f1", "accuracy"), 1)
    provided = provider() if knowing else None
    assert [some[0] for some in ask(task, made.model, SEGMENTER, PAIRS, provider=provided)] == [
        one.relation for one in PAIRS
    ]


def test_tacred_is_scored_without_its_negative_pairs():
    task = Relating(TOKENIZER, ("no_relation", "per:age"), rule="tacred", options=MARKERS)
    pairs = [replace(PAIRS[0], relation=label) for label in ("per:age", "no_relation", "per:unseen")]
    found = task.scores(pairs, [["per:age"], ["per:age"], ["no_relation"]])
    assert found == {"precision": 0.5, "recall": 0.5, "f1": 0.5}


def test_what_cannot_be_learned_or_scored_is_refused():
    task = Relating(TOKENIZER, LABELS, rule="semeval2010", options=MARKERS)
    secret = replace(PAIRS[0], relation=None)
    with pytest.raises(InputError, match="is this a test file"):
        task.scores([secret], [["Other"]])
    for pair in (secret, replace(secret, relation="Far(e1,e2)")):
        with pytest.raises(InputError, match=re.escape(f"the relation {pair.relation!r}, expected one of Other")):
            list(learner(task, [pair]).batches(0))
    assert len(ask(task, tiny_network(task), SEGMENTER, [secret])) == 1
    with pytest.raises(InputError, match="two or more, each once"):
        Relating(TOKENIZER, ("Other",), rule="tacred", options=MARKERS)


def test_all_of_semevals_training_part_is_read():
    if not SHARED.exists():
        pytest.skip("../shared/data has no SemEval-2010 task 8")
    pairs = list(read_semeval2010(SHARED))
    assert len(pairs) == len({pair.id for pair in pairs}) == 8000
    assert {pair.relation for pair in pairs} == set(SEMEVAL2010)
    assert not [pair.id for pair in pairs if "<e" in pair.text or not all(map(str.strip, said(pair)))]
    with lzma.open(SHARED, "rt", encoding="utf-8") as file:
        whole = file.read()
    assert all(f"<e1>{one}</e1>" in whole and f"<e2>{other}</e2>" in whole for one, other in map(said, pairs[::97]))
    predicted = [pair.relation for pair in pairs]
    assert score_semeval2010(predicted, predicted).macro.f1 == 1
