"""The learner of tasks: what holds for every task, with a plain encoder and an infused one."""

import math

import numpy as np
import pytest
import torch

from tests.task_models import CHOICES, SEGMENTER, TASKS, TEXTS, learner, provider, teach, tiny_encoder, tiny_network
from wellread.data.batches import by_length, split_groups
from wellread.errors import InputError, UsageError
from wellread.models.kam.inputs import FunctionMap, KamProvider
from wellread.tasks.learner import TaskLearner, ask
from wellread.tasks.masked_lm import Masking
from wellread.tasks.multiple_choice import Choosing
from wellread.tasks.task import TextHead, check_positions, make_batch
from wellread.training.loop import train
from wellread.training.schedule import Schedule

EVERY = pytest.mark.parametrize("name", TASKS)
BOTH = pytest.mark.parametrize("knowing", [False, True], ids=["plain", "knowing"])


WITHOUT_SAY = {
    *("head.out.bias", "head.passage.out.bias", "head.span.out.bias"),
    *(f"encoder.encoder.layer.{layer}.attention.self.key.bias" for layer in (0, 1)),
}
"""Parameters that shift all scores of a softmax alike: their gradient may be an exact zero."""


def numbers(answer):
    """All numbers in an answer, whatever it is made of."""
    if isinstance(answer, (bool, int, float)):
        return [float(answer)]
    if isinstance(answer, (list, tuple)):
        return [each for part in answer for each in numbers(part)]
    return [each for name in answer.__dataclass_fields__ for each in numbers(getattr(answer, name))]


@EVERY
@BOTH
def test_the_company_of_a_batch_changes_no_answer(name, knowing):
    task, examples = TASKS[name]
    model = tiny_network(task, knowing=knowing).double()
    provided = provider() if knowing else None
    together = ask(task, model, SEGMENTER, examples, provider=provided)
    alone = [ask(task, model, SEGMENTER, [one], provider=provided)[0] for one in examples]
    assert len(together) == len(examples)
    assert [len(some) for some in together] == [len(some) for some in alone]
    np.testing.assert_allclose(numbers(together), numbers(alone), rtol=0, atol=1e-10)


def test_maps_that_are_not_those_of_the_encoder_are_refused():
    task, examples = TASKS["choosing"]
    knowing, plain = tiny_network(task, knowing=True), tiny_network(task)
    other = KamProvider([FunctionMap(lambda tokenized: np.zeros((len(tokenized.words),) * 2), name="other")], SEGMENTER)
    for provided in (None, other):
        with pytest.raises(UsageError, match=r"fuses the maps letters but the provider has (none|other); give one"):
            ask(task, knowing, SEGMENTER, examples, provider=provided)
    with pytest.raises(UsageError, match="fuses the maps none but the provider has letters"):
        TaskLearner(task, plain, SEGMENTER, examples, examples, provider=provider())
    with knowing.encoder.without():
        ask(task, knowing, SEGMENTER, examples)


@EVERY
@BOTH
def test_gradients_reach_all_weights_in_both_modes(name, knowing):
    task, examples = TASKS[name]
    made = learner(task, examples, knowing=knowing, batch=len(examples), dropout=0.1)
    for training in (True, False):
        made.model.train(training)
        made.model.zero_grad()
        torch.manual_seed(0)
        (batch,) = made.batches(0)
        parts = made.loss(batch)
        assert all(part.shape == () and bool(part.isfinite()) for part in parts.values())
        sum(parts.values()).backward()
        still = [
            part
            for part, weight in made.model.named_parameters()
            if (weight.grad is None or not weight.grad.any()) and "infusions" not in part
        ]
        assert not set(still) - WITHOUT_SAY, still
        if knowing:
            assert any(w.grad is not None and w.grad.any() for w in made.model.encoder.infusions.parameters())


@EVERY
def test_dropout_has_a_say_only_where_one_learns(name):
    task, examples = TASKS[name]
    made = learner(task, examples, batch=len(examples), dropout=0.3)
    torch.manual_seed(0)
    (batch,) = made.batches(0)
    made.model.train()
    assert sum(made.loss(batch).values()) != sum(made.loss(batch).values())
    made.model.eval()
    assert sum(made.loss(batch).values()) == sum(made.loss(batch).values())


