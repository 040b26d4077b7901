"""Comparing arms: which there are, what is run and what is kept, what the table says, and what arms cost."""

import json
import math
import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.task_data import rte_recipe
from tests.training.test_task import PROCESSES  # noqa: F401  # its server has imported what our processes need
from wellread.errors import InputError, StorageError, TrainingError, UsageError
from wellread.io.files import only_writer
from wellread.models.kam.inputs import MapsConfig
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.luke.recipe import LukeOptions
from wellread.plots import curves as plots
from wellread.tasks.learner import TaskLearner
from wellread.tasks.recipe import TaskRecipe
from wellread.training.compare import cost
from wellread.training.compare import grid as module
from wellread.training.compare.arms import apply_arms, arms_of, read_arms, unfit, vary
from wellread.training.compare.grid import compare, interim, outcome, plan, read_recipes, seeds_of
from wellread.training.compare.tables import Cost, Failure, Table, Unfit, make_table, student
from wellread.training.run import Run
from wellread.training.schedule import Schedule

SCORES = {
    "plain": {"RTE": [0.60, 0.62, 0.58], "CoLA": [0.30, 0.33, 0.31]},
    "kam": {"RTE": [0.63, 0.63, 0.62], "CoLA": [0.31, 0.32, 0.33]},
    "other": {"RTE": [0.60, 0.62, 0.58], "CoLA": [0.36, 0.37, 0.35]},
}


@pytest.fixture
def recipe(tmp_path, encoder):
    return rte_recipe(tmp_path, encoder, schedule=Schedule(steps=2, learning_rate=1e-2))


