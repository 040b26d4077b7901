"""`wellread index`: build and describe the nearest-entity index of a knowledge base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wellread.cli.defaults import Group

if TYPE_CHECKING:
    from wellread.index.entity_index import EntityIndex

kb_option = click.option("--kb", required=True, help="Knowledge base: a path, or a name in wellread's home.")
to_option = click.option("--to", metavar="FOLDER", help="Folder of the index.  [default: beside the KB]")
as_json_option = click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")


@click.group("index", cls=Group)
def command() -> None:
    """Build and show the index that finds the entities nearest to a mention.

    \b
    Example:
      wellread index build --kb vital
      wellread index info --kb vital
    """


@command.command()
@kb_option
@to_option
@click.option(
    "--kind",
    type=click.Choice(["auto", "exact", "hnsw", "ivf"]),
    default="auto",
    show_default=True,
    help="Search: exhaustive (flat), graph (hnsw), or nearest clusters (ivf).",
)
@click.option(
    "--compression",
    type=click.Choice(["auto", "none", "int8", "pq"]),
    default="auto",
    show_default=True,
    help="Compression of vectors; results are rescored.",
)
@click.option("--model", help="Model that encodes entities.  [default: the packaged one]")
@as_json_option
def build(kb: str, to: str | None, kind: Any, compression: Any, model: str | None, as_json: bool) -> None:
    """Encode the entities of a knowledge base and build their index, or bring both up to date.

    Only entities that are new or have changed are encoded. An interrupted build resumes when it is started
    again.

    \b
    Examples:
      wellread index build --kb vital
      wellread index build --kb my.kb --to /data/my-index --kind ivf --compression pq
    """
    from wellread.index.entity_index import build_index
    from wellread.index.entity_vectors import Encoding
    from wellread.io import console
    from wellread.kb.packaged import open_kb
    from wellread.models.elq.load import load_tower

    progress = Encoding()
    with open_kb(kb) as opened:
        encoder = load_tower(model)
        with console.progress_bar(f"indexing {opened.path.name}", progress):
            index = build_index(opened, encoder, to, kind=kind, compression=compression, progress=progress)
    if as_json:
        click.echo(json.dumps(_to_dict(index) | {"encoded": progress.encoded, "kept": progress.kept}, indent=2))
        return
    click.echo(f"{index.vectors.folder}: {progress.encoded:,} encoded, {progress.kept:,} kept")
    click.echo(index.explain())


@command.command()
@kb_option
@to_option
@as_json_option
def info(kb: str, to: str | None, as_json: bool) -> None:
    """Show the index of a knowledge base, and whether it is up to date.

    \b
    Example:
      wellread index info --kb vital --json
    """
    from wellread.index.entity_index import EntityIndex
    from wellread.kb.packaged import open_kb

    with open_kb(kb) as opened:
        index = EntityIndex.open(opened, fingerprint=None, folder=to, stale="allow")
        revision = opened.revision
    if as_json:
        click.echo(json.dumps(_to_dict(index) | {"kb_revision": revision}, indent=2))
        return
    click.echo(index.explain())
    click.echo(f"encoder: {index.fingerprint}")
    late = f", the knowledge base is at {revision}: bring it up to date with: wellread index build --kb {kb}"
    click.echo(f"revision: {index.revision}" + (late if index.revision != revision else ", up to date"))


def _to_dict(index: EntityIndex) -> dict[str, Any]:
    return {
        "folder": str(Path(index.vectors.folder)),
        "entities": len(index),
        "dim": index.dim,
        "fingerprint": index.fingerprint,
        "revision": index.revision,
        "added_since_build": len(index.changes),
        "gone_since_build": len(index.changes.gone),
        "bytes": index.bytes,
        **index.choice.as_dict(),
    }
