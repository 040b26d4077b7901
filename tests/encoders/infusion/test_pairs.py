"""Pairs of infusions by recipe: each gets its inputs, changes the output, and is trained."""

import json
from dataclasses import replace

import pytest
import torch

from tests.task_data import SCHEDULE, recipes, rte_recipe
from tests.tasks.test_registry_entities import SAID, recipe
from tests.toy_models import ENTITIES
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.store import KnowledgeBase
from wellread.models.kam.inputs import MapsConfig
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.luke.model import luke_of
from wellread.models.luke.recipe import LukeOptions, vocabulary_of
from wellread.plots import curves as plots
from wellread.tasks.recipe import CandidateOptions
from wellread.tasks.registry import read_parts
from wellread.training.compare.grid import compare
from wellread.training.task import build_learner, load_task, train_task

PAIRS = ["kam+knowbert", "kam+luke", "knowbert+luke", "kam+knowbert+luke"]
SHORT = replace(SCHEDULE, steps=1, accumulate=1, evaluate_every=1)
LAYER = KnowBertConfig(layer=0, dim=8, heads=2, inner=12, prior_width=4, start="zero", norm=False)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "draw_comparison", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


def provided(made, toy, *, own=False):
    """Return a recipe whose infusions all use the toy knowledge base; links are by name."""
    kb = str(toy / "toy.kb")
    return replace(
        made,
        maps=MapsConfig(maps=("entity",), entities="linker", kb=kb, linker="prior"),
        offers={"toy": CandidateOptions(kb=kb)},
        knowbert={"toy": LAYER},
        luke=LukeOptions(dim=8) if own else LukeOptions(dim=8, kb=kb, linker="prior", start=kb),
    )


@pytest.fixture
def tasks(tmp_path, encoder, toy):
    (tmp_path / "train").write_text("\n".join(SAID))
    return {
        "RTE": provided(rte_recipe(tmp_path, encoder), toy),
        "squad": provided(recipes(tmp_path, encoder)["squad"], toy),
        "ner": provided(recipe("ner", tmp_path / "train", encoder, schedule=SCHEDULE), toy, own=True),
    }


@pytest.mark.parametrize("infusion", PAIRS)
@pytest.mark.parametrize("task", ["RTE", "squad", "ner"])
def test_a_pair_is_trained_in_one_encoder(task, infusion, tasks, tmp_path):
    learner, _ = build_learner(replace(tasks[task], infusion=infusion), tmp_path / "notes")
    encoder = learner.model.encoder
    names = infusion.split("+")
    assert [entry["kind"] for entry in encoder.config.infusions] == names
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in encoder.infusions.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    learner.model.eval()
    batch = learner.batches(0)[0]
    loss = sum(learner.loss(batch).values())
    loss.backward()
    for part, name in zip(encoder.infusions, names, strict=True):
        assert any(weight.grad is not None and weight.grad.any() for weight in part.parameters()), name
        with encoder.without(name), torch.no_grad():
            assert float(sum(learner.loss(batch).values())) != float(loss), name


def test_rows_of_new_entities_start_from_vectors_and_are_kept(tasks, toy, tmp_path):
    made = replace(tasks["RTE"], infusion="luke")
    learner, _ = build_learner(made, tmp_path / "notes")
    table = luke_of(learner.model.encoder).table.weight
    assert not table.requires_grad
    by_chance = replace(made, luke=replace(made.luke, start=None))
    other = luke_of(build_learner(by_chance, tmp_path / "notes")[0].model.encoder).table.weight
    assert torch.equal(table[:4], other[:4])  # special rows are no entities
    with KnowledgeBase.open(toy / "toy.kb") as kb:
        vectors = EntityVectors.of_kb(kb)
        ids = [entity.id for entity in ENTITIES]
        rows = torch.from_numpy(vectors.rows[vectors.rows_of(ids)].astype("float32"))
    known = table.detach()[torch.from_numpy(vocabulary_of(made).rows_of(ids))]
    ours, theirs = (torch.cdist(some, some).flatten() for some in (known, rows))
    assert float(torch.corrcoef(torch.stack((ours, theirs)))[0, 1]) > 0.8  # 8 of their numbers are left
    assert len(table) == 4 + len(vectors)


def test_a_trained_pair_is_the_same_after_saving(tasks, tmp_path):
    scores = train_task(replace(tasks["RTE"], infusion="kam+knowbert+luke"), tmp_path / "run")
    model = load_task(tmp_path / "run")
    _, dev = read_parts(model.recipe.settings, model.facts)
    assert model.score(dev, model.answers(dev)) == pytest.approx(scores)


def test_a_comparison_of_infusions_is_one_table_with_costs(tasks, tmp_path):
    arms = {
        task: {name: replace(made, infusion=name, schedule=SHORT) for name in ("none", "kam+luke")}
        for task, made in tasks.items()
        if task != "squad"
    }
    table = compare(arms, [3], tmp_path / "c")
    assert not table.failed
    info = json.loads((tmp_path / "c/table.json").read_text())
    assert info["arms"]["kam+luke"]["ner"]["cost"]["added"] > 0
