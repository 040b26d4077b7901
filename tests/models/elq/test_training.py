"""`wellread train linker`, from a recipe to a linker: what it learns from, how it goes on, and what it refuses."""

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from tests.toy_models import PLACES, WORDS, document, toy_documents, write_kb
from wellread import Linker
from wellread.data.synthetic.variation import Variation
from wellread.errors import UsageError
from wellread.linking.decoding import NIL, NONE
from wellread.models.elq import training as module
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.model import Elq
from wellread.models.elq.recipe import LinkerRecipe, Text
from wellread.models.elq.training import train_linker
from wellread.models.elq.training_task import LinkingLearner, SeveralKbs, collate
from wellread.training.schedule import Schedule


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch, toy):
    """A folder of our own with the toy KB, its index, and linked text."""
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for path in toy.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    write_lines("toy.jsonl", toy_documents(80))
    return tmp_path


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They are tested elsewhere, and take longer than all else."""
    for name in ("draw_curves", "draw_pr_curve", "draw_reliability", "save"):
        monkeypatch.setattr(f"wellread.plots.curves.{name}", lambda *args, **options: None)


@pytest.fixture
def run(wellread):
    return partial(wellread, "train", "linker")


@pytest.fixture
def recipe(plain_encoder):
    """A short training on linked text."""
    return LinkerRecipe(
        "toy.kb",
        text=(Text("toy.jsonl", develop=20),),
        model=ElqConfig(encoder=plain_encoder, rank=4, entity_pieces=16),
        batch_pieces=128,
        schedule=Schedule(steps=6, learning_rate=2e-2, evaluate_every=3),
    )


def write_lines(path, documents):
    with open(path, "w") as file:
        file.writelines(document.to_json() + "\n" for document in documents)


def toml(encoder, text):
    return f"""
kb = "toy.kb"
batch_pieces = 128
{text}

[model]
encoder = "{encoder}"
rank = 4
entity_pieces = 16