@pytest.fixture
def undrawn(monkeypatch):
    for name in ("draw_curves", "draw_comparison", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


# Arms.


def test_every_combination_is_an_arm_but_the_plain_encoder_is_one():
    arms = vary(TaskRecipe("RTE"), ["infusion=none,kam", "maps.maps=none,entity,entity+phrase", "kam.alpha=0.1,0.2"])
    assert list(arms) == [
        "none",
        *("kam, none, alpha 0.1", "kam, none, alpha 0.2"),
        *("kam, entity, alpha 0.1", "kam, entity, alpha 0.2"),
        *("kam, entity+phrase, alpha 0.1", "kam, entity+phrase, alpha 0.2"),
    ]
    assert arms["none"].infusions == ()
    last = arms["kam, entity+phrase, alpha 0.2"]
    assert (last.infusions, last.maps.maps, last.kam.alpha) == (("kam",), ("entity", "phrase"), 0.2)
    layers = vary(TaskRecipe("RTE", "kam"), ["kam.layers=0+2,1"])
    assert [arm.kam.layers for arm in layers.values()] == [(0, 2), (1,)]


def test_settings_of_an_infusion_that_is_not_there_make_no_arm_and_no_name():
    base = TaskRecipe("RTE", knowbert={"wordnet": KnowBertConfig(layer=1)})
    infusions = "infusion=none,kam,knowbert,luke"
    arms = vary(base, [infusions, "luke.kb=vital,wordnet", "kam.alpha=0.1,0.2", "knowbert.wordnet.layer=1,2"])
    assert list(arms) == [
        *("none", "kam, alpha 0.1", "kam, alpha 0.2"),
        *("knowbert, layer 1", "knowbert, layer 2", "luke, vital", "luke, wordnet"),
    ]
    assert list(vary(base, ["maps.maps=entity,phrase"])) == ["none"]
    with pytest.raises(UsageError, match=r"one arm \(none\) cannot be compared"):
        arms_of(base, ["maps.maps=entity,phrase"], None)


def test_lists_are_varied_as_toml_has_them_too():
    base = TaskRecipe("RTE", "kam")
    variants = vary(base, ["""maps.maps=[],["entity"], ['entity', "phrase"]"""])
    assert variants == vary(base, ["maps.maps=none,entity,entity+phrase"])
    assert list(variants) == ["none", "entity", "entity+phrase"]


def test_arms_of_a_file_change_what_they_name_and_nothing_else(tmp_path):
    (tmp_path / "arms.toml").write_text(
        '[arms]\nplain = { infusion = "none" }\n"no maps" = { infusion = "kam", maps.maps = [], kam.alpha = 0.4 }\n'
    )
    base = TaskRecipe("RTE", batch=7)
    arms = apply_arms(base, read_arms(tmp_path / "arms.toml"))
    assert arms == {
        "plain": base,
        "no maps": replace(base, infusion="kam", maps=replace(base.maps, maps=()), kam=replace(base.kam, alpha=0.4)),
    }
    assert list(arms_of(base, (), tmp_path / "arms.toml", ("no maps", "plain"))) == ["no maps", "plain"]


def test_arms_that_are_not_chosen_may_need_what_is_not_there(tmp_path):
    file = tmp_path / "arms.toml"
    file.write_text(
        '[arms]\na = { infusion = "none" }\nb = { maps.maps = ["correlation"] }\nc = { infusion = "kam" }\n'
    )
    assert list(arms_of(TaskRecipe("RTE"), (), file, ("c", "a"))) == ["c", "a"]
    assert list(arms_of(TaskRecipe("RTE"), ("infusion=none,kam",), None, ("kam", "none"))) == ["kam", "none"]
    with pytest.raises(InputError, match="the arm 'b': maps: the correlation map needs a table"):
        arms_of(TaskRecipe("RTE"), (), file, ("a", "b"))


def test_arms_that_make_no_sense_name_the_fix(tmp_path):
    base, file = TaskRecipe("RTE"), tmp_path / "arms.toml"

    def refused(message, *arguments):
        with pytest.raises((UsageError, InputError), match=message):
            arms_of(base, *arguments)

    refused("no arms to compare; give --vary infusion=none,kam, or --arms FILE", (), None)
    refused("is not a varied setting; expected name=value,value", ("infusion",), None)
    refused("is not a varied setting", ("infusion=none,,kam",), None)
    refused("varies a setting twice", ("infusion=none", "infusion=kam"), None)
    refused(r"one arm \(none\) cannot be compared", ("infusion=none", "kam.alpha=0.1,0.2"), None)
    refused("'karm' is not an infusion", ("infusion=none,karm",), None)
    refused(
        '\'maps.maps\' is "entty"; expected a list, each "entity" or', ("infusion=kam", "maps.maps=entity,entty"), None
    )
    refused("there is no arm 'x'; there are: none, kam", ("infusion=none,kam",), None, ("x",))
    file.write_text("plain = 1\n")
    refused(r"expected a table \[arms\] and nothing else", (), file)
    file.write_text('[arms]\na = { infusion = "none" }\nb = { alfa = 1 }\n')
    refused("the arm 'b': 'alfa' is not a setting of TaskRecipe", (), file)
    file.write_text('[arms]\na = { infusion = "none" }\nb = { maps.maps = ["correlation"] }\n')
    refused("the arm 'b': maps: the correlation map needs a table", (), file)


def test_an_infusion_that_a_task_tells_nothing_to_is_not_for_it():
    assert unfit(TaskRecipe("RTE", "kam")) is None
    assert "RTE marks no mentions, and its texts are not linked; give luke.kb" in unfit(TaskRecipe("RTE", "luke"))
    linked = LukeOptions(kb="vital")
    assert unfit(TaskRecipe("RTE", "luke", luke=linked)) is None
    assert unfit(TaskRecipe("ner", "kam+luke")) is None
    terms = MapsConfig(terms=4, correlation="a-table")
    assert "set maps.terms = 0" in unfit(TaskRecipe("RTE", "kam+luke", luke=linked, maps=terms))


def test_an_arm_that_links_texts_for_luke_serves_tasks_with_entities_of_their_own():
    arms = {"luke": {"infusion": "luke", "luke": {"kb": "vital", "start": "vital", "dim": 64}}}
    (names,) = apply_arms(TaskRecipe("ner"), arms).values()
    assert (names.luke.kb, names.luke.start, names.luke.dim) == (None, None, 64)
    (pairs,) = apply_arms(TaskRecipe("RTE"), arms).values()
    assert (pairs.luke.kb, pairs.luke.start, pairs.luke.dim) == ("vital", "vital", 64)
    with pytest.raises(InputError, match=r"ner has its own entity tokens; remove luke\.kb"):
        apply_arms(TaskRecipe("ner", luke=LukeOptions(kb="vital")), arms)  # the recipe says so itself


# Runs.


def test_runs_go_seed_by_seed_each_in_a_folder_of_its_own(recipe, tmp_path):
    arms = {"plain": replace(recipe, infusion="none"), "w/o: maps": recipe}
    trials = plan({"RTE": arms, "CoLA": arms}, [3, 4], tmp_path)
    assert [(trial.seed, trial.task, trial.arm) for trial in trials[:5]] == [
        (3, "RTE", "plain"),
        (3, "RTE", "w/o: maps"),
        (3, "CoLA", "plain"),
        (3, "CoLA", "w/o: maps"),
        (4, "RTE", "plain"),
    ]
    assert all(trial.recipe.schedule.seed == trial.seed for trial in trials)
    assert trials[1].folder == tmp_path / "RTE" / "w-o- maps" / "3"
    assert len({trial.folder for trial in trials}) == 8
    with pytest.raises(UsageError, match="two arms would share a folder among a/b, a:b"):
        plan({"RTE": {"a/b": recipe, "a:b": recipe}}, [0], tmp_path)


def test_seeds_are_counted_from_that_of_the_recipes(recipe):
    assert seeds_of([recipe, recipe], 3) == [0, 1, 2]
    other = replace(recipe, schedule=replace(recipe.schedule, seed=5))
    assert seeds_of([other], 2) == [5, 6]
    with pytest.raises(UsageError, match="the recipes have the seeds 0, 5; give all the same one"):
        seeds_of([recipe, other], 2)


def test_recipes_are_called_by_their_task_or_by_their_file_where_two_have_one(tmp_path):
    for name, task in (("a", "rte"), ("b", "CoLA"), ("c", "RTE")):
        (tmp_path / f"{name}.toml").write_text(f'task = "{task}"\n')
    files = [tmp_path / f"{name}.toml" for name in "abc"]
    assert list(read_recipes(files[:2])) == ["RTE", "CoLA"]
    assert list(read_recipes(files, ["batch=3"])) == ["a", "CoLA", "c"]
    assert all(recipe.batch == 3 for recipe in read_recipes(files, ["batch=3"]).values())
    with pytest.raises(UsageError, match="two recipes have the same name"):
        read_recipes([files[0], files[0]])


def test_what_is_finished_is_kept_and_a_comparison_grows(recipe, tmp_path, monkeypatch, capsys, undrawn):
    arms = {"plain": replace(recipe, infusion="none"), "kam": recipe}
    table = compare({"RTE": arms}, [0], tmp_path / "c", measure=False)
    assert table.seeds == (0,)
    kept = {path.name for path in (tmp_path / "c/RTE/kam/0").iterdir()} - {".lock"}
    assert kept == {"recipe.toml", "log.jsonl", "scores.json"}
    assert [path.suffix for path in (tmp_path / "c/notes").iterdir() if path.suffix != ".lock"] == [".arrow"]
    trained = []
    whole = module.train_task
    monkeypatch.setattr(module, "train_task", lambda *args, **options: (trained.append(args), whole(*args, **options)))
    more = {**arms, "alone": replace(recipe, maps=replace(recipe.maps, maps=()))}
    grown = compare({"RTE": more}, [0, 1], tmp_path / "c", measure=False)
    assert len(trained) == 4
    said = capsys.readouterr().err
    assert "2 of 6 runs are finished already" in said
    assert "run 4 of 4, about 0 s left: RTE, alone, seed 1: accuracy" in said
    assert grown.cells["kam", "RTE"].scores[0] == table.cells["kam", "RTE"].scores[0]
    written = json.loads((tmp_path / "c/table.json").read_text())
    assert written["arms"].keys() == more.keys()
    assert (tmp_path / "c/table.md").read_text() == grown.to_markdown()


def test_a_run_of_another_recipe_is_not_taken_for_this_one(recipe, tmp_path, undrawn):
    arms = {"plain": replace(recipe, infusion="none"), "kam": recipe}
    compare({"RTE": arms}, [0], tmp_path / "c", measure=False)
    changed = {name: replace(arm, batch=4) for name, arm in arms.items()}
    with pytest.raises(UsageError, match="holds a run with another recipe: batch is 8 there and 4 now; give the same"):
        compare({"RTE": changed}, [0], tmp_path / "c", measure=False)


def test_weights_are_kept_where_they_are_asked_for(recipe, tmp_path, undrawn):
    arms = {"plain": replace(recipe, infusion="none"), "kam": recipe}
    compare({"RTE": arms}, [0], tmp_path, measure=False, keep=True)
    assert (tmp_path / "RTE/kam/0/model/model.safetensors").exists()


def test_a_table_has_the_seeds_that_all_arms_have_finished(recipe, tmp_path):
    trials = plan({"RTE": {"plain": replace(recipe, infusion="none"), "kam": recipe}}, [0, 1], tmp_path)
    assert interim(trials) is None
    for number, trial in enumerate(trials[:3]):
        trial.folder.mkdir(parents=True)
        scores = {"accuracy": 0.5 + number / 10, "f1": 0.7 + number / 10, "score": 0.6 + number / 10}
        Run(trial.folder).result.write_text(json.dumps({"score": "score", "scores": scores}))
    table = interim(trials)
    assert table.seeds == (0,)
    assert table.cells["kam", "RTE"].scores == (0.7,)
    assert table.metrics == {"RTE": "mean of accuracy and f1"}
    assert outcome(trials[3]) is None


def test_runs_in_processes_end_as_those_in_one(recipe, tmp_path, monkeypatch, undrawn):
    monkeypatch.setattr(module, "_START", "forkserver")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arms = {"plain": replace(recipe, infusion="none"), "kam": recipe}
    both = [compare({"RTE": arms}, [0], tmp_path / str(jobs), jobs=jobs, measure=False) for jobs in (1, 2)]
    assert [[table.cells[arm, "RTE"].scores for arm in arms] for table in both] == 2 * [[(0.5,), (0.5,)]]
    logs = [(tmp_path / jobs / "RTE/kam/0/log.jsonl").read_text().splitlines() for jobs in "12"]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]
    assert "training on 40 examples of RTE" in (tmp_path / "2/RTE/kam/0/said.txt").read_text()


