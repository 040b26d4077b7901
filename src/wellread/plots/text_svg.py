"""A linked text as a small SVG picture: mentions underlined, with the entity's title below.

    wellread link --kb vital --format json "Mozart lived in Vienna." | python -m wellread.plots.text_svg > linked.svg

Text is set in a monospaced font with a fixed advance, so the layout does not depend on the fonts of the viewer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from wellread.document import Document, Link, short
from wellread.plots.html import escape

_ADVANCE, _LABEL_ADVANCE = 9.6, 6.6
"""Pixels per character of text and label: 0.6 em of 16 and 11 px."""
_MARGIN, _LINE, _LANE = 20.0, 30.0, 15.0
_COLOURS = ("#2563a8", "#b4540a", "#2c7a4b", "#7a4fb0")
"""Colours of knowledge bases, in order of appearance."""


def linked_svg(document: Document, *, columns: int = 72) -> str:
    """Return an SVG picture of a document, wrapped at `columns` characters; links that share a line may not overlap."""
    kbs = list(dict.fromkeys(link.kb for link in document.links))
    colours = {kb: _COLOURS[number % len(_COLOURS)] for number, kb in enumerate(kbs)}
    parts, y = list[str](), _MARGIN
    for start, end in _wrap(document.text, columns):
        y += _LINE - 10
        parts.append(_text(document.text[start:end], _MARGIN, y, _ADVANCE, 'class="t"'))
        lanes: list[float] = []
        for link in document.links:
            if start <= link.start and link.end <= end:
                parts += _draw_link(link, start, y, lanes, colours[link.kb])
        y += 10 + _LANE * max(1, len(lanes))
    width, height = 2 * _MARGIN + columns * _ADVANCE, y + _MARGIN - 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(document.text)}">\n'
        "<style>text{font-family:ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
        ".t{font-size:16px;fill:#22252a}.l{font-size:11px}</style>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#faf8f4"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _wrap(text: str, columns: int) -> Iterator[tuple[int, int]]:
    """Yield character spans of lines, broken at the last space before `columns`."""
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= columns else text.rfind(" ", start, start + columns + 1)
        end = start + columns if end <= start else end
        yield start, end
        start = end + 1 if text[end : end + 1] == " " else end


def _draw_link(link: Link, start: int, y: float, lanes: list[float], colour: str) -> list[str]:
    """Return underline and label of a link; a label that would touch another one goes one lane lower."""
    left = _MARGIN + (link.start - start) * _ADVANCE
    label = "NIL" if link.entity is None else short(link.title or link.entity, 40)
    right = left + len(label) * _LABEL_ADVANCE
    lane = next((number for number, used in enumerate(lanes) if used < left), len(lanes))
    lanes[lane : lane + 1] = [right + _LABEL_ADVANCE]
    width = len(link.text) * _ADVANCE
    return [
        f'<rect x="{left:g}" y="{y - 14:g}" width="{width:g}" height="19" fill="{colour}" opacity=".12"/>'
        f'<rect x="{left:g}" y="{y + 4:g}" width="{width:g}" height="2" fill="{colour}"/>',
        _text(label, left, y + 5 + _LANE * (lane + 1) - 3, _LABEL_ADVANCE, f'class="l" fill="{colour}"'),
    ]


def _text(text: str, x: float, y: float, advance: float, attributes: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" textLength="{len(text) * advance:g}" {attributes}>{escape(text)}</text>'


if __name__ == "__main__":
    sys.stdout.write(linked_svg(Document.from_json(sys.stdin.read())))
