"""`wellread correlate`: count word co-occurrences, build a correlation table, show its entries."""

from __future__ import annotations

import json
from typing import Any

import click

from wellread.cli.defaults import DefaultGroup


@click.group("correlate", cls=DefaultGroup, default="count")
def command() -> None:
    """Count word co-occurrences in text, and build a correlation (PMI) table.

    \b
    Examples:
      wellread correlate corpus/ --to words.pmi             the same as: wellread correlate count corpus/ ...
      wellread correlate more.jsonl.gz --add-to words.pmi
      wellread correlate --kb wordnet --to wordnet.pmi
      wellread correlate show words.pmi river bank
    """


@command.command()
@click.argument("text", nargs=-1, type=click.Path())
@click.option("--kb", help="Count the descriptions of a knowledge base: a path, or a name in wellread's home.")
@click.option("--titles", is_flag=True, help="With --kb: add the titles to the descriptions.")
@click.option("--to", type=click.Path(), metavar="FOLDER", help="Folder of the table, such as words.pmi.")
@click.option("--add-to", type=click.Path(), metavar="FOLDER", help="Table to add the counts to.")
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "file"]),
    default="line",
    show_default=True,
    help="Unit of a document in a text file.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME",
    help="JSONL field of the text; repeatable.  [default: text]",
)
@click.option(
    "--window", type=int, default=0, metavar="WORDS", help="Count windows of this many words instead of documents."
)
@click.option(
    "--step", type=int, default=0, metavar="WORDS", help="Words from one window to the next.  [default: half a window]"
)
@click.option("--min-count", type=int, default=5, show_default=True, help="Minimum events of a word.")
@click.option("--min-pair", type=int, default=3, show_default=True, help="Minimum events of a pair.")
@click.option(
    "--measure",
    type=click.Choice(["pmi", "npmi"]),
    default="pmi",
    show_default=True,
    help="PMI divided by the largest, or normalised per pair (NPMI).",
)
@click.option(
    "--neighbours",
    type=int,
    default=1000,
    show_default=True,
    help="Keep pairs among the N nearest of either word; 0 keeps all.",
)
@click.option("--memory", default="4GB", show_default=True, help="Memory limit; counting uses the disk beyond it.")
@click.option("--workers", type=click.IntRange(1), help="Processes and threads.  [default: one per core]")
@click.option("--engine", type=click.Choice(["duckdb", "spark"]), default="duckdb", show_default=True)
@click.option("--master", help="Spark master, such as spark://host:7077.  [default: this machine]")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
@click.pass_context
def count(
    ctx: click.Context,
    text: tuple[str, ...],
    kb: str | None,
    titles: bool,
    to: str | None,
    add_to: str | None,
    unit: Any,
    fields: tuple[str, ...],
    window: int,
    step: int,
    min_count: int,
    min_pair: int,
    measure: Any,
    neighbours: int,
    memory: str,
    workers: int | None,
    engine: Any,
    master: str | None,
    as_json: bool,
) -> None:
    """Count the words and pairs of text files, JSONL, folders of them, or a knowledge base.

    A word counts once per document or window. Files may be compressed (gz, bz2, xz, zst). An interrupted count resumes
    when it is started again; counting the same text with other limits does not read it again.

    \b
    Examples:
      wellread correlate corpus/ --to words.pmi
      wellread correlate books/ --unit paragraph --window 20 --to near.pmi
      wellread correlate wiki.jsonl.xz --field title --field text --to wiki.pmi --memory 8GB
      wellread correlate more.txt --add-to words.pmi
      wellread correlate --kb wordnet --to wordnet.pmi
      wellread correlate /data/crawl --to /data/crawl.pmi --engine spark --master spark://host:7077
    """
    from wellread.correlation.counting import CountProgress, TableLimits, add_corpus, correlate
    from wellread.data.corpus import Corpus
    from wellread.errors import UsageError
    from wellread.io import console

    if (to is None) == (add_to is None):
        raise UsageError("give the table's folder: --to FOLDER for a new one, or --add-to FOLDER for an existing one")
    if bool(text) == (kb is not None):
        raise UsageError("give what to count: text files, folders, or --kb NAME, but not both")
    if titles and kb is None:
        raise UsageError("--titles needs --kb; give --kb, or name a field with --field")
    given = [name for name in ("min_count", "min_pair", "measure", "neighbours") if _was_given(ctx, name)]
    if add_to is not None and given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"an existing table keeps its limits; omit {options}")
    if kb is not None:
        corpus = Corpus.of_kb(kb, titles=titles, window=window, step=step)
    else:
        corpus = Corpus.of_files(text, unit=unit, fields=fields or ("text",), window=window, step=step)
    limits = TableLimits(min_count=min_count, min_pair=min_pair, measure=measure, neighbours=neighbours)
    progress = CountProgress()
    where = {"engine": engine, "master": master, "memory": memory, "workers": workers, "progress": progress}
    with console.progress_bar("counting", progress):
        table = (
            correlate(corpus, to, limits=limits, **where)
            if to is not None
            else add_corpus(corpus, str(add_to), **where)
        )
    about = table.about
    if as_json:
        click.echo(json.dumps({"folder": str(table.folder), "shards": progress.shards, "kept": progress.kept, **about}))
        return
    if progress.kept:
        console.note(f"{progress.kept:,} of {progress.kept + progress.shards:,} shards were counted before")
    unit_name = f"windows of {about['window']} words" if about["window"] else "documents"
    click.echo(f"{table.folder}: {about['words_read']:,} words in {about['events']:,} {unit_name}")
    click.echo(
        f"{about['words']:,} words and {about['pairs']:,} pairs are correlated; the largest PMI is {about['z']:.2f}"
    )


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


