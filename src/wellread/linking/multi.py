"""Linking to several knowledge bases at once, e.g. names and word senses; each link has the name of its `kb`.

>>> with Linkers.load(["vital", "wordnet"]) as linkers:
...     document = linkers.link("Mozart lived near the bank of a river.")
>>> [(link.text, link.kb) for link in document.links]
[('Mozart', 'vital'), ('Mozart', 'wordnet'), ('lived', 'wordnet'), ('bank', 'wordnet'), ('river', 'wordnet')]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellread.document import Document, Link
from wellread.errors import UsageError
from wellread.kb.packaged import kb_path
from wellread.linking.given_spans import GivenNil, Spans
from wellread.linking.linker import Linker, choose_model, kind_of_model, open_linked_kb
from wellread.linking.model_options import refuse_ignored, used_options

if TYPE_CHECKING:
    import pyarrow as pa


class Linkers:
    """Links texts to several knowledge bases; a document's links are sorted by their offsets."""

    def __init__(self, linkers: Sequence[Linker]) -> None:
        self.linkers = tuple(linkers)
        names = Counter(linker.name for linker in self.linkers)
        if not names or max(names.values()) > 1:
            raise UsageError("give one linker or more, each with a different name")

    @classmethod
    def load(
        cls,
        kbs: Sequence[str | Path],
        model: str | Path = "auto",
        *,
        models: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Linkers:
        """Load a linker for each KB.

        `models` maps names of KBs to their models; `model` is used for the others. `more` are further arguments of
        `Linker.load`; an option is for the linkers whose models use it, and an error if none does.
        """
        named = name_kbs(kbs)
        models = models or {}
        if unknown := sorted(models.keys() - named.keys()):
            raise UsageError(f"there is a model for {unknown[0]}, but the knowledge bases are {', '.join(named)}")
        by_name = more.get("mentions", "names") != "names" or more.get("reading") is not None
        with ExitStack() as stack:
            opened = {name: stack.enter_context(open_linked_kb(kb)) for name, kb in named.items()}
            of_kb = {name: choose_model(kb, models.get(name, model), by_name=by_name) for name, kb in opened.items()}
            kinds = {name: kind_of_model(of_kb[name]) for name in opened}
            refuse_ignored(kinds.values(), more)
            linkers = []
            for name, kb in opened.items():
                used = used_options(kinds[name], more)
                linkers.append(stack.enter_context(Linker.load(kb, of_kb[name], name=name, **used)))
            stack.pop_all()
        return cls(linkers)

    @property
    def names(self) -> list[str]:
        """Names of the KBs, as in the links' `kb`."""
        return [linker.name for linker in self.linkers]

    def close(self) -> None:
        """Close the knowledge bases."""
        for linker in self.linkers:
            linker.close()

    def __enter__(self) -> Linkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def describe(self, kb: str | None, entity: str) -> str:
        """Return an entity's description in the KB of this name; "" if there is no such KB."""
        for linker in self.linkers:
            if linker.name == kb:
                return linker.kb.describe(entity)
        return ""

    def link(self, text: str) -> Document:
        """Return the links of one text."""
        if not isinstance(text, str):
            raise UsageError(
                f"link takes one text as a str, got {type(text).__name__}; use link_many for several texts"
            )
        return next(self.link_many([text]))

    def link_many(self, texts: Iterable[str]) -> Iterator[Document]:
        """Yield the links of each text, sorted by start, then longer first, then in the order of the KBs."""
        if isinstance(texts, str):
            raise UsageError("link_many takes several texts; use link for one")
        if len(self.linkers) == 1:
            yield from self.linkers[0].link_many(texts)
            return
        streams = tee(texts, len(self.linkers))
        found = (linker.link_many(stream) for linker, stream in zip(self.linkers, streams, strict=True))
        for layers in zip(*found, strict=True):
            yield join(layers)

    def link_frame(self, frame: Any, column: str, *, id: str | None = None) -> pa.Table:
        """Return the links of the texts in a column of a table, one row per link, as an Arrow table.

        `frame` is a pandas or Polars DataFrame, an Arrow table, or anything with Arrow's `__arrow_c_stream__`. The
        columns are `row` (position of the text, from 0), that of `id` if one is named, and the fields of the link.

        >>> linker.link_frame(tickets, "message", id="ticket_id").to_pandas()
        """
        from wellread.linking.link_table import link_frame  # here: pyarrow takes time to import

        return link_frame(self.link_many, frame, column, id=id)

    def link_given(
        self, texts: Iterable[str], spans: Iterable[Spans], *, nil: GivenNil = "model"
    ) -> Iterator[Document]:
        """Link given spans of each text to every KB; a span without an entity in any KB has one NIL link."""
        if len(self.linkers) == 1:
            yield from self.linkers[0].link_given(texts, spans, nil=nil)
            return
        if isinstance(texts, str):
            raise UsageError("link_given takes several texts; give a list of one")
        streams = zip(self.linkers, tee(texts, len(self.linkers)), tee(spans, len(self.linkers)), strict=True)
        found = (linker.link_given(some, places, nil=nil) for linker, some, places in streams)
        for layers in zip(*found, strict=True):
            yield join_given(layers)


def join(layers: Sequence[Document]) -> Document:
    """Merge documents of one text: the links of all, and those NIL links that overlap no other link."""
    links = [link for layer in layers for link in layer.links if link.entity is not None]
    nils = [link for layer in layers for link in layer.links if link.entity is None]
    taken = bytearray(len(layers[0].text) if nils else 0)
    best_first = sorted(nils, key=lambda link: (-link.score, link.start, -link.end))
    for link in (*links, *best_first) if nils else ():
        if link.entity is None and any(taken[link.start : link.end]):
            continue
        if link.entity is None:
            links.append(_without_kb(link))
        taken[link.start : link.end] = b"\1" * (link.end - link.start)
    return _merge(layers, links)


def join_given(layers: Sequence[Document]) -> Document:
    """Merge documents of the same given spans: each span has the links of all KBs, or one NIL if there are none."""
    links = [link for layer in layers for link in layer.links if link.entity is not None]
    linked = {(link.start, link.end) for link in links}
    nils = {
        (link.start, link.end): _without_kb(link)
        for layer in reversed(layers)
        for link in layer.links
        if link.entity is None and (link.start, link.end) not in linked
    }
    return _merge(layers, [*links, *nils.values()])


def _without_kb(nil: Link) -> Link:
    """Remove from a NIL link the name of its KB, and the candidates, whose ids belong to that KB."""
    return replace(nil, kb=None, candidates=())


def _merge(layers: Sequence[Document], links: Sequence[Link]) -> Document:
    meta = {key: [layer.meta.get(key) for layer in layers] for key in ("kb", "model")}
    in_order = tuple(sorted(links, key=lambda link: (link.start, -link.end)))
    return replace(layers[0], links=in_order, meta=meta)


def name_kbs(kbs: Sequence[str | Path]) -> dict[str, str | Path]:
    """Return each KB by a unique name: the stem of its file, or the name or path given if stems are equal."""
    if isinstance(kbs, str | Path):
        raise UsageError(f"expected a list of knowledge bases, got {str(kbs)!r}; give [{str(kbs)!r}]")
    if wrong := next((kb for kb in kbs if not isinstance(kb, str | Path)), None):
        raise UsageError(f"several knowledge bases are given by name or path; got {type(wrong).__name__}")
    paths = [kb_path(kb) for kb in kbs]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("the same knowledge base is given twice; give each --kb once")
    stems = Counter(path.stem for path in paths)
    return {path.stem if stems[path.stem] == 1 else str(kb): kb for kb, path in zip(kbs, paths, strict=True)}
