"""Texts in, linked texts out, as Arrow batches: what a worker of this machine and a worker of Spark both do.

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
"""Texts that are linked together: always the same ones, so that results have the same bits wherever they are made."""

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
"""A row is a text; the fields of a link are those of `wellread.Link`, `entity` null for NIL."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """With what texts are linked, and what is told of it; plain, so that it can be sent anywhere."""

    kbs: tuple[str, ...]
    model: str = "auto"
    models: dict[str, str] = field(default_factory=dict)
    """Of some KBs, by their names."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What `Linker.load` takes besides."""
    candidates: int = 0
    """How many are told with each link."""

    def open(self) -> Linkers:
        """The linkers; opening takes seconds, and is done once by each worker."""
        from wellread.linking.multi import Linkers

        return Linkers.load(self.kbs, self.model, models=self.models, **self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dicts, the same that `from_dict` takes."""
        return {**asdict(self), "kbs": list(self.kbs)}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Annotation:
        """What `to_dict` gave."""
        return cls(**{**told, "kbs": tuple(told["kbs"])})


def annotate_batches(
    batches: Iterable[pa.RecordBatch],
    linkers: Linkers,
    annotation: Annotation,
    *,
    text: str = "text",
    id: str = "id",
) -> Iterator[pa.RecordBatch]:
    """Batches of `SCHEMA` for batches that have a column of texts, and if they like one of ids; row for row."""
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
    """A document as a row, with so many candidates at most."""
    links = [asdict(link) for link in document.links]
    for link in links:
        link["candidates"] = list(link["candidates"][:candidates])
    return {"id": None if id is None else str(id), "text": document.text, "links": links}