def test_two_comparisons_do_not_write_to_one_folder(recipe, tmp_path):
    tasks = {"RTE": {"plain": replace(recipe, infusion="none")}}
    with (
        only_writer(tmp_path, StorageError("")),
        pytest.raises(StorageError, match="another process compares"),
    ):
        compare(tasks, [0], tmp_path)
    assert not (tmp_path / "RTE").exists()


def test_a_run_that_is_killed_ends_the_comparison_and_the_runs_that_wait():
    for error, message in ((ValueError("a bug"), "a bug"), (BrokenProcessPool(), "a run was killed")):
        failed, waiting = Future(), Future()
        failed.set_exception(error)
        with pytest.raises((ValueError, TrainingError), match=message):
            list(module._finished({failed: None, waiting: None}))
        assert waiting.cancelled()


def test_a_run_that_fails_in_a_process_is_reported_and_waiting_runs_go_on():
    error, fine = TrainingError("the loss is nan"), Future()
    failed = Future()
    failed.set_exception(error)
    fine.set_result(3.0)
    assert sorted(module._finished({failed: "b", fine: "a"}), key=str) == [("a", 3.0, None), ("b", 0.0, error)]


@pytest.fixture
def ends(monkeypatch, undrawn):
    """Runs that end as a table says, by arm: a score, or an error; each is counted."""
    outcomes, calls = {}, []

    def train(recipe, folder, *, notes, keep_model, resume):
        calls.append((recipe.batch, recipe.schedule.seed, resume))
        end = outcomes.get((recipe.batch, recipe.schedule.seed), 0.5)
        Run(folder).open(recipe, resume=resume)
        if isinstance(end, Exception):
            raise end
        Run(folder).result.write_text(json.dumps({"score": "auc", "scores": {"auc": end}}))

    monkeypatch.setattr(module, "train_task", train)
    return outcomes, calls


