"""spaCy component: `nlp.add_pipe("wellread_linker", config={"kb": "vital"})`.

spaCy finds the factory by its entry point, without an import. Links become `doc.ents` with `kb_id_`, or spaCy's own
entities get one; every link with its candidates is `span._.wellread` of the entities and of the spans in
`doc.spans["wellread"]`. A `Doc` holds plain values only, so it can be saved and sent between processes.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeAlias

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.tokens.underscore import Underscore
from spacy.util import filter_spans, minibatch, raise_error

from wellread.document import Document, Link
from wellread.errors import InputError, StorageError, UsageError
from wellread.index.folder import vectors_folder
from wellread.io.cores import limit_threads
from wellread.io.files import storage, write_atomically
from wellread.kb.packaged import check_exists
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import check_threshold
from wellread.linking.linker import Linker

NAME = "wellread_linker"
NIL = "NIL"
"""`kb_id_` of mentions without an entity in the KB, as in spaCy's own linker."""
LABEL = "ENTITY"
"""Label of linked entities without a kind."""

Entities = Literal["wellread", "spacy"]
Handler: TypeAlias = Callable[[str, Any, list[Doc], Exception], None]

_DEFAULTS: dict[str, Any] = {
    "kb": None,
    "model": None,
    "entities": "wellread",
    "threshold": None,
    "key": "wellread",
    "set_ents": True,
    "never_nil": False,
    "bundle": False,
    "options": {},
}
"""Default config. None means not given: the saved value, else that of `Linker.load`; spaCy does not distinguish."""
_SETTINGS, _KB, _MODEL = "settings.json", "bundle.kb", "model"
_OPTIONS = set(signature(Linker.load).parameters) - {"kb", "model", "models", "threshold"}
_PLACES = ("kb", "model")
"""Settings whose bundled value is a path in the folder."""


