"""HTML page of linked text: one file without scripts.

A link is underlined in the colour of its knowledge base, paler for a lower score. Hovering it, or focusing it with Tab,
shows a card with the entity and its candidates. Links may nest, cross, or share a span: an outer link is underlined one
line lower, a link that crosses the end of another is drawn in two parts, and links of the same span share one card.
With several knowledge bases, the legend shows and hides the links of each.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby

from wellread.document import Candidate, Document, Link, short
from wellread.plots.html import escape, shell

_LIGHT = ("#2563a8", "#b4540a", "#2c7a4b", "#7a4fb0", "#0f7783", "#b8336a", "#6f6a12", "#8a5a3c")
_DARK = ("#7fb4f2", "#f2a65e", "#7dcc9c", "#c0a2f0", "#69cfd9", "#f18fb6", "#cfc864", "#d6aa8b")
"""Colours of knowledge bases in order of appearance, used cyclically."""


Describe = Callable[[str | None, str], str]
"""(kb of a link, entity id) -> short description of the entity."""


def linked_page(
    documents: Iterable[Document],
    title: str = "Linked text",
    *,
    note: str = "",
    shown_candidates: int = 5,
    describe: Describe | None = None,
) -> str:
    """Return a self-contained HTML page of documents and their links.

    Consecutive documents with the same id and text, e.g. one per knowledge base, are drawn as one. `note` is a line
    below the title; `describe` returns the description of an entity on its card.
    """
    layered = [
        Document(text, tuple(link for layer in layers for link in layer.links), name)
        for (name, text), layers in groupby(documents, key=lambda document: (document.id, document.text))
    ]
    links = [link for document in layered for link in document.links]
    kbs = Counter(link.kb or "" for link in links if link.entity is not None)
    page = _Page({kb: number % len(_LIGHT) for number, kb in enumerate(kbs)}, shown_candidates, describe)
    bodies = "\n".join(page.section(document, number) for number, document in enumerate(layered, 1))
    counts = f"{_number(len(layered), 'text')} · {_number(len(links), 'link')}"
    header = (
        f"<p><bdi>{escape(note)}</bdi></p>" if note else "",
        f'<p class="soft">{counts}. Point at an underlined name, or go from one to the next with Tab.</p>',
        _legend(kbs, page.colours, sum(link.entity is None for link in links)),
    )
    return shell(title, style=_style(), header="\n".join(header), main=bodies)


def _number(many: int, word: str) -> str:
    return f"{many:,} {word}{'' if many == 1 else 's'}"


def _legend(kbs: Counter[str], colours: dict[str, int], nils: int) -> str:
    items = []
    for kb, many in kbs.items():
        label = f"<i></i><bdi>{escape(kb or 'knowledge base')}</bdi> <span>{many:,}</span>"
        switch = f'<input type="checkbox" checked id="show{colours[kb]}">' if 1 < len(kbs) <= len(_LIGHT) else ""
        items.append(f'<li class="k{colours[kb]}">{f"<label>{switch}{label}</label>" if switch else label}</li>')
    if nils:
        items.append(f'<li class="nil"><i></i>NIL: named, but not in the knowledge base <span>{nils:,}</span></li>')
    return f'<ul class="legend" aria-label="Knowledge bases and their links">{"".join(items)}</ul>' if items else ""


@dataclass(slots=True)
class _Mark:
    """All links of one span."""

    start: int
    end: int
    links: list[Link]
    ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _MarkPart:
    """A mark being written, or its part up to the end of a mark that it crosses."""

    mark: _Mark
    end: int
    first: bool
    place: int
    """Index in the output where its opening tags go; they are known when its content is written."""
    height: int = 0
    """Number of underlines inside, above its own."""


@dataclass(slots=True)
class _Page:
    """State of one page: colours of knowledge bases, and unique ids."""

    colours: dict[str, int]
    shown_candidates: int
    describe: Describe | None
    numbers: count[int] = field(default_factory=lambda: count(1))

    def section(self, document: Document, number: int) -> str:
        """Return a document as a section headed by its id."""
        name = f"<bdi>{escape(document.id)}</bdi>" if document.id else f"Text {number}"
        many = _number(len(document.links), "link")
        return (
            f'<section aria-labelledby="d{number}"><h2 id="d{number}">{name} <small>{many}</small></h2>'
            f'<div class="text" dir="auto" lang="">{self._marked(document)}</div></section>'
        )

    def _marked(self, document: Document) -> str:
        """Return the text with nested marks; a mark that crosses the end of another is split there."""
        text, out, at = document.text, list[str](), 0
        spans: dict[tuple[int, int], _Mark] = {}
        for link in document.links:
            if 0 <= link.start < link.end <= len(text):
                spans.setdefault((link.start, link.end), _Mark(link.start, link.end, [])).links.append(link)
        order = count()
        waiting = [(mark.start, -mark.end, next(order), True, mark) for mark in spans.values()]
        heapq.heapify(waiting)
        opened: list[_MarkPart] = []
        while waiting or opened:
            if opened and (not waiting or opened[-1].end <= waiting[0][0]):
                part = opened.pop()
                out.append(escape(text[at : part.end]))
                at = part.end
                self._close(part, opened, out)
                continue
            start, _, _, first, mark = heapq.heappop(waiting)
            out.append(escape(text[at:start]))
            at = start
            end = min(mark.end, opened[-1].end) if opened else mark.end
            if end < mark.end:
                heapq.heappush(waiting, (end, -mark.end, next(order), False, mark))
            opened.append(_MarkPart(mark, end, first, len(out)))
            out.append("")
        out.append(escape(text[at:]))
        return "".join(out)

    def _close(self, part: _MarkPart, around: Sequence[_MarkPart], out: list[str]) -> None:
        """Write the tags of a mark: an underline for each knowledge base with a link here, then the card."""
        links = part.mark.links
        colours = list(dict.fromkeys(self._colour(link) for link in links))
        if part.first:
            part.mark.ids = [f"e{next(self.numbers)}" for _ in links]
        focus = f' tabindex="0" aria-describedby="{" ".join(part.mark.ids)}"' if part.first else ""
        sure = min(1.0, max(0.0, links[0].score)) if math.isfinite(links[0].score) else 0.0
        tags = [f'<mark class="{colours[0]}"{focus} style="--h:{part.height};--s:{sure:.2f}">']
        for lane, colour in enumerate(colours[1:], 1):
            tags.append(f'<span class="lane {colour}" style="--h:{part.height + lane}">')
        out[part.place] = "".join(reversed(tags))
        entities = "".join(
            self._entity(link, f' id="{name}"' if part.first else "")
            for link, name in zip(links, part.mark.ids, strict=True)
        )
        within = "".join(self._within(link) for outer in reversed(around) for link in outer.mark.links)
        out.append(f'<span class="card" role="tooltip">{entities}{within}</span></mark>{"</span>" * (len(tags) - 1)}')
        if around:
            around[-1].height = max(around[-1].height, part.height + len(tags))

    def _colour(self, link: Link) -> str:
        return "nil" if link.entity is None else f"k{self.colours[link.kb or '']}"

    def _entity(self, link: Link, id: str) -> str:
        score = f'<span class="score">score {_shown(link.score)}</span>'
        if link.entity is None:
            name, known = "NIL", "not in the knowledge base"
        else:
            name, known = escape(link.title or link.entity), f"<code><bdi>{escape(link.entity)}</bdi></code>"
        kb = f" · <bdi>{escape(link.kb)}</bdi>" if link.kb else ""
        found = f" · found by: {escape(link.found_by)}" if link.found_by else ""
        soft = f'<span class="soft">{known}{kb}{found}</span>'
        head = f'<span class="head"{id}><b><bdi>{name}</bdi></b> {soft} {score}</span>'
        gist = self._gist(link, link.entity, 160) if link.entity is not None else ""
        return f'<span class="entity {self._colour(link)}">{head}{gist}{self._candidates(link)}</span>'

    def _gist(self, link: Link, entity: str, most: int) -> str:
        description = self.describe(link.kb, entity) if self.describe else ""
        return f'<span class="gist"><bdi>{escape(short(description, most))}</bdi></span>' if description else ""

    def _candidates(self, link: Link) -> str:
        shown = link.candidates[: self.shown_candidates]
        if not shown:
            return ""
        rows = "".join(
            f'<span class="row{" chosen" if candidate.entity == link.entity else ""}" role="listitem">'
            f'<span class="who"><bdi>{escape(candidate.title or candidate.entity)}</bdi> '
            f"<code><bdi>{escape(candidate.entity)}</bdi></code></span> "
            f'<span class="bar" style="--v:{share:.3f}"></span> '
            f'<span class="value">{_shown(candidate.score)}</span>'
            f"{self._gist(link, candidate.entity, 90) if candidate.entity != link.entity else ''}</span>"
            for candidate, share in zip(shown, _shares(shown), strict=True)
        )
        more = len(link.candidates) - len(shown)
        rest = f'<span class="soft more">and {more:,} more</span>' if more else ""
        return f'<span class="candidates" role="list" aria-label="Candidates">{rows}</span>{rest}'

    def _within(self, link: Link) -> str:
        name = "NIL" if link.entity is None else link.title or link.entity
        around = escape(short(link.text, 60))
        return (
            f'<span class="within {self._colour(link)}"><i></i>inside <q><bdi>{around}</bdi></q> → '
            f"<bdi>{escape(name)}</bdi></span>"
        )


def _shown(score: float) -> str:
    return f"{score:.2f}" if 0 <= score <= 1 else f"{score:.3g}"


def _shares(candidates: Sequence[Candidate]) -> list[float]:
    """Return bar lengths: the scores if they are in [0, 1], else scaled from lowest to highest."""
    scores = [candidate.score if math.isfinite(candidate.score) else 0.0 for candidate in candidates]
    low, high = min(scores), max(scores)
    if low >= 0 and high <= 1:
        return scores
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _style() -> str:
    def variables(colours: Sequence[str]) -> str:
        return "".join(f"--k{number}:{colour};" for number, colour in enumerate(colours))

    classes = "".join(f".k{number}{{--c:var(--k{number})}}" for number in range(len(_LIGHT)))
    hiding = "".join(
        f"body:has(#show{number}:not(:checked)) :is(mark,.lane).k{number}{{border-color:transparent;background:none}}"
        f"body:has(#show{number}:not(:checked)) :is(.card .k{number},:not(.lane)>mark.k{number}>.card)"
        "{display:none!important}"
        for number in range(len(_LIGHT))
    )
    return (
        f":root{{{variables(_LIGHT)}}}@media (prefers-color-scheme:dark){{:root{{{variables(_DARK)}}}}}{classes}{_CSS}"
        f"{hiding}"
    )


_CSS = """
:root { color-scheme: light dark; --paper: #faf8f4; --ink: #22252a; --soft: #666a70; --rule: #e3dfd6; --card: #fff;
  --nil: #75787d; --shade: 0 1px 2px #0002, 0 8px 28px #0003; --sans: system-ui, "Segoe UI", Roboto, sans-serif }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e4e2dd; --soft: #9b9ea4; --rule: #2c3037;
  --card: #22262d; --nil: #9a9da3; --shade: 0 1px 2px #0006, 0 10px 32px #000a } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 var(--sans) }
header, main { max-width: 46rem; margin: 0 auto; padding: 0 1.25rem }
header { padding-top: 3rem }
h1 { margin: 0 0 .4rem; font: 600 2rem/1.2 "Iowan Old Style", Charter, Georgia, "Noto Serif", serif }
header p { margin: .2rem 0 }
h2 { margin: 0 0 .5rem; color: var(--soft); font: 600 .8rem/1.4 var(--sans); letter-spacing: .02em;
  overflow-wrap: anywhere }
small, .legend span { font-weight: 400; font-size: .75rem; opacity: .8; font-variant-numeric: tabular-nums }
.soft { color: var(--soft); font-size: .875rem }
.nil { --c: var(--nil) }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1.1rem 0 0; padding: 0; list-style: none;
  font-size: .875rem }
