"""Wikipedia's XML dump (`…-pages-articles.xml.bz2`): entities, redirects, and every link as a name of its target.

One pass over the file, one page in memory. What a page gives (its id is `wp:` and its title):

- an article: an `Entity` with its lead paragraph as description, and an `Alias` for each different pair of anchor text
  and target in its prose and lists, with how often it was seen. Links in tables, infoboxes, captions and references are
  not counted.
- a redirect: a `Redirect`, and its title as an `Alias` of the target. Redirects to redirects are yielded as they come.
- a disambiguation page: no entity. Each list item that opens with a link makes the page's name an `Alias` of what is
  linked, except under a heading such as "See also".

The popularity of a page is known only after the last link: it is 0 here, and `kb.build` raises it to the sum of the
entity's alias counts. Links to missing pages (red links, disambiguation pages) come as aliases all the same; the
builder counts and drops them.

The paragraphs to train on are JSONL, a line for each paragraph of prose with at least one link; list items are left
out. A mention leads where its link leads, which may be a redirect:

    {"id": "Paris#0", "doc": "wp:Paris", "text": "Paris is the capital of France.", "mentions": [[24, 30, "wp:France"]]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson
from lxml import etree

from wellread.errors import InputError
from wellread.io.files import BROKEN, open_bytes, write_atomically
from wellread.kb.readers.wikitext import Block, Site, bare_title, read_blocks
from wellread.kb.records import Alias, Entity, Record, Redirect, Tally

_CHUNK = 1 << 18
# Nothing may precede the root: this excludes document types, and with them attacks by XML entities.
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<mediawiki[\s>]", re.DOTALL)
_BROKEN = (*BROKEN, etree.XMLSyntaxError)

_HIDDEN_KEYS = ("6", "14")
"""Numbers of the namespaces for files and categories, the same in all wikis."""
_REDIRECT = re.compile(r"\s*#[^\s\[:]+\s*:?\s*\[\[([^\]|]+)")
_TEMPLATE = re.compile(r"\{\{\s*(?:[Tt]emplate:)?([^{}|<>\n]+?)\s*[|}\n]")
_DISAMBIGUATIONS = frozenset(
    "disambig disamb dab hndis geodis numberdis letter-numbercombdisambig mathdab roaddis schooldis disambig-cleanup "
    "disambiguation_cleanup begriffsklärung homonymie disambigua desambiguación desambiguação desambiguació dp "
    "ujednoznacznienie rozcestník förgrening täsmennyssivu flertydig egyért неоднозначность багатозначність 曖昧さ回避 "
    "aimai 消歧义 消歧義 동음이의 توضيح פירושונים anlam_ayrımı dezambiguizare".split()
)
_ASIDES = frozenset(
    "see also|siehe auch|voir aussi|véase también|vedi anche|ver também|zie ook|zobacz też|se även|см. также|関連項目|"
    "参见|參見|같이 보기|references|external links".split("|")
)


@dataclass(frozen=True, slots=True)
class _Page:
    title: str
    is_article: bool
    redirect: str | None
    """Target of a redirect as written; None for other pages."""
    model: str
    text: str


def read_wikipedia(
    path: str | Path,
    tally: Tally,
    *,
    paragraphs_to: str | Path | IO[bytes] | None = None,
    min_paragraph_chars: int = 50,
) -> Iterator[Record]:
    """Yield the records of a dump, plain, gz, bz2 or xz; write linked paragraphs to `paragraphs_to`, a path or a file.

    A path is written atomically after the last record.
    """
    with _opened(paragraphs_to) as paragraphs:
        for page, site in _read_pages(path, tally):
            try:
                _check(page)
                if page.redirect is not None:
                    records = _redirect(page, site)
                else:
                    blocks = list(read_blocks(page.text, site))
                    records = _meanings(page, blocks) if _is_disambiguation(page) else _article(page, blocks)
                    if paragraphs is not None and isinstance(records[0], Entity):
                        _write_paragraphs(paragraphs, page.title, blocks, min_paragraph_chars, tally)
            except InputError as reason:
                tally.skip(str(reason), page.title)
                continue
            tally.read += 1
            yield from records


def _opened(to: str | Path | IO[bytes] | None) -> AbstractContextManager[IO[bytes] | None]:
    return write_atomically(to) if isinstance(to, str | Path) else nullcontext(to)


def _check(page: _Page) -> None:
    if not page.is_article:
        raise InputError("page outside the article namespace")
    if page.redirect is None and page.model != "wikitext":
        raise InputError("page that is not wikitext")
    if page.redirect is None and not page.text.strip():
        raise InputError("page without text")


def _redirect(page: _Page, site: Site) -> list[Record]:
    target = site.article(page.redirect or "")
    if target is None:
        raise InputError("redirect that leads to no article")
    if target == page.title:
        raise InputError("redirect to itself")
    return [Redirect(_id(page.title), _id(target)), Alias(page.title, _id(target))]


def _article(page: _Page, blocks: Sequence[Block]) -> list[Record]:
    lead = next((block.text for block in blocks if block.kind == "prose" and any(map(str.isalpha, block.text))), "")
    aliases = {page.title: 1.0, bare_title(page.title): 1.0}
    anchors = Counter(
        (block.text[link.start : link.end], _id(link.target))
        for block in blocks
        if block.kind != "broken"
        for link in block.links
    )
    entity = Entity(_id(page.title), page.title, lead, aliases=aliases)
    return [entity, *(Alias(name, target, float(count)) for (name, target), count in anchors.items())]


def _is_disambiguation(page: _Page) -> bool:
    if page.title.endswith("(disambiguation)") or "__DISAMBIG__" in page.text:
        return True
    names = {name.replace(" ", "_").lower() for name in _TEMPLATE.findall(page.text)}
    return not names.isdisjoint(_DISAMBIGUATIONS) or any(name.endswith("disambiguation") for name in names)


def _meanings(page: _Page, blocks: Sequence[Block]) -> list[Record]:
    """Yield the meanings of a disambiguation page: `* [[Mercury (planet)]], …` makes "Mercury" a name of the planet."""
    opening = (
        block.links[0].target
        for block in blocks
        if block.kind == "item" and block.heading.lower() not in _ASIDES and block.links
        if not any(map(str.isalnum, block.text[: block.links[0].start]))
    )
    name = bare_title(page.title)
    meanings = [Alias(name, _id(target)) for target in dict.fromkeys(opening)]
    if not meanings:
        raise InputError("disambiguation page without meanings")
    return list(meanings)


def _write_paragraphs(file: IO[bytes], title: str, blocks: Sequence[Block], min_chars: int, tally: Tally) -> None:
    for number, block in enumerate(block for block in blocks if block.kind != "item"):
        if block.kind == "broken":
            tally.skip("paragraph with broken markup", title)
        elif len(block.text) < min_chars:
            tally.skip(f"paragraph of less than {min_chars} characters", title)
        elif not block.links:
            tally.skip("paragraph without links", title)
        else:
            mentions = [(link.start, link.end, _id(link.target)) for link in block.links]
            paragraph = {"id": f"{title}#{number}", "doc": _id(title), "text": block.text, "mentions": mentions}
            file.write(orjson.dumps(paragraph) + b"\n")


def _id(title: str) -> str:
    return f"wp:{title}"


def _read_pages(path: str | Path, tally: Tally) -> Iterator[tuple[_Page, Site]]:
    site, last = Site(), ""
    with open_bytes(path, tally) as file:
        try:
            for element in _read_elements(file, path):
                if etree.QName(element).localname == "siteinfo":
                    site = _read_site(element)
                else:
                    page = _read_page(element, site)
                    last = page.title
                    yield page, site
        except _BROKEN as error:
            where = f"after the page {last!r}" if last else "before its first page"
            raise InputError(f"{path} is truncated or damaged {where}: {error}; fetch or copy it again") from error


def _read_elements(file: IO[bytes], path: str | Path) -> Iterator[Any]:
    chunk = file.read(_CHUNK)
    if not _ROOT.match(chunk):
        raise InputError(
            f"{path} is not a MediaWiki dump: expected XML in UTF-8 that opens with <mediawiki …>, such as "
            "enwiki-latest-pages-articles.xml.bz2"
        )
    parser = etree.XMLPullParser(
        ("end",),
        tag=("{*}siteinfo", "{*}page"),
        resolve_entities=False,
        no_network=True,
        huge_tree=True,  # or a page of more than 10 MB would end the parse
    )
    broken = None
    while chunk and broken is None:
        try:
            parser.feed(chunk)
        except etree.XMLSyntaxError as error:
            broken = error  # the pages before the fault are still yielded
        for _, element in parser.read_events():
            yield element
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]
        chunk = file.read(_CHUNK)
    if broken is not None:
        raise broken
    parser.close()


def _read_site(element: Any) -> Site:
    names = {
        namespace.get("key"): namespace.text.lower()
        for namespace in element.iterfind("{*}namespaces/{*}namespace")
        if namespace.text
    }
    known = Site()
    return Site(
        hidden=known.hidden | {names[key] for key in _HIDDEN_KEYS if key in names},
        namespaces=known.namespaces | set(names.values()),
        first_letter=element.findtext("{*}case") != "case-sensitive",
    )


def _read_page(element: Any, site: Site) -> _Page:
    title = element.findtext("{*}title") or ""
    namespace = element.findtext("{*}ns")
    revisions = element.findall("{*}revision")
    text = (revisions[-1].findtext("{*}text") or "") if revisions else ""
    redirect = element.find("{*}redirect")
    if redirect is not None or text[:20].lstrip().upper().startswith("#REDIRECT"):
        written = _REDIRECT.match(text)  # dumps before version 0.5 do not mark redirects
        target = (redirect.get("title") if redirect is not None else None) or (written[1] if written else "")
    else:
        target = None
    return _Page(
        title=title,
        is_article=bool(title) and (namespace == "0" if namespace else site.article(title) is not None),
        redirect=target,
        model=(revisions[-1].findtext("{*}model") if revisions else None) or "wikitext",
        text=text,
    )
