"""`wellread kb add` and `wellread kb remove`: change a knowledge base, also while it is in use."""

from __future__ import annotations

import json
from pathlib import Path

import click

from wellread.cli.options import refuse_nan
from wellread.errors import UsageError


@click.command()
@click.argument("kb")
@click.argument("file", required=False)
@click.option("--id", "id_", help="Id of one new entity, instead of FILE.")
@click.option("--title", help="Title.")
@click.option("--description", default="", help="Description.")
@click.option("--kind", default="", help="Kind.")
@click.option("--alias", "aliases", multiple=True, help="Alias; repeatable.")
@click.option(
    "--popularity", default=0.0, type=click.FloatRange(min=0), callback=refuse_nan, help="Popularity, e.g. page views."
)
@click.option("--map", "maps", multiple=True, metavar="FIELD=COLUMN", help="Column of a field in FILE.")
@click.option("--update", is_flag=True, help="Replace existing entities.")
@click.option(
    "--broken",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Broken lines: stop, or skip them.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def add(
    kb: str,
    file: str | None,
    id_: str | None,
    title: str | None,
    description: str,
    kind: str,
    aliases: tuple[str, ...],
    popularity: float,
    maps: tuple[str, ...],
    update: bool,
    broken: str,
    as_json: bool,
) -> None:
    """Add entities: from FILE, or one by its --id and --title. All or none is added.

    FILE is a table with a header if it ends in .csv or .tsv (or .csv.gz …), else JSONL; - is standard input. With
    --update the last of several entities with the same id is kept.

    \b
    Examples:
      wellread kb add my.kb new.jsonl
      wellread kb add my.kb new.csv --map id=sku --map title=name --update
      wellread kb add my.kb --id P7 --title "Aspirin Forte" --alias "ASA forte"
    """
    from wellread.io import console
    from wellread.io.files import path_name
    from wellread.kb.packaged import open_kb
    from wellread.kb.readers.tables import parse_columns, read_csv, read_jsonl
    from wellread.kb.records import Entity, Tally

    if (file is None) == (id_ is None):
        raise UsageError("give either a FILE of entities or one entity by --id and --title")
    tally = Tally()
    if file is not None:
        read = read_jsonl if {".csv", ".tsv"}.isdisjoint(Path(file.lower()).suffixes) else read_csv
        records = read(file, tally, columns=parse_columns(maps), on_broken="skip" if broken == "skip" else "refuse")
        entities = [record for record in records if isinstance(record, Entity)]
    else:
        assert id_ is not None
        if not title:
            raise UsageError("an entity needs a --title")
        entities = [Entity(id_, title, description, kind, popularity, dict.fromkeys(aliases, 1.0))]
    if update:
        entities = list({entity.id: entity for entity in entities}.values())
    there: set[str] = set()
    with open_kb(kb, writable=True) as opened:
        if entities:
            with opened.change() as change:
                there = {entity.id for entity in entities if entity.id in opened} if update else set()
                change.add(*(entity for entity in entities if entity.id not in there))
                change.update(*(entity for entity in entities if entity.id in there))
        revision = opened.revision
    if file is not None and not entities:
        console.note(f"{path_name(file)} has no entities; {kb} was not changed")
    _report(kb, {"added": len(entities) - len(there), "updated": len(there), "revision": revision}, as_json)
    for line in tally.report():
        console.note(f"skipped: {line}")


@click.command()
@click.argument("kb")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def remove(kb: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove entities with their aliases and all facts that contain them. All or none is removed.

    \b
    Example:
      wellread kb remove my.kb P7
    """
    from wellread.kb.packaged import open_kb

    distinct = list(dict.fromkeys(ids))
    with open_kb(kb, writable=True) as opened:
        opened.remove(distinct)
        revision = opened.revision
    _report(kb, {"removed": len(distinct), "revision": revision}, as_json)


def _report(kb: str, result: dict[str, int], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"kb": kb, **result}))
    else:
        click.echo(f"{kb}: " + ", ".join(f"{what} {number:,}" for what, number in result.items()))
