"""Cloze questions by candidates: ReCoRD's files and scores, what is a candidate, and what is learned."""

import json
from dataclasses import replace

import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, learner, teach, tiny_network
from wellread.data.readers.record import ClozeQuestion, evaluate_record, read_record, score_record, split_record
from wellread.data.readers.squad import write_predictions
from wellread.errors import InputError
from wellread.tasks.cloze_qa import Chosen, Cloze
from wellread.tasks.learner import ask
from wellread.text.tokenization import TextTokenizer

PASSAGE = "The mayor of Avon was born in Brno , near the old river of Cork .\n@highlight\nAvon is a new city"


def question(id, passage, names, query, *answers):
    """Entities are all places where one of the names stands."""
    spans = {(at, at + len(name)) for name in names for at in range(len(passage)) if passage.startswith(name, at)}
    return ClozeQuestion(id, passage, tuple(sorted(spans)), query, answers)


PLACES = ("Avon", "Brno", "Cork")
QUESTIONS = [
    question("0", PASSAGE, PLACES, "the mayor was born in @placeholder .", "Brno"),
    question("1", PASSAGE, PLACES, "where is the old river : @placeholder", "Cork"),
    question("2", PASSAGE, PLACES, "@placeholder is a new city", "Avon", "the Avon"),
    question("3", "Genoa wrote to Dover", ("Genoa", "Dover"), "who wrote ? @placeholder", "Genoa"),
]
TASK = Cloze(TOKENIZER, longest=60, stride=8)


def as_record(questions):
    """ReCoRD's own layout."""
    return {
        "version": "1.0",
        "data": [
            {
                "id": f"p{one.id}",
                "source": "here",
                "passage": {"text": one.passage, "entities": [{"start": s, "end": e - 1} for s, e in one.entities]},
                "qas": [
                    {
                        "id": one.id,
                        "query": one.query,
                        "answers": [{"start": 0, "end": 1, "text": t} for t in one.answers],
                    }
                ],
            }
            for one in questions
        ],
    }


def test_both_layouts_are_read(tmp_path):
    record = as_record(QUESTIONS)
    (tmp_path / "a.json").write_text(json.dumps(record))
    (tmp_path / "b.json").write_text(json.dumps(record, indent=1))
    assert list(read_record(tmp_path / "a.json")) == list(read_record(tmp_path / "b.json")) == QUESTIONS
    for number, passage in enumerate(record["data"]):
        for question in passage["qas"]:
            question["idx"] = {"passage": number, "query": int(question.pop("id"))}
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(passage) + "\n" for passage in record["data"]))
    assert list(read_record(tmp_path / "c.jsonl")) == [replace(one, id=f"{one.id}-{one.id}") for one in QUESTIONS]


