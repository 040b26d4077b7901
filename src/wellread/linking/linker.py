"""`Linker`: links the names in texts to the entities of one knowledge base.

>>> linker = Linker.load(kb="vital")
>>> [(link.text, link.title) for link in linker.link("Marie Curie was born in Warsaw.").links]
[('Marie Curie', 'Marie Curie'), ('Warsaw', 'Warsaw')]

Models:

- "elq" (Li et al. 2020) uses the context of a mention and works with any KB, whose entities are encoded once.
- "knowbert" (Peters et al. 2019) chooses among the senses of every name, for WordNet.
- "prior" uses only names and their priors.
- A folder contains a model written by `wellread train linker` or `wellread convert elq`, an encoder with a KnowBERT
  layer, or a LUKE model that predicts masked entities (`wellread pretrain luke`, `wellread convert luke`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from wellread.document import Document
from wellread.errors import UsageError
from wellread.io import console
from wellread.io.extras import extra
from wellread.kb.packaged import DEFAULT_KB, is_outdated, kb_path, open_kb
from wellread.kb.store import KnowledgeBase, entities_of_kinds
from wellread.linking.decoding import Decoding, Scored, ThresholdKind, check_threshold
from wellread.linking.given_spans import GivenNil, Spans, link_given
from wellread.linking.model_options import ModelKind, refuse_ignored
from wellread.linking.prior import Annotator, PriorBackend
from wellread.mapping.current import CurrentMapper
from wellread.mapping.results import THRESHOLD as MAP_THRESHOLD
from wellread.mapping.results import MappedString
from wellread.mentions.candidates import MatchOptions, has_senses
from wellread.models import folder as packaged

if TYPE_CHECKING:
    import pyarrow as pa

    from wellread.linking.multi import Linkers
    from wellread.mapping.mapper import Meaning
    from wellread.models.elq.linker import ElqBackend
    from wellread.models.knowbert.linker import KnowBertBackend
    from wellread.models.luke.linker import LukeBackend

__all__ = ["Annotator", "Linker"]

MentionsFrom = Literal["names", "spacy"]

_BATCH_TEXTS = 256
"""Number of texts taken from a stream at a time."""


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
        """`threshold` is that of the caller; None for the model's default."""
        self._mapper = CurrentMapper(kb, self._meaning, self._allowed)

    @overload
    @classmethod
    def load(
        cls,
        kb: str | Path | KnowledgeBase = ...,
        model: str | Path = ...,
        *,
        mentions: MentionsFrom | Annotator = ...,
        reading: MatchOptions | None = ...,
        threshold: float | None = ...,
        kind: ThresholdKind = ...,
        overlaps: Literal["auto", "drop", "keep"] = ...,
        nil: bool = ...,
        sources: Literal["union", "dense", "names"] = ...,
        among: Iterable[str] | None = ...,
        kinds: Iterable[str] | None = ...,
        trust: float | None = ...,
        precision: Literal["auto", "fp32", "int8"] = ...,
        tags: Literal["auto", "spacy", "none"] = ...,
        order: Literal["global", "local"] = ...,
        passes: int = ...,
        device: str = ...,
        name: str | None = ...,
    ) -> Linker: ...

    @overload
    @classmethod
    def load(
        cls,
        kb: list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...],
        model: str | Path = ...,
        *,
        models: Mapping[str, str] | None = ...,
        **options: Any,
    ) -> Linkers: ...

    @classmethod  # type: ignore[misc]  # the options of signature 2 are those of signature 1
    def load(
        cls,
        kb: str | Path | KnowledgeBase | list[Any] | tuple[str | Path, ...] = DEFAULT_KB,
        model: str | Path = "auto",
        *,
        models: Mapping[str, str] | None = None,
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
        device: str = "cpu",
        name: str | None = None,
    ) -> Linker | Linkers:
        """Load a linker for a KB, given by name if it is packaged ("wordnet", "vital"), else by path.

        A list of KBs gives `Linkers` (`linking.multi`), with `models` for those of their own: {"wordnet": "prior"}.
        An option that the model does not use is an error; with several KBs, if none of their models uses it.

        All models:

        - `model`: "auto" is "prior" if `mentions` or `reading` is given; else "elq", or for WordNet, whose entities are
          word senses, "knowbert" if this installation contains it and "prior" if not.
        - `threshold`: minimum score of a link; None for the model's default.
        - `name`: name of the KB in the links' `kb`; by default the stem of its file.
        - `nil`: include NIL links (`entity` is None), i.e. mentions of entities that the KB does not have.

        "prior":

        - `mentions`: "names" finds every name of the KB; "spacy" uses spaCy's named entities, which are NIL if the KB
          does not have the name; an annotator provides its own.
        - `reading`: options for matching names.

        ELQ:

        - `kind`: type of threshold; `overlaps`: keep or drop overlapping links; `sources`: sources of candidates.
        - `among` (ids), `kinds`: restrict the entities that can be linked.
        - `trust`: score added to entities that have the mention as a name (0: only the trained weight; 4: names nearly
          always decide); None for the model's default.
        - `precision`: "int8" is faster and slightly less exact; "auto" follows the model's config.json and, if that
          has "auto" too, uses int8 where it is faster.

        KnowBERT: `threshold`, `overlaps`, `among`, `kinds` and `precision` as above. NIL are names that do not mean any
        entity of the KB. `tags` is the source of the parts of speech that restrict the senses of a word: "spacy",
        "none", or "auto" for the one used in training.

        LUKE chooses among the candidates of mentions that names or an annotator provide:

        - `mentions` and `reading` as for "prior"; `threshold`, `overlaps`, `among` and `kinds` as above.
        - `trust`: weight of the prior (0: not used; 1 by default).
        - `order`: "global" links the most certain mentions first, and reads their entities when it links the others;
          "local" links each mention independently.
        - `passes`: maximum number of forward passes of a text for "global"; with more mentions than passes, several
          mentions are linked in each pass.

        `device` ("cpu", "cuda", "cuda:1", "mps") is where torch runs the model: LUKE, and ELQ on an encoder that
        onnxruntime does not support. All other models run on the CPU.
        """
        options: dict[str, Any] = {
            "kind": kind,
            "overlaps": overlaps,
            "sources": sources,
            "among": among,
            "kinds": kinds,
            "trust": trust,
            "precision": precision,
            "tags": tags,
            "order": order,
            "passes": passes,
            "device": device,
        }
        if isinstance(kb, list | tuple):
            from wellread.linking.multi import Linkers

            if name is not None:
                raise UsageError("several knowledge bases are named after their files; leave name out")
            options |= {"mentions": mentions, "reading": reading, "threshold": threshold, "nil": nil}
            return Linkers.load(kb, model, models=models, **options)
        if models is not None:
            raise UsageError("models is for a list of knowledge bases; give the model of this one as model")
        check_threshold(threshold)
        opened = kb if isinstance(kb, KnowledgeBase) else open_linked_kb(kb)
        kb_name = name if name is not None else opened.path.stem
        by_name = mentions != "names" or reading is not None
        model = choose_model(opened, model, by_name=by_name)
        model_kind = kind_of_model(model)
        refuse_ignored([model_kind], options)
        if model_kind == "prior":
            annotator = _annotator(mentions)
            if reading is None and overlaps == "keep":
                reading = MatchOptions(overlaps="all")
            backend = PriorBackend(
                opened, reading=reading, threshold=threshold or 0.0, annotator=annotator, name=kb_name, nil=nil
            )
            return cls(opened, backend, threshold=threshold)
        if kinds is not None:
            among = entities_of_kinds(opened, kinds, among)
        if model_kind == "luke":
            with extra("train", f"the LUKE model {model}"):
                from wellread.models.luke import linker as luke

            folder = luke.find_folder(model)
            assert folder is not None
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
                    among=among,
                    device=device,
                    name=kb_name,
                ),
                threshold=threshold,
            )
        if by_name:
            raise UsageError("this model finds its own mentions; omit mentions and reading, or use model prior")
        if model_kind == "knowbert":
            from wellread.models.knowbert import linker as knowbert

            return cls(
                opened,
                knowbert.load_backend(
                    opened,
                    model,
                    threshold=threshold,
                    overlaps=overlaps,
                    nil=nil,
                    tags=tags,
                    among=among,
                    precision=precision,
                    name=kb_name,
                ),
                threshold=threshold,
            )
        from wellread.models.elq.candidate_pool import Search
        from wellread.models.elq.load import load_backend

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
                device=device,
                name=kb_name,
            ),
            threshold=threshold,
        )

    @property
    def name(self) -> str:
        """Name of the KB, as in the links' `kb`."""
        return self.backend.name

    def close(self) -> None:
        """Close the backend and the knowledge base."""
        if hasattr(self.backend, "close"):
            self.backend.close()
        self.kb.close()

    def __enter__(self) -> Linker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def link(self, text: str) -> Document:
        """Return the links of one text."""
        if not isinstance(text, str):
            raise UsageError(
                f"link takes one text as a str, got {type(text).__name__}; use link_many for several texts"
            )
        return next(self.link_many([text]))

    def link_many(self, texts: Iterable[str]) -> Iterator[Document]:
        """Yield the links of each text; texts are read in batches, so that a stream of any length can be linked."""
        for batch in _batches(texts, "link_many"):
            yield from self.backend.link_many(batch)

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
        """Link given spans of each text: one link for each span, NIL if the model prefers it.

        With `nil="never"` the best candidate is linked, if there is one. The model's default threshold is not applied.
        A threshold given to `load` is, unless `nil` is "never": links with a lower score become NIL.

        >>> next(linker.link_given(["who wrote the hobbit?"], [[(10, 20)]])).links
        """
        given = iter(spans)
        for batch in _batches(texts, "link_given"):
            batch_spans = list(islice(given, len(batch)))
            if len(batch_spans) < len(batch):
                raise UsageError("there are more texts than lists of spans; give a list, possibly empty, for each text")
            yield from link_given(self.backend, batch, batch_spans, nil=nil, threshold=self.threshold)

    def map(
        self,
        strings: Iterable[str],
        context: Iterable[str | None] | None = None,
        *,
        best: int = 1,
        threshold: float = MAP_THRESHOLD,
    ) -> Iterator[MappedString]:
        """Yield the entity of each string, such as the cells of a column: names without a text around them.

        >>> [(one.text, one.title, one.found_by) for one in linker.map(["Curie, Marie", "Aristotel", "qwertz"])]
        [('Curie, Marie', 'Marie Curie', 'order'), ('Aristotel', 'Aristotle', 'typo'), ('qwertz', None, None)]

        A string is unmatched if its best match has a probability below `threshold`. `best` is the number of matches to
        keep. `context` is a text for each string that tells namesakes apart, e.g. another column of its row; it needs a
        linker of model elq. That one also compares meaning where names do not decide; others compare names only.
        """
        yield from self._mapper.get().map(strings, context, best=best, threshold=threshold)

    def _meaning(self) -> Meaning | None:
        return self.backend.meaning() if self.backend.kind == "elq" else None

    def _allowed(self) -> frozenset[str] | None:
        allowed = self.backend.pool.among if self.backend.kind == "elq" else None
        return None if allowed is None else frozenset(allowed)

    def score(self, text: str) -> Scored:
        """Return the scores of all possible mentions, to decode links at any threshold without running the model again.

        >>> scored = linker.score("who wrote the hobbit?")
        >>> scored.document(threshold=0.9).links
        """
        return next(self.score_many([text]))

    def score_many(self, texts: Iterable[str]) -> Iterator[Scored]:
        """Yield the scores of each text."""
        if isinstance(self.backend, PriorBackend):
            raise UsageError("model prior has no scores to decode; load the linker with model elq or knowbert")
        for batch in _batches(texts, "score_many"):
            yield from self.backend.score_many(batch)