@EVERY
def test_half_precision_is_near_and_finite(name):
    task, examples = TASKS[name]
    made = learner(task, examples, knowing=True, batch=len(examples))
    torch.manual_seed(0)
    (batch,) = made.batches(0)
    with torch.autocast("cpu", torch.bfloat16):
        half = made.loss(batch)
    full = made.loss(batch)
    for part in full:
        assert float(half[part].detach()) == pytest.approx(float(full[part].detach()), rel=0.1, abs=0.05)
    sum(half.values()).backward()
    assert all(w.grad is None or bool(w.grad.isfinite().all()) for w in made.model.parameters())


@EVERY
def test_knowledge_has_a_say(name):
    task, examples = TASKS[name]
    made = learner(task, examples, knowing=True, batch=len(examples))
    torch.manual_seed(0)
    (batch,) = made.batches(0)
    assert batch.knowledge["maps"].any()
    losses = made.loss(batch)
    with made.model.encoder.without():
        untold = made.loss(batch)
    assert all(losses[part] != untold[part] for part in losses)


@EVERY
def test_every_example_is_learned_from_once_an_epoch_in_an_order_of_its_own(name):
    task, examples = TASKS[name]
    made = learner(task, examples, batch=2)
    orders = []
    for epoch in (0, 0, *range(1, 8)):
        torch.manual_seed(epoch)
        batches = list(made.batches(epoch))
        assert sum(len(batch.examples) for batch in batches) == len(made.examples) == len(examples)
        assert all(len(batch.examples) <= 2 for batch in batches)
        orders.append([examples.index(one) for batch in batches for one in batch.examples])
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders))) > 1


def test_answers_to_other_examples_get_knowledge_of_their_own():
    made = learner(Choosing(), CHOICES[:1], knowing=True)
    (found,) = made.answer(SEGMENTER, CHOICES[1:2])
    assert found == ask(made.task, made.model, SEGMENTER, CHOICES[1:2], provider=provider())[0]
    assert len(found) == 3


def test_asking_leaves_every_part_in_the_mode_it_had():
    model = tiny_network(Choosing(), dropout=0.5).train()
    model.encoder.eval()
    first, second = (ask(Choosing(), model, SEGMENTER, CHOICES) for _ in range(2))
    assert first == second
    assert model.training
    assert model.head.dropout.training
    assert not model.encoder.training


def test_no_training_examples_are_reported():
    with pytest.raises(InputError, match="no example is left"):
        learner(Choosing(), [])
    with pytest.raises(InputError, match="no example is left"):
        learner(Masking(SEGMENTER.tokenizer), [" ", ""], TEXTS)


def test_what_there_is_nothing_to_learn_from_is_left_out_but_answered():
    made = learner(Masking(SEGMENTER.tokenizer), ["", *TEXTS, " "])
    assert made.examples == TEXTS
    assert len(made.dev) == len(TEXTS) + 2
    assert made.evaluate().keys() == {"accuracy", "log_chance", "perplexity"}


def test_a_batch_knows_whose_inputs_it_has():
    tokenized = Choosing().tokenize(SEGMENTER, CHOICES, learning=True)
    batch = make_batch(CHOICES, tokenized, {"maps": torch.ones(9, 1, 2, 2)})
    assert batch.example_of.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert batch.tokens == sum(len(one) for some in tokenized for one in some)
    rows = batch.in_rows(torch.arange(9.0))
    assert rows.tolist() == [[0, 1, -math.inf, -math.inf], [2, 3, 4, -math.inf], [5, 6, 7, 8]]


def test_a_batch_goes_to_a_device_with_all_it_has():
    tokenized = Choosing().tokenize(SEGMENTER, CHOICES, learning=True)
    batch = Choosing().prepare(make_batch(CHOICES, tokenized, {"maps": torch.ones(9, 1, 2, 2)}), learning=True)
    moved = batch.to(torch.device("meta"))
    parts = [moved.ids, moved.types, moved.example_of, moved.target, moved.knowledge["maps"], moved.packing.text_of]
    parts += [moved.packing.lengths, moved.packing.starts, moved.packing.places]
    assert {part.device.type for part in parts} == {"meta"}
    assert moved.packing.width == batch.packing.width
    assert moved.inputs is batch.inputs


