"""`wellread annotate`: link the texts of files and folders, with all cores or on Spark."""

from __future__ import annotations

from typing import Any

import click

from wellread.cli.options import nil_options, reading_options, refuse_nan, trust_option


@click.command("annotate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--to", required=True, type=click.Path(), metavar="FOLDER", help="Where the parts are written.")
@click.option(
    "--kb", "kbs", multiple=True, required=True, help="A knowledge base; several give several layers of links."
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[KB=]MODEL",
    help="elq, knowbert, prior, or a folder; of one KB by its name, or of all.  [default: as wellread link]",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    callback=refuse_nan,
    help="Leave out weaker links.  [default: the model's best]",
)
@click.option(
    "--kind", "kinds", multiple=True, help="elq, knowbert: link only to entities of this kind; may be repeated."
)
@trust_option
@nil_options
@reading_options
@click.option("--candidates", type=click.IntRange(0), default=0, show_default=True, help="Told with each link.")
@click.option(
    "--format", "format_", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True, help="Of parts."
)
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "file"]),
    default="line",
    show_default=True,
    help="What a text is in a text file.",
)
@click.option("--field", default="text", show_default=True, help="The field of JSONL, or column of Parquet, of texts.")
@click.option("--id-field", default="id", show_default=True, help="That of their ids, if there is one.")
@click.option(
    "--broken",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Texts that cannot be read: stop, or leave them out and tell which.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes.  [one a core]")
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--master", help="Spark's master, such as spark://host:7077.  [this machine]")
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
    """Link the texts in FILES: text files, JSONL, Parquet, compressed or not, and folders of them.

    A part is written for every shard of the input, the same for any number of workers. A run that was killed goes on
    when it is started again.

    \b
    Examples:
      wellread annotate news/ --kb vital --to annotated/
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
    console.note(f"{done.made:,} parts written to {to}" + (f", {before:,} were there" if before else ""))
    if done.broken:
        console.note(f"left out {done.broken:,} broken texts; {to}/_broken-*.txt tells which")
