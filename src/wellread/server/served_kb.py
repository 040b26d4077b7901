"""A served KB with its named linkers, linkers to subsets of it, and linking of several jobs in one batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wellread.document import Document
from wellread.errors import KnowledgeBaseError, StorageError, UsageError, WellreadError
from wellread.io.files import MappedFile
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Scored
from wellread.linking.given_spans import GivenNil, Spans, link_given
from wellread.linking.linker import Linker
from wellread.linking.prior import PriorBackend
from wellread.mentions.matcher import Overlaps

if TYPE_CHECKING:
    from wellread.models.elq.linker import ElqBackend

Loading = Callable[[str, str], None]
"""Called with the KB and the model that are about to be loaded."""
_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class LinkJob:
    """Texts of one request, and its options."""

    texts: tuple[str, ...]
    threshold: float | None = None
    candidates: int = 10
    overlaps: Literal["auto", "drop", "keep"] | None = None
    nil: bool = False
    spans: tuple[Spans, ...] | None = None
    """Given spans of each text, linked instead of detected mentions."""
    never_nil: bool = False


@dataclass(slots=True)
class ServedKb:
    """One KB with its linkers; the default linker is first."""

    given: str | Path
    models: tuple[str, ...]
    kb: KnowledgeBase
    linkers: dict[str, Linker]
    place: str
    """Resolved path of the file when it was opened; SQLite's write-ahead log is beside it."""
    mapped: tuple[MappedFile, ...] = ()
    """Mapped files of its index; one that is overwritten in place must not be read any more (SIGBUS)."""

    @property
    def overwritten(self) -> bool:
        """True if a mapped file was overwritten in place."""
        return any(state.overwritten() for state in self.mapped)


def open_served_kb(
    name: str, kb: str | Path, models: Sequence[str], loading: Loading = lambda name, model: None
) -> ServedKb:
    """Open a KB and load a linker for each model; without models its default linker and `prior`."""
    given = tuple(models) or (_AUTO,)
    linkers: dict[str, Linker] = {}
    first: Linker | None = None
    for one, (called, model) in zip(given, name_models(given).items(), strict=True):
        loading(name, one)
        linker = Linker.load(kb if first is None else first.kb, model, name=name)
        first = first or linker
        called = _type_name(linker) if called == _AUTO else called
        if called in linkers:
            raise _duplicate_name(called, model)
        linkers[called] = linker
    assert first is not None
    if not models and "prior" not in linkers:
        loading(name, "prior")
        linkers["prior"] = Linker.load(first.kb, "prior", name=name)
    folder = Path(f"{first.kb.path}.vectors")
    files = [*folder.glob("*.safetensors"), *folder.glob("*.faiss")]
    mapped = tuple(state for state in map(MappedFile.at, files) if state is not None)
    return ServedKb(kb, tuple(models), first.kb, linkers, os.path.realpath(first.kb.path), mapped)


def name_models(given: Sequence[str]) -> dict[str, str]:
    """Return models by the names clients use: ["prior", "a=x/model"] -> {"prior": "prior", "a": "x/model"}.

    A model without a name is named after its folder, or the folder above one called "model", as in run folders. The
    default, "auto", is renamed after its type when it is loaded.
    """
    named: dict[str, str] = {}
    for one in given:
        name, equals, model = one.partition("=")
        if not equals or "/" in name or Path(one).exists():  # a path may contain "="
            name, model = _default_name(one), one
        elif name == _AUTO:
            raise UsageError(f"--model {one}: auto is reserved for the default linker; give another name")
        if not name or not model:
            raise UsageError(f"--model {one} has an empty name or model; give NAME=MODEL, or the model alone")
        if name in named:
            raise _duplicate_name(name, model)
        named[name] = model
    return named


def _default_name(model: str) -> str:
    path = Path(model)
    if path.name == "model":
        return path.absolute().parent.name or path.name
    return path.name or model


def _duplicate_name(name: str, model: str) -> UsageError:
    return UsageError(f"two linkers have the name {name}; give one of them another name: --model NAME={model}")


def _type_name(linker: Linker) -> str:
    return linker.backend.kind


def is_thread_safe(linker: Linker) -> bool:
    """Return True if several threads may link with it at once."""
    return linker.backend.kind == "elq"


def shares_model(linker: Linker) -> bool:
    """Return True if linkers to subsets of its KB share its model."""
    return linker.backend.kind != "knowbert"


