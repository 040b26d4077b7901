"""`wellread link`: link a text to one or several knowledge bases."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wellread.cli.options import kbs_or_default, nil_options, reading_options, refuse_nan, trust_option
from wellread.errors import InputError, UsageError

if TYPE_CHECKING:
    from wellread.cli.spans import Given
    from wellread.document import Document
    from wellread.linking.multi import Linkers
    from wellread.plots import Describe

_AT_ONCE = 256
"""Texts with given spans per batch."""
_EMPTY = "the text is empty; give a text with words"
_MOST_ROWS = 500
"""Maximum rows of a printed table."""


@click.command("link")
@click.argument("text", required=False)
@click.option("--kb", "kbs", multiple=True, help="Knowledge base to link to; repeatable.  [default: vital]")
@click.option("--file", "-f", "file", help="Read the text from a file; - is standard input.")
@click.option("--lines", is_flag=True, help="Link every line as a text of its own.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="[KB=]MODEL",
    help="elq (entities), knowbert (word senses), prior (names only), or a model folder; for one KB, or for all.  "
    "[default: knowbert for WordNet if available, else prior; elq for other KBs]",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    callback=refuse_nan,
    help="Omit links with a lower score.  [default: the model's]",
)
@click.option("--overlaps", type=click.Choice(["longest", "all"]), default="longest", show_default=True)
@click.option("--kind", "kinds", multiple=True, help="Link only to entities of this kind; repeatable; not for prior.")
@click.option("--among", help="Link only to the entity ids in this file, one per line; not for prior.")
@click.option(
    "--tags",
    type=click.Choice(["auto", "spacy", "none"]),
    default="auto",
    show_default=True,
    help="knowbert: restrict senses to spaCy's part of speech; auto: as the model was trained.",
)
@trust_option
@click.option(
    "--order",
    type=click.Choice(["global", "local"]),
    default="global",
    show_default=True,
    help="LUKE: link the most certain mention first as context for the others, or each alone (faster).",
)
@click.option(
    "--passes",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="LUKE: maximum forward passes per window; with more mentions, several are linked per pass.",
)
@nil_options
@click.option(
    "--spans",
    metavar="JSON|FILE",
    help="Link these spans only: [[0, 6], [10, 20]] of the text, or JSONL with text and spans.",
)
@click.option(
    "--never-nil", is_flag=True, help="With --spans: choose the best entity instead of NIL, if there is any candidate."
)
@reading_options
@click.option(
    "--mentions",
    type=click.Choice(["names", "spacy"]),
    help="prior: link names of the KB, or spaCy's named entities (unknown ones are NIL).  [default: names]",
)
@click.option("--case", type=click.Choice(["folded", "title", "exact"]), help="prior: case sensitivity.")
@click.option("--min-chars", type=click.IntRange(min=1), help="prior: minimum length of a name.  [default: 2]")
@click.option(
    "--stop-words",
    type=click.Choice(["english", "none"]),
    help="prior: ignore names made only of these words.  [default: english]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "csv", "html", "brat", "conll"]),
    default="table",
    show_default=True,
    help="Format of the links; csv: a row per link, with the number of its text (from 1) or its id.",
)
@click.option("--to", default="-", help="Write to a file instead of standard output.")
@click.option("--verbose", "-v", is_flag=True, help="Show in the table how each span was found.")
def command(
    text: str | None,
    kbs: tuple[str, ...],
    file: str | None,
    lines: bool,
    models: tuple[str, ...],
    format_: str,
    to: str,
    verbose: bool,
    spans: str | None,
    never_nil: bool,
    **given: Any,
) -> None:
    """Link TEXT (or a file, or standard input) to knowledge bases.

    \b
    Examples:
      wellread link "Marie Curie was born in Warsaw."
      wellread link --kb vital --kb wordnet --file story.txt --format html --to story.html
      cat questions.txt | wellread link --kb my.kb --lines --format json
      wellread link --kb my.kb --file questions.txt --lines --format csv --to links.csv
      wellread link --kb vital --spans "[[0, 11]]" --never-nil "Marie Curie was born in Warsaw."
    """
    from wellread.io import console
    from wellread.linking.multi import Linkers, name_kbs

    if text is not None and file is not None:
        raise UsageError("give the text as an argument or with --file, not both")
    if format_ == "table" and to != "-":
        raise UsageError(
            "--format table is written to the screen only; choose json, csv, html, brat or conll with --to"
        )
    if format_ == "brat" and lines:
        raise UsageError("--format brat takes one text, not --lines; omit --lines, or choose --format json or conll")
    if spans is not None and (lines or given["mentions"] is not None):
        raise UsageError("--spans cannot be combined with --lines or --mentions; omit these")
    if never_nil and spans is None:
        raise UsageError("--never-nil needs --spans; add --spans, or omit --never-nil")
    if format_ == "conll" and len(kbs) > 1:
        console.note("conll has one link per token: the longest of all knowledge bases is written")
    if spans is None:
        _refuse_no_text(text, file)
    kbs = kbs_or_default(kbs)
    chosen = models_of(models, list(name_kbs(kbs)))
    with Linkers.load(kbs, models=chosen, **_settings(given)) as linkers:
        if spans is None:
            documents = linkers.link_many(_texts(text, file, lines))
        else:
            documents = _link_spans(linkers, _given(text, file, spans), never_nil)
        _write(documents, format_, to, _describer(linkers), verbose, numbered=lines)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options as arguments of `Linker.load`; options not given keep the model's defaults."""
    from wellread.io.files import decode, path_name, read_lines
    from wellread.mentions.candidates import MatchOptions

    all_overlaps = given["overlaps"] == "all"
    settings: dict[str, Any] = {
        "threshold": given["threshold"],
        "sources": given["sources"],
        "trust": given["trust"],
        "precision": given["precision"],
        "nil": given["nil"],
        "tags": given["tags"],
        "order": given["order"],
        "passes": given["passes"],
        "overlaps": "keep" if all_overlaps else "auto",
        "kinds": given["kinds"] or None,
    }
    if given["among"] is not None:
        path = given["among"]
        found = (decode(line, f"{path_name(path)}, line {number}").strip() for number, line in read_lines(path))
        settings["among"] = [id for id in found if id]
    by_name = {name: given[name] for name in ("case", "min_chars") if given[name] is not None}
    if given["stop_words"] is not None:
        by_name["stop_words"] = () if given["stop_words"] == "none" else None
    if by_name:
        settings["reading"] = MatchOptions(overlaps=given["overlaps"], **by_name)
    if given["mentions"] is not None:
        settings["mentions"] = given["mentions"]
    return settings


