"""The fact probe of KnowBERT: all pieces of a fact's object are masked, and ranked among the whole vocabulary."""

import numpy as np
import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, learner, teach, tiny_network
from tests.toy_models import write_kb
from wellread.data.readers.lama import Relation
from wellread.errors import InputError
from wellread.kb.records import Entity
from wellread.tasks.fact_probe import (
    FactProbing,
    RenderedFact,
    probe_facts,
    read_rendered,
    render_facts,
    split_facts,
    write_rendered,
)
from wellread.tasks.learner import ask

FACTS = [
    RenderedFact("0", "capital", "the city of avon is paris .", 20, 25),
    RenderedFact("1", "born", "cork was born in new zed city", 17, 29),
    RenderedFact("2", "capital", "rome is the city of brno", 0, 4),
]


def names(ids):
    return [TOKENIZER.id_to_token(id) for id in ids]


def test_all_pieces_of_the_object_are_masked_and_asked_for():
    ((one,), (other,), _) = FactProbing(TOKENIZER).tokenize(SEGMENTER, FACTS, learning=False)
    assert names(one.ids[one.places]) == ["[MASK]"]
    assert names(one.gold) == ["paris"]
    assert names(other.ids) == ["[CLS]", "cork", "was", "born", "in", *["[MASK]"] * 5, "[SEP]"]
    assert names(other.gold) == ["new", "z", "##e", "##d", "city"]
    assert other.words == ("cork", "was", "born", "in", "", "", "")
    assert (other.word_of[other.places] == -1).all()


def test_ranks_are_those_of_loops_over_the_vocabulary_and_of_pieces():
    task = FactProbing(TOKENIZER, at=(3,))
    model = tiny_network(task).double()
    answers = ask(task, model, SEGMENTER, FACTS)
    ranks = []
    for (one,), (found,) in zip(task.tokenize(SEGMENTER, FACTS, learning=False), answers, strict=True):
        with torch.no_grad():
            states = model.encoder(input_ids=torch.from_numpy(one.ids)[None]).last_hidden_state[0]
        for place, gold, rank in zip(one.places, one.gold, found, strict=True):
            scores = model.head(states[place][None])[0]
            assert rank == sum(bool(score >= scores[gold]) for score in scores)
            ranks.append(rank)
    assert len(ranks) == 1 + 5 + 1
    scores = task.scores(FACTS, answers)
    assert scores["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))
    born = np.mean(1 / np.array(ranks[1:6]))
    assert scores["macro_mrr"] == pytest.approx((born + np.mean([1 / ranks[0], 1 / ranks[6]])) / 2)
    assert scores["precision@3"] == np.mean(np.array(ranks) <= 3)
    assert probe_facts(model, SEGMENTER, FACTS, at=(3,)) == task.report(FACTS, answers)


def test_a_fact_is_predicted_when_all_its_tokens_are():
    found = FactProbing(TOKENIZER).scores(FACTS, [[(1,)], [(1, 1, 2, 1, 1)], []])
    assert found["facts"] == pytest.approx(1 / 3)
    # The object that was cut off is one piece that was not found.
    assert found["mrr"] == pytest.approx((1 + 4.5 + 0) / 7)
    long = RenderedFact("9", "born", f"{'the old river of ' * 20}avon", 340, 344)
    task = FactProbing(TOKENIZER)
    assert task.tokenize(SEGMENTER, [long], learning=False) == [[]]
    assert task.scores([long, *FACTS], ask(task, tiny_network(task), SEGMENTER, [long, *FACTS]))["mrr"] < 1


def test_facts_can_be_learned():
    task = FactProbing(TOKENIZER)
    made = learner(task, FACTS)
    assert made.evaluate()["facts"] < 1
    teach(made, 30, rate=1e-2)
    assert set(made.evaluate().values()) == {1}


def test_the_authors_files_name_words_and_ours_characters(tmp_path):
    (tmp_path / "capital.text").write_text("5 5\tThe city of Avon is Paris .\n0 1\tNew Rome is old .\n")
    first, second = read_rendered(tmp_path / "capital.text")
    assert (first.relation, first.text[first.start : first.end]) == ("capital", "Paris")
    assert (second.id, second.text[second.start : second.end]) == ("2", "New Rome")
    write_rendered(tmp_path / "facts.jsonl", FACTS)
    assert list(read_rendered(tmp_path / "facts.jsonl")) == FACTS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Dante died in Ravenna .", "line 1: expected the numbers of the object's first and last word"),
        ("3 9\tDante died in Ravenna .", "words 3 to 9, but the sentence has 5"),
        ("3 2\tDante died in Ravenna .", "words 3 to 2"),
        ('{"text": "Dante", "start": 0, "end": 9}', "object is 0-9 in 'Dante'"),
        ('{"text": "Dante", "end": 9}', "object is -1-9"),
    ],
)
def test_broken_facts_are_reported_or_left_out(tmp_path, line, message):
    (tmp_path / "bad.text").write_text(f"{line}\n")
    with pytest.raises(InputError, match=message):
        list(read_rendered(tmp_path / "bad.text"))
    skipped = []
    assert list(read_rendered(tmp_path / "bad.text", skipped=skipped)) == []
    assert len(skipped) == 1


def test_facts_of_a_knowledge_base_are_rendered_by_templates(tmp_path):
    entities = [
        Entity("q1", "Dante", "", "person", 1, {}, (("born", "q2"), ("died", "q3"), ("wrote", "q3"))),
        Entity("q2", "Florence [X]", "", "city", 1, {}),
        Entity("q3", "Ravenna", "", "city", 1, {}),
    ]
    relations = [
        Relation("born", "[X] was born in [Y] ."),
        Relation("died", "[Y] saw the end of [X]"),
        Relation("wrote"),
    ]
    with write_kb(tmp_path / "poets.kb", entities) as kb:
        facts = list(render_facts(kb, relations))
    assert [(fact.id, fact.text, fact.text[fact.start : fact.end]) for fact in facts] == [
        ("q1 born q2", "Dante was born in Florence [X] .", "Florence [X]"),
        ("q1 died q3", "Ravenna saw the end of Dante", "Ravenna"),
    ]
    rest, dev = split_facts(facts, 1)
    assert len(rest) == len(dev) == 1
