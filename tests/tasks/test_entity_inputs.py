"""Tasks with an encoder that takes entities (LUKE): its inputs, the states that are scored, and training."""

import random
from dataclasses import replace

import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, teach, tiny_encoder
from tests.tasks.test_cloze_qa import QUESTIONS
from tests.tasks.test_cloze_qa import TASK as CLOZE
from tests.tasks.test_ner import LABELS, SENTENCES, all_spans
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.packing import Packing
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.model import ENTITIES, luke_of
from wellread.tasks.entity_typing import EntityTyping, TypeOptions, parse_mention
from wellread.tasks.learner import TaskLearner, ask
from wellread.tasks.ner import NamedEntities, NerOptions
from wellread.tasks.relations import Relating, RelationOptions, parse_pair
from wellread.tasks.task import EncoderWithHead, make_batch
from wellread.text.tokenization import TextTokenizer

RELATIONS = ("Other", "Near(e1,e2)", "Near(e2,e1)")
PAIRS = [
    parse_pair(str(number), text, relation)
    for number, (text, relation) in enumerate(
        [
            ("the <e1>mayor</e1> is near <e2>avon</e2>", "Near(e1,e2)"),
            ("<e2>brno</e2> is old and <e1>cork</e1> new", "Other"),
            ("<e2>dover</e2> near the <e1>old river</e1>", "Near(e2,e1)"),
            ("buy <e1>genoa</e1> in <e2>hanoi</e2>", "Other"),
        ]
    )
]
MENTIONS = [
    replace(parse_mention(str(number), text), types=types)
    for number, (text, types) in enumerate(
        [
            ("<e1>avon</e1> is old", ("place",)),
            ("the <e1>mayor</e1> of avon", ("who", "thing")),
            ("a <e1>river</e1>", ()),
        ]
    )
]
TASKS = {
    "names": (NamedEntities(LABELS), SENTENCES, "f1"),
    "relations": (
        Relating(TOKENIZER, RELATIONS, rule="semeval2010", options=RelationOptions(markers=(":", "-"))),
        PAIRS,
        "f1",
    ),
    "types": (
        EntityTyping(TOKENIZER, ("place", "thing", "who"), options=TypeOptions(markers=(":",))),
        MENTIONS,
        "micro_f1",
    ),
    "cloze": (CLOZE, QUESTIONS, "exact"),
}


def taking(task, **options):
    """A reader whose encoder takes entities."""
    encoder = tiny_encoder(**options)
    encoder = infuse(encoder, [LukeConfig(entities=4, dim=8)])
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in luke_of(encoder).parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    network = EncoderWithHead(encoder, task.head(encoder))
    for part in network.head.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    with torch.no_grad():
        for weight in network.head.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return network.eval()


def batch_of(task, examples, *, learning=True):
    return task.prepare(
        make_batch(examples, task.tokenize(SEGMENTER, examples, learning=learning), {}), learning=learning
    )


@pytest.fixture(autouse=True)
def forgotten():
    """Tasks remember whether the last encoder took entities."""
    yield
    for task, _, _ in TASKS.values():
        task.head(tiny_encoder())


@pytest.mark.parametrize("name", TASKS)
def test_a_task_learns_by_entities(name):
    task, examples, score = TASKS[name]
    made = TaskLearner(task, taking(task), SEGMENTER, examples, examples, batch=4)
    assert made.evaluate()[score] < 1
    teach(made, 60, rate=1e-2)
    assert made.evaluate()[score] == 1
    assert luke_of(made.model.encoder).table.weight.grad[2].any()


@pytest.mark.parametrize("name", TASKS)
def test_a_plain_encoder_gets_no_entities(name):
    task, examples, _ = TASKS[name]
    task.head(tiny_encoder())
    assert ENTITIES not in batch_of(task, examples).knowledge
    task.head(taking(task).encoder)
    assert ENTITIES in batch_of(task, examples).knowledge


@pytest.mark.parametrize("name", ["relations", "types"])
def test_mentions_with_their_markers_are_masks(name):
    task, examples, _ = TASKS[name]
    model = taking(task).double()
    batch = batch_of(task, examples)
    inputs = batch.knowledge[ENTITIES]
    count = 2 if name == "relations" else 1
    assert inputs["ids"].tolist() == [2, 3][:count] * len(examples)
    for text, span in zip(inputs["text_of"].tolist(), inputs["spans"].tolist(), strict=True):
        tokens = [TOKENIZER.id_to_token(id) for id in batch.inputs[text].ids[span[0] : span[1] + 1].tolist()]
        assert tokens[0] == tokens[-1] in (":", "-")
        assert len(tokens) > 2
    states, read, _ = model.read(batch)
    losses = task.loss(model.head, states, read)
    naive = []
    for one in range(len(examples)):
        mine = {key: value[inputs["text_of"] == one] for key, value in inputs.items()}
        ids = torch.from_numpy(batch.inputs[one].ids)
        found = model.encoder.read(
            ids, Packing.of([len(ids)]), torch.zeros_like(ids), entities=mine | {"text_of": mine["text_of"] * 0}
        )
        naive.append(model.head.out(found.outputs[ENTITIES].flatten()))
    scores = torch.stack(naive)
    if name == "relations":
        expected = -scores.log_softmax(1)[torch.arange(len(examples)), batch.target].mean()
        assert model.head.out.bias is None
    else:
        expected = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.target.double())
    assert torch.allclose(next(iter(losses.values())), expected)


