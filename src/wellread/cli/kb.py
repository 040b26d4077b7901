"""`wellread kb`: show, search, check and export a knowledge base; `kb_*.py` build, change and embed one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from wellread.cli.defaults import Group
from wellread.cli.kb_build import build, merge
from wellread.cli.kb_change import add, remove
from wellread.cli.kb_corrections import corrections
from wellread.cli.kb_embed import embed

if TYPE_CHECKING:
    from wellread.kb.records import Entity
    from wellread.kb.store import KnowledgeBase

as_json_option = click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
kb_argument = click.argument("kb")


@click.group("kb", cls=Group)
def command() -> None:
    """Build, change, search and check knowledge bases.

    A knowledge base is one file. KB is its path, or the name of one in wellread's home: wordnet, vital, or your own.

    \b
    Example:
      wellread kb build wordnet
      wellread kb search wordnet "river bank"
    """


for _verb in (build, merge, add, remove, corrections, embed):
    command.add_command(_verb)


@command.command()
@kb_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@as_json_option
def show(kb: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Show entities with their names, facts and neighbours.

    \b
    Example:
      wellread kb show wordnet 02084071-n
    """
    from wellread.io import console
    from wellread.kb.packaged import open_kb

    with open_kb(kb) as opened:
        entities = [opened.get(id) for id in ids]
        if as_json:
            click.echo(_dumps([_entity_dict(entity) for entity in entities]))
            return
        for entity in entities:
            total = sum(entity.aliases.values()) or 1
            about = f"{entity.title}  [{entity.id}]  {entity.kind}\n{entity.description}\n"
            click.echo(console.visible(about))
            names = sorted(entity.aliases.items(), key=lambda alias: -alias[1])
            console.print_table(("name", "count", "share"), [(name, count, count / total) for name, count in names])
            others = list(opened.other_ids(entity.id))
            if others:
                console.print_table(("other id", "kind"), [(one.id, one.kind) for one in others[:20]])
            joined = opened.neighbours(entity.id)
            rows = [("→" if n.outgoing else "←", n.relation, n.entity, n.title) for n in joined[:20]]
            if rows:
                console.print_table(("", "relation", "entity", "title"), rows, f"{len(joined):,} neighbours")


@command.command()
@kb_argument
@click.argument("query")
@click.option(
    "--how",
    type=click.Choice(["prefix", "text", "fuzzy"]),
    default="prefix",
    show_default=True,
    help="Match a name's beginning, words of name and description, or a name with typos.",
)
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1), help="Maximum results.")
@as_json_option
def search(kb: str, query: str, how: Any, limit: int, as_json: bool) -> None:
    """Search entities.

    \b
    Examples:
      wellread kb search vital einst
      wellread kb search vital "einstien" --how fuzzy
      wellread kb search wordnet "sloping land" --how text --json
    """
    from wellread.document import short
    from wellread.io import console
    from wellread.kb.packaged import open_kb

    with open_kb(kb) as opened:
        found = opened.search(query, how=how, limit=limit)
    if as_json:
        click.echo(_dumps([_entity_dict(entity) for entity in found]))
        return
    if found:
        rows = [(e.id, e.title, e.kind, e.popularity, short(e.description, 90)) for e in found]
        console.print_table(("id", "title", "kind", "popularity", "description"), rows, one_line="description")
    else:
        advice = "other words" if how == "fuzzy" else "--how fuzzy"
        console.note(f"nothing found for {query!r}; try {advice}")


@command.command()
@kb_argument
@as_json_option
def stats(kb: str, as_json: bool) -> None:
    """Show the contents of a knowledge base: counts, kinds, source, licence, revision.

    \b
    Example:
      wellread kb stats wordnet
    """
    from wellread.io import console
    from wellread.kb.packaged import open_kb
    from wellread.kb.schema import sqlite_errors

    with open_kb(kb) as opened, sqlite_errors(opened.path):
        execute = opened.connection.execute
        numbers = {
            table: execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608  # fixed names
            for table in ("entities", "aliases", "names", "relations", "facts", "forms")
        }
        kinds = dict(execute("SELECT kind, count(*) FROM entities GROUP BY kind ORDER BY 2 DESC LIMIT 20"))
        about = {**opened.metadata, "file": str(opened.path), "bytes": opened.path.stat().st_size}
    if as_json:
        click.echo(_dumps({"about": about, "numbers": numbers, "kinds": kinds}))
        return
    console.print_table(("", ""), [(name, value) for name, value in about.items() if value not in (None, "")], "about")
    console.print_table(("what", "number"), list(numbers.items()))
    console.print_table(("kind", "entities"), [(kind or "(none)", count) for kind, count in kinds.items()])


@command.command()
@kb_argument
@as_json_option
def check(kb: str, as_json: bool) -> None:
    """Check a knowledge base for damage; exit code 5 if there is any.

    \b
    Example:
      wellread kb check my.kb
    """
    from wellread.errors import KnowledgeBaseError
    from wellread.kb.check import check as check_kb
    from wellread.kb.packaged import open_kb

    with open_kb(kb) as opened:
        problems = check_kb(opened)
        count = 0 if problems else len(opened)
        derived = _damaged_beside(opened)
    if as_json:
        click.echo(_dumps({"sound": not problems and not derived, "problems": [*problems, *derived]}))
    elif not problems and not derived:
        click.echo(f"{kb} is sound: {count:,} entities, no problem found")
    if problems:
        raise KnowledgeBaseError(f"{kb} has problems: {'; '.join(problems)}; build it again from its source")
    if derived:
        raise KnowledgeBaseError(f"{kb} itself is sound, but {'; '.join(derived)}")


@command.command()
@kb_argument
@click.option("--to", default="-", show_default=True, help="JSONL file to write; - is standard output.")
def export(kb: str, to: str) -> None:
    """Write a knowledge base as JSONL, which `wellread kb build jsonl` reads again.

    \b
    Examples:
      wellread kb export vital --to vital.jsonl
      wellread kb export vital | head -3
    """
    from wellread.io import console
    from wellread.io.files import write_atomically
    from wellread.kb.export import write_jsonl
    from wellread.kb.packaged import open_kb

    with open_kb(kb) as opened:
        if to == "-" and sys.stdout.isatty():
            write_jsonl(opened, cast(IO[bytes], _Screen()))
            return
        if to == "-":
            write_jsonl(opened, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        with write_atomically(Path(to)) as file:
            count = write_jsonl(opened, file)
    console.note(f"{count:,} entities written to {to}")


class _Screen:
    """Text stream to the terminal that removes control characters."""

    def write(self, data: bytes) -> int:
        from wellread.io import console

        return sys.stdout.write(console.visible(data.decode()))


def _damaged_beside(kb: KnowledgeBase) -> list[str]:
    """Return a message for each damaged file derived from a KB, with the fix; checks all bytes."""
    from wellread.index.folder import build_command, damaged_in, vectors_folder
    from wellread.io.checksum import is_damaged
    from wellread.mentions.matcher import names_path

    names, folder = names_path(kb), vectors_folder(kb)
    found = [f"{names} is damaged; delete it, it is rebuilt on the next use"] if is_damaged(names) else []
    for file in damaged_in(folder):
        found.append(f"{file} is damaged; delete {folder} and build it again with: {build_command(kb.path)}")
    return found


def _entity_dict(entity: Entity) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(entity)


def _dumps(data: object) -> str:
    from wellread.io import console

    return console.on_screen(json.dumps(data, ensure_ascii=False, indent=2))