def test_questions_of_superglue_are_known_by_their_numbers(tmp_path):
    lines = []
    for number, passage in enumerate(as_record(QUESTIONS)["data"]):
        passage["idx"] = number
        del passage["id"]
        for question in passage["qas"]:
            question["idx"] = 10 + int(question.pop("id"))
        lines.append(json.dumps(passage) + "\n")
    (tmp_path / "dev.jsonl").write_text("".join(lines))
    read = list(read_record(tmp_path / "dev.jsonl"))
    assert read == [replace(one, id=str(10 + int(one.id))) for one in QUESTIONS]
    write_predictions(tmp_path / "predictions.json", {one.id: one.answers[0] for one in read})
    assert json.loads((tmp_path / "predictions.json").read_text())["10"] == "Brno"
    found = evaluate_record(tmp_path / "dev.jsonl", tmp_path / "predictions.json")
    assert (found.all.exact, found.missing) == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data["qas"][0].update(query="no hole"),
            r"data\[1\].qas\[0\]: expected one @placeholder in 'no hole'",
        ),
        (lambda data: data["passage"]["entities"][0].update(end=999), r"data\[1\]: an entity is from 13 to 999"),
        (lambda data: data.pop("qas"), r"data\[1\]: expected an object with \"qas\"; is this a ReCoRD file"),
    ],
)
def test_broken_records_are_reported_and_left_out(change, message, tmp_path):
    record = as_record(QUESTIONS)
    change(record["data"][1])
    (tmp_path / "a.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=message):
        list(read_record(tmp_path / "a.json"))
    broken = []
    assert [one.id for one in read_record(tmp_path / "a.json", skipped=broken)] == ["0", "2", "3"]
    assert len(broken) == 1


def test_scores_are_those_of_the_official_script(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(as_record(QUESTIONS)))
    write_predictions(tmp_path / "predictions.json", {"0": "brno", "1": "the old Cork", "2": "AVON.", "5": "x"})
    found = evaluate_record(tmp_path / "a.json", tmp_path / "predictions.json")
    assert (found.all.exact, found.missing) == (0.5, 1)
    assert found.all.f1 == pytest.approx((1 + 2 / 3 + 1 + 0) / 4)
    with pytest.raises(InputError, match="no answers to score against; is this a test file"):
        score_record([replace(QUESTIONS[0], answers=())], {})


def test_a_passage_stays_on_one_side():
    rest, dev = split_record(QUESTIONS, 1)
    assert {len(rest), len(dev)} == {1, 3}


def test_candidates_are_the_entities_that_a_window_has_whole_and_the_hole_is_a_mask():
    seen = set()
    ((*windows,),) = Cloze(TOKENIZER, longest=20, stride=5).tokenize(SEGMENTER, QUESTIONS[:1], learning=True)
    assert len(windows) > 1
    for one in windows:
        tokens = [TOKENIZER.id_to_token(id) for id in one.ids]
        assert tokens[one.placeholder[0] : one.placeholder[1] + 1] == ["[MASK]"]
        for number, first, last in one.candidates.tolist():
            start, end = QUESTIONS[0].entities[number]
            assert (one.spans[first, 0], one.spans[last, 1]) == (start, end)
            seen.add(number)
    assert seen == set(range(len(QUESTIONS[0].entities)))


def test_a_long_query_is_cut_around_its_hole():
    long = replace(QUESTIONS[0], query=f"{'the old river ' * 20}@placeholder{' is a city' * 20}")
    task = Cloze(TOKENIZER, longest=40, stride=5, longest_question=10)
    for one in task.tokenize(SEGMENTER, [long], learning=False)[0]:
        assert int((one.segment_of == 0).sum()) + 1 <= 11
        assert TOKENIZER.id_to_token(one.ids[one.placeholder[0]]) == "[MASK]"


def test_a_question_none_of_whose_candidates_is_right_is_not_learned_from():
    other = replace(QUESTIONS[0], answers=("Dover",))
    empty = replace(QUESTIONS[0], entities=())
    assert TASK.tokenize(SEGMENTER, [other, empty], learning=True) == [[], []]
    assert [len(some) for some in TASK.tokenize(SEGMENTER, [other, empty], learning=False)] == [1, 0]
    answers = [[Chosen(0.1, "a"), Chosen(0.3, "b")], []]
    assert TASK.texts([other, replace(empty, id="1")], answers) == {"0": "b", "1": ""}


def test_answers_and_loss_are_those_of_placeholder_and_candidate():
    made = learner(TASK, QUESTIONS[:2], batch=2)
    model = made.model.double()
    losses, best = [], []
    for one, (window,) in zip(made.examples, made.tokenized, strict=True):
        with torch.no_grad():
            states = model.encoder(
                input_ids=torch.from_numpy(window.ids)[None], token_type_ids=torch.from_numpy(window.types)[None]
            ).last_hidden_state[0]
            hole = states[window.placeholder[0] : window.placeholder[1] + 1].mean(0)
            scores = [
                model.head(hole[None], states[first : last + 1].mean(0)[None])[0]
                for _, first, last in window.candidates.tolist()
            ]
        for score, number in zip(scores, window.candidates[:, 0].tolist(), strict=True):
            right = one.passage[slice(*one.entities[number])] in one.answers
            losses.append(torch.nn.functional.logsigmoid(score if right else -score))
        number = int(window.candidates[int(torch.stack(scores).argmax()), 0])
        best.append(one.passage[slice(*one.entities[number])])
    assert [some[0].text for some in ask(TASK, model, SEGMENTER, made.examples)] == best
    (batch,) = made.batches(0)
    assert torch.allclose(made.loss(batch)["cloze"], -torch.stack(losses).mean())


@pytest.mark.parametrize("knowing", [False, True])
def test_cloze_questions_are_learned(knowing):
    segmenter = TextTokenizer(TOKENIZER, longest=40)
    made = learner(TASK, QUESTIONS, knowing=knowing, segmenter=segmenter)
    assert made.evaluate()["exact"] < 1
    teach(made, 60, rate=1e-2)
    assert made.evaluate() == {"exact": 1, "f1": 1}


def test_a_tokenizer_without_masks_reads_the_placeholder_itself():
    from tests.toy_models import tokenizer

    task = Cloze(tokenizer(), longest=40, stride=8)
    ((one,),) = task.tokenize(TextTokenizer(tokenizer()), QUESTIONS[3:], learning=True)
    hole = slice(one.spans[one.placeholder[0], 0], one.spans[one.placeholder[1], 1])
    assert one.texts[0][hole] == "@placeholder"
    assert tiny_network(TASK).head.out.out_features == 1
