"""Wikitext as plain text: blocks of text, and in each the links with exact character offsets.

mwparserfromhell parses; the walk over its nodes keeps what is prose:

1. HTML is settled before the parse: comments and tags whose content is no prose (references, formulas, galleries,
   code, …) go, tags that only dress the text go and leave it, and a `<` that opens no tag is a sign like any other.
2. The page is parsed section by section: the parser's time grows with the square of what is left unclosed, and a slip
   in one section cannot spoil the next.
3. A blank line, a heading, a table or a rule ends a block. A block is "prose", or "item" when a list marker (`*`, `#`,
   `:`, `;`) opens its line, or "broken" when markup was left in it that nothing closes.
4. Templates, tables, images and categories show nothing, nor do links inside them; a few inline templates keep their
   text (`INLINE_TEMPLATES`). Links to other namespaces and wikis are plain text.
5. What this leaves behind is mended: the quotes of bold and italic, empty parentheses, runs of white space.

Left out: language variants of Chinese (`-{…}-`) stay as they are written, and templates are never expanded.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, HTMLEntity, Tag, Template, Text, Wikilink

from wellread.errors import InputError

MAX_CHARS = 1 << 21
"""MediaWiki's own limit for a page is 2 MiB."""
MAX_UNCLOSED = 100
"""Brackets opened and never closed; thousands of them would keep the parser busy for hours."""

INLINE_TEMPLATES = {
    **dict.fromkeys(("lang", "script"), "2"),
    **dict.fromkeys(("nowrap", "nobr", "nobreak", "small", "smaller", "big", "larger", "smallcaps", "sc", "em"), "1"),
    **dict.fromkeys(("abbr", "tooltip", "ill", "interlanguage link", "visible anchor", "vanchor"), "1"),
    **dict.fromkeys(("transl", "transliteration"), "321"),
}
"""Templates whose text is part of the sentence, and the parameters that may hold it, the best first."""
SIGN_TEMPLATES = {
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash"), " – "),
    **dict.fromkeys(("ndash", "en dash"), "–"),
    **dict.fromkeys(("mdash", "em dash"), "—"),
    **dict.fromkeys(("nbsp", "space"), " "),
    "'": "'",
    "'s": "'s",
}
"""Templates that stand for a sign."""

Kind = Literal["prose", "item", "broken"]
Edit = tuple[int, int, str]
"""Start, end, and what comes there instead."""