def test_a_run_that_fails_or_scores_no_number_leaves_a_gap_and_is_tried_again(recipe, tmp_path, capsys, ends):
    outcomes, calls = ends
    arms = {name: replace(recipe, batch=batch) for name, batch in (("plain", 1), ("wild", 2), ("flat", 3), ("good", 4))}
    outcomes |= {(1, 1): 0.6, (4, 1): 0.7, (2, 1): TrainingError("the loss is nan\nat step 7"), (3, 0): math.nan}
    table = compare({"RTE": arms}, [0, 1], tmp_path, measure=False)
    assert [(one.arm, one.seed) for one in table.failed] == [("flat", 0), ("wild", 1)]
    means = {arm: table.cells[arm, "RTE"].summary.mean for arm in arms}
    assert math.isnan(means["wild"])
    assert math.isnan(means["flat"])
    assert (means["plain"], means["good"]) == pytest.approx((0.55, 0.6))
    assert "RTE, wild, seed 1: failed: the loss is nan at step 7;" in capsys.readouterr().err
    assert (tmp_path / "RTE/wild/1/failed.txt").read_text() == "the loss is nan\nat step 7\n"
    written = (tmp_path / "table.md").read_text()
    assert "| wild | – | – |" in written
    reasons = "- RTE, flat, seed 0: its score (auc) is nan, not a number\n- RTE, wild, seed 1: the loss is nan at"
    assert reasons in written
    assert json.loads((tmp_path / "table.json").read_text())["arms"]["wild"]["RTE"]["scores"] == [0.5, None]
    calls.clear()
    outcomes.clear()
    changed = {
        **arms,
        "wild": replace(arms["wild"], batch=5),
    }  # of the runs of an arm, only those that failed may differ
    with pytest.raises(UsageError, match=r"wild.0 holds a run with another recipe"):
        compare({"RTE": changed}, [0, 1], tmp_path, measure=False)
    again = compare({"RTE": arms}, [0, 1], tmp_path, measure=False)
    assert calls == [(3, 0, False), (2, 1, False)]
    assert again.failed == ()
    assert not (tmp_path / "RTE/wild/1/failed.txt").exists()


