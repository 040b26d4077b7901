"""`wellread embed`: contextual vectors of texts, words, tokens and mentions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from wellread.errors import InputError, UsageError

if TYPE_CHECKING:
    from wellread.document import Document


@click.command("embed")
@click.argument("files", nargs=-1)
@click.option("--to", required=True, metavar="FILE", help="Output file: FILE.npz or FILE.arrow.")
@click.option(
    "--model",
    default="minilm",
    show_default=True,
    help="The encoder: an asset, a folder (of a trained task too, with its knowledge), a model on the "
    "hub with its commit.",
)
@click.option(
    "--of",
    type=click.Choice(["texts", "words", "pieces", "mentions"]),
    default="texts",
    show_default=True,
    help="Units to embed.",
)
@click.option("--lines", is_flag=True, help="Read every line as a text.")
@click.option("--documents", is_flag=True, help="Read every line as a document of wellread link --format json.")
@click.option("--kb", "kbs", multiple=True, help="mentions: knowledge base of the linker that finds them; repeatable.")
@click.option("--linker", default="auto", show_default=True, help="mentions: model of that linker.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "first"]),
    default="mean",
    show_default=True,
    help="texts: mean of all tokens, or the first token.",
)
@click.option("--layers", type=click.IntRange(1), metavar="N", help="Use the states after N layers.  [default: all]")
@click.option("--width", type=click.IntRange(16), default=256, show_default=True, help="Tokens per batch.")
@click.option("--unit", is_flag=True, help="Normalise vectors to length 1.")
@click.option("--half", is_flag=True, help="Write float16 instead of float32.")
def command(
    files: tuple[str, ...],
    to: str,
    model: str,
    lines: bool,
    documents: bool,
    kbs: tuple[str, ...],
    linker: str,
    layers: int | None,
    width: int,
    half: bool,
    **how: Any,
) -> None:
    """Write contextual vectors of the texts in FILES (or on standard input), each file a text unless --lines is given.

    Rows have the number of their text, where they stand in it, and their vector. Texts are streamed.

    \b
    Examples:
      wellread embed story.txt --of words --to story.npz
      cat questions.txt | wellread embed --lines --unit --to questions.arrow
      wellread embed story.txt --of mentions --kb vital --to mentions.arrow
      wellread embed reviews.txt --lines --model runs/my-model --to reviews.npz
    """
    from wellread.inference.embedding_files import format_of, write_rows
    from wellread.io import console

    format_of(to)
    if lines and documents:
        raise UsageError("--documents already reads lines; omit --lines")
    if how["of"] == "mentions" and not kbs and not documents:
        raise UsageError("--of mentions needs --kb or --documents; give one of them")
    if kbs and (documents or how["of"] != "mentions"):
        raise UsageError("--kb needs --of mentions, and cannot be combined with --documents")
    if not files and sys.stdin.isatty():
        raise UsageError("give a file, or pipe a text in: wellread embed story.txt --to story.npz")
    from wellread.inference.embedder import load_embedder

    with ExitStack() as stack:
        embedder = load_embedder(model, stack, layers=layers, width=width)
        given = _documents(files or ("-",), lines, documents)
        if kbs:
            from wellread.linking.multi import Linkers

            linkers = stack.enter_context(Linkers.load(kbs, linker))
            given = linkers.link_many(document.text for document in given)
        count = write_rows(to, embedder.embed(given, **how), embedder.nothing(how["of"]), half=half)
    console.note(f"{count:,} vectors of {embedder.dim} numbers written to {to}")


def _documents(files: tuple[str, ...], lines: bool, documents: bool) -> Iterator[Document]:
    from wellread.document import Document
    from wellread.io.files import decode, path_name, read_lines, read_text

    empty = True
    for path in files:
        if not lines and not documents:
            empty = False
            yield Document(read_text(path))
            continue
        for number, line in read_lines(path):
            where = f"{path_name(path)}, line {number}"
            text = decode(line, where)
            empty = False
            if not documents:
                yield Document(text)
                continue
            try:
                yield Document.from_json(text)
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
    if empty:
        raise InputError("the input is empty; give a text to embed")