def test_a_text_is_pooled_by_its_mean_or_its_first_piece():
    torch.manual_seed(0)
    batch = make_batch(CHOICES, Choosing().tokenize(SEGMENTER, CHOICES, learning=True), {})
    states = torch.randn(batch.tokens, 8, dtype=torch.float64)
    for pooling in ("mean", "first"):
        head = TextHead(8, 2, pooling=pooling).double().eval()
        found = head(states, batch.inputs, batch.packing)
        begin = 0
        for row, one in zip(found, batch.inputs, strict=True):
            own = states[begin : begin + len(one)]
            pooled = own.mean(0) if pooling == "mean" else own[0]
            expected = head.out(torch.nn.functional.gelu(head.dense(pooled)))
            torch.testing.assert_close(row, expected, rtol=0, atol=1e-10)
            begin += len(one)


def test_the_two_texts_of_a_pair_are_held_against_each_other():
    torch.manual_seed(0)
    batch = make_batch(
        ("a", "b"),
        [SEGMENTER.tokenize_many([("new york", "old york city")]), SEGMENTER.tokenize_many([("is it",)])],
        {},
    )
    states = torch.randn(batch.tokens, 8, dtype=torch.float64)
    head = TextHead(8, 2, pooling="both").double().eval()
    torch.nn.init.normal_(head.agree.weight)
    found = head(states, batch.inputs, batch.packing)
    begin = 0
    for row, one in zip(found, batch.inputs, strict=True):
        own = states[begin : begin + len(one)]
        means = [own[torch.from_numpy(one.segment_of == segment)].mean(0) for segment in range(len(one.texts))]
        u, v = (torch.nn.functional.layer_norm(mean, (8,)) for mean in (means[0], means[-1]))
        expected = head.out(torch.nn.functional.gelu(head.dense(torch.cat(((u - v).abs(), u * v)))))
        expected = expected + head.agree((u * v).mean()[None])
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-10)
        begin += len(one)


def test_groups_are_of_like_length_and_no_larger_than_asked():
    lengths = [3, 90, 4, 88, 5, 91, 3, 200]
    draw = np.random.default_rng(0)
    groups = by_length(lengths, draw, examples=4)
    assert sorted(place for group in groups for place in group) == list(range(8))
    assert sorted(map(len, groups)) == [4, 4]
    assert {frozenset(group) for group in groups} == {frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})}
    assert split_groups(lengths, range(8), tokens=100) == [[0, 1, 2], [3, 4], [5, 6], [7]]


def test_inputs_longer_than_the_encoder_are_refused():
    check_positions(tiny_encoder(), 64)
    with pytest.raises(UsageError, match=r"65 tokens.* 64 positions"):
        check_positions(tiny_encoder(), 65)


def test_the_loop_trains_a_task_with_knowledge(tmp_path):
    made = learner(*TASKS["relevance"], knowing=True, batch=2)
    scores = train(made, Schedule(epochs=2, learning_rate=1e-3), tmp_path / "run")
    assert scores.keys() == {"auc", "ndcg"}
    assert made.evaluate() == scores


def test_annotations_are_kept_in_a_folder_if_one_is_given(tmp_path):
    task = Choosing()
    model = tiny_network(task, knowing=True)
    made = TaskLearner(task, model, SEGMENTER, CHOICES, CHOICES, provider=provider(), notes=tmp_path / "notes")
    assert made.notes is not None
    assert set(made.notes.texts) == {text for some in made.tokenized for one in some for text in one.texts}
    assert TaskLearner(task, tiny_network(task), SEGMENTER, CHOICES, CHOICES).notes is None


def test_learning_is_quick_to_fit_a_few_examples():
    made = learner(*TASKS["relevance"])
    teach(made, 12)
    assert made.evaluate()["auc"] == 1
