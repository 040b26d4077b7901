"""Wikitext as a reader sees it: plain blocks of text, and in each the links with exact character offsets.

mwparserfromhell parses; the walk over its nodes keeps what is prose and drops what is not:

1. Comments, and tags whose content is no prose (references, formulas, galleries, code, …), go before the parse.
2. The page is parsed section by section: the parser's time grows with the square of what is left unclosed, and a slip
   in one section cannot spoil the next.
3. A blank line, a heading, a table or a rule ends a block. A block is "prose", or "item" when a list marker (`*`, `#`,
   `:`, `;`) opens its line, or "broken" when markup was left in it that nothing closes.
4. Templates, tables, images and categories show nothing, and nor do links inside them; a few inline templates keep
   their text (`INLINE_TEMPLATES`). Links to other namespaces and wikis are plain text.
5. What this leaves behind is mended: quotes of bold and italic, empty parentheses, runs of white space.

Language variants of Chinese (`-{…}-`) stay as they are written.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, HTMLEntity, Tag, Template, Text, Wikilink

from wellread.errors import InputError

MAX_CHARS = 1 << 21
"""MediaWiki's own limit for a page is 2 MiB."""
MAX_UNCLOSED = 100
"""Brackets opened and not closed; beyond this the parser takes minutes."""

INLINE_TEMPLATES = {
    **dict.fromkeys(("lang", "langx", "script"), 2),
    **dict.fromkeys(("nowrap", "nobr", "nobreak", "small", "smaller", "big", "larger", "smallcaps", "sc", "em"), 1),
    **dict.fromkeys(("abbr", "tooltip", "ill", "interlanguage link", "visible anchor", "vanchor"), 1),
    **dict.fromkeys(("transl", "transliteration"), 0),
}
"""Templates whose text is part of the sentence, and the number of the parameter that holds it (0: the last)."""
SIGN_TEMPLATES = {
    **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash"), " – "),
    **{"ndash": "–", "en dash": "–", "mdash": "—", "em dash": "—", "'": "'", "'s": "'s", "nbsp": " ", "space": " "},
}
"""Templates that stand for a sign."""

Kind = Literal["prose", "item", "broken"]
Edit = tuple[int, int, str]
"""Start, end and what is put there."""

_UNSEEN_TAGS = (
    "ref|references|gallery|math|chem|ce|timeline|score|syntaxhighlight|source|pre|imagemap|templatestyles|hiero|graph|"
    "mapframe|maplink|inputbox|categorytree|section|indicator|includeonly|style|script"
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# The content may not hold the same tag again: that keeps a page of a thousand unclosed <ref> linear.
_UNSEEN = re.compile(
    rf"<(?:{_UNSEEN_TAGS})\b[^<>]*/>|<({_UNSEEN_TAGS})\b[^<>]*>[^<]*(?:<(?!/?\1\b)[^<]*)*</\1\s*>", re.IGNORECASE
)
_HEADING = re.compile(r"^=+(.+?)=+[ \t]*$", re.MULTILINE)
_PAIRS = (("[[", "]]"), ("{{", "}}"), ("{|", "|}"), ("[http", "]"))

_BLOCK_TAGS = frozenset("p div blockquote center ul ol dl poem h1 h2 h3 h4 h5 h6".split())
_LIST_TAGS = frozenset(("li", "dt", "dd"))

_STRAY = re.compile(
    r"</?(?:div|span|p|br|hr|small|big|center|font|ref|blockquote|table|tr|td|th|ul|ol|li|dl|dd|dt|su[bp]|code|tt|cite|"
    r"nowiki|noinclude|onlyinclude|poem|em|strong|[bius])\b[^<>]*>|__[A-Z]{3,}__",
    re.IGNORECASE,
)
_LEFTOVER = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|^\s*[|!]", re.MULTILINE)
_QUOTES = re.compile(r"'{2,}")
_HOLE = re.compile(
    r"\s+\([\s,;:]*\)|（[\s,;:，；：、]*）|(?<=\()\s*[,;][\s,;]*|(?<=（)\s*[,;，；、]\s*|[\s,;]*[,;]\s*(?=\))|[，；、]+(?=）)"
)
_SPACE = re.compile(r"^\s+|\s+$|\s+(?=[,.)](?:\s|$))|(?<=\()\s+|(?P<run> \s+|[^\S ]\s*)")

_PARENTHESIS = re.compile(r"\s*(?:\([^()]*\)|（[^（）]*）)$")
_LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|[a-z]{2,4}-[a-z-]+)(?=:\S)")
_PROJECTS = frozenset(
    "w wikipedia wikt wiktionary commons c s wikisource q wikiquote b wikibooks n wikinews v wikiversity voy wikivoyage "
    "species wikispecies d wikidata m meta mw f foundation wmf doi hdl arxiv iarchive phab bugzilla toollabs".split()
)
_HIDDEN_NAMESPACES = frozenset("file image category bild imagen imagem immagine изображение 画像 图像".split())
_NAMESPACES = frozenset(
    "media special talk user wikipedia project mediawiki template help portal draft module wp".split()
) | {f"{name} talk" for name in ("user", "wikipedia", "file", "mediawiki", "template", "help", "category", "portal")}


