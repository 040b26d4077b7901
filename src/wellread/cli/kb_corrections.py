"""`wellread kb corrections`: export corrections of links as gold documents."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from wellread.errors import UsageError


@click.command()
@click.argument("kb")
@click.option("--to", default="-", show_default=True, help="JSONL file to write; - is standard output.")
@click.option("--from", "folder", metavar="FOLDER", help="Folder of wellread serve --corrections, if it had one.")
@click.option("--count", is_flag=True, help="Write the number of corrections instead.")
def corrections(kb: str, to: str, folder: str | None, count: bool) -> None:
    """Write the corrections made on the page of `wellread serve` as gold documents, one text per line.

    Only the corrected spans are known ("evaluate"): use the file with wellread adapt --corrections, or with
    wellread evaluate linking.

    \b
    Examples:
      wellread kb corrections my.kb --to corrections.jsonl
      wellread kb corrections my.kb --count
    """
    from wellread.io import console
    from wellread.io.files import write_atomically
    from wellread.kb.corrections import Corrections, corrections_path, to_json
    from wellread.kb.packaged import open_kb

    with open_kb(kb) as opened:
        path = corrections_path(opened.path.resolve(), folder)
    if folder is not None and not path.exists():
        raise UsageError(
            f"there are no corrections of {kb} in {folder}; give the folder of wellread serve --corrections"
        )
    kept = Corrections(path)
    if count:
        click.echo(len(kept))
        return
    lines = [json.dumps(to_json(document), ensure_ascii=False) + "\n" for document in kept.documents()]
    if not lines:
        console.note(f"there are no corrections of {kb}; make some on the page of: wellread serve --kb {kb}")
    if to != "-":
        with write_atomically(Path(to)) as file:
            file.writelines(line.encode("utf-8", "replace") for line in lines)
        console.note(f"{len(kept):,} corrections in {len(lines):,} texts written to {to}")
    elif sys.stdout.isatty():
        click.echo(console.visible("".join(lines)), nl=False)
    else:
        sys.stdout.buffer.writelines(line.encode("utf-8", "replace") for line in lines)
        sys.stdout.buffer.flush()