def restrict_linker(linker: Linker, model: str, among: Sequence[str] | None) -> Linker:
    """Return a linker to some entities only; it shares the model, except KnowBERT's, which is loaded again."""
    backend = linker.backend
    if backend.kind == "elq" or backend.kind == "luke":
        return Linker(linker.kb, backend.part(among))
    return Linker.load(linker.kb, model, among=among, name=backend.name)


@contextmanager
def hide_kb_folder(kb: KnowledgeBase) -> Iterator[None]:
    """Remove the KB's folder from its errors, so that clients do not see it."""
    try:
        yield
    except (KnowledgeBaseError, StorageError) as error:
        raise hide_folder(error, kb) from error.__cause__


def hide_folder(error: WellreadError, kb: KnowledgeBase) -> WellreadError:
    """Return the same error with the KB's path replaced by its file name."""
    message = str(error).replace(str(kb.path), kb.path.name)
    return error if message == str(error) else type(error)(message)


def link_jobs(linker: Linker, jobs: Sequence[LinkJob]) -> list[Iterable[Document]]:
    """Return the documents of each job, equal to those of linking it alone.

    Those of ELQ are built lazily: they need no KB access, so the KB may change before they are built.
    """
    if any(job.spans is not None for job in jobs):
        others = [job for job in jobs if job.spans is None]
        found = iter(link_jobs(linker, others) if others else ())
        return [next(found) if job.spans is None else _link_given_spans(linker, job, job.spans) for job in jobs]
    backend, texts = linker.backend, [text for job in jobs for text in job.texts]
    if isinstance(backend, PriorBackend):
        return _link_by_prior(backend, jobs)
    lazy = backend.kind == "elq"
    scored = iter(_score_texts(backend, texts, jobs) if backend.kind == "elq" else backend.score_many(texts))
    results = (map(partial(_to_document, job), list(islice(scored, len(job.texts)))) for job in jobs)
    return list(results) if lazy else [list(documents) for documents in results]


def _link_given_spans(linker: Linker, job: LinkJob, spans: Sequence[Spans]) -> list[Document]:
    """Link the given spans of one job."""
    nil: GivenNil = "never" if job.never_nil else "model"
    how: dict[str, Any] = {"threshold": job.threshold, "candidates": job.candidates}
    return list(link_given(linker.backend, job.texts, spans, nil=nil, **how))


def _link_by_prior(backend: PriorBackend, jobs: Sequence[LinkJob]) -> list[Iterable[Document]]:
    """Link by prior; jobs with the same overlap rule are matched together."""
    rules: dict[str | None, Overlaps] = {"keep": "all", "drop": "longest"}
    results = {}
    for overlaps in {job.overlaps for job in jobs}:
        texts = [text for job in jobs if job.overlaps == overlaps for text in job.texts]
        results[overlaps] = backend.link_many(texts, overlaps=rules.get(overlaps), nil=True)
    return [[_filter_links(next(results[job.overlaps]), job) for _ in job.texts] for job in jobs]


def _score_texts(backend: ElqBackend, texts: Sequence[str], jobs: Sequence[LinkJob]) -> Sequence[Scored]:
    """Score the spans that can pass the lowest threshold of all jobs."""
    if backend.scorer is not None:  # its threshold is not one of p(mention) · p(entity | mention)
        return backend.score_many(texts)
    least = min(backend.decoding.threshold if job.threshold is None else job.threshold for job in jobs)
    floor = replace(backend.decoding, threshold=least).log_threshold(backend.calibration)
    return backend.score_many(texts, floor=max(backend.search.floor, floor))


def _to_document(job: LinkJob, scored: Scored) -> Document:
    if job.candidates != scored.decoding.candidates:
        scored = replace(scored, decoding=replace(scored.decoding, candidates=job.candidates))
    return scored.document(threshold=job.threshold, overlaps=job.overlaps, nil=job.nil)


def _filter_links(document: Document, job: LinkJob) -> Document:
    """Keep links with a score of at least the threshold, and the requested number of candidates."""
    links = tuple(
        replace(link, candidates=link.candidates[: job.candidates])
        for link in document.links
        if (link.entity is None and job.nil) or (link.entity is not None and link.score >= (job.threshold or 0.0))
    )
    return replace(document, links=links)