class SpacyLinker:
    """Pipeline component that links documents; the linker is loaded with the first one."""

    def __init__(
        self,
        name: str = NAME,
        *,
        kb: str | None = None,
        model: str | None = None,
        entities: Entities = "wellread",
        threshold: float | None = None,
        key: str = "wellread",
        set_ents: bool = True,
        never_nil: bool = False,
        bundle: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        if entities not in ("wellread", "spacy"):
            raise UsageError(f"entities={entities!r} is not known; choose wellread or spacy")
        if not key.isidentifier() or hasattr(Underscore, key):
            raise UsageError(f"key={key!r} cannot be an attribute of spans; choose a word such as wellread or senses")
        if never_nil and entities != "spacy":
            raise UsageError('never_nil is for given entities; set entities="spacy" too, or leave it out')
        check_threshold(threshold)
        if kb is not None and not bundle:  # a bundle has its own KB, and may be on a machine without the other
            check_exists(kb)
        if odd := set(options or {}) - _OPTIONS:
            raise UsageError(
                f"options has {', '.join(sorted(odd))}; it takes what Linker.load takes besides kb, model and "
                f"threshold, which have settings of their own: {', '.join(sorted(_OPTIONS))}"
            )
        self.name, self.key, self.entities, self.set_ents = name, key, entities, set_ents
        self.bundle, self.never_nil = bundle, never_nil
        given = {"kb": kb and str(kb), "model": model and str(model), "threshold": threshold}
        self.settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.settings.update(options or {})
        self._bundled: dict[str, str] = {}
        """Paths in the bundle that replace settings; the settings themselves are kept, and saved again."""
        self._linker: Linker | None = None
        self._loaded_by = 0
        self._handler: Handler = raise_error
        if not Span.has_extension(key):
            Span.set_extension(key, default=None)

    @property
    def linker(self) -> Linker:
        """The linker; its KB may be changed while the pipeline runs."""
        if self._linker is None:
            self._linker = Linker.load(**self._loading())
            self._loaded_by = os.getpid()
            self._kind_of = lru_cache(1 << 16)(self._look_up)
        if os.getpid() != self._loaded_by:
            # OpenMP's threads do not survive a fork: a child that uses them would wait forever.
            limit_threads(1)
            self._loaded_by = os.getpid()
        return self._linker

    def __call__(self, doc: Doc) -> Doc:
        """Link a document."""
        self._link([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Link a stream of documents in batches."""
        for docs in minibatch(stream, batch_size):  # type: ignore[no-untyped-call]
            batch = list(docs)
            try:
                self._link(batch)
            except Exception as error:  # as in spaCy: the error handler of the pipeline decides
                self._handler(self.name, self, batch, error)
            else:
                yield from batch

    def _link(self, docs: Sequence[Doc]) -> None:
        texts = [doc.text for doc in docs]
        if self.entities == "wellread":
            for doc, found in zip(docs, self.linker.link_many(texts), strict=True):
                self._add(doc, found)
            return
        spans = [[(span.start_char, span.end_char) for span in doc.ents] for doc in docs]
        linked = self.linker.link_given(texts, spans, nil="never" if self.never_nil else "model")
        for doc, found in zip(docs, linked, strict=True):
            self._name(doc, found)

    def _add(self, doc: Doc, found: Document) -> None:
        """Set links as spans; keep existing entities that no link overlaps."""
        labels = {(span.start, span.end): span.label_ for span in doc.ents}
        spans = []
        for link in sorted(found.links, key=lambda link: link.score):
            place = doc.char_span(link.start, link.end, alignment_mode="expand")
            if place is None or not len(place):
                continue
            label = labels.get((place.start, place.end)) or (self._kind(link.entity) if link.entity else "") or LABEL
            span = Span(doc, place.start, place.end, label=label, kb_id=link.entity or NIL)
            span._.set(self.key, asdict(link))
            spans.append(span)
        spans.sort(key=lambda span: (span.start, -span.end))
        doc.spans[self.key] = spans
        if self.set_ents:
            linked = filter_spans(spans)
            taken = {token.i for span in linked for token in span}
            others = [span for span in doc.ents if not any(token.i in taken for token in span)]
            doc.set_ents([*linked, *others])

    def _name(self, doc: Doc, found: Document) -> None:
        """Link the entities that spaCy has found."""
        links = {(link.start, link.end): link for link in found.links}
        spans = []
        for ent in doc.ents:
            link: Link = links[ent.start_char, ent.end_char]
            if self.set_ents:
                for token in ent:
                    token.ent_kb_id_ = link.entity or NIL
            span = Span(doc, ent.start, ent.end, label=ent.label, kb_id=link.entity or NIL)
            span._.set(self.key, asdict(link))
            spans.append(span)
        doc.spans[self.key] = spans

    def _kind(self, entity: str) -> str:
        return self._kind_of(entity, self.linker.kb.revision)

    def _look_up(self, entity: str, revision: int) -> str:
        kb = self.linker.kb
        with sqlite_errors(kb.path):
            row = kb.connection.execute("SELECT kind FROM entities WHERE id = ?", (entity,)).fetchone()
        return str(row[0]) if row else ""

    def set_error_handler(self, error_handler: Handler) -> None:
        """Set the handler of documents that could not be linked."""
        self._handler = error_handler

    def get_error_handler(self) -> Handler:
        """Return that handler."""
        return self._handler

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the linker; processes that spaCy starts load their own."""
        return {**self.__dict__, "_linker": None, "_kind_of": None}

    # Saving: spaCy saves the config; only a bundle has files of its own.

    def to_bytes(self, *, exclude: Sequence[str] = ()) -> bytes:
        """Return the settings and the path of a bundle, without the KB."""
        return json.dumps({"settings": self.settings, "bundled": self._bundled}).encode()

    def from_bytes(self, data: bytes, *, exclude: Sequence[str] = ()) -> SpacyLinker:
        """Load the result of `to_bytes`."""
        try:
            content = json.loads(data)
            self._take(content["settings"], content["bundled"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"these bytes have no settings of a linker ({error}); save the pipeline again") from error
        return self

    def to_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> None:
        """Save the settings; with `bundle` also the KB, its vectors and a trained model."""
        folder = Path(path)
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        bundled = self._bundle(folder) if self.bundle else {}
        with write_atomically(folder / _SETTINGS) as file:
            file.write(json.dumps({"settings": self.settings, "bundled": bundled}, indent=2).encode())

    def from_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> SpacyLinker:
        """Load what `to_disk` wrote; a bundle is used unless the config names another KB or model."""
        folder = Path(path)
        try:
            content = json.loads((folder / _SETTINGS).read_bytes())
            places = {name: place for name, place in content["bundled"].items() if name in _PLACES}
            paths = {name: str(folder.absolute() / place) for name, place in places.items()}
            self._take(content["settings"], {**content["bundled"], **paths})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{folder} has no settings of a linker ({error}); save the pipeline again") from error
        return self

    def _take(self, saved: dict[str, Any], bundled: dict[str, str]) -> None:
        """Apply saved settings that the config does not give."""
        self.settings = {**saved, **self.settings}
        same = {name for name in bundled if self.settings.get(name) == saved.get(name)}
        if "kb" not in same:
            same.discard("name")  # it belongs to the bundled model
        self._bundled = {name: bundled[name] for name in same}
        self._linker = None

    def _loading(self) -> dict[str, Any]:
        """Return the arguments of `Linker.load`."""
        return {**self.settings, **self._bundled}

    def _bundle(self, folder: Path) -> dict[str, str]:
        kb, content = self.linker.kb, {"kb": _KB, "name": self.linker.name}
        model = Path(self._loading().get("model", "auto"))
        with _replacing(folder) as new:
            # Files of the folder that the pipeline was loaded from are open and must not be replaced.
            if not _same(kb.path, folder / _KB):
                with sqlite_errors(kb.path), closing(sqlite3.connect(new / _KB)) as copy:
                    kb.connection.backup(copy)
                _copy(vectors_folder(kb), Path(f"{new / _KB}.vectors"))
                KnowledgeBase.open(new / _KB).close()  # the same folder
            if model.is_dir():
                content["model"] = _MODEL
                if not _same(model, folder / _MODEL):
                    _copy(model, new / _MODEL)
        return content


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; on success its files replace those of the same names in `folder`."""
    new = folder / f".{uuid.uuid4().hex[:8]}.part"
    with storage(folder):
        new.mkdir()
        try:
            yield new
            if (new / _KB).exists():  # an old write-ahead log or index would be read as that of the new KB
                for old in folder.glob(f"{_KB}*"):
                    _remove(old)
            for path in (new / _KB, Path(f"{new / _KB}.vectors"), new / _MODEL):
                if path.exists():
                    _remove(folder / path.name)
                    path.rename(folder / path.name)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)


def _copy(folder: Path, to: Path) -> None:
    try:
        if folder.is_dir():
            shutil.copytree(folder, to, ignore=shutil.ignore_patterns(".*"))
    except shutil.Error as error:  # (source, target, reason) of each file that failed
        file, _, why = error.args[0][0]
        raise StorageError(f"cannot copy {file}: {why}; check its permissions, and save the pipeline again") from error


@Language.factory(
    NAME,
    assigns=["doc.ents", "doc.spans", "token.ent_iob", "token.ent_type", "token.ent_kb_id", "span._.wellread"],
    default_config=_DEFAULTS,
)
def make_linker(
    nlp: Language,
    name: str,
    kb: str | None,
    model: str | None,
    entities: Entities,
    threshold: float | None,
    key: str,
    set_ents: bool,
    never_nil: bool,
    bundle: bool,
    options: dict[str, Any],
) -> SpacyLinker:
    """Create the component; spaCy calls it for "wellread_linker"."""
    return SpacyLinker(
        name,
        kb=kb,
        model=model,
        entities=entities,
        threshold=threshold,
        key=key,
        set_ents=set_ents,
        never_nil=never_nil,
        bundle=bundle,
        options=options,
    )
