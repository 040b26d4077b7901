"""`wellread map`: map a column of a table to a knowledge base."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from wellread.cli.options import refuse_nan


@click.command("map")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--column", "--field", "column", required=True, help="Column of the strings to map.")
@click.option("--kb", required=True, help="Knowledge base: a packaged name (vital) or a file.")
@click.option("--to", default="-", show_default=True, help="Output file; - is standard output.")
@click.option("--context", metavar="COLUMN", help="Column that tells namesakes apart, such as a description.")
@click.option("--best", type=click.IntRange(1, 100), default=1, show_default=True, help="Candidates to write per row.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    callback=refuse_nan,
    default=0.5,
    show_default=True,
    help="Minimum probability of a match; rows below it are unmatched.",
)
@click.option("--names-only", is_flag=True, help="Do not compare meaning: no encoder, no index.")
@click.option("--model", default="elq", show_default=True, help="elq or a linker's folder: its entity encoder.")
@click.option(
    "--from",
    "form",
    type=click.Choice(["csv", "tsv", "jsonl"]),
    help="Format of FILE.  [default: by its name; csv for -]",
)
@click.option(
    "--format", "to_form", type=click.Choice(["csv", "tsv", "jsonl"]), help="Format of the output.  [default: as above]"
)
def command(
    file: str,
    column: str,
    kb: str,
    to: str,
    context: str | None,
    best: int,
    threshold: float,
    names_only: bool,
    model: str,
    form: Any,
    to_form: Any,
) -> None:
    """Map the strings in a column of FILE (CSV, TSV or JSONL) to the entities of a knowledge base.

    The output has the columns of FILE, and entity, title, score and found_by of the match. The score is the probability
    that the match is right; a row without one that is likely enough is "unmatched". FILE may be - and compressed.

    \b
    Examples:
      wellread map names.csv --column company --kb my.kb --to out.csv
      wellread map people.tsv --column name --context occupation --kb vital --best 3 --to out.jsonl
      cut -d, -f2 orders.csv | wellread map - --column product --kb products.kb --names-only
    """
    from wellread.errors import UsageError
    from wellread.integrations.map_table import UNMATCHED, ColumnMapping, count_rows, form_of, map_rows, render
    from wellread.io import console
    from wellread.kb.packaged import open_kb
    from wellread.models.elq.load import load_mapper

    form, to_form = form or form_of(file), to_form or form_of(to)
    if names_only and context is not None:
        raise UsageError("--context compares meaning, which --names-only switches off; omit one of them")
    total = count_rows(file) - (form != "jsonl")
    begin = time.monotonic()
    with open_kb(kb) as opened:
        mapper = load_mapper(opened, model, names_only=names_only)
        seen: Counter[str] = Counter()
        lines = render(
            map_rows(mapper, file, form, ColumnMapping(column, context, best, threshold)), to_form, best, seen
        )
        _write(lines, to, max(0, total), seen)
    rows = sum(seen.values())
    if not rows:
        console.note(f"{file} has no rows")
        return
    matched = rows - seen[UNMATCHED]
    ways = ", ".join(f"{way} {count:,}" for way, count in seen.most_common() if way != UNMATCHED)
    console.note(
        f"matched {matched:,} of {rows:,} rows ({100 * matched / rows:.1f} %) in "
        f"{console.duration(time.monotonic() - begin)}" + (f": {ways}" if ways else "")
    )


def _write(lines: Iterator[str], to: str, total: int, seen: Counter[str]) -> None:
    """Write the lines with a progress bar; a file appears complete or not at all."""
    from wellread.integrations.map_table import UNMATCHED
    from wellread.io import console
    from wellread.io.files import write_atomically

    if to == "-":
        for line in lines:
            click.echo(console.on_screen(line), nl=False)
        return
    with console.step_bar("mapping", 0, total) as update, write_atomically(to) as out:
        for number, line in enumerate(lines):
            out.write(line.encode("utf-8", "surrogatepass"))
            if number % 256 == 0:
                update(number, f"{seen.total() - seen[UNMATCHED]:,} matched")
    console.note(f"written to {to}")
