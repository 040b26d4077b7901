"""A task, from its recipe to a model that answers: what it learns from, what is kept, what a kill must not change."""

import json
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.task_data import SCHEDULE, pairs, recipes, rte_recipe, write_rte
from tests.training.test_loop import PROCESSES, assert_same, wait_for_step, weights
from wellread import config
from wellread.encoders.files import load_tokenizer
from wellread.errors import InputError, UsageError
from wellread.models.kam.inputs import KamProvider, MapsConfig
from wellread.plots import curves as plots
from wellread.tasks import cloze_qa, entity_typing, fact_probe, ner, relations, senses, wic
from wellread.tasks.recipe import Data, EncoderOptions, TaskRecipe
from wellread.tasks.registry import TASKS, read_parts
from wellread.training import task as module
from wellread.training.run import Run
from wellread.training.task import MODEL, build_learner, load_task, schedule_of, train_task


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Plots have tests of their own, and take longer than these trainings."""
    for name in ("draw_curves", "draw_comparison", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


@pytest.fixture
def recipe(tmp_path, encoder):
    return rte_recipe(tmp_path, encoder)


def dev_of(recipe):
    return read_parts(recipe.settings, {})[1]


# What a recipe says.


def test_a_recipe_is_written_and_read_as_it_was(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(config.to_toml(recipe))
    assert config.read(TaskRecipe, tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'task' is missing"),
        ('task = "RT"', r"task is 'RT'; expected one of CoLA, .*, labelled, relevance, choice, squad, openqa, masking"),
        ('task = "RTE"\ninfusions = "kam"', "did you mean 'infusion'"),
        ('task = "RTE"\ninfusion = "karm"', "'karm' is not an infusion; expected none, kam"),
        ('task = "RTE"\ninfusion = "kam+kam"', "name each only once"),
        ('task = "RTE"\nbatch = 0', "batch is 0; expected 1 or more"),
        ('task = "RTE"\n[kam]\nmaps = ["entity"]', r"list the maps in \[maps\], as maps.maps"),
        ('task = "RTE"\n[maps]\nmaps = ["correlation"]', "maps: the correlation map needs a table; make one with"),
        ('task = "RTE"\n[data]\ntrain = "x"', "no validation data; give develop = 500, or dev"),
        ('task = "RTE"\n[data]\ndev = "x"\ndevelop = 5', "give one of the two"),
        ('task = "RTE"\n[data]\ndevelop = 5\nmost = 0', "most is 0; expected 1 or more"),
        ('task = "RTE"\n[encoder]\nlongest = 3', "longest is 3; expected 8 tokens or more"),
        ('task = "RTE"\n[encoder]\nrank = -1', "rank is -1; expected 0"),
        ('task = "labelled"\n[labelled]\nlow = 1.0', "give both, with numbers = true"),
        ('task = "labelled"\n[labelled]\nnumbers = true\nlow = 1.0\nhigh = 0.0', "expected low to be less"),
        ('task = "labelled"\n[labelled]\nnumbers = true\nlabels = ["a"]', "labels exclude each other; give one"),
        ('task = "relevance"\n[relevance]\nright = "G"', "right is 'G', which is not one of E, S, C, I"),
        ('task = "relevance"\n[relevance]\ngains = { good = 1 }', "gains has 1 labels; give two or more"),
        ('task = "openqa"\n[questions]\nsampled = 1', "sampled is 1; expected 2 or more"),
        ('task = "squad"\n[questions]\nlongest_answer = 0', "longest_answer is 0; expected 1 or more"),
        ('task = "masking"\n[masking]\nshare = 1.0', "share is 1.0; expected a share"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_fix(tmp_path, text, message):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        config.read(TaskRecipe, tmp_path / "recipe.toml")


# What is learned from.


def test_the_development_part_and_the_first_examples_are_the_same_in_every_run(recipe, tmp_path):
    some, dev = read_parts(replace(recipe, data=replace(recipe.data, most=7)).settings, {})
    every, other = read_parts(recipe.settings, {})
    assert (len(some), len(dev), len(every)) == (7, 20, 40)
    assert other == dev
    assert every[:7] == some
    rows = pairs()
    random.Random(1).shuffle(rows)
    shuffled = replace(recipe.data, train=write_rte(tmp_path / "shuffled.tsv", rows))
    texts = [[example.text for example in part] for part in read_parts(replace(recipe, data=shuffled).settings, {})]
    assert texts == [[example.text for example in part] for part in (every, dev)]


def test_a_file_of_its_own_may_be_developed_on_and_roots_and_twins_are_found(recipe, tmp_path):
    import gzip

    write_rte(tmp_path / "dev.tsv", pairs(30, seed=1))
    with gzip.open(tmp_path / "few.tsv.gz", "wt") as file:
        file.write((tmp_path / "dev.tsv").read_text())
    data = Data("few.tsv", root=str(tmp_path), dev="dev.tsv", most_dev=12)
    examples, dev = read_parts(replace(recipe, data=data).settings, {})
    assert (len(examples), len(dev)) == (30, 12)


def test_data_that_cannot_be_learned_from_is_named(recipe, tmp_path):
    def refused(data, message):
        with pytest.raises((InputError, UsageError), match=message):
            read_parts(replace(recipe, data=data).settings, {})

    refused(Data(develop=5), "no training file; give --set data.train=FILE")
    refused(Data(recipe.data.train, develop=60), "has 60 examples, and develop = 60 takes them all; lower it")
    unlabelled = write_rte(tmp_path / "t.tsv", pairs(9), labels=False)
    refused(Data(unlabelled, develop=5), "9 of 9 examples have no gold answer")
    refused(Data("nowhere.tsv", develop=5), "cannot read nowhere.tsv")
    (tmp_path / "empty.tsv").write_text("index\tsentence1\tsentence2\tlabel\n")
    refused(Data(str(tmp_path / "empty.tsv"), develop=5), "has no examples of RTE; is it the right file")
    (tmp_path / "broken.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tperhaps\n")
    refused(Data(str(tmp_path / "broken.tsv"), develop=5), "skipped: .*line 2: the label is 'perhaps'")


def test_texts_longer_than_the_encoder_are_refused(recipe):
    with pytest.raises(UsageError, match="inputs have 300 tokens, but the encoder has 256 positions"):
        build_learner(replace(recipe, encoder=replace(recipe.encoder, longest=300)), None)


# What arms have in common.


def test_arms_of_a_seed_begin_with_one_head_and_read_the_same_batches(recipe, tmp_path):
    random_start = replace(recipe, kam=replace(recipe.kam, start="random", map_init=0.0))
    learners = [
        build_learner(one, tmp_path / "n")[0] for one in (recipe, replace(recipe, infusion="none"), random_start)
    ]
    heads = [learner.model.head.state_dict() for learner in learners]
    for other in heads[1:]:
        assert all(torch.equal(heads[0][name], other[name]) for name in heads[0])
    read = [[[one.id for one in batch.examples] for batch in learner.batches(1)] for learner in learners]
    assert read[0] == read[1] == read[2]
    ahead = build_learner(replace(recipe, schedule=replace(SCHEDULE, seed=4)), tmp_path / "n")[0]
    assert not torch.equal(ahead.model.head.dense.weight, heads[0]["dense.weight"])
    assert [[one.id for one in batch.examples] for batch in ahead.batches(1)] != read[0]


def test_without_an_infusion_nothing_of_maps_is_computed(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(KamProvider, "build", lambda *args, **options: pytest.fail("maps were built"))
    train_task(replace(recipe, infusion="none"), tmp_path / "plain")
    alone = replace(recipe, maps=replace(recipe.maps, maps=()))
    train_task(alone, tmp_path / "convolution")
    assert load_task(tmp_path / "convolution").network.encoder.infusions[0].config.maps == ()
    with pytest.raises(pytest.fail.Exception, match="maps were built"):
        train_task(recipe, tmp_path / "kam")


# What comes out.


def test_knowledge_that_was_moved_is_found_where_it_is_now(recipe, tmp_path):
    train_task(recipe, tmp_path / "run")
    moved = tmp_path / "elsewhere.jsonl"
    examples = load_task(tmp_path / "run").read(recipe.data.train)
    before = load_task(tmp_path / "run").answers(examples)
    os.rename(recipe.maps.given, moved)
    with pytest.raises(InputError, match="links"):
        load_task(tmp_path / "run")
    assert load_task(tmp_path / "run", [f"maps.given={moved}"]).answers(examples) == before
    with pytest.raises(UsageError, match="cannot be changed after training; only these can"):
        load_task(tmp_path / "run", ["kam.alpha=1"])


@pytest.mark.parametrize("change", ["kam", "none", "adapters", "first"])
def test_the_model_of_a_run_is_the_best_and_answers_as_it_did(recipe, tmp_path, change):
    if change in ("adapters", "first"):
        options = {"adapters": EncoderOptions(recipe.encoder.name, longest=32, rank=2),
                   "first": EncoderOptions(recipe.encoder.name, longest=32, pooling="first")}  # fmt: skip
        recipe = replace(recipe, encoder=options[change])
    else:
        recipe = replace(recipe, infusion=change)
    scores = train_task(recipe, tmp_path / "run")
    assert Run(tmp_path / "run").scores()["scores"] == scores
    model, dev = load_task(tmp_path / "run"), dev_of(recipe)
    assert not model.network.training
    assert model.score(dev, model.answers(dev)) == scores
    learner, _ = build_learner(recipe, None)
    trained = load_file(tmp_path / "run" / "best.safetensors")
    assert ("encoder.infusions.0.kernels.0" in trained) == (change != "none")
    assert ("encoder.embeddings.word_embeddings.weight" in trained) == (change != "adapters")
    learner.model.load_state_dict(trained, strict=False)
    learner.model.eval()
    batch = learner.batches(0)[0]
    with torch.no_grad():
        ours, theirs = (
            network.head(network.states(batch), batch.inputs, batch.packing)
            for network in (model.network, learner.model)
        )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_run_holds_no_pickle_and_a_model_is_all_that_answering_needs(recipe, tmp_path):
    train_task(replace(recipe, infusion="none"), tmp_path / "run")
    files = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    tokens = {"tokenizer.json", "tokenizer_config.json"}
    assert files == {"config.json", "model.safetensors", "head.safetensors", "task.json"} | tokens
    (tmp_path / "run" / "model").rename(tmp_path / "elsewhere")
    model = load_task(tmp_path / "elsewhere")
    assert set(model.answer([("ada was born near avon", "ada is of avon")])) <= {"entailment", "not_entailment"}


def test_transformers_cuts_texts_for_the_model_of_a_run_as_training_did(recipe, tmp_path):
    train_task(replace(recipe, schedule=replace(SCHEDULE, steps=1)), tmp_path / "run")
    model = load_task(tmp_path / "run")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "run" / MODEL)
    for texts in [("cork is near dover",), ("Who was born?", "the mayor of Brno, 1901")]:
        ours, other = model.segmenter.tokenize(*texts), theirs(*texts)
        assert other["input_ids"] == ours.ids.tolist()
        assert other["token_type_ids"] == ours.types.tolist()
    known = load_tokenizer(recipe.encoder.name)
    assert (theirs.pad_token_id, theirs.mask_token_id) == (known.token_to_id("[PAD]"), known.token_to_id("[MASK]"))
    assert theirs.model_max_length == 256


def test_a_finished_run_whose_model_was_not_yet_saved_gets_it(recipe, tmp_path, monkeypatch):
    def kill(*args):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(module, "_save", kill)
        with pytest.raises(SystemExit):
            train_task(recipe, tmp_path / "run")
    scores = train_task(recipe, tmp_path / "run")
    model = load_task(tmp_path / "run")
    assert model.score(dev_of(recipe), model.answers(dev_of(recipe))) == scores


@pytest.mark.parametrize("kind", ["labelled", "numbers", "relevance", "choice", "squad", "openqa"])
def test_every_kind_of_task_learns_answers_scores_and_writes(tmp_path, encoder, kind):
    recipe = recipes(tmp_path, encoder)[kind]
    scores = train_task(recipe, tmp_path / "run")
    model = load_task(tmp_path / "run")
    examples = model.read(recipe.data.train)
    assert len(examples) == 40
    answers = model.answers(examples)
    assert model.has_gold(examples)
    assert model.score(examples, answers).keys() == scores.keys()
    model.write(tmp_path / "answers", examples, answers)
    output = (tmp_path / "answers").read_text()
    if kind in ("labelled", "numbers", "relevance", "choice"):
        lines = [json.loads(line) for line in output.splitlines()]
        assert len(lines) == 40
        expected = {"labelled": ("true", "false"), "choice": (0, 1)}.get(kind)
        values = [line if kind == "choice" else line.get("label", line.get("gain")) for line in lines]
        assert all(value in expected if expected else isinstance(value, float) for value in values)
    else:
        assert json.loads(output).keys() == {example.id for example in examples}
    texts = ["ada was born near avon"] if kind == "numbers" else [("ada was born near avon", "ada is of avon")]
    if kind in ("labelled", "numbers", "relevance"):
        assert len(model.answer(texts)) == 1
        wrong, message = (
            ("ada", "takes two; give a list of pairs") if kind != "numbers" else (("a", "b"), "takes one; give a")
        )
        with pytest.raises(UsageError, match=f"item 1 has .*; {recipe.task} {message}"):
            model.answer([*texts, wrong])
        with pytest.raises(UsageError, match=r"expected a list of texts, got one text; give \['day 7 was good'\]"):
            model.answer("day 7 was good")
        with pytest.raises(InputError, match="has half a surrogate pair at 0; write it again"):
            model.answer(["\ud83d x"] if kind == "numbers" else [("\ud83d x", "ada")])
    else:
        with pytest.raises(UsageError, match="needs more than texts"):
            model.answer(texts)


def test_the_kinds_tested_are_all_but_those_that_have_tests_of_their_own(tmp_path, encoder):
    elsewhere = (ner, cloze_qa, relations, entity_typing, fact_probe, senses, wic)
    apart = {"masking", "lama", *(name for one in elsewhere for name in one.TASKS)}
    assert {recipe.task for recipe in recipes(tmp_path, encoder).values()} == TASKS.keys() - apart


def test_answers_to_a_file_without_labels_are_written_but_not_scored(recipe, tmp_path):
    train_task(replace(recipe, infusion="none"), tmp_path / "run")
    model = load_task(tmp_path / "run")
    examples = model.read(write_rte(tmp_path / "test.tsv", pairs(9), labels=False))
    assert not model.has_gold(examples)
    model.write(tmp_path / "RTE.tsv", examples, model.answers(examples))
    assert (tmp_path / "RTE.tsv").read_text().startswith("index\tprediction\n0\t")
    own = recipes(tmp_path, recipe.encoder.name)["labelled"]
    train_task(own, tmp_path / "own")
    (tmp_path / "secret.jsonl").write_text('{"said": "ada", "then": "avon"}\n')
    assert not load_task(tmp_path / "own").has_gold(load_task(tmp_path / "own").read(tmp_path / "secret.jsonl"))


def test_a_folder_without_a_model_names_the_fix(recipe, tmp_path):
    with pytest.raises(InputError, match=r"no trained task \(task.json is missing\); give the folder of a run"):
        load_task(tmp_path / "nowhere")
    train_task(replace(recipe, infusion="none"), tmp_path / "run")
    (tmp_path / "run/model/task.json").write_text("{}")
    with pytest.raises(InputError, match=r"cannot be read: .*; copy it again, or train it again"):
        load_task(tmp_path / "run")


def test_a_linker_is_loaded_only_when_a_text_needs_it(recipe, tmp_path, monkeypatch):
    from wellread.linking import linker

    monkeypatch.setattr(linker.Linker, "load", lambda *args: pytest.fail("it was loaded"))
    wanted = replace(recipe, maps=MapsConfig(maps=("entity",), entities="linker", kb="vital"))
    link = module._linker(wanted)
    assert link is not None
    with pytest.raises(pytest.fail.Exception, match="it was loaded"):
        list(link(["a text"]))
    assert module._linker(recipe) is None


def test_a_linker_is_loaded_once(recipe, monkeypatch):
    from wellread.linking import linker

    loaded = []
    monkeypatch.setattr(
        linker.Linker, "load", lambda *args: loaded.append(args) or SimpleNamespace(link_many=lambda texts: texts)
    )
    link = module._linker(replace(recipe, maps=MapsConfig(maps=("entity",), entities="linker", kb="vital")))
    assert [link(["a"]), link(["b"])] == [["a"], ["b"]]
    assert len(loaded) == 1


# Processes: what a kill and a second process must not change.


# As in tests of the loop, with what these processes need.
PROCESSES.set_forkserver_preload(
    [__name__, "tests.training.test_loop", "torch._dynamo", "tests.kb.test_faults", "tests.index.test_entity_index"]
)


def run_in_process(recipe, folder, pause, environment, threads):
    torch.set_num_threads(threads)
    os.environ.update(environment)
    plots.draw_curves = plots.save = lambda *args: None
    with open(f"{folder}.{os.getpid()}.said", "w") as sys.stderr:
        try:
            options = {"save_seconds": 0, "on_report": lambda line: time.sleep(pause)}
            train_task(recipe, folder, notes=f"{folder}.notes", **options)
        except Exception:
            traceback.print_exc()
            raise


def start(recipe, folder, pause=0.0, **environment):
    threads = torch.get_num_threads()
    process = PROCESSES.Process(target=run_in_process, args=(recipe, folder, pause, environment, threads))
    process.start()
    return process


def test_a_task_killed_by_sigkill_goes_on_to_the_same_bits(recipe, tmp_path):
    train_task(recipe, tmp_path / "whole")
    killed = start(recipe, tmp_path / "killed", pause=0.2)
    wait_for_step(tmp_path / "killed", 2, killed)
    killed.kill()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed/scores.json").exists()
    train_task(recipe, tmp_path / "killed")
    assert_same(tmp_path / "killed", tmp_path / "whole")
    ours, theirs = (load_file(tmp_path / run / "model/model.safetensors") for run in ("killed", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_two_processes_end_as_one_does(recipe, tmp_path):
    train_task(recipe, tmp_path / "whole")
    port = str(random.SystemRandom().randint(20000, 60000))
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks |= {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"}
    distributed = [start(recipe, tmp_path / "distributed", **ranks, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    for process in distributed:
        process.join(200)
        assert process.exitcode == 0, (tmp_path / f"distributed.{process.pid}.said").read_text()
    ours, theirs = weights(tmp_path / "distributed", "last"), weights(tmp_path / "whole", "last")
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
    assert load_task(tmp_path / "distributed").answers(dev_of(recipe)) == load_task(tmp_path / "whole").answers(
        dev_of(recipe)
    )


def test_rates_of_a_part_are_no_mistake_where_there_is_none(recipe):
    with_rates = replace(recipe, schedule=replace(recipe.schedule, rates={"head": 1e-3, "encoder.infusions": 3e-3}))
    model = build_learner(with_rates, None)[0].model
    assert schedule_of(with_rates, model).rates == {"head": 1e-3, "encoder.infusions": 3e-3}
    model.head = torch.nn.Identity()
    assert schedule_of(with_rates, model).rates == {"encoder.infusions": 3e-3}
    plain = replace(with_rates, infusion="none")
    assert schedule_of(plain, build_learner(plain, None)[0].model).rates == {"head": 1e-3}
