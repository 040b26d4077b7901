"""`wellread explain`: compare a model's attention with and without knowledge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import click

from wellread.cli.options import refuse_nan
from wellread.errors import UsageError

if TYPE_CHECKING:
    from wellread.plots.attention import Seen


@click.command("explain")
@click.argument("text")
@click.argument("text_b", required=False)
@click.option(
    "--model",
    default="minilm",
    show_default=True,
    help="Folder of a trained model or run; or a plain encoder, to try maps on it.",
)
@click.option(
    "--maps",
    help="Comma-separated: entity, phrase, correlation, graph; or none.  [default: the model's; for a plain "
    "encoder entity,phrase and with a table correlation]",
)
@click.option("--correlation", type=click.Path(), metavar="TABLE", help="Table of wellread correlate, also for terms.")
@click.option("--kb", help="Knowledge base of links and facts.  [default: vital, if needed]")
@click.option("--linker", is_flag=True, help="Find entities with a linker instead of spaCy.")
@click.option("--terms", type=click.IntRange(0), metavar="K", help="Maximum tokens of auxiliary terms.  [default: 8]")
@click.option(
    "--without",
    type=click.Choice(["knowledge", "kam"]),
    default="knowledge",
    show_default=True,
    help="Compare with the model without maps, or with KAM switched off, its convolution included.",
)
@click.option("--layer", type=int, help="Layer to show, from 0.  [default: the one with the largest change]")
@click.option("--head", default="mean", show_default=True, help="Head to show, from 0, or mean.")
@click.option(
    "--by", type=click.Choice(["words", "pieces"]), default="words", show_default=True, help="Unit of rows and columns."
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    callback=refuse_nan,
    help="Plain encoders: share of the convolution.  [default: 0.2]",
)
@click.option(
    "--map-weight",
    type=click.FloatRange(-100, 100),
    callback=refuse_nan,
    metavar="W",
    help="Plain encoders: weight of the maps, such as 5.  [default: 0, no effect]",
)
@click.option("--to", metavar="FILE", help="Write an HTML page with all layers and heads: page.html.")
@click.option("--png", metavar="FOLDER", help="Write images as PNG and SVG.")
@click.option("--json", "as_json", is_flag=True, help="Write the numbers of the layer and head as JSON.")
def command(
    text: str,
    text_b: str | None,
    model: str,
    maps: str | None,
    without: Literal["knowledge", "kam"],
    layer: int | None,
    head: str,
    by: Literal["words", "pieces"],
    alpha: float | None,
    map_weight: float | None,
    to: str | None,
    png: str | None,
    as_json: bool,
    **provided: Any,
) -> None:
    """Compare the attention of a model for TEXT, or TEXT and TEXT_B, with and without knowledge.

    Knowledge is maps of relevance between words, and auxiliary terms.

    \b
    Examples:
      wellread explain "The Academy of Fine Arts is located in Northern Maidan." --map-weight 5 --to page.html
      wellread explain "buy glipizide" "Fred Meyer Pharmacy Near Me" --correlation words.pmi --map-weight 5
      wellread explain "Paris is old." --model runs/my-model --layer 3 --head 2 --png pictures/
    """
    from wellread.inference.explain import Explainer
    from wellread.io import console
    from wellread.plots.attention import by_words, save_pictures
    from wellread.plots.attention_page import explained_page

    names = None if maps is None else [] if maps == "none" else [name.strip() for name in maps.split(",")]
    with Explainer.load(model, names, alpha=alpha, map_weight=map_weight, **_provided(names, provided)) as explainer:
        which = _checked(explainer.layers, explainer.heads, layer, head)
        tokens = explainer.explain(text, text_b, without=without)
    seen = by_words(tokens) if by == "words" else tokens
    shown = seen.best_layer if layer is None else layer
    for note in seen.notes:
        console.note(note)
    if to is not None:
        _write(to, explained_page(tokens, layer=shown, head=which, by=by))
        console.note(f"written to {to}")
    if png is not None:
        written = [path for path in save_pictures(seen, png, layer=shown, head=which) if path.suffix == ".png"]
        console.note(f"written to {', '.join(str(path) for path in written)}")
    if as_json:
        click.echo(json.dumps(_to_dict(seen, shown, which), ensure_ascii=False))
    elif to is None and png is None:
        _print_tables(seen, shown, which)


def _provided(maps: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `MapsConfig` given as options."""
    linker = given.pop("linker")
    settings = {name: value for name, value in given.items() if value is not None}
    if linker:
        settings["entities"] = "linker"
    if linker or "graph" in (maps or ()):
        settings.setdefault("kb", "vital")
    return settings


def _checked(layers: int, heads: int, layer: int | None, head: str) -> int | Literal["mean"]:
    if layer is not None and not 0 <= layer < layers:
        raise UsageError(f"there is no layer {layer}; the model has {layers}, from 0 to {layers - 1}")
    if head == "mean":
        return "mean"
    if not head.isdecimal() or int(head) >= heads:
        raise UsageError(f"there is no head {head}; the model has {heads}, from 0 to {heads - 1}, and mean")
    return int(head)


def _write(to: str, page: str) -> None:
    from wellread.io.files import write_atomically

    with write_atomically(to) as out:
        out.write(page.encode())


def _to_dict(seen: Seen, layer: int, head: int | Literal["mean"]) -> dict[str, Any]:
    without, infused = seen.attention(layer, head)
    return {
        "texts": seen.texts,
        "model": seen.model,
        "notes": seen.notes,
        "layer": layer,
        "head": head,
        "rows": seen.labels[: seen.rows],
        "columns": seen.labels,
        "without": without.round(5).tolist(),
        "with": infused.round(5).tolist(),
        "moved": seen.moved[layer, 0 if head == "mean" else head + 1].round(5),
        "maps": {name: scores.round(5).tolist() for name, scores in seen.maps.items()},
        "terms": [
            {"word": term.word, "relevance": round(term.relevance, 5), "by": dict(term.by)} for term in seen.terms
        ],
    }


def _print_tables(seen: Seen, layer: int, head: int | Literal["mean"]) -> None:
    from wellread.io import console

    which = "mean of all heads" if head == "mean" else f"head {head}"
    moved = seen.moved[layer, 0 if head == "mean" else head + 1]
    rows = [
        (seen.labels[one.row], seen.labels[one.column], one.without, one.infused, f"{one.difference:+.3f}")
        for one in seen.changes(layer, head)
    ]
    title = f"layer {layer}, {which}: knowledge moves {100 * moved:.1f} % of the attention"
    if rows:
        console.print_table(("word", "attends to", "without", "with", "difference"), rows, title=title)
    else:
        click.echo(title)
    if seen.terms:
        terms = [
            (term.word, term.relevance, ", ".join(f"{word} {score:.2f}" for word, score in term.by[:3]))
            for term in seen.terms
        ]
        console.print_table(("auxiliary term", "mean relevance", "goes with"), terms)