def models_of(given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the model of each KB: ["elq", "wordnet=prior"] -> {"vital": "elq", "wordnet": "prior"}."""
    own = {name: model for name, equals, model in (one.partition("=") for one in given) if equals and name in names}
    for_all = [one for one in given if one.partition("=")[0] not in own]
    if len(for_all) > 1:
        raise UsageError(
            f"several models without a KB: {', '.join(for_all)}; give one for all, or name the KB: --model {names[0]}=…"
        )
    return dict.fromkeys(names, for_all[0]) | own if for_all else own


def _given(text: str | None, file: str | None, spans: str) -> Iterator[Given]:
    """Read the texts with the spans to link; without a text, they are in the file of spans."""
    from wellread.cli.spans import spans_of_text, texts_with_spans

    if text is None and file is None:
        return texts_with_spans(spans)
    if spans == "-" and (text == "-" or file == "-"):
        raise UsageError("the text and its spans cannot both come from standard input; give one of them as a file")
    return (spans_of_text(one, spans) for one in _texts(text, file, lines=False))


def _link_spans(linkers: Linkers, given: Iterator[Given], never_nil: bool) -> Iterator[Document]:
    """Link given spans in batches; keep the ids of their texts."""
    while batch := list(islice(given, _AT_ONCE)):
        texts, spans, ids = zip(*batch, strict=True)
        found = linkers.link_given(texts, spans, nil="never" if never_nil else "model")
        yield from (replace(document, id=id) for document, id in zip(found, ids, strict=True))


def _write(
    documents: Iterator[Document], format_: str, to: str, describe: Describe, verbose: bool, numbered: bool
) -> None:
    if format_ == "table":
        _print_tables(documents, describe, verbose, numbered)
        return
    from wellread.io import console

    parts = _rendered(documents, format_, describe)
    if to == "-":
        for part in parts:
            click.echo(console.on_screen(part), nl=False)
        return
    from wellread.io.files import write_atomically

    with write_atomically(to) as out:
        out.writelines(part.encode() for part in parts)
    console.note(f"written to {to}")


def _refuse_no_text(text: str | None, file: str | None) -> None:
    if text is None and file is None and sys.stdin.isatty():
        raise UsageError('give a text: wellread link "…", --file FILE, or pipe one in')
    if text is not None and not text.strip():
        raise InputError(_EMPTY)


def _texts(text: str | None, file: str | None, lines: bool) -> Iterator[str]:
    from wellread.data.corpus import suffix_of
    from wellread.io.files import decode, path_name, read_lines, read_text
    from wellread.io.tables import TABLE_SUFFIXES

    if text is not None and text != "-":
        # As in a file: only \n ends a line, not the other line breaks of str.splitlines.
        given = (line.rstrip("\r") for line in text.removesuffix("\n").split("\n")) if lines else iter([text])
    else:
        path = file or "-"
        if suffix_of(Path(path)) in (*TABLE_SUFFIXES, ".parquet"):
            raise UsageError(
                f"{path} is a table, and this command links plain text; link a column of it with: wellread annotate "
                f"{path} --field COLUMN --to links.csv"
            )
        if lines:
            given = (decode(line, f"{path_name(path)}, line {number}") for number, line in read_lines(path))
        else:
            given = iter([read_text(path)])
    empty = True
    for one in given:
        if one.strip() or lines:
            empty = empty and not one.strip()
            yield one
    if empty:
        raise InputError(_EMPTY)


def _describer(linkers: Linkers) -> Describe:
    """Return a cached function that describes an entity."""
    return lru_cache(1 << 14)(linkers.describe)


def _rendered(documents: Iterator[Document], format_: str, describe: Describe) -> Iterator[str]:
    from wellread.data.formats import to_brat, to_conll
    from wellread.plots import linked_page

    if format_ == "json":
        for document in documents:
            yield document.to_json() + "\n"
    elif format_ == "csv":
        from wellread.linking.link_rows import LINK_COLUMNS, csv_lines, link_row

        yield csv_lines([("id", *LINK_COLUMNS)])
        for number, document in enumerate(documents, 1):
            name = str(number) if document.id is None else document.id
            yield csv_lines([name, *link_row(link).values()] for link in document.links)
    elif format_ == "html":
        yield linked_page(documents, describe=describe)
    else:
        write = to_brat if format_ == "brat" else to_conll
        for document in documents:
            yield write(document)


def _print_tables(documents: Iterator[Document], describe: Describe, verbose: bool, numbered: bool) -> None:
    """Print a table per text, `numbered` with the number and beginning of the text as its title."""
    from wellread.document import short
    from wellread.io import console

    for number, document in enumerate(documents, 1):
        title = f"{number}: {short(document.text, 70)}" if numbered else None
        several = len({link.kb for link in document.links}) > 1
        columns = ["text", "title", "what it is", "score", "others", "entity"]
        columns += ["kb"] if several else []
        columns += ["found by"] if verbose else []
        rows = [
            (
                link.text,
                link.title or "NIL",
                short(describe(link.kb, link.entity), 60) if link.entity else "not in the knowledge base",
                link.score,
                max(0, len(link.candidates) - 1),
                link.entity or "",
                *((link.kb or "",) if several else ()),
                *((link.found_by or "",) if verbose else ()),
            )
            for link in document.links[:_MOST_ROWS]
        ]
        if rows:
            console.print_table(columns, rows, title=title, one_line="what it is")
        else:
            console.note("no link found" if title is None else f"{title}: no link found")
        if len(document.links) > _MOST_ROWS:
            console.note(f"… {len(document.links) - _MOST_ROWS:,} more links; use --format json")