[schedule]
steps = 6
learning_rate = 2e-2
"""


def weights_of(folder):
    return load_file(folder / "model" / "model.safetensors")


def assert_same_linker(one, other):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert ElqConfig.read(one / "model") == ElqConfig.read(other / "model")


def test_linked_text_makes_a_linker(run, work, plain_encoder):
    (work / "a.toml").write_text(toml(plain_encoder, 'text = [{ file = "toy.jsonl", develop = 20 }]'))
    done = run("a.toml", "--to", "runs/a")
    assert done.code == 0
    assert "f1" in done.out
    assert "training on 60 documents an epoch, validating on 20 of toy" in done.err
    assert "use it with: wellread link --model runs/a/model --kb toy.kb" in done.err
    info = json.loads((work / "runs/a/scores.json").read_text())
    assert info["scores"]["f1"] > 0.5
    with Linker.load("toy.kb", "runs/a/model", precision="fp32") as linker:
        found = [{link.entity for link in linker.link(one.text).links} for one in toy_documents(20)]
    assert any(found)
    assert ElqConfig.read(work / "runs/a/model").calibration != (1.0, 0.0)
    again = run("a.toml", "--to", "runs/a")
    assert "is finished" in again.err


def test_a_kb_alone_makes_a_linker(run, work, plain_encoder):
    (work / "b.toml").write_text(toml(plain_encoder, "made = 60\nmade_develop = 15"))
    done = run("b.toml", "--set", "schedule.steps=4", "--set", "schedule.seed=3")
    assert done.code == 0
    assert "of made" in done.err
    assert "F1 on synthetic sentences; on real text it will be lower" in done.err
    assert "steps = 4" in (work / "runs/b/recipe.toml").read_text()
    assert Elq.from_pretrained(work / "runs/b/model").config.encoder == plain_encoder


def test_a_run_that_was_killed_ends_as_one_that_was_not(recipe, work, monkeypatch):
    train_linker(recipe, work / "whole")
    loss, calls = LinkingLearner.loss, []

    def killed(self, batch):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return loss(self, batch)

    monkeypatch.setattr(LinkingLearner, "loss", killed)
    with pytest.raises(KeyboardInterrupt):
        train_linker(recipe, work / "killed")
    assert not (work / "killed/model").exists()
    train_linker(recipe, work / "killed")
    assert len(calls) == 4 + 1 + 3  # it was last saved after step 3
    assert_same_linker(work / "whole", work / "killed")


def test_scores_are_calibrated_without_dropout(recipe, work):
    train_linker(recipe, work / "run")
    before = ElqConfig.read(work / "run/model")
    train_linker(recipe, work / "run")  # finished: nothing is learned, and the model never was in train mode
    assert ElqConfig.read(work / "run/model") == before


def test_all_weights_may_learn(recipe, work):
    recipe = replace(recipe, model=replace(recipe.model, rank=0), schedule=Schedule(steps=2, learning_rate=1e-3))
    train_linker(recipe, work / "run")
    before = load_file(f"{recipe.model.encoder}/model.safetensors")
    after = load_file(work / "run/model/encoder/model.safetensors")
    assert sum(not torch.equal(before[name], after[name]) for name in before) > 10
    with Linker.load("toy.kb", work / "run/model", precision="fp32") as linker:
        assert linker.link("").links == ()


def test_a_linker_goes_on_from_another(recipe, work):
    recipe = replace(recipe, start="model", schedule=Schedule(steps=1, learning_rate=1e-9))
    scores = train_linker(recipe, work / "more")
    assert scores["f1"] > 0.9
    start, end = load_file(work / "model/model.safetensors"), weights_of(work / "more")
    assert all(torch.allclose(start[name], end[name], atol=1e-6) for name in start)


@pytest.mark.parametrize(
    "options",
    [
        {"negatives": "batch", "loss": "bce"},
        {"leave_out": 0.0},
        {"drop_names": 0.5, "dropout": 0.0, "variation": Variation(lower=0.3, alias=0.3, typo=0.3)},
    ],
)
def test_every_way_to_learn_runs(recipe, work, options):
    scores = train_linker(replace(recipe, schedule=Schedule(steps=2, learning_rate=1e-3), **options), work / "run")
    assert 0 <= scores["f1"] <= 1


def read(recipe, epochs=1):
    """(examples of each epoch, dev) of a recipe; of one epoch its examples alone."""
    model = Elq.create(recipe.model)
    with module.open_kb(recipe.kb) as kb:
        index = module.open_index(kb, model.config)
        examples_of, dev = module._read(recipe, recipe.text, kb, model, index, made=recipe.made)
        examples = [examples_of(epoch) for epoch in range(epochs)]
    return (examples[0] if epochs == 1 else examples), dev


def test_files_of_one_name_are_all_developed_on(recipe, work):
    (work / "more").mkdir()
    write_lines("more/toy.jsonl", toy_documents(30, seed=7))
    texts = (Text("toy.jsonl", develop=5), Text("more/toy.jsonl", develop=7))
    _, dev = read(replace(recipe, text=texts))
    assert sum(map(len, dev.values())) >= 12


def test_text_is_repeated_limited_and_marked_where_it_is_not_complete(recipe, work):
    plain, _ = read(recipe)
    assert len(read(replace(recipe, text=(Text("toy.jsonl", develop=20, repeat=3),)))[0]) == 3 * len(plain)
    assert len(read(replace(recipe, text=(Text("toy.jsonl", develop=20, most=7),)))[0]) == 7
    short = Text("toy.jsonl", develop=1, most_chars=12)
    examples, dev = read(replace(recipe, text=(short,)))
    assert 0 < len(examples) < len(plain)
    assert all(len(document.text) <= 12 for document in dev["toy"])
    shouted = [replace(document, text=document.text.title(), links=()) for document in toy_documents(10)]
    write_lines("loud.jsonl", shouted)
    examples, _ = read(replace(recipe, text=(Text("loud.jsonl", develop=2, complete=False),)))
    assert all(example.unsure for example in examples)


def texts_of(examples):
    """The ids of the tokens of each example: what the encoder is given."""
    return [tuple(example.window.ids.tolist()) for example in examples]


def test_a_limit_draws_other_documents_for_every_epoch(recipe, work):
    write_lines("toy.jsonl", [document(f"what is {word} {name}", (name, None)) for word in WORDS for name in PLACES])
    everything, dev = read(replace(recipe, text=(Text("toy.jsonl", develop=5),)))
    texts = (Text("toy.jsonl", develop=5, most=30),)
    epochs, same_dev = read(replace(recipe, text=texts), epochs=3)
    assert same_dev == dev
    drawn = [texts_of(examples) for examples in epochs]
    assert [len(set(some)) for some in drawn] == [30] * 3
    assert len({*drawn[0], *drawn[1], *drawn[2]}) > 60
    assert {*drawn[0], *drawn[1], *drawn[2]} <= set(texts_of(everything))
    assert [texts_of(examples) for examples in read(replace(recipe, text=texts), epochs=3)[0]] == drawn
    other_seed = replace(recipe, text=texts, schedule=replace(recipe.schedule, seed=1))
    assert texts_of(read(other_seed)[0]) != drawn[0]


def test_variation_is_drawn_anew_for_every_epoch_and_repeat(recipe, work):
    texts = (Text("toy.jsonl", develop=20, repeat=2),)
    varied = replace(recipe, text=texts, variation=Variation(typo=0.5))
    (first, second), dev = read(varied, epochs=2)
    assert len(first) == len(second) == 120
    assert texts_of(first) != texts_of(second)
    assert texts_of(first[:60]) != texts_of(first[60:])
    assert dev == read(replace(recipe, text=texts))[1]  # validation documents stay as they are


def test_annotation_without_entities_teaches_spans_only(recipe, work):
    write_lines("spans.jsonl", [document("in cork ?", ("cork", None))] * 3)
    for options, row in (({}, NIL), ({"entities": False}, NONE)):
        examples, _ = read(replace(recipe, text=(*recipe.text, Text("spans.jsonl", **options))))
        assert [(example.rows, example.names) for example in examples[-3:]] == [((row,), ("cork",))] * 3


def test_documents_that_are_held_out_are_neither_trained_nor_validated_on(recipe, work):
    whole, validation = read(recipe)
    less, same = read(replace(recipe, text=(Text("toy.jsonl", develop=20, hold_out=15),)))
    assert same == validation
    assert len(texts_of(whole)) == 60
    assert len(texts_of(less)) == 45
    assert set(texts_of(less)) < set(texts_of(whole))


def test_given_spans_teach_entities_only(recipe, work):
    examples, _ = read(replace(recipe, text=(Text("toy.jsonl", develop=20, spans=False),)))
    batch = collate(examples, 10)
    assert not batch.asked_mask.any()
    assert not batch.gold_mask.any()
    assert (batch.rows >= 0).any()


def test_texts_of_another_kb_are_batches_of_their_own(recipe, work):
    shutil.copy("toy.kb", "other.kb")
    write_lines("other.jsonl", toy_documents(40, seed=5))
    other = Text("other.jsonl", kb="other.kb", spans=False)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        loss = SeveralKbs.loss
        patch.setattr(SeveralKbs, "loss", lambda self, batch: seen.append(batch.learner) or loss(self, batch))
        train_linker(replace(recipe, text=(*recipe.text, other)), "run")
    assert set(seen) == {0, 1}
    assert Linker.load("toy.kb", "run/model").link("paris").text == "paris"


def test_broken_lines_are_counted_and_passed_over(recipe, work, capsys):
    with open("toy.jsonl", "a") as file:
        file.write('{"text": 3}\n')
    examples, _ = read(recipe)
    assert len(examples) == 60
    assert "left out 1 broken documents" in capsys.readouterr().err


# refusals


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('tekst = [{ file = "toy.jsonl" }]', "did you mean 'text'"),
        ('text = [{ file = "toy.jsonl", devlop = 3 }]', "devlop"),
        ('text = [{ file = "toy.jsonl" }]', "give develop = 500 in a [[text]], or made_develop"),
        ("made_develop = 3", "give a [[text]] with its file, or made = 10000"),
        ("made = 3\nmade_develop = 3", "leave some to train on"),
        ('made = 3\nmade_develop = 1\nloss = "hinge"', 'expected "softmax" or "bce"'),
        ('text = [{ file = "none.jsonl", develop = 3 }]', "none.jsonl"),
        ('text = [{ file = "empty.jsonl", develop = 3 }]', "empty.jsonl"),
        ('text = [{ file = "toy.jsonl", develop = 80 }]', "has no document left to train on; lower develop"),
        ('text = [{ file = "toy.jsonl", develop = 5, most_chars = 1 }]', "raise most_chars"),
        ('made = 9\nmade_develop = 2\nstart = "nowhere"', "nowhere"),
    ],
)
def test_a_recipe_that_cannot_be_followed_names_the_fix(run, work, plain_encoder, line, message):
    (work / "empty.jsonl").touch()
    (work / "bad.toml").write_text(toml(plain_encoder, line))
    done = run("bad.toml", "--to", "runs/bad")
    assert done.code not in (0, None)
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.toml",), "none.toml"),
        (("a.toml", "--set", "schedule.stepps=3"), "did you mean 'schedule.steps'"),
        (("a.toml", "--set", "kb=nowhere.kb"), "nowhere.kb"),
        (("a.toml", "--set", "model.encoder=/no/where"), "give one with config.json"),
    ],
)
def test_a_command_that_cannot_be_followed_names_the_fix(run, work, plain_encoder, arguments, message):
    (work / "a.toml").write_text(toml(plain_encoder, 'text = [{ file = "toy.jsonl", develop = 20 }]'))
    done = run(*arguments)
    assert done.code not in (0, None)
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_recipe_needs_something_to_learn_from_and_to_develop_on():
    with pytest.raises(UsageError, match="nothing to train on"):
        LinkerRecipe("toy.kb")
    with pytest.raises(UsageError, match="nothing to validate on"):
        LinkerRecipe("toy.kb", made=10)


def test_a_kb_without_an_index_gets_one(recipe, work):
    write_kb(work / "fresh.kb").close()
    train_linker(replace(recipe, kb="fresh.kb", schedule=Schedule(steps=1, learning_rate=1e-3)), work / "run")
    assert (work / "fresh.kb.vectors" / "index.json").exists()
