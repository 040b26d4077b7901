"""`wellread compare report`: comparisons as one page, or as rows for a README."""

from __future__ import annotations

import click

from wellread.errors import UsageError


@click.command("report")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--to", "file", metavar="FILE", help="Output file.  [default for html: report.html]")
@click.option("--title", default="Comparison", show_default=True, help="Heading of the page.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "markdown"]),
    default="html",
    show_default=True,
    help="A page with everything, or small tables for a README.",
)
def report(folders: tuple[str, ...], file: str | None, title: str, form: str) -> None:
    """Write one page of the comparisons in FOLDER...: tables, plots, costs, and their commands.

    A folder is what wellread compare wrote (--to), of arms or of linkers; nothing is trained or linked again. The page
    is one HTML file without scripts that needs no network. With --format markdown small tables are written to standard
    output, or to a file: the arms by tasks, the linkers by data sets.

    \b
    Examples:
      wellread compare report runs/infusions runs/linkers-shared --to report.html
      wellread compare report runs/infusions --format markdown
    """
    from wellread.io import console
    from wellread.io.files import write_atomically
    from wellread.training.compare.report import make_report, make_rows

    if form == "markdown" and title != "Comparison":
        raise UsageError("--format markdown has no title; omit --title")
    made = make_rows(folders) if form == "markdown" else make_report(folders, title=title)
    if form == "markdown" and file is None:
        click.echo(made, nl=False)
        return
    to = file or "report.html"
    with write_atomically(to) as out:
        out.write(made.encode())
    console.note(f"the report is in {to}")