.legend i { display: inline-block; width: 1.3em; height: .8em; margin-right: .45em; border-bottom: 2px solid var(--c);
  background: color-mix(in srgb, var(--c) 14%, transparent) }
.nil i { border-bottom-style: dashed; background: none }
section { margin: 2rem 0; padding-top: 1.4rem; border-top: 1px solid var(--rule) }
main { padding-bottom: 6rem }
.text { font: 1.16rem/2.05 "Iowan Old Style", Charter, Georgia, "Noto Serif", serif; white-space: pre-wrap;
  overflow-wrap: anywhere; unicode-bidi: plaintext }
mark, .lane { padding: .1em 0 calc(.06em + var(--h) * .28em); border-bottom: 2px solid var(--c); color: inherit;
  -webkit-box-decoration-break: clone; box-decoration-break: clone }
mark { background: color-mix(in srgb, var(--c) calc(4% + 10% * var(--s)), transparent);
  border-color: color-mix(in srgb, var(--c) calc(45% + 55% * var(--s)), transparent);
  border-radius: 3px 3px 0 0; cursor: default; scroll-margin: 4rem 0 16rem; transition: background .12s }
mark mark { background: color-mix(in srgb, var(--c) 7%, transparent) }
mark.nil, .lane.nil { border-bottom-style: dashed; background: none }
mark:is(:hover:not(:has(mark:hover)), :focus) { background: color-mix(in srgb, var(--c) 30%, transparent) }
mark:focus-visible { outline: 2px solid var(--c); outline-offset: 2px }
.card { display: none; position: fixed; z-index: 1; inset: auto .75rem .75rem; padding: .9rem 1rem; border-radius: 12px;
  background: var(--card); color: var(--ink); box-shadow: var(--shade); border: 1px solid var(--rule); direction: ltr;
  font: .875rem/1.45 var(--sans); text-align: left; white-space: normal; cursor: auto; unicode-bidi: isolate }
