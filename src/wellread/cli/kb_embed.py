"""`wellread kb embed`: vectors of entities from what is written of them and from facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wellread.training.graph_vectors import GraphRecipe


@click.command()
@click.option("--kb", required=True, help="The knowledge base: a path, or a name in wellread's home.")
@click.option("--to", metavar="FOLDER", help="The folder of the vectors.  [default: KB.embedded, beside the KB]")
@click.option(
    "--text",
    default="minilm",
    show_default=True,
    metavar="ENCODER",
    help="What reads titles and descriptions: an asset, a folder, a model on the hub with its commit; or none.",
)
@click.option(
    "--graph",
    default="tucker",
    show_default=True,
    metavar="MODEL",
    help="What learns from facts: tucker, complex, distmult; a recipe (a TOML file); or none.",
)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the graph's recipe.")
@click.option("--text-weight", default=1.0, show_default=True, help="What text vectors are multiplied by.")
@click.option("--graph-weight", default=1.0, show_default=True, help="What graph vectors are multiplied by.")
@click.option("--unit/--as-is", default=True, show_default=True, help="Whether each of the two has length 1 first.")
@click.option("--anew", is_flag=True, help="Learn from the facts anew instead of going on with what is in the folder.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def embed(
    kb: str,
    to: str | None,
    text: str,
    graph: str,
    changes: tuple[str, ...],
    text_weight: float,
    graph_weight: float,
    unit: bool,
    anew: bool,
    as_json: bool,
) -> None:
    """Make a vector of every entity: of its title and description, of the facts it stands in, or of both in one row.

    An interrupted run goes on when it is started again. What is learned from facts is tested on some that are held out.

    \b
    Examples:
      wellread kb embed --kb wordnet --text minilm --graph tucker --to wordnet-vectors
      wellread kb embed --kb my.kb --text none --graph complex --set schedule.epochs=20
      wellread kb embed --kb wordnet --graph recipes/graph-wordnet.toml --to wordnet-vectors
    """
    from wellread.errors import UsageError
    from wellread.index.combined_vectors import VectorWeights
    from wellread.io import console
    from wellread.kb.packaged import open_kb

    if text == graph == "none":
        raise UsageError("--text none and --graph none leave nothing to make vectors of; give one of the two")
    if changes and graph == "none":
        raise UsageError("--set changes the recipe of a graph, and --graph is none; leave one of the two out")
    mixture = VectorWeights(text_weight, graph_weight, unit)
    with open_kb(kb) as opened:
        recipe = None if graph == "none" else _recipe(graph, changes)
        folder = Path(to) if to is not None else Path(f"{opened.path}.embedded")
        from wellread.models.elq.entity_encoder import EntityTower
        from wellread.models.elq.model import ElqConfig
        from wellread.training import graph_vectors as learning

        encoder = None if text == "none" else EntityTower.load(ElqConfig(encoder=text))
        made, scores = learning.embed(opened, folder, encoder=encoder, recipe=recipe, mixture=mixture, resume=not anew)
    vectors = made.vectors
    if as_json:
        told = {"folder": str(folder), "entities": len(vectors), "dim": vectors.dim, "revision": vectors.revision}
        told |= {"fingerprint": vectors.fingerprint, "without_facts": made.without_facts}
        told |= {"scores": {name: score.to_dict() for name, score in scores.items()}}
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(f"{folder}: {len(vectors):,} entities, {vectors.dim} numbers each, revision {vectors.revision}")
    if recipe is not None:
        click.echo(f"without facts, so with zeros in the graph's place: {made.without_facts:,}")
        rows = [
            (name, score.queries, score.mrr, *(score.hits[k] for k in (1, 3, 10))) for name, score in scores.items()
        ]
        console.print_table(("facts", "queries", "MRR", "hits@1", "hits@3", "hits@10"), rows, "filtered ranks")


def _recipe(name: str, changes: tuple[str, ...]) -> GraphRecipe:
    from wellread import config
    from wellread.errors import UsageError
    from wellread.models.graph_vectors import KINDS
    from wellread.training.graph_vectors import GraphRecipe, usual

    if name in KINDS:
        return config.override(usual(name), changes)
    if not Path(name).is_file():
        raise UsageError(f"--graph {name} is no model and no file; choose {', '.join(KINDS)}, none, or give a recipe")
    return config.override(config.read(GraphRecipe, name), changes)
