"""The front door: text in, links out.

>>> linker = Linker.load(kb="vital")
>>> [(link.text, link.title) for link in linker.link("Marie Curie was born in Warsaw.").links]
[('Marie Curie', 'Marie Curie'), ('Warsaw', 'Warsaw')]

`model="elq"` reads the sentence (Li et al. 2020) and works with any KB, whose entities are encoded once. `"knowbert"`
chooses among the meanings of every name (Peters et al. 2019), for WordNet's senses. `"prior"` links by name and
popularity alone. A folder is a model that `wellread train linker` or `wellread convert elq` wrote, an encoder with a
knowledge layer, or one that guesses masked entities (LUKE: `wellread pretrain luke`, `wellread convert luke`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wellread.document import Document
from wellread.errors import UsageError
from wellread.io import console
from wellread.kb.packaged import is_outdated, kb_path, open_kb
from wellread.kb.store import KnowledgeBase, entities_of_kinds
from wellread.linking.decoding import Decoding, Scored, ThresholdKind, check_threshold
from wellread.linking.given_spans import GivenNil, Spans, link_given
from wellread.linking.prior import Annotator, PriorBackend
from wellread.mentions.candidates import MatchOptions, has_senses
from wellread.models import folder as packaged

if TYPE_CHECKING:
    from wellread.models.elq.linker import ElqBackend
    from wellread.models.knowbert.linker import KnowBertBackend
    from wellread.models.luke.linker import LukeBackend

__all__ = ["Annotator", "Linker"]

MentionsFrom = Literal["names", "spacy"]

_AT_ONCE = 256
"""Texts taken from a stream at a time."""


class Linker:
    """Links texts to one knowledge base."""

    def __init__(
        self,
        kb: KnowledgeBase,
        backend: PriorBackend | ElqBackend | KnowBertBackend | LukeBackend,
        *,
        threshold: float | None = None,
    ) -> None:
        self.kb, self.backend, self.threshold = kb, backend, threshold
        """`threshold` is the one that the caller chose, None for the model's."""

    @classmethod
    def load(
        cls,
        kb: str | Path | KnowledgeBase = "vital",
        model: str | Path = "auto",
        *,
        mentions: MentionsFrom | Annotator = "names",
        reading: MatchOptions | None = None,
        threshold: float | None = None,
        kind: ThresholdKind = "joint",
        overlaps: Literal["auto", "drop", "keep"] = "auto",
        nil: bool = False,
        sources: Literal["union", "dense", "names"] = "union",
        among: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
        trust: float | None = None,
        precision: Literal["auto", "fp32", "int8"] = "auto",
        tags: Literal["auto", "spacy", "none"] = "auto",
        order: Literal["global", "local"] = "global",
        passes: int = 8,
        name: str | None = None,
    ) -> Linker:
        """A linker for a KB: a packaged one by its name ("wordnet", "vital"), or any by its path.

        `model` "auto" is "elq"; for WordNet, whose words are not names, "knowbert" where this wellread has one, else
        "prior"; and "prior" wherever `mentions` or `reading` are given, which only it takes. Links with a score below
        `threshold` are left out; without one, the model's own. `name` is what links call the KB by, its file's name
        unless given. `nil=True` adds NIL links (`entity` None): mentions of what the KB does not have.

        For "prior": `mentions="names"` finds every name of the KB; `"spacy"` takes spaCy's named entities, of which
        those that the KB does not know are NIL. `reading` says how names are looked for.

        For ELQ: `kind` is the type of threshold, `overlaps` whether links may overlap, `sources` where candidates come
        from, `among` (ids) and `kinds` restrict what can be linked to, `trust` overrides how much a name of the KB
        counts (0: as learned; 4: nearly always believed; the model's own suits any KB), and `precision` "int8" trades
        a little exactness for speed ("auto": what the model's config.json says, else where it is faster).

        For a knowledge layer: `threshold`, `overlaps`, `among`, `kinds` and `precision` as above, NIL are names that
        mean nothing of the KB, and `tags` says who tells the parts of speech that senses must have ("spacy", "none",
        or as the model was made).

        For LUKE, which chooses among the candidates of given mentions: `mentions` and `reading` as for "prior",
        `threshold`, `overlaps`, `among` and `kinds` as above, `trust` is how much the prior counts (0: not at
        all; 1 unless given), and `order` "global" links the surest mentions first and the others in their light,
        "local" each by itself. `passes` is how often a text is read for that: where it has more mentions, several of
        the surest are linked at a time.
        """
        check_threshold(threshold)
        opened = kb if isinstance(kb, KnowledgeBase) else _open(kb)
        called = name if name is not None else opened.path.stem
        if str(model) == "auto":
            by_name = mentions != "names" or reading is not None
            model = "prior" if by_name else _usual(opened)
        if str(model) == "prior":
            annotator = _annotator(mentions)
            if reading is None and overlaps == "keep":
                reading = MatchOptions(overlaps="all")
            backend = PriorBackend(
                opened, reading=reading, threshold=threshold or 0.0, annotator=annotator, name=called, nil=nil
            )
            return cls(opened, backend, threshold=threshold)
        if (folder := _luke_folder(model)) is not None:
            from wellread.models.luke import linker as luke

            return cls(
                opened,
                luke.load_backend(
                    opened,
                    folder,
                    threshold=threshold,
                    overlaps=overlaps,
                    nil=nil,
                    order=order,
                    passes=passes,
                    trust=trust,
                    annotator=_annotator(mentions),
                    reading=reading,
                    among=among if kinds is None else entities_of_kinds(opened, kinds, among),
                    name=called,
                ),
                threshold=threshold,
            )
        if mentions != "names" or reading is not None:
            raise UsageError(
                "this model finds its mentions itself; leave mentions and reading out, or take model prior"
            )
        from wellread.models.elq.candidate_pool import Search
        from wellread.models.elq.linker import load_backend

        if kinds is not None:
            among = entities_of_kinds(opened, kinds, among)
        if packaged.find_folder(model) is not None:
            from wellread.models.knowbert import linker as knowbert

            options: dict[str, Any] = {"threshold": threshold, "overlaps": overlaps, "nil": nil, "tags": tags}
            return cls(
                opened,
                knowbert.load_backend(opened, model, among=among, precision=precision, name=called, **options),
                threshold=threshold,
            )
        return cls(
            opened,
            load_backend(
                opened,
                model,
                search=Search(sources),
                among=among,
                threshold=threshold,
                decoding=Decoding(kind, overlaps=overlaps, nil=nil),
                trust=trust,
                precision=precision,
                name=called,
            ),
            threshold=threshold,
        )

    @property
    def name(self) -> str:
        """What links call the KB by."""
        return self.backend.name

    def close(self) -> None:
        """Let go of the knowledge base."""
        if hasattr(self.backend, "close"):
            self.backend.close()
        self.kb.close()

    def __enter__(self) -> Linker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def link(self, text: str) -> Document:
        """The links of one text."""
        return next(self.link_many([text]))

    def link_many(self, texts: Iterable[str]) -> Iterator[Document]:
        """The links of each text, streamed: texts may be endless, memory is not."""
        for batch in _batches(texts, "link_many"):
            yield from self.backend.link_many(batch)

    def link_given(
        self, texts: Iterable[str], spans: Iterable[Spans], *, nil: GivenNil = "model"
    ) -> Iterator[Document]:
        """Link given spans of each text: one link for each span, NIL where the model finds that no entity fits.

        With `nil="never"` the best entity is chosen wherever there is a candidate. The model's own threshold does not
        count here; one given to `load` does, unless `nil` is "never": entities with a lower score become NIL.

        >>> next(linker.link_given(["who wrote the hobbit?"], [[(10, 20)]])).links
        """
        given = iter(spans)
        for batch in _batches(texts, "link_given"):
            theirs = list(islice(given, len(batch)))
            if len(theirs) < len(batch):
                raise UsageError("there are more texts than lists of spans; give a list, empty or not, for each text")
            yield from link_given(self.backend, batch, theirs, nil=nil, threshold=self.threshold)

    def score(self, text: str) -> Scored:
        """Every span that may be a mention, with its scores: links at any threshold without running the model again.

        >>> scored = linker.score("who wrote the hobbit?")
        >>> scored.document(threshold=0.9).links
        """
        return next(self.score_many([text]))

    def score_many(self, texts: Iterable[str]) -> Iterator[Scored]:
        """The scores of each text."""
        if isinstance(self.backend, PriorBackend):
            raise UsageError("names alone have no scores to decide anew; load the linker with model elq or knowbert")
        for batch in _batches(texts, "score_many"):
            yield from self.backend.score_many(batch)