def _batches(texts: Iterable[str], method: str) -> Iterator[list[str]]:
    if isinstance(texts, str):
        raise UsageError(f"{method} takes several texts; use {method.removesuffix('_many')} for one")
    stream = iter(texts)
    while batch := list(islice(stream, _BATCH_TEXTS)):
        wrong_types = {type(text).__name__ for text in batch if not isinstance(text, str)}
        if wrong_types:
            raise UsageError(f"{method} was given {', '.join(sorted(wrong_types))} among its texts; give each as a str")
        yield batch


def choose_model(kb: KnowledgeBase, model: str | Path, *, by_name: bool = False) -> str | Path:
    """Return the model that "auto" means for a KB; another as it is.

    With `by_name`, "auto" is the model that links given mentions, or names found in a given way.
    """
    if str(model) != "auto":
        return model
    return "prior" if by_name else _default_model(kb)


def _default_model(kb: KnowledgeBase) -> str:
    if not has_senses(kb):
        return "elq"
    return "knowbert" if packaged.SENSES.is_dir() else "prior"


def kind_of_model(model: str | Path) -> ModelKind:
    """Return the type of a model; torch is imported only if a folder may have LUKE."""
    if str(model) == "prior":
        return "prior"
    packaged.refuse_unready_luke(model)
    if str(model) == "luke" or any((Path(model) / part / "entity_vocab.json").is_file() for part in ("", "model")):
        with extra("train", f"the LUKE model {model}"):
            from wellread.models.luke.linker import find_folder

        if find_folder(model) is not None:
            return "luke"
    return "elq" if packaged.find_folder(model) is None else "knowbert"


def open_linked_kb(kb: str | Path) -> KnowledgeBase:
    """Open a KB, writable if its file is, so that `linker.kb.add(...)` works; it is locked only during a write."""
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