def test_an_arm_that_is_not_for_a_task_is_not_run_and_noted_in_the_table(recipe, tmp_path, ends):
    _, calls = ends
    plain = replace(recipe, infusion="none", batch=1)
    tasks = {
        "RTE": {"plain": plain, "luke": replace(recipe, infusion="luke", batch=2)},
        "ner": {"plain": replace(plain, task="ner"), "luke": replace(recipe, task="ner", infusion="luke", batch=3)},
    }
    table = compare(tasks, [0, 1], tmp_path, measure=False, command="wellread compare …")
    assert [batch for batch, _, _ in calls] == [1, 1, 3, 1, 1, 3]
    assert not table.failed
    assert [(one.arm, one.task) for one in table.unfit] == [("luke", "RTE")]
    assert list(table.arms) == ["plain", "luke"]
    written = (tmp_path / "table.md").read_text()
    assert "| luke | – | – | 50.00 ± 0.00 | +0.00" in written
    assert "–: does not apply to the task:\n- RTE, luke: luke has no entities" in written
    assert Table.from_dict(json.loads((tmp_path / "table.json").read_text())).command == "wellread compare …"
    calls.clear()
    assert compare(tasks, [0, 1], tmp_path, measure=False).unfit == table.unfit
    assert not calls
    with pytest.raises(UsageError, match="no arm applies to its task; the first: luke has no entities"):
        plan({"RTE": {"luke": tasks["RTE"]["luke"]}}, [0], tmp_path)


def test_a_run_that_failed_may_be_tried_with_another_recipe(recipe, tmp_path, ends):
    outcomes, calls = ends
    arms = {"plain": replace(recipe, batch=1), "wild": replace(recipe, batch=2)}
    outcomes[2, 0] = TrainingError("the loss is nan")
    compare({"RTE": arms}, [0], tmp_path, measure=False)
    tamed = {**arms, "wild": replace(recipe, batch=3)}
    assert compare({"RTE": tamed}, [0], tmp_path, measure=False).failed == ()
    assert calls[-1] == (3, 0, False)


def test_errors_of_the_first_run_before_its_training_are_raised_at_once(recipe, tmp_path, ends):
    outcomes, calls = ends
    arms = {"plain": replace(recipe, batch=1), "other": replace(recipe, batch=2)}
    for first in (InputError("no such file"), StorageError("the disk is full")):
        outcomes[1, 0] = first
        with pytest.raises(type(first), match=str(first)):
            compare({"RTE": arms}, [0], tmp_path / "a", measure=False)
    assert len(calls) == 2
    outcomes.clear()
    outcomes[2, 0] = InputError("no table")
    (only,) = compare({"RTE": arms}, [0], tmp_path / "b").failed  # and what cannot be trained costs nothing
    assert str(only) == "RTE, other, seed 0: no table"
    outcomes[2, 0] = StorageError("the disk is full")
    with pytest.raises(StorageError, match="the disk is full"):
        compare({"RTE": arms}, [0], tmp_path / "b", measure=False)