.card::before { content: ""; position: absolute; inset: -.6rem 0; z-index: -1 }
mark:hover:not(:has(mark:hover)) > .card, body:not(:has(mark:hover)) mark:focus > .card { display: block }
@supports (position-area: bottom) { @media (min-width: 40rem) {
  mark:hover:not(:has(mark:hover)), body:not(:has(mark:hover)) mark:focus { anchor-name: --here }
  .card { inset: auto; width: 23rem; margin: .35rem 0; position-anchor: --here; position-area: bottom span-right;
    position-try-fallbacks: flip-block, flip-inline, flip-block flip-inline }
} }
.entity, .head, .row, .within, .candidates, .gist { display: block }
.gist { margin-top: .4rem; overflow-wrap: anywhere }
.row .gist { grid-column: 1 / -1; margin: 0; font-size: .75rem; opacity: .85 }
.entity + .entity { margin-top: .8rem; padding-top: .8rem; border-top: 1px solid var(--rule) }
.head { display: grid; grid-template-columns: 1fr auto; gap: 0 .8rem; padding-left: .7rem;
  border-left: 3px solid var(--c) }
.nil > .head { border-left-style: dashed }
.head b { grid-column: 1 / -1; font-size: 1.02rem; overflow-wrap: anywhere }
.head .soft, .head .score { font-size: .8rem; overflow-wrap: anywhere }
.score { color: var(--soft); font-variant-numeric: tabular-nums; white-space: nowrap }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, monospace }
.candidates { margin-top: .7rem }
.row { display: grid; grid-template-columns: minmax(0, 1fr) 4.5rem 2.4rem; gap: 0 .6rem; align-items: center;
  padding: .14rem 0; font-size: .8rem; color: var(--soft) }
.who { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.who code { font-weight: 400; opacity: .75 }
.chosen { color: var(--ink); font-weight: 600 }
.bar { height: .45rem; border-radius: 9px; opacity: .55; background: color-mix(in srgb, var(--c) 14%, transparent)
  linear-gradient(var(--c), var(--c)) 0 / calc(100% * var(--v)) no-repeat }
.chosen .bar { opacity: 1 }
.value { text-align: right; font-variant-numeric: tabular-nums }
.more { display: block; font-size: .75rem }
.within { margin-top: .6rem; padding-top: .6rem; border-top: 1px solid var(--rule); color: var(--soft);
  font-size: .8rem }
.within + .within { margin-top: .2rem; padding-top: 0; border: 0 }
.within i { display: inline-block; width: .9em; margin-right: .4em; border-bottom: 2px solid var(--c);
  vertical-align: .25em }
@media (prefers-reduced-motion: reduce) { mark { transition: none } }
@media print { .card { display: none !important } }
"""
