"""`wellread correlate`: count which words meet, make a table of correlations of it, look into one."""

from __future__ import annotations

import json
from typing import Any

import click

from wellread.cli.defaults import DefaultGroup


@click.group("correlate", cls=DefaultGroup, default="count")
def command() -> None:
    """Count which words meet in text, and make a table of correlations (PMI) of it.

    \b
    Examples:
      wellread correlate corpus/ --to words.pmi             the same as: wellread correlate count corpus/ ...
      wellread correlate more.jsonl.gz --add-to words.pmi
      wellread correlate --kb wordnet --to wordnet.pmi
      wellread correlate show words.pmi river bank
    """


@command.command()
@click.argument("text", nargs=-1, type=click.Path())
@click.option("--kb", help="Count what a knowledge base says of its entities: a path, or a name in wellread's home.")
@click.option("--titles", is_flag=True, help="With --kb: an entity's title belongs to its description.")
@click.option("--to", type=click.Path(), metavar="FOLDER", help="The folder of the table, such as words.pmi.")
@click.option("--add-to", type=click.Path(), metavar="FOLDER", help="A table that these counts are added to.")
@click.option(
    "--unit",
    type=click.Choice(["line", "paragraph", "file"]),
    default="line",
    show_default=True,
    help="What a document is in a text file.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME",
    help="The field of JSONL that has the text; may be repeated.  [text]",
)
@click.option("--window", type=int, default=0, metavar="WORDS", help="Count windows of so many words, not documents.")
@click.option("--step", type=int, default=0, metavar="WORDS", help="From one window to the next.  [half a window]")
@click.option("--min-count", type=int, default=5, show_default=True, help="Leave out words in fewer events.")
@click.option("--min-pair", type=int, default=3, show_default=True, help="Leave out pairs in fewer events.")
@click.option(
    "--measure",
    type=click.Choice(["pmi", "npmi"]),
    default="pmi",
    show_default=True,
    help="PMI by the largest of the table, or normalised pair by pair.",
)
@click.option(
    "--neighbours",
    type=int,
    default=1000,
    show_default=True,
    help="Keep a pair if it is among so many nearest of either word; 0 keeps all.",
)
@click.option(
    "--memory", default="4GB", show_default=True, help="What counting may take; beyond it goes over the disk."
)
@click.option("--workers", type=click.IntRange(1), help="Processes and threads.  [one a core]")
@click.option("--engine", type=click.Choice(["duckdb", "spark"]), default="duckdb", show_default=True)
@click.option("--master", help="Spark's master, such as spark://host:7077.  [this machine]")
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

    A word counts once for each document or window that it is in. Files may be compressed (gz, bz2, xz, zst). A count
    that was interrupted goes on when it is started again; counting the same text with other limits reads none of it.

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
        raise UsageError(
            "say where the table goes: --to FOLDER for a new one, or --add-to FOLDER for one that is there"
        )
    if bool(text) == (kb is not None):
        raise UsageError("say what to count: text files, folders, or --kb NAME, and not both")
    if titles and kb is None:
        raise UsageError("only entities have titles: give --titles with --kb, or name a field with --field")
    given = [name for name in ("min_count", "min_pair", "measure", "neighbours") if _was_given(ctx, name)]
    if add_to is not None and given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"a table keeps its limits when it is added to; leave out {options}")
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
    unit_told = f"windows of {about['window']} words" if about["window"] else "documents"
    click.echo(f"{table.folder}: {about['words_read']:,} words in {about['events']:,} {unit_told}")
    click.echo(
        f"{about['words']:,} words and {about['pairs']:,} pairs are correlated; the largest PMI is {about['z']:.2f}"
    )


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


@command.command()
@click.argument("table", type=click.Path())
@click.argument("words", nargs=-1)
@click.option("-n", "--number", type=click.IntRange(1), default=10, show_default=True, help="Words to show.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def show(table: str, words: tuple[str, ...], number: int, as_json: bool) -> None:
    """Show the words that a word meets; of several words also what they call to mind together.

    Without words: what the table says of itself.

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
        told = {word: [vars(one) for one in some] for word, some in met.items()}
        click.echo(json.dumps({"neighbours": told, "related": related, "unknown": unknown}, ensure_ascii=False))
        return
    columns = ("word", "relevance", "together", "events")
    for word, some in met.items():
        events = int(opened.counts[int(opened.ids_of([word])[0])])
        rows_of = [(one.word, one.relevance, one.together, one.events) for one in some]
        console.print_table(columns, rows_of, title=f"{word} (in {events:,} events)")
    if related:
        console.print_table(("word", "mean relevance"), related, title=" + ".join(known))
