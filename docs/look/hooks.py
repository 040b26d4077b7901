"""Hooks for mkdocs: pages by pattern, formulae without a script, links from names in the text to the code.

- `decisions/*.md` in the menu is all pages of the folder.
- Formulae ($…$ and $$…$$) become MathML, which browsers draw themselves.
- `models/elq/model.py::Elq.states` leads to the reference, where that tells of it.
- The page on the packaged weights is the README that lies beside them.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
WEIGHTS = "src/wellread/weights/README.md"
PLACE = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
"""A place in the code: a file below src/wellread, and a name in it."""
_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])\s*</\1>', re.DOTALL
)
_FUNCTION = re.compile(r"\\(log|exp)(?=\s*(?:[A-Za-z]|\\(?![Bb]ig|left)))")
"""A function before what it is of, if that is in no brackets: "\\log p"."""
_WORD = re.compile(r"<mo>([A-Za-z]{2,})</mo>")
_DOCTEST = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
_OUTSIDE = re.compile(r"\]\((?:\.\./)+src/wellread/weights/README\.md\)")


def on_config(config: Any) -> None:
    """The menu with all pages by their names."""
    config["nav"] = expand(config["nav"], Path(config["docs_dir"]))


def on_files(files: Any, config: Any) -> None:
    """With the page on the weights."""
    from mkdocs.structure.files import File

    text = (ROOT / WEIGHTS).read_text("utf-8").replace("](../../../docs/", "](")
    files.append(File.generated(config, "weights.md", content=text))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Sessions of Python as such, places in the code as references, the weights where they are in the site."""
    weights = posixpath.relpath("weights.md", posixpath.dirname(page.file.src_uri))
    markdown = _OUTSIDE.sub(f"]({weights})", _DOCTEST.sub("```pycon\n", markdown))
    return PLACE.sub(_refer, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulae as MathML."""
    return _FORMULA.sub(_draw, html)


def expand(nav: Any, folder: Path) -> Any:
    """A menu in which patterns are the pages that they fit: {"Log": "a/*.md"} -> {"Log": ["a/index.md", "a/b.md"]}."""
    if isinstance(nav, dict):
        return {title: expand(part, folder) for title, part in nav.items()}
    if isinstance(nav, list):
        return [expand(part, folder) for part in nav]
    return _pages(nav, folder) if "*" in nav else nav


def _pages(pattern: str, folder: Path) -> list[str]:
    """The pages that a pattern fits: an index.md first, then in the order in which that leads to them, or by name."""
    found = sorted(folder.glob(pattern))
    index = next((path.read_text("utf-8") for path in found if path.name == "index.md"), "")
    order = ["index.md", *re.findall(r"\]\(([\w-]+\.md)\)", index)]
    found.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    return [path.relative_to(folder).as_posix() for path in found]


def _refer(place: re.Match[str]) -> str:
    module = place[1].removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    name = f"wellread.{module}.{place[2]}"
    return f'<autoref optional identifier="{name}"><code>{place[1]}<wbr>::{place[2]}</code></autoref>'


def _draw(formula: re.Match[str]) -> str:
    if formula["inline"] is not None:
        return _mathml(formula["inline"], "inline")
    return f'<div class="formula">{_mathml(formula["block"], "block")}</div>'


def _mathml(latex: str, display: str) -> str:
    """A formula as browsers draw it best: functions are names and not signs, with some room behind them."""
    from latex2mathml.converter import convert

    drawn = convert(_FUNCTION.sub(r"\\\1\,", html.unescape(latex).strip()), display=display)
    return _WORD.sub(r"<mi>\1</mi>", drawn)
