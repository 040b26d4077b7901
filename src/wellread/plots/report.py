"""Report of comparisons: one HTML file with tables, plots and the commands that produced them; no scripts.

Each comparison is a section. Plots are inline SVG on a light background, readable in dark mode too, and unscaled, so
that all have the same font size. In a narrow window, tables and wide plots scroll.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from wellread.plots.html import escape, shell


@dataclass(frozen=True, slots=True)
class Grid:
    """Table of strings; the first column names the rows."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Paragraphs below the table; those that begin with "- " form a list."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot as SVG, with its caption."""

    caption: str
    svg: bytes


@dataclass(frozen=True, slots=True)
class Section:
    """Section of one comparison."""

    title: str
    parts: Sequence[Grid | Picture]
    command: str = ""
    """Command line that produced it."""
    place: str = ""
    """Folder of the comparison."""


def report_page(sections: Sequence[Section], title: str = "Comparison", *, note: str = "") -> str:
    """Return a self-contained page of comparisons."""
    contents = "".join(
        f'<li><a href="#s{number}"><bdi>{escape(section.title)}</bdi></a></li>'
        for number, section in enumerate(sections, 1)
    )
    bodies = "\n".join(_section(section, number) for number, section in enumerate(sections, 1))
    header = (
        f"<p><bdi>{escape(note)}</bdi></p>" if note else "",
        f'<nav aria-label="Comparisons"><ol>{contents}</ol></nav>' if len(sections) > 1 else "",
    )
    return shell(title, style=_CSS, header="\n".join(header), main=bodies, allowed="img-src data:")


def _section(section: Section, number: int) -> str:
    place = f'<p class="soft">from <code><bdi>{escape(section.place)}</bdi></code></p>' if section.place else ""
    command = ""
    if section.command:
        command = f'<h3>Made by</h3><pre tabindex="0"><code>{escape(section.command)}</code></pre>'
    parts = "\n".join(_grid(part) if isinstance(part, Grid) else _picture(part) for part in section.parts)
    return (
        f'<section aria-labelledby="s{number}"><h2 id="s{number}"><bdi>{escape(section.title)}</bdi></h2>{place}\n'
        f"{parts}\n{command}</section>"
    )


def _grid(grid: Grid) -> str:
    head = "".join(f'<th scope="col"><bdi>{escape(name)}</bdi></th>' for name in grid.header)
    rows = "\n".join(
        f'<tr><th scope="row"><bdi>{escape(row[0])}</bdi></th>'
        + "".join(f"<td>{_lines(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in grid.rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(grid.caption)}"><table>'
        f"<caption>{escape(grid.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
        f"\n{_notes(grid.notes)}"
    )


def _lines(cell: str) -> str:
    """Return a cell with its first line large and the others small below it."""
    first, *more = cell.split("\n")
    return f"<bdi>{escape(first)}</bdi>" + "".join(f"<small><bdi>{escape(line)}</bdi></small>" for line in more)


def _notes(notes: Sequence[str]) -> str:
    out, listed = list[str](), False
    for note in notes:
        if note.startswith("- ") != listed:
            out.append("</ul>" if listed else '<ul class="soft">')
            listed = not listed
        out.append(f"<li>{escape(note[2:])}</li>" if listed else f'<p class="soft">{escape(note)}</p>')
    return "".join(out) + "</ul>" * listed


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.svg).decode()
    caption = escape(picture.caption)
    return (
        f'<figure><div class="scroll" role="region" tabindex="0" aria-label="{caption}">'
        f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}"></div><figcaption>{caption}</figcaption></figure>'
    )


_CSS = """
:root { color-scheme: light dark; --paper: #faf8f4; --ink: #22252a; --soft: #5f6369; --rule: #e3dfd6; --band: #f1ede5;
  --link: #2563a8; --sans: system-ui, "Segoe UI", Roboto, sans-serif }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e4e2dd; --soft: #a3a6ac; --rule: #2c3037;
  --band: #1f2329; --link: #7fb4f2 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 var(--sans) }
header, main { max-width: 72rem; margin: 0 auto; padding: 0 1.25rem }
header { padding-top: 2.5rem }
main { padding-bottom: 4rem }
h1, h2 { font-family: "Iowan Old Style", Charter, Georgia, "Noto Serif", serif; line-height: 1.2; font-weight: 600 }
h1 { margin: 0 0 .4rem; font-size: 2rem }
h2 { margin: 0 0 .3rem; font-size: 1.45rem; overflow-wrap: anywhere }
h3 { margin: 1.4rem 0 .3rem; font-size: .95rem }
a { color: var(--link) }
nav ol { margin: .8rem 0 0; padding-left: 1.3rem }
section { margin: 2.2rem 0; padding-top: 1.6rem; border-top: 1px solid var(--rule) }
.soft { color: var(--soft); font-size: .875rem; margin: .4rem 0; max-width: 60rem; overflow-wrap: anywhere }
ul.soft { padding-left: 1.2rem }
.scroll { overflow-x: auto }
:is(.scroll, pre, a):focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
table { border-collapse: collapse; margin: 1rem 0 .4rem; font-size: .9rem; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; white-space: nowrap }
th, td { padding: .4rem .8rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
  vertical-align: top }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper) }
thead th { border-bottom: 2px solid var(--rule); color: var(--soft); font-weight: 600; vertical-align: bottom }
tbody th { font-weight: 600 }
tbody tr:nth-child(even) > * { background: var(--band) }
td small { display: block; color: var(--soft); font-size: .78rem }
figure { margin: 1.2rem 0 }
figcaption { color: var(--soft); font-size: .875rem; margin-top: .3rem }
img { display: block; max-width: max(100%, 40rem); padding: .6rem; border-radius: 8px; background: #fff;
  border: 1px solid var(--rule) }
pre { margin: .3rem 0; padding: .8rem 1rem; border-radius: 8px; background: var(--band); overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere }
code { font: .85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace }
@media print { section { break-inside: avoid-page } .scroll { overflow: visible } }
"""
