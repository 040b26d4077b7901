"""Docstrings as Markdown: sessions of Python and indented lines are blocks of code, and a "<" is a "<" and no tag."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_SPAN = re.compile(r"(`+[^`]*`+)")
_INDENT = "    "


class Readable(Extension):
    """Rewrites every docstring before it is shown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Once for each object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(docstring: str) -> str:
    """A docstring as Markdown: '>>> 1 < 2' -> '```pycon', '>>> 1 < 2', '```'; 'a <s> b' -> 'a &lt;s> b'."""
    made: list[str] = []
    for block in re.split(r"\n\s*\n", docstring.rstrip()):
        words, session = re.fullmatch(r"(.*?)(^>>> .*)?", block, re.DOTALL | re.MULTILINE).groups()  # type: ignore[union-attr]
        if words.startswith(_INDENT):
            made += _code("", words.replace(f"\n{_INDENT}", "\n").removeprefix(_INDENT), made)
        elif words.strip():
            made.append(_escaped(words.rstrip()))
        if session:
            made += _code("pycon", session, made)
    return "\n\n".join(made)


def _code(language: str, lines: str, made: list[str]) -> list[str]:
    """A block of code, which goes on with the one before it if that is of the same kind."""
    begin, end = f"```{language}\n", "\n```"
    if made and made[-1].startswith(begin):
        lines = f"{made.pop().removeprefix(begin).removesuffix(end)}\n\n{lines}"
    return [f"{begin}{lines.rstrip()}{end}"]


def _escaped(text: str) -> str:
    """Escape text outside code: "<" must not begin a tag, and "a[b][c]" must not become a link."""
    parts = _SPAN.split(text)
    return "".join(
        part if number % 2 else part.replace("<", "&lt;").replace("][", "]&#91;") for number, part in enumerate(parts)
    )