@command.command()
@click.argument("table", type=click.Path())
@click.argument("words", nargs=-1)
@click.option("-n", "--number", type=click.IntRange(1), default=10, show_default=True, help="Number of words to show.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def show(table: str, words: tuple[str, ...], number: int, as_json: bool) -> None:
    """Show the words correlated with a word; with several words also those correlated with all of them.

    Without words: show the settings and sizes of the table.

    \b
    Examples:
      wellread correlate show wordnet.pmi river
      wellread correlate show wordnet.pmi buy medicine drug --number 5
      wellread correlate show wordnet.pmi --json
    """
    from wellread.correlation.table import Correlation
    from wellread.errors import InputError
    from wellread.io import console

    opened = Correlation.load(table)
    if not words:
        if as_json:
            click.echo(json.dumps(opened.about, indent=2))
            return
        rows = [(key, str(opened.about[key])) for key in ("words", "pairs", "events", "words_read", "measure", "z")]
        rows += [("limits", ", ".join(f"{key} {value}" for key, value in opened.about["limits"].items()))]
        rows += [("counted", source) for one in opened.about["corpora"] for source in one["sources"]]
        console.print_table(("what", "value"), rows, title=str(opened.folder))
        return
    ids = opened.ids_of(words)
    known = [word for word, id in zip(words, ids, strict=True) if id >= 0]
    if unknown := [word for word, id in zip(words, ids, strict=True) if id < 0]:
        least = opened.about["limits"]["min_count"]
        message = f"{', '.join(unknown)}: not in the table (words in fewer than {least} events are left out)"
        if not known:
            raise InputError(f"{message}; give another word, or count more text")
        console.note(message)
    met = {word: opened.neighbours(word, number) for word in known}
    related = [(opened.words[id], score) for id, score in opened.related(ids, number)] if len(known) > 1 else []
    if as_json:
        content = {word: [vars(one) for one in some] for word, some in met.items()}
        click.echo(json.dumps({"neighbours": content, "related": related, "unknown": unknown}, ensure_ascii=False))
        return
    columns = ("word", "relevance", "together", "events")
    for word, some in met.items():
        events = int(opened.counts[int(opened.ids_of([word])[0])])
        rows_of = [(one.word, one.relevance, one.together, one.events) for one in some]
        console.print_table(columns, rows_of, title=f"{word} (in {events:,} events)")
    if related:
        console.print_table(("word", "mean relevance"), related, title=" + ".join(known))
