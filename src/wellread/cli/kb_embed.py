"""`wellread kb embed`: entity vectors from descriptions and from facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wellread.training.graph_vectors import GraphRecipe


@click.command()
@click.option("--kb", required=True, help="Knowledge base: a path, or a name in wellread's home.")
@click.option("--to", metavar="FOLDER", help="Folder of the vectors.  [default: KB.embedded, beside the KB]")
@click.option(
    "--text",
    default="minilm",
    show_default=True,
    metavar="ENCODER",
    help="Text encoder: an asset, a folder, a model on the hub with its commit; or none.",
)
@click.option(
    "--graph",
    default="tucker",
    show_default=True,
    metavar="MODEL",
    help="Graph model: tucker, complex, distmult; a recipe (a TOML file); or none.",
)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the graph's recipe.")
@click.option("--text-weight", default=1.0, show_default=True, help="Factor of the text vectors.")
@click.option("--graph-weight", default=1.0, show_default=True, help="Factor of the graph vectors.")
@click.option("--unit/--as-is", default=True, show_default=True, help="Normalise both to length 1 first.")
@click.option("--anew", is_flag=True, help="Train on the facts from scratch instead of resuming.")
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
    """Compute a vector of every entity: from its title and description, from its facts, or both concatenated.

    An interrupted run resumes when it is started again. Graph vectors are tested on held-out facts.

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
        raise UsageError("--text and --graph are both none; give one of them")
    if changes and graph == "none":
        raise UsageError("--set needs a graph model, but --graph is none; omit one of them")
    mixture = VectorWeights(text_weight, graph_weight, unit)
    with open_kb(kb) as opened:
        recipe = None if graph == "none" else _recipe(graph, changes)
        folder = Path(to) if to is not None else Path(f"{opened.path}.embedded")
        from wellread.models.elq.config import ElqConfig
        from wellread.models.elq.entity_encoder import EntityTower
        from wellread.training import graph_vectors as learning

        encoder = None if text == "none" else EntityTower.load(ElqConfig(encoder=text))
        made, scores = learning.embed(opened, folder, encoder=encoder, recipe=recipe, mixture=mixture, resume=not anew)
    vectors = made.vectors
    if as_json:
        content = {"folder": str(folder), "entities": len(vectors), "dim": vectors.dim, "revision": vectors.revision}
        content |= {"fingerprint": vectors.fingerprint, "without_facts": made.without_facts}
        content |= {"scores": {name: score.to_dict() for name, score in scores.items()}}
        click.echo(json.dumps(content, indent=2))
        return
    click.echo(f"{folder}: {len(vectors):,} entities, {vectors.dim} numbers each, revision {vectors.revision}")
    if recipe is not None:
        click.echo(f"without facts (zero graph vectors): {made.without_facts:,}")
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
        raise UsageError(
            f"--graph {name} is neither a model nor a file; choose {', '.join(KINDS)}, none, or give a recipe"
        )
    return config.override(config.read(GraphRecipe, name), changes)