class Link(NamedTuple):
    """Where in a block's text a link stands, and the title of the article it leads to."""

    start: int
    end: int
    target: str


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph or a list item, under the heading it stands in ("" for the lead)."""

    kind: Kind
    heading: str
    text: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """What a dump's `siteinfo` says about titles, in lower case: which prefixes are namespaces, and what has a case."""

    hidden: frozenset[str] = _HIDDEN_NAMESPACES
    """Namespaces whose links show nothing: images and categories."""
    namespaces: frozenset[str] = _NAMESPACES
    first_letter: bool = True
    """The first letter of a title is a capital whatever was written (not so in a Wiktionary)."""

    def title(self, target: str) -> str:
        """`apple_pie#Recipe` -> "Apple pie"; "" when no title is left."""
        target = html.unescape(target)
        if "%" in target:
            target = unquote(target, errors="strict") if _is_quoted(target) else target
        title = " ".join(target.partition("#")[0].replace("_", " ").split()).removeprefix(":").lstrip()
        # Title case, not upper case: MediaWiki writes "ǅ" and leaves Georgian letters and "ß" as they are.
        first = title[:1].title()
        return first + title[1:] if self.first_letter and len(first) == 1 else title

    def article(self, target: str) -> str | None:
        """The title of the article that a link leads to; None for sections, other namespaces and other wikis."""
        title = self.title(target)
        if not title or any(sign in title for sign in "<>[]{}|\n\ufffd") or self._prefix(target):
            return None
        return title

    def shows_nothing(self, target: str) -> bool:
        """Whether a link is an image, a category or the same page in another language."""
        prefix = self._prefix(target)
        return not target.lstrip().startswith(":") and (prefix in self.hidden or _is_language(prefix, target))

    def _prefix(self, target: str) -> str:
        """The namespace or wiki a link leads to, "" for articles ("Batman: Year One" is one)."""
        prefix, colon, _ = target.strip().removeprefix(":").partition(":")
        prefix = " ".join(prefix.replace("_", " ").split()).lower()
        if not colon or not (
            prefix in self.hidden or prefix in self.namespaces or prefix in _PROJECTS or _is_language(prefix, target)
        ):
            return ""
        return prefix


def bare_title(title: str) -> str:
    """A title without what tells it from others: "Mercury (planet)" -> "Mercury"."""
    return _PARENTHESIS.sub("", title) or title


def read_blocks(wikitext: str, site: Site) -> Iterator[Block]:
    """The blocks of a page in their order; an `InputError` says why a page cannot be read."""
    if len(wikitext) > MAX_CHARS:
        raise InputError(f"page of more than {MAX_CHARS:,} characters")
    wikitext = _UNSEEN.sub("", _COMMENT.sub("", wikitext))
    if any(wikitext.count(opened) - wikitext.count(closed) > MAX_UNCLOSED for opened, closed in _PAIRS):
        raise InputError(f"page with more than {MAX_UNCLOSED} unclosed brackets")
    lead, *rest = _HEADING.split(wikitext)
    for heading, section in (("", lead), *zip(rest[::2], rest[1::2], strict=True)):
        yield from _Walk(site, heading.strip()).blocks(_parse(section))


def _parse(wikitext: str) -> Sequence[Any]:
    try:
        return mwparserfromhell.parse(wikitext, skip_style_tags=True).nodes  # type: ignore[no-any-return]
    except Exception as error:  # whatever a parser raises on a page that nobody proofread, the next page can be read
        raise InputError("page that the wikitext parser cannot read") from error


def template_name(template: Any) -> str:
    """The name of a template, in lower case and without "Template:"."""
    return " ".join(str(template.name).replace("_", " ").split()).lower().removeprefix("template:")


@dataclass
class _Walk:
    """Goes through the nodes of a section and gathers their visible text, block by block."""

    site: Site
    heading: str
    done: list[Block] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    length: int = 0
    kind: Kind = "prose"
    line_is_blank: bool = True

    def blocks(self, nodes: Sequence[Any]) -> list[Block]:
        self.walk(nodes)
        self.end_block()
        return self.done

    def walk(self, nodes: Sequence[Any]) -> None:
        trail = 0
        for place, node in enumerate(nodes):
            if isinstance(node, Text):
                self.write(str(node)[trail:])
            elif isinstance(node, Wikilink):
                following = str(nodes[place + 1]) if isinstance(nodes[place + 1 : place + 2], Text) else ""
                trail = self.write_link(node, following)
                continue
            else:
                self.walk_other(node)
            trail = 0

    def walk_other(self, node: Any) -> None:
        if isinstance(node, Tag):
            self.walk_tag(node)
        elif isinstance(node, Template):
            self.walk(_template_text(node))
        elif isinstance(node, HTMLEntity):
            self.put(html.unescape(str(node)))
        elif isinstance(node, ExternalLink) and node.title is not None:
            self.walk(node.title.nodes)

    def walk_tag(self, node: Any) -> None:
        name = str(node.tag).strip().lower()
        if name in _LIST_TAGS:
            if self.line_is_blank:
                self.end_block()
            self.kind = "item"
        elif name in _BLOCK_TAGS or name in ("table", "hr"):
            self.end_block()
        elif name == "br":
            self.put(" ")
        if name != "table" and node.contents is not None:
            self.walk(node.contents.nodes)
        if name in _BLOCK_TAGS or (name in _LIST_TAGS and node.wiki_markup is None):
            self.end_block()
