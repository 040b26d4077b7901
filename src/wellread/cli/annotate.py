"""`wellread annotate`: link the texts of files and folders, with all cores or on Spark."""

from __future__ import annotations

from typing import Any

import click

from wellread.cli.options import nil_options, reading_options, refuse_nan, trust_option


@click.command("annotate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--to", required=True, type=click.Path(), metavar="FOLDER|FILE", help="Folder of parts, or one file: links.csv."
)
@click.option("--kb", "kbs", multiple=True, required=True, help="Knowledge base to link to; repeatable.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[KB=]MODEL",
    help="elq, knowbert, prior, or a folder; for one KB, or for all.  [default: as wellread link]",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    callback=refuse_nan,
    help="Omit links with a lower score.  [default: the model's]",
)
@click.option("--kind", "kinds", multiple=True, help="Link only to entities of this kind; repeatable; not for prior.")
@trust_option
@nil_options
@reading_options
@click.option("--candidates", type=click.IntRange(0), default=0, show_default=True, help="Candidates per link.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "parquet", "csv"]),
    help="Format of the output; csv: a row per link.  [default: that of the file, else jsonl]",
)
@click.option(
    "--rows",
    type=click.Choice(["text", "link"]),
    help="One row per text with its list of links, or a flat table with one row per link.  [default: text; csv: link]",
)
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "file"]),
    default="line",
    show_default=True,
    help="Unit of a text in a text file.",
)
@click.option(
    "--field",
    "--column",
    "field",
    default="text",
    show_default=True,
    help="Field or column of the texts (JSONL, CSV, Parquet).",
)
@click.option("--id-field", default="id", show_default=True, help="Field or column of their ids.")
@click.option(
    "--broken",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Unreadable texts: stop, or skip and list them.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one per core]")
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--master", help="Spark master, such as spark://host:7077.  [default: this machine]")
def command(
    files: tuple[str, ...],
    to: str,
    kbs: tuple[str, ...],
    models: tuple[str, ...],
    threshold: float | None,
    kinds: tuple[str, ...],
    trust: float | None,
    nil: bool,
    sources: str,
    precision: str,
    candidates: int,
    format_: Any,
    **how: Any,
) -> None:
    """Link the texts in FILES: text, JSONL, CSV, TSV or Parquet, compressed or not, and folders of them.

    Writes one part per shard of the input, the same for any number of workers, and joins them if --to is a file. An
    interrupted run resumes when it is started again.

    \b
    Examples:
      wellread annotate news/ --kb vital --to annotated/
      wellread annotate tickets.csv --field message --id-field ticket_id --kb my.kb --to links.csv
      wellread annotate crawl.parquet --field body --id-field url --kb my.kb --format parquet --to annotated/
      wellread annotate logs/ --kb my.kb --broken skip --to annotated/
      wellread annotate /data/crawl --kb /data/my.kb --to /data/annotated --engine spark --master spark://host:7077
    """
    from wellread.cli.link import models_of
    from wellread.integrations.annotate import annotate
    from wellread.integrations.arrow_batches import Annotation
    from wellread.io import console
    from wellread.linking.multi import name_kbs

    given = {
        "threshold": threshold,
        "kinds": list(kinds) or None,
        "trust": trust,
        "nil": nil or None,
        "sources": sources,
        "precision": precision,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    chosen = models_of(models, list(name_kbs(kbs)))
    annotation = Annotation(kbs, models=chosen, settings=settings, candidates=candidates)
    done = annotate(files, to, annotation, format=format_, **how)
    before = len(done.parts) - done.made
    where = done.parts[0].parent
    console.note(f"{done.made:,} parts written to {where}" + (f", {before:,} were there" if before else ""))
    if done.file is not None:
        console.note(f"all rows are in {done.file}; {where} can be deleted")
    if done.broken:
        console.note(f"skipped {done.broken:,} broken texts; see {where}/_broken-*.txt")