def _batches(texts: Iterable[str], verb: str) -> Iterator[list[str]]:
    if isinstance(texts, str):
        raise UsageError(f"{verb} takes several texts; use {verb.removesuffix('_many')} for one")
    stream = iter(texts)
    while batch := list(islice(stream, _AT_ONCE)):
        odd = {type(text).__name__ for text in batch if not isinstance(text, str)}
        if odd:
            raise UsageError(f"{verb} was given {', '.join(sorted(odd))} among its texts; give each as a str")
        yield batch


def _luke_folder(model: str | Path) -> Path | None:
    """The folder of a LUKE model; torch is loaded only where there may be one."""
    packaged.refuse_unready_luke(model)
    if str(model) == "luke" or any((Path(model) / part / "entity_vocab.json").is_file() for part in ("", "model")):
        from wellread.models.luke.linker import find_folder

        return find_folder(model)
    return None


def _usual(kb: KnowledgeBase) -> str:
    """The model for a KB that nobody has chosen one for."""
    if not has_senses(kb):
        return "elq"
    return "knowbert" if packaged.SENSES.is_dir() else "prior"


def _open(kb: str | Path) -> KnowledgeBase:
    """Writable where the file is, so that `linker.kb.add(...)` works; nothing is locked until something is written."""
    path = kb_path(kb)
    if is_outdated(str(kb)):
        console.note(
            f"{path} was built by an older wellread and lacks newer names; bring it up to date with: "
            f"wellread kb build {kb} --if-missing && wellread index build --kb {kb}"
        )
    return open_kb(kb, writable=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _annotator(mentions: MentionsFrom | Annotator) -> Annotator | None:
    if mentions == "spacy":
        from wellread.mentions.annotators import SpacyAnnotator

        return SpacyAnnotator()
    if mentions == "names":
        return None
    if isinstance(mentions, str):
        raise UsageError(f"mentions={mentions!r} is not known; choose names or spacy, or give an annotator")
    return mentions
