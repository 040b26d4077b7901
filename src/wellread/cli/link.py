"""`wellread link`: link a text to one or several knowledge bases."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wellread.errors import InputError, UsageError

if TYPE_CHECKING:
    from wellread.linker import Linker
    from wellread.pictures import Describe
    from wellread.text import Document


@click.command("link")
@click.argument("text", required=False)
@click.option(
    "--kb", "kbs", multiple=True, required=True, help="A knowledge base; several give several layers of links."
)
@click.option("--file", "-f", "file", help="Read the text from a file; - is standard input.")
@click.option("--lines", is_flag=True, help="Every line is a text of its own, linked as it comes.")
@click.option("--model", type=click.Choice(["prior"]), default="prior", show_default=True, help="How to decide.")
@click.option(
    "--mentions",
    type=click.Choice(["names", "spacy"]),
    default="names",
    show_default=True,
    help="Every name of the KB, or spaCy's named entities (unknown ones become NIL).",
)
@click.option("--case", type=click.Choice(["folded", "title", "exact"]), default="folded", show_default=True)
@click.option("--overlaps", type=click.Choice(["longest", "all"]), default="longest", show_default=True)
@click.option(
    "--threshold", default=0.0, show_default=True, type=click.FloatRange(0, 1), help="Leave out weaker links."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "html", "brat", "conll"]),
    default="table",
    show_default=True,
)
@click.option("--to", default="-", help="Write to a file instead of standard output.")
def command(
    text: str | None,
    kbs: tuple[str, ...],
    file: str | None,
    lines: bool,
    model: Any,
    mentions: Any,
    case: Any,
    overlaps: Any,
    threshold: float,
    format_: str,
    to: str,
) -> None:
    """Link TEXT (or a file, or standard input) to knowledge bases.

    \b
    Examples:
      wellread link --kb vital "Marie Curie was born in Warsaw."
      wellread link --kb vital --kb wordnet --file story.txt --format html --to story.html
      cat questions.txt | wellread link --kb my.kb --lines --format json
    """
    from wellread.linker import Linker
    from wellread.mentions.candidates import Reading

    if text is not None and file is not None:
        raise UsageError("give the text as an argument or with --file, not both")
    reading = Reading(overlaps=overlaps, case=case)
    linkers = [Linker.load(kb, model, mentions=mentions, reading=reading, threshold=threshold) for kb in kbs]
    documents = _linked(linkers, _texts(text, file, lines))
    describe = _describer(linkers)
    if to == "-":
        if format_ == "table":
            _print_tables(documents, describe)
        else:
            for part in _rendered(documents, format_, describe):
                click.echo(part, nl=False)
        return
    from wellread import console
    from wellread.files import write_atomically

    if format_ == "table":
        raise UsageError("a table is for the screen; choose --format json, html, brat or conll with --to")
    with write_atomically(Path(to)) as out:
        for part in _rendered(documents, format_, describe):
            out.write(part.encode())
    console.note(f"written to {to}")


def _texts(text: str | None, file: str | None, lines: bool) -> Iterator[str]:
    from wellread.files import decode, read_lines, read_text

    if text is None and file is None and sys.stdin.isatty():
        raise UsageError('give a text: wellread link --kb vital "…", --file FILE, or pipe one in')
    if text is not None and text != "-":
        given = iter(text.splitlines()) if lines else iter([text])
    else:
        path = file or "-"
        if lines:
            given = (decode(line, f"{path}, line {number}") for number, line in read_lines(path))
        else:
            given = iter([read_text(path)])
    empty = True
    for one in given:
        if one.strip() or lines:
            empty = empty and not one.strip()
            yield one
    if empty:
        raise InputError("the text is empty; give some words to link")


def _linked(linkers: list[Linker], texts: Iterable[str]) -> Iterator[Document]:
    """Each text once, with the links of all linkers in the order of their places."""
    from dataclasses import replace

    if len(linkers) == 1:
        yield from linkers[0].link_many(texts)
        return
    for text in texts:
        layers = [linker.link(text) for linker in linkers]
        links = sorted((link for layer in layers for link in layer.links), key=lambda link: (link.start, -link.end))
        yield replace(
            layers[0], links=tuple(links), meta={"kb": [layer.meta["kb"] for layer in layers], "model": "prior"}
        )


def _describer(linkers: list[Linker]) -> Describe:
    """What an entity is, in the words of its knowledge base."""
    kbs = {linker.kb.path.stem: linker.kb for linker in linkers}

    def describe(kb: str | None, entity: str) -> str:
        return kbs[kb or ""].get(entity).description

    return describe


def _rendered(documents: Iterator[Document], format_: str, describe: Describe) -> Iterator[str]:
    from wellread.formats import to_brat, to_conll
    from wellread.pictures import linked_page

    if format_ == "json":
        for document in documents:
            yield document.to_json() + "\n"
    elif format_ == "html":
        yield linked_page(documents, describe=describe)
    else:
        write = to_brat if format_ == "brat" else to_conll
        for document in documents:
            yield write(document)


def _print_tables(documents: Iterator[Document], describe: Describe) -> None:
    from wellread import console

    for document in documents:
        several = len({link.kb for link in document.links}) > 1
        columns = ("text", "title", "what it is", "score", "others", "entity", *(("kb",) if several else ()))
        rows = [
            (
                link.text,
                link.title or "NIL",
                _short(describe(link.kb, link.entity)) if link.entity else "not in the knowledge base",
                link.score,
                max(0, len(link.candidates) - 1),
                link.entity or "",
                *((link.kb,) if several else ()),
            )
            for link in document.links
        ]
        if rows:
            console.print_table(columns, rows)
        else:
            console.note("no link found")


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