def test_a_training_that_diverges_is_reported_by_the_loop_and_the_others_go_on(recipe, tmp_path, undrawn):
    wild = replace(recipe, schedule=replace(recipe.schedule, learning_rate=1e30))
    table = compare({"RTE": {"plain": replace(recipe, infusion="none"), "wild": wild}}, [0], tmp_path, measure=False)
    (only,) = table.failed
    assert only.arm == "wild"
    assert "at step 2; try a lower learning_rate" in only.why


def test_cores_are_counted_on_systems_that_do_not_tell_which_a_process_may_use(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with module._workers(2):
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "5"


# The table.


def test_differences_are_paired_and_tested_and_corrected_over_arms():
    table = make_table(SCORES, [0, 1, 2])
    assert table.columns == ("RTE", "CoLA", "mean")
    for column, arm in (("RTE", "kam"), ("CoLA", "kam"), ("CoLA", "other")):
        ours, plain = np.array(SCORES[arm][column]), np.array(SCORES["plain"][column])
        found = table.cells[arm, column].difference
        expected = stats.ttest_rel(ours, plain)
        low, high = expected.confidence_interval(0.95)
        assert (found.mean, found.t_p) == pytest.approx(((ours - plain).mean(), expected.pvalue))
        assert (found.low, found.high) == pytest.approx((low, high))
    first, second = (table.cells[arm, "CoLA"].difference for arm in ("kam", "other"))
    assert second.t_p_holm == pytest.approx(2 * second.t_p)
    assert first.t_p_holm == pytest.approx(first.t_p)
    assert (first.flip_p, second.flip_p) == (0.75, 0.25)
    assert (first.wins, first.losses) == (2, 1)
    assert table.cells["plain", "RTE"].difference is None
    means = [(a + b) / 2 for a, b in zip(*SCORES["kam"].values(), strict=True)]
    assert table.cells["kam", "mean"].scores == pytest.approx(means)


def test_equal_arms_and_a_single_seed_make_a_table_too():
    same = make_table(SCORES, [0, 1, 2]).cells["other", "RTE"].difference
    assert (same.mean, same.low, same.high, same.flip_p) == (0, 0, 0, 1)
    assert math.isnan(same.t_p)
    one = make_table({arm: {"RTE": scores["RTE"][:1]} for arm, scores in SCORES.items()}, [0])
    assert one.columns == ("RTE",)
    assert one.rows()[1] == ("kam", "63.00", "+3.00")
    json.loads(one.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_the_table_reads_as_it_should():
    costs = {(arm, task): Cost(100 + n, 50, n, 0.1 * (1 + n), 10**6 * (1 + n), 5)
             for n, arm in enumerate(SCORES) for task in ("RTE", "CoLA")}  # fmt: skip
    table = make_table(SCORES, [0, 1, 2], metrics={"RTE": "accuracy", "CoLA": "matthews"}, costs=costs)
    text = table.to_markdown().splitlines()
    assert text[0] == "| arm | RTE | Δ RTE | CoLA | Δ CoLA | mean | Δ mean |"
    assert text[2].startswith("| plain | 60.00 ± 2.00 |  | 31.33 ± 1.53 |  |")
    kam = [cell.strip() for cell in text[3].split("|")]
    assert kam[3] == "+2.67 [-1.13, +6.46], t 0.094 / 0.094, flips 0.250 / 0.500"
    assert table.rows()[2][2] == "+0.00 [+0.00, +0.00], flips 1.000 / 1.000"
    assert len({line.count("|") for line in text[:5]}) == 1
    assert "mean ± standard deviation over 3 seeds (0, 1, 2)" in table.to_markdown()
    assert table.screen()[1][1][1] == "62.67 ± 0.58\n+2.67 [-1.13, +6.46]\nt 0.094 / 0.094, flips 0.250 / 0.500"
    assert table.cost_rows()[1] == ("kam", "101", "50", "1", "200.0", "2.00", "2", "2.00")
    assert "| kam | 101 | 50 | 1 | 200.0 | 2.00 | 2 | 2.00 |" in text
    assert "ms/step" not in make_table(SCORES, [0, 1, 2]).to_markdown()


def test_values_that_depend_on_a_missing_score_are_not_shown():
    gap = {**SCORES, "kam": {"RTE": [0.63, math.nan, 0.62], "CoLA": SCORES["kam"]["CoLA"]}}
    table, whole = make_table(gap, [0, 1, 2]), make_table(SCORES, [0, 1, 2])
    kam = dict(zip(table.header(), table.rows()[1], strict=True))
    assert [name for name, shown in kam.items() if shown == "–"] == ["RTE", "Δ RTE", "mean", "Δ mean"]
    assert kam["CoLA"] == whole.rows()[1][3]
    assert table.rows()[2][1] == whole.rows()[2][1]
    # The other arms are then the only ones that p is corrected for.
    assert table.cells["other", "mean"].difference.t_p_holm == table.cells["other", "mean"].difference.t_p
    first = make_table({"plain": gap["kam"], "other": SCORES["other"]}, [0, 1, 2])
    assert first.rows()[0][1:3] == ("–", "")
    assert first.rows()[1][1:3] == ("60.00 ± 2.00", "–")
    json.loads(table.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    endless = {**gap, "kam": {"RTE": [0.63, math.inf, 0.62], "CoLA": SCORES["kam"]["CoLA"]}}
    assert make_table(endless, [0, 1, 2]).rows() == table.rows()


def test_costs_without_those_of_the_first_arm_are_shown_alone():
    costs = {("kam", "RTE"): Cost(100, 50, 1, 0.1, 10**6, 5)}
    table = make_table({arm: {"RTE": scores["RTE"]} for arm, scores in SCORES.items()}, [0, 1, 2], costs=costs)
    assert table.cost_rows() == [("kam", "100", "50", "1", "100.0", "–", "1", "–")]


def test_scores_that_are_missing_are_named():
    with pytest.raises(
        InputError, match="the arm 'kam' lacks scores of some of the 3 seeds of RTE; let every run finish"
    ):
        make_table({"plain": {"RTE": [1, 2, 3]}, "kam": {"RTE": [1, 2]}}, [0, 1, 2])
    with pytest.raises(InputError, match="there is no arm"):
        make_table({}, [0])


def test_students_reach():
    assert student(4) == pytest.approx(2.7764451)


def test_a_comparison_is_drawn_with_a_panel_for_each_column(tmp_path):
    table = make_table(SCORES, [0, 1, 2])
    figure = plots.draw_comparison(table.to_dict())
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["RTE", "CoLA", "mean"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(SCORES)
    dots = [line.get_xdata() for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert [list(np.round(dot, 6)) for dot in dots] == [[0, 0, 0], [3, 1, 4], [0, 0, 0]]
    assert plots.save(figure, tmp_path / "table")[0].stat().st_size > 1000


def test_a_gap_in_the_scores_is_drawn_as_one(tmp_path):
    gap = {**SCORES, "kam": {"RTE": [0.63, math.nan, 0.62], "CoLA": SCORES["kam"]["CoLA"]}}
    for scores, dashes in ((gap, [1, 0, 1]), ({arm: gap[arm] for arm in ("kam", "plain", "other")}, [3, 0, 3])):
        figure = plots.draw_comparison(json.loads(make_table(scores, [0, 1, 2]).to_json()))
        assert [[text.get_text() for text in panel.texts] for panel in figure.axes] == [["–"] * n for n in dashes]
        plots.save(figure, tmp_path / "table")
    assert figure.axes[0].get_xlabel() == "points over kam (–)"


def test_a_table_is_read_as_it_was_written():
    costs = {(arm, task): Cost(10, 10, 0, 0.1, 100, 50) for arm in ("plain", "kam") for task in ("RTE", "CoLA")}
    gap = {**SCORES, "kam": {"RTE": [0.63, math.nan, 0.62], "CoLA": SCORES["kam"]["CoLA"]}}
    failed, others = [Failure("kam", "RTE", 1, "why")], [Unfit("other", "CoLA", "why not")]
    table = make_table(gap, [0, 1, 2], metrics={"RTE": "accuracy"}, costs=costs, failed=failed, unfit=others)
    again = Table.from_dict(json.loads(table.to_json()))
    assert again.to_json() == table.to_json()
    assert again.to_markdown() == table.to_markdown()
    before = {key: value for key, value in table.to_dict().items() if key not in ("unfit", "command")}
    assert Table.from_dict(before).unfit == ()  # as tables were before there were such


def test_a_small_table_has_means_differences_and_how_many_times_the_cost():
    costs = {(arm, "RTE"): Cost(10, 10, 0, step, 100, 50) for arm, step in (("plain", 0.1), ("kam", 0.125))}
    scores = {arm: {"RTE": tasks["RTE"]} for arm, tasks in SCORES.items()}
    header, rows = make_table(scores, [0, 1, 2], costs=costs).brief()
    assert header == ("arm", "RTE", "× time", "× memory")
    assert rows[0] == ("plain", "60.00 ± 2.00", "1.00", "1.00")
    assert rows[1] == ("kam", "62.67 ± 0.58 (+2.67)", "1.25", "1.00")
    assert rows[2][2:] == ("–", "–")
    assert make_table(scores, [0, 1, 2]).brief()[0] == ("arm", "RTE")


def test_costs_are_drawn_for_arms_that_have_some(tmp_path):
    costs = {(arm, "RTE"): Cost(10, 10, 0, step, 10**8, 50) for arm, step in (("plain", 0.1), ("kam", 0.125))}
    figure = plots.draw_costs(json.loads(make_table(SCORES, [0, 1, 2], costs=costs).to_json()))
    time, memory = figure.axes
    assert [round(bar.get_width(), 6) for bar in time.patches] == [100, 125]
    assert [round(bar.get_width(), 6) for bar in memory.patches] == [100, 100]
    assert [label.get_text() for label in time.get_yticklabels()] == ["plain", "kam"]


# Costs.


def test_costs_count_weights_and_what_the_forward_pass_keeps(recipe, tmp_path):
    wide = replace(recipe, kam=replace(recipe.kam, fusion="mean", map_init=0.0))
    arms = {"plain": replace(recipe, infusion="none"), "kam": recipe, "mean": wide}
    costs = cost.measure_costs(arms, tmp_path / "notes", rounds=2)
    plain, kam, mean = (costs[arm] for arm in arms)
    assert kam.added == 2 * 2 * 3 * 9  # layers, heads, heads and a map, a kernel
    assert (plain.added, mean.added) == (0, 0)
    assert kam.parameters == kam.trained == plain.parameters + kam.added
    for each in costs.values():
        assert each.memory == each.activations + 16 * each.parameters
        assert each.step_seconds > 0
    assert kam.activations != plain.activations


def test_a_step_is_clipped_and_as_precise_as_the_schedule_says(recipe, tmp_path, monkeypatch):
    clips, kinds = [], set()
    monkeypatch.setattr(cost.nn.utils, "clip_grad_norm_", lambda weights, most: clips.append((len(weights), most)))
    whole = TaskLearner.loss

    def loss(self, batch):
        kinds.add(torch.is_autocast_enabled("cpu"))
        return whole(self, batch)

    monkeypatch.setattr(TaskLearner, "loss", loss)
    for precision in ("fp32", "bf16"):
        kinds.clear()
        wanted = replace(recipe, schedule=replace(recipe.schedule, clip=0.25, precision=precision))
        cost.measure_costs({"kam": wanted, "plain": replace(wanted, infusion="none")}, tmp_path / "notes", rounds=2)
        assert kinds == {precision == "bf16"}
    assert {most for _, most in clips} == {0.25}
    assert len({count for count, _ in clips}) == 2  # of each arm its own weights


def test_adapters_have_few_weights_that_learn(recipe, tmp_path):
    few = replace(recipe, encoder=replace(recipe.encoder, rank=2))
    found = cost.measure_costs({"few": few}, tmp_path / "notes", rounds=2)["few"]
    assert found.added < found.trained < found.parameters
    assert found.memory == found.activations + 4 * found.parameters + 12 * found.trained


def test_what_is_kept_is_counted_once_and_weights_never():
    weight = torch.nn.Linear(3, 5, bias=False)
    given = torch.randn(7, 3, requires_grad=True)
    with cost._Keeping(weight) as keeping:
        out = weight(given)
        (out * out + out.exp()).sum()
    assert keeping.bytes == given.nbytes + out.nbytes + out.nbytes  # for the layer; for the square; exp keeps its own


def test_arms_share_the_weights_that_they_have_in_common(recipe, tmp_path):
    learners = cost._learners({"plain": replace(recipe, infusion="none"), "kam": recipe}, tmp_path / "notes")
    plain, kam = (dict(learner.model.named_parameters()) for learner in learners.values())
    assert all(kam[name] is weight for name, weight in plain.items())
    assert kam.keys() - plain.keys() == {f"encoder.infusions.0.kernels.{layer}" for layer in (0, 1)}