_UNSEEN = (
    "ref|references|gallery|math|chem|ce|timeline|score|syntaxhighlight|source|pre|imagemap|templatestyles|hiero|graph|"
    "mapframe|maplink|inputbox|categorytree|section|indicator|includeonly|style|script"
)
_TAGS = {
    **dict.fromkeys(_UNSEEN.split("|"), ""),  # where nothing closes them
    **dict.fromkeys("span small big font sub sup code tt cite em strong b i u s del ins abbr var kbd q".split(), ""),
    **dict.fromkeys("bdi bdo mark noinclude onlyinclude nowiki wbr ruby rb rt rp".split(), ""),
    **dict.fromkeys("p div blockquote center poem ul ol dl hr h1 h2 h3 h4 h5 h6".split(), "\n\n"),
    **dict.fromkeys("li dt dd".split(), "\n* "),
    "br": " ",
}
"""Wikitext in the place of an HTML tag, opening or closing. Tables are left to the parser."""
_TABLE_TAGS = frozenset("table tbody thead tr td th caption".split())
# The content may not hold the same tag again, so that a page of a thousand unclosed <ref> takes linear time.
_HTML = re.compile(
    rf"""
    <!-- .*? (?:-->|\Z)
    | <(?:{_UNSEEN})\b[^<>]*/>
    | <(?P<unseen>{_UNSEEN})\b[^<>]*> [^<]* (?:<(?!/?(?P=unseen)\b)[^<]*)* </(?P=unseen)\s*>
    | <nowiki> (?P<literal>[^<]* (?:<(?!/?nowiki\b)[^<]*)*) </nowiki>
    | </?(?P<tag>[a-z][a-z0-9]*)\b[^<>]*>
    | <
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_MARKUP = re.compile(r"[\[\]{}|'<>*#:;=&]")
_HEADING = re.compile(r"^=+([^=\n].*?)=+[ \t]*$", re.MULTILINE)
_PAIRS = (("[[", "]]"), ("{{", "}}"), ("{|", "|}"), ("[http", "]"))

_LIST_MARKERS = frozenset(("li", "dt", "dd"))

_LEFTOVER = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|^\s*[|!]", re.MULTILINE)
_QUOTES = re.compile(r"'{2,}")
_MAGIC_WORD = re.compile(r"__[A-Z]{3,}__")
_HOLE = re.compile(
    r"\s{1,9}\([\s,;:]{0,20}\)|（[\s,;:，；：、]{0,20}）|(?<=\()\s{0,9}[,;][\s,;]{0,20}|(?<=（)\s{0,9}[,;，；、]\s{0,9}|"
    r"[,;][\s,;]{0,20}(?=\))|[，；、]{1,9}(?=）)|[,;]\s{0,9}(?=[,;])"
)
_SPACE = re.compile(r"(?=\s)(?:\A\s+|\s+\Z|\s+(?=[,.)](?:\s|\Z))|(?<=\()\s+|(?P<run> \s+|[^\S ]\s*))")

_TITLE = re.compile(r"[^<>\[\]{}|\ufffd]+")
_PARENTHESIS = re.compile(r"\s*(?:\([^()]*\)|（[^（）]*）)$")
_LANGUAGE = re.compile(r"[a-z]{2,3}|simple|[a-z]{2,4}-[a-z-]+")
_PROJECTS = frozenset(
    "w wikipedia wikt wiktionary commons c s wikisource q wikiquote b wikibooks n wikinews v wikiversity voy "
    "wikivoyage species wikispecies d wikidata m meta mw f foundation wmf doi hdl arxiv iarchive phab bugzilla".split()
)
_HIDDEN = frozenset("file image category bild imagen imagem immagine изображение 画像 图像".split())
_TALKED = frozenset("user wikipedia file mediawiki template help category portal".split())
_NAMESPACES = _TALKED | {f"{name} talk" for name in _TALKED} | set("media special talk project draft module wp".split())


class Link(NamedTuple):
    """Position of a link in a block's text, and the title of its article."""

    start: int
    end: int
    target: str


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph or a list item, and its heading ("" for the lead)."""

    kind: Kind
    heading: str
    text: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """Rules of a wiki for titles: which prefixes are namespaces (in lower case), and whether case matters."""

    hidden: frozenset[str] = _HIDDEN
    """Namespaces whose links show nothing: images and categories."""
    namespaces: frozenset[str] = _NAMESPACES
    first_letter: bool = True
    """The first letter of a title is a capital whatever was written (not so in a Wiktionary)."""

    def article(self, target: str) -> str | None:
        """Return the title of the article that a link leads to: "apple_pie#Recipe" -> "Apple pie".

        None for a section of the same page, other namespaces and other wikis.
        """
        title = " ".join(unquote(html.unescape(target)).partition("#")[0].replace("_", " ").split())
        title = title.removeprefix(":").lstrip()
        if self._prefix(target) or not _TITLE.fullmatch(title):
            return None
        # Title case, not upper case: MediaWiki has "ǅ" for "ǆ" and leaves Georgian letters and "ß" as they are.
        first = title[0].title()
        return first + title[1:] if self.first_letter and len(first) == 1 else title

    def shows_nothing(self, target: str) -> bool:
        """Return whether a link is an image, a category or the same page in another language."""
        prefix = self._prefix(target)
        if not prefix or target.lstrip().startswith(":"):
            return False
        return prefix in self.hidden or not (prefix in self.namespaces or prefix in _PROJECTS)

    def _prefix(self, target: str) -> str:
        """Return the namespace, project or language of a link, "" for an article ("Batman: Year One")."""
        written, colon, rest = target.strip().removeprefix(":").partition(":")
        prefix = " ".join(written.replace("_", " ").split()).lower()
        known = prefix in self.hidden or prefix in self.namespaces or prefix in _PROJECTS
        # A language is recognised by its form ("fr:Paris"): the list of Wikipedias grows, and "CSI: Miami" is not one.
        is_language = _LANGUAGE.fullmatch(written) and not rest.startswith(" ")
        return prefix if colon and (known or is_language) else ""


def bare_title(title: str) -> str:
    """Return a title without its qualifier: "Mercury (planet)" -> "Mercury"."""
    return _PARENTHESIS.sub("", title) or title


def read_blocks(wikitext: str, site: Site) -> Iterator[Block]:
    """Yield the blocks of a page; an `InputError` says why a page cannot be read."""
    if len(wikitext) > MAX_CHARS:
        raise InputError(f"page of more than {MAX_CHARS:,} characters")
    wikitext = _HTML.sub(_settled, wikitext)
    if any(wikitext.count(opened) - wikitext.count(closed) > MAX_UNCLOSED for opened, closed in _PAIRS):
        raise InputError(f"page with more than {MAX_UNCLOSED} unclosed brackets")
    lead, *rest = _HEADING.split(wikitext)
    for heading, section in (("", lead), *zip(rest[::2], rest[1::2], strict=True)):
        yield from _Walk(site, heading.strip()).blocks(_parse(section))


def _settled(match: re.Match[str]) -> str:
    """Return the replacement of an HTML tag or comment before the parse."""
    if match["literal"] is not None:
        return _MARKUP.sub(lambda sign: f"&#{ord(sign[0])};", match["literal"])
    if match["tag"] is None and match[0] != "<":
        return ""
    name = (match["tag"] or "").lower()
    return match[0] if name in _TABLE_TAGS else _TAGS.get(name, f"&lt;{match[0][1:]}")


def _parse(wikitext: str) -> Sequence[Any]:
    try:
        nodes: Sequence[Any] = mwparserfromhell.parse(wikitext, skip_style_tags=True).nodes
    except Exception as error:  # whatever the parser raises on a broken page, the next page can be read
        raise InputError("page that the wikitext parser cannot read") from error
    return nodes


@dataclass(slots=True)
class _Draft:
    """A block under construction."""

    kind: Kind = "prose"
    parts: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    length: int = 0
    line_is_blank: bool = True


class _Walk:
    """Collects the visible text of the nodes of a section, block by block."""

    def __init__(self, site: Site, heading: str = "") -> None:
        self._site = site
        self._heading = heading
        self._blocks: list[Block] = []
        self._draft = _Draft()

    def blocks(self, nodes: Sequence[Any]) -> list[Block]:
        self._walk(nodes)
        self._end_block()
        return self._blocks

    def _walk(self, nodes: Sequence[Any]) -> None:
        trail = 0
        for place, node in enumerate(nodes):
            if isinstance(node, Text):
                self._write(str(node)[trail:])
            trail = 0
            if isinstance(node, Wikilink):
                following = nodes[place + 1] if place + 1 < len(nodes) else None
                trail = self._write_link(node, str(following) if isinstance(following, Text) else "")
            elif isinstance(node, Tag):
                self._walk_tag(node)
            elif isinstance(node, Template):
                self._walk_template(node)
            elif isinstance(node, HTMLEntity):
                self._put(html.unescape(str(node)))
            elif isinstance(node, ExternalLink) and node.title is not None:
                self._walk(node.title.nodes)

    def _walk_tag(self, node: Any) -> None:
        if str(node.tag) not in _LIST_MARKERS:
            self._end_block()  # a table, or a rule
            return
        if self._draft.line_is_blank:
            self._end_block()
        self._put(" ")  # the colon of "; term : meaning" stands in the middle of its line
        self._draft.kind = "item"

    def _walk_template(self, node: Any) -> None:
        name = " ".join(str(node.name).replace("_", " ").split()).lower()
        self._put(SIGN_TEMPLATES.get(name, ""))
        if name in INLINE_TEMPLATES:
            values = {str(param.name).strip(): param.value.nodes for param in node.params}
            self._walk(next((values[number] for number in INLINE_TEMPLATES[name] if number in values), ()))

    def _write(self, text: str) -> None:
        first, *lines = text.split("\n")
        self._put(first)
        for line in lines:
            if self._draft.kind == "item" or self._draft.line_is_blank:
                self._end_block()
            else:
                self._put("\n")
                self._draft.line_is_blank = True
            self._put(line)

    def _write_link(self, node: Any, following: str) -> int:
        """Write a link as shown; return the length of its ending in the following text ("[[apple]]s" -> 1)."""
        target = str(node.title)
        if self._site.shows_nothing(target):
            return 0
        shown = self._shown(node)
        article = self._site.article(target)
        if article is None or not shown.strip():
            self._put(shown)
            return 0
        trail = next((place for place, letter in enumerate(following) if not letter.islower()), len(following))
        start = self._draft.length
        self._put(shown + following[:trail])
        self._draft.links.append(Link(start, self._draft.length, article))  # outer blanks are removed in `_mend`
        return trail

    def _shown(self, node: Any) -> str:
        if node.text is None:
            target = html.unescape(str(node.title)).removeprefix(":").replace("_", " ")
            return target.partition("#")[0] or target
        written = str(node.text)
        if not written.strip():  # the pipe trick: "[[Boston (band)|]]" is shown as "Boston"
            return bare_title(str(node.title).partition("#")[0].strip())
        shown = " ".join(block.text for block in _Walk(self._site).blocks(node.text.nodes))
        return f"{' ' * written[0].isspace()}{shown}{' ' * written[-1].isspace()}"

    def _put(self, text: str) -> None:
        draft = self._draft
        draft.parts.append(text)
        draft.length += len(text)
        draft.line_is_blank = draft.line_is_blank and not text.strip()

    def _end_block(self) -> None:
        draft, self._draft = self._draft, _Draft()
        text, links = _mend("".join(draft.parts), draft.links)
        if text:
            self._blocks.append(Block("broken" if _LEFTOVER.search(text) else draft.kind, self._heading, text, links))


def _mend(text: str, links: Iterable[Link]) -> tuple[str, tuple[Link, ...]]:
    """Remove remains of markup, and move the links along with their text."""
    if not text or text.isspace():
        return "", ()
    for find in (_quote_edits, _magic_word_edits, _hole_edits, _space_edits):
        if edits := list(find(text)):
            text, links = _edited(text, links, edits)
    trimmed = (_trimmed(link, text) for link in links)
    return text, tuple(link for link in trimmed if link.start < link.end)


def _quote_edits(text: str) -> Iterator[Edit]:
    """Bold and italic, by MediaWiki's rules: a line with an odd number of both has an apostrophe in one of them.

    "l'''île''" is an italic "île" after an apostrophe.
    """
    begin = 0
    for line in text.split("\n") if "''" in text else ():
        runs = [match.span() for match in _QUOTES.finditer(text, begin, begin + len(line))]
        marks = [3 if end - start == 4 else min(end - start, 5) for start, end in runs]
        kept = [end - start - mark for (start, end), mark in zip(runs, marks, strict=True)]
        if sum(mark != 2 for mark in marks) % 2 and sum(mark != 3 for mark in marks) % 2:
            bold = [place for place, mark in enumerate(marks) if mark == 3]
            if bold:
                kept[min(bold, key=lambda place: _unlike_apostrophe(text[begin : runs[place][0] + kept[place]]))] += 1
        yield from ((start, end, "'" * count) for (start, end), count in zip(runs, kept, strict=True))
        begin += len(line) + 1


def _unlike_apostrophe(before: str) -> int:
    """Return how unlikely three quotes after this text are an apostrophe: likeliest after a word of one letter."""
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] == " " else 1


def _magic_word_edits(text: str) -> Iterator[Edit]:
    return ((*match.span(), "") for match in _MAGIC_WORD.finditer(text))


def _hole_edits(text: str) -> Iterator[Edit]:
    return ((*match.span(), "") for match in _HOLE.finditer(text))


def _space_edits(text: str) -> Iterator[Edit]:
    return ((*match.span(), " " if match["run"] else "") for match in _SPACE.finditer(text))


def _edited(text: str, links: Iterable[Link], edits: Sequence[Edit]) -> tuple[str, list[Link]]:
    parts: list[str] = []
    last = 0
    for start, end, new in edits:
        parts += (text[last:start], new)
        last = end
    ends = [end for _, end, _ in edits]
    shifts = list(accumulate((len(new) - (end - start) for start, end, new in edits), initial=0))

    def moved(place: int) -> int:
        before = bisect_right(ends, place)
        if before < len(edits) and edits[before][0] < place:
            start, _, new = edits[before]
            place = start + min(place - start, len(new))
        return place + shifts[before]

    return "".join(parts) + text[last:], [Link(moved(link.start), moved(link.end), link.target) for link in links]


def _trimmed(link: Link, text: str) -> Link:
    anchor = text[link.start : link.end]
    start = link.start + len(anchor) - len(anchor.lstrip())
    return Link(start, start + len(anchor.strip()), link.target)
