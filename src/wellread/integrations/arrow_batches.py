"""Annotation of Arrow batches: texts in, linked texts out; used by local and Spark workers.

>>> annotation = Annotation(kbs=("vital",))
>>> with annotation.open() as linkers:
...     for batch in annotate_batches(batches, linkers, annotation): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wellread.document import Document
from wellread.errors import InputError

if TYPE_CHECKING:
    from wellread.linking.multi import Linkers

AT_ONCE = 256
"""Texts per batch; fixed, so that results do not depend on the number of workers."""

_CANDIDATE = pa.struct(
    [("entity", pa.string()), ("title", pa.string()), ("prior", pa.float64()), ("score", pa.float64())]
)
_LINK = pa.struct(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("text", pa.string()),
        ("entity", pa.string()),
        ("title", pa.string()),
        ("score", pa.float64()),
        ("candidates", pa.list_(_CANDIDATE)),
        ("kb", pa.string()),
        ("mention_score", pa.float64()),
        ("found_by", pa.string()),
    ]
)
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("links", pa.list_(_LINK))])
"""One row per text; a link has the fields of `wellread.Link`, `entity` is null for NIL."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """KBs, models and options of an annotation; plain values, so that it can be sent to workers."""

    kbs: tuple[str, ...]
    model: str = "auto"
    models: dict[str, str] = field(default_factory=dict)
    """Models by KB name."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further options of `Linker.load`."""
    candidates: int = 0
    """Candidates per link."""

    def open(self) -> Linkers:
        """Open the linkers; takes seconds, so each worker does it once."""
        from wellread.linking.multi import Linkers

        return Linkers.load(self.kbs, self.model, models=self.models, **self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that `from_dict` reads."""
        return {**asdict(self), "kbs": list(self.kbs)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Annotation:
        """Build from the result of `to_dict`."""
        return cls(**{**content, "kbs": tuple(content["kbs"])})


def annotate_batches(
    batches: Iterable[pa.RecordBatch],
    linkers: Linkers,
    annotation: Annotation,
    *,
    text: str = "text",
    id: str = "id",
) -> Iterator[pa.RecordBatch]:
    """Yield batches of `SCHEMA`, row for row, for batches with a column of texts and optionally one of ids."""
    for batch in batches:
        if text not in batch.schema.names:
            raise InputError(f"there is no column {text} (but {', '.join(batch.schema.names)}); say where the text is")
        texts = [one or "" for one in batch.column(text).to_pylist()]
        ids = batch.column(id).to_pylist() if id in batch.schema.names else [None] * len(texts)
        for begin in range(0, len(texts), AT_ONCE):
            some = texts[begin : begin + AT_ONCE]
            found = zip(ids[begin : begin + AT_ONCE], linkers.link_many(some), strict=True)
            rows = [row_of(document, name, annotation.candidates) for name, document in found]
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def row_of(document: Document, id: object, candidates: int) -> dict[str, Any]:
    """Return a document as a row with at most `candidates` per link."""
    links = [asdict(link) for link in document.links]
    for link in links:
        link["candidates"] = list(link["candidates"][:candidates])
    return {"id": None if id is None else str(id), "text": document.text, "links": links}