@pytest.mark.parametrize("entities", [False, True], ids=["markers", "entities"])
@pytest.mark.parametrize("turned", [False, True])
def test_no_entity_of_a_long_text_is_lost_to_a_relation(entities, turned, capsys):
    task, _, _ = TASKS["relations"]
    model = taking(task) if entities else EncoderWithHead(tiny_encoder(), task.head(tiny_encoder()))
    first, second = ("e2", "e1") if turned else ("e1", "e2")
    between = "was born near the old river of the new city " * 8
    near, far = (
        parse_pair(id, f"who is <{first}>avon</{first}> {between}<{second}>{name}</{second}> in rome", "Other")
        for id, name in (("0", "brno"), ("1", "old cork"))
    )
    batch = task.prepare(
        make_batch(
            [near, far],
            tokenized := task.tokenize(TextTokenizer(TOKENIZER, longest=32), [near, far], learning=True),
            {},
        ),
        learning=True,
    )
    for (one,), pair in zip(tokenized, (near, far), strict=True):
        assert len(one) == 32
        for place, end, span in zip(one.places, one.ends, (pair.subject, pair.object), strict=True):
            assert (one.spans[place + 1, 0], one.spans[end - 1, 1]) == span
    if entities:
        inputs = batch.knowledge[ENTITIES]
        assert inputs["spans"].tolist() == [
            list(edge) for (one,) in tokenized for edge in zip(one.places, one.ends, strict=True)
        ]
    answers = [some[0] for some in ask(task, model, TextTokenizer(TOKENIZER, longest=32), [near, far])]
    assert set(answers) <= set(RELATIONS)
    assert capsys.readouterr().err == ""
    ask(task, model, TextTokenizer(TOKENIZER, longest=8), [near, far])
    assert "1 of 2 texts have mentions that do not fit into inputs of 8 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("together", [1, 7, 128])
def test_spans_come_in_groups_and_each_is_asked_once(together):
    task = NamedEntities(LABELS, NerOptions(longest=4, together=together))
    model = taking(task)
    for example, inputs in zip(SENTENCES, task.tokenize(SEGMENTER, SENTENCES, learning=False), strict=True):
        wanted = all_spans(len(example.words), 4)
        assert len(inputs) == -(-len(wanted) // together)
        assert [tuple(span) for one in inputs for span in one.chunks(4).tolist()] == wanted
    batch = batch_of(task, SENTENCES)
    entity_inputs = batch.knowledge[ENTITIES]
    assert int(torch.bincount(entity_inputs["text_of"]).max()) <= together
    states, batch, _ = model.read(batch)
    assert torch.equal(
        batch.target["spans"], entity_inputs["spans"] + batch.packing.starts[entity_inputs["text_of"], None]
    )
    firsts, lasts = batch.target["spans"].unbind(1)
    scores = model.head.out(torch.cat((states[firsts], states[lasts], batch.outputs[ENTITIES]), 1))
    expected = torch.nn.functional.cross_entropy(scores, batch.target["classes"])
    assert torch.allclose(task.loss(model.head, states, batch)["names"], expected)
    some = ask(task, model, SEGMENTER, SENTENCES[:1])[0]
    assert all(found.chunk.end - found.chunk.start <= 4 for group in some for found in group)


def test_placeholder_and_candidates_of_a_window_are_masks_of_their_types():
    task, examples, _ = TASKS["cloze"]
    model = taking(task)
    batch = batch_of(task, examples)
    inputs = batch.knowledge[ENTITIES]
    firsts, places = batch.target["among"]
    assert set(inputs["ids"].tolist()) == {2}
    assert sorted([*firsts.tolist(), *places.tolist()]) == list(range(len(inputs["ids"])))
    assert inputs["types"][firsts].tolist() == [0] * len(examples)
    assert inputs["types"][places].tolist() == [1] * len(places)
    for place, text in zip(firsts.tolist(), range(len(examples)), strict=True):
        assert inputs["text_of"][place] == text
        assert tuple(inputs["spans"][place].tolist()) == batch.inputs[text].placeholder
    states, batch, _ = model.read(batch)
    entities = batch.outputs[ENTITIES]
    seen = torch.cat((entities[firsts][batch.target["input_of"]], entities[places]), 1)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        model.head.out(seen)[:, 0], batch.target["right"].float()
    )
    assert torch.allclose(task.loss(model.head, states, batch)["cloze"], expected)


@pytest.mark.parametrize("name", TASKS)
def test_what_was_learned_by_entities_can_be_asked_without_them(name):
    task, examples, score = TASKS[name]
    model = taking(task)
    with model.encoder.without("luke"):
        answers = ask(task, model, SEGMENTER, examples)
    assert 0 <= task.scores(examples, answers)[score] <= 1


def test_other_rows_may_be_masks():
    task, examples, _ = TASKS["relations"]
    encoder = tiny_encoder()
    encoder = infuse(encoder, [LukeConfig(entities=9, dim=8, masks=(7, random.Random(0).choice([5, 6])))])
    task.head(encoder)
    inputs = batch_of(task, examples).knowledge[ENTITIES]
    assert inputs["ids"].tolist() == list(luke_of(encoder).masks) * len(examples)
