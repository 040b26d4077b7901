"""The recipes that come with wellread: each is read, and the arms of each comparison are made."""

from pathlib import Path

import pytest

from wellread import config
from wellread.models.elq.recipe import LinkerRecipe
from wellread.models.knowbert.pretraining import PretrainingRecipe
from wellread.models.luke.pretraining import LukePretrainingRecipe
from wellread.tasks.recipe import TaskRecipe
from wellread.training.compare.arms import arms_of, unfit
from wellread.training.compare.grid import read_recipes
from wellread.training.graph_vectors import GraphRecipe

FILES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_every_recipe_is_one_of_a_linker_of_a_task_of_a_graph_of_pretraining_or_of_arms():
    kinds = {"pretrain": PretrainingRecipe, "kb": LinkerRecipe, "task": TaskRecipe, "graph": GraphRecipe}
    found = []
    for file in FILES:
        table = config.read_table(file)
        found += [kind for kind in ("arms", "task", "graph", "pretrain", "kb") if kind in table]
        if "arms" not in table:
            config.read(LukePretrainingRecipe if table.get("pretrain") == "luke" else kinds[found[-1]], file)
    assert len(found) == len(FILES) >= 8


def test_the_ablations_fit_every_task_of_kam():
    tasks = [file for file in FILES if file.name.startswith("kam-") and "arms" not in config.read_table(file)]
    recipes = read_recipes(tasks, ["maps.correlation=a-table", "data.root=data"])
    assert list(recipes) == ["CoLA", "relevance", "MRPC", "RTE", "STS-B"]
    for recipe in recipes.values():
        arms = arms_of(recipe, (), FILES[0].parent / "kam-ablations.toml")
        assert len({repr(arm) for arm in arms.values()}) == len(arms) >= 19
        assert next(iter(arms)) == "plain"
        assert not arms["plain"].infusions
        assert arms["all but graph"].maps.maps == ("entity", "phrase", "correlation")
    with pytest.raises(Exception, match=r"the arm 'correlation': maps: the correlation map needs a table"):
        arms_of(read_recipes(tasks[:1])["CoLA"], (), FILES[0].parent / "kam-ablations.toml")


def test_all_infusions_and_their_pairs_fit_every_task():
    tasks = [file for file in FILES if "task" in config.read_table(file)]
    recipes = read_recipes(tasks, ["data.root=data"])
    named = {"knowbert-senses", "knowbert-senses-definitions"}  # two of one task have the names of their files
    named |= {"ner-wnut17", "ner-crossner"}
    assert {"RTE", "semeval2010", "squad"} | named <= recipes.keys()
    for recipe in recipes.values():
        arms = arms_of(recipe, (), FILES[0].parent / "infusions.toml")
        assert list(arms) == ["none", "kam", "knowbert", "luke", "kam+knowbert", "kam+luke", "knowbert+luke"]
        assert [arm.infusion for arm in arms.values()] == list(arms)
        assert not any(map(unfit, arms.values()))
        arms = arms_of(recipe, (), FILES[0].parent / "infusions-pretrained.toml")
        assert len({repr(arm) for arm in arms.values()}) == len(arms) == 7
        assert not any(map(unfit, arms.values()))
        text = config.read_table(FILES[0].parent / "knowbert-wiki.toml")
        layer = arms["knowbert"].knowbert["shared"]
        assert {name: getattr(layer, name) for name in text["knowbert"]["shared"]} == text["knowbert"]["shared"]


def test_the_arms_of_luke_link_to_what_their_entities_are_of():
    recipes = read_recipes([FILES[0].parent / f"{name}.toml" for name in ("ner-wnut17", "reading-squad")])
    text = config.read_table(FILES[0].parent / "luke-schools.toml")
    for name, recipe in recipes.items():
        arms = arms_of(recipe, (), FILES[0].parent / "luke-arms.toml")
        assert not any(map(unfit, arms.values()))
        expected = text["entities"]["start"] if name == "squad" else None  # names have entities of their own
        assert arms["luke"].luke.kb == arms["fresh entities"].luke.start == expected


def test_the_arms_of_knowbert_fit_the_layer_that_learns_senses():
    layer = config.read(TaskRecipe, FILES[0].parent / "knowbert-senses.toml").knowbert["wordnet"]
    for recipe in read_recipes(
        [FILES[0].parent / f"{name}.toml" for name in ("wic-tsv", "relations-semeval2010")]
    ).values():
        arms = arms_of(recipe, (), FILES[0].parent / "knowbert-arms.toml")
        assert list(arms) == ["plain", "knowbert", "senses, without", "senses"]
        assert arms["senses"].knowbert == arms["knowbert"].knowbert == {"wordnet": layer}


def test_the_head_of_senses_is_as_wide_as_the_layer_that_it_is_held_against():
    recipe = config.read(TaskRecipe, FILES[0].parent / "knowbert-senses.toml")
    layer = recipe.knowbert["wordnet"]
    for name in ("dim", "heads", "inner", "prior_width"):
        assert getattr(recipe.senses, name) == getattr(layer, name)
