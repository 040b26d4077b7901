"""Development sets for linking: where each is, to which KB it belongs, and how its gold is read.

Every set becomes documents whose `meta` says what may be judged (`wellread.evaluation.partial_annotation`):

- Null gold stays: a mention whose entity is not in the KB, so that any link there is wrong.
- Questions whose gold entity has no span in the text are left out: a right link would count as a wrong one.
- Sets that mark only some of the entities (`marked_only`) are judged on the marked spans alone.
- The schools text links first mentions; repeated ones (`more`) are gold too, and other names (`unsure`) are optional.

The packaged `elq` has its threshold and calibration from the same 600 questions of WebQSP, and its best step from these
and the 200 schools paragraphs: its figures there are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.data import DATA, PRODUCTS, hpo_kb, products_kb, shared_kb
from wellread.data.formats import read_linked
from wellread.document import Document, Link
from wellread.models.elq.training_task import split_off

Kind = Literal["questions", "queries", "dialogue", "running text", "abstracts", "tickets"]
KbName = Literal["shared", "hpo", "products"]
EncoderWithHead = Callable[[Path], list[Document]]

KBS: dict[KbName, Callable[[Path], Path]] = {"shared": shared_kb, "hpo": hpo_kb, "products": products_kb}
"""Build a KB in a folder, or find it there."""


def read_all(path: Path) -> list[Document]:
    """Read a file as it is."""
    return list(read_linked(path))


def read_with_spans(path: Path) -> list[Document]:
    """Read questions, without those whose gold has no span."""
    return [document for document in read_linked(path) if document.links]


def read_webqsp(path: Path) -> list[Document]:
    """Read the 600 questions that no recipe trains on, without those whose gold has no span."""
    return [document for document in split_off(read_all(path), 600)[1] if document.links]


def read_marked_only(path: Path) -> list[Document]:
    """Read texts of which only some entities are marked: nothing beside the marked spans is judged."""
    return [
        replace(document, meta={**document.meta, "evaluate": [[link.start, link.end] for link in document.links]})
        for document in read_linked(path)
    ]


def read_schools(path: Path) -> list[Document]:
    """Read the 200 paragraphs that no recipe trains on; repeated mentions are gold, unsure spans optional."""
    return [_with_repeats(document) for document in split_off(read_all(path), 200)[1]]


def read_half(half: Literal["dev", "test"]) -> EncoderWithHead:
    """Return a reader of the documents with odd (dev) or even (test) numbers: "T007" is in dev."""
    return lambda path: [
        document for document in read_linked(path) if int((document.id or "0").lstrip("T")) % 2 == (half == "dev")
    ]


def _with_repeats(document: Document) -> Document:
    repeats = [
        Link(start, end, document.text[start:end], entity) for start, end, entity in document.meta.get("more", ())
    ]
    links = sorted((*document.links, *repeats), key=lambda link: (link.start, link.end))
    return replace(document, links=tuple(links), meta={**document.meta, "optional": document.meta.get("unsure", [])})


@dataclass(frozen=True, slots=True)
class LinkingSet:
    """One development set; `bar` is the F1 that the packaged linker should reach on it at its defaults."""

    name: str
    kind: Kind
    path: Path
    kb: KbName = "shared"
    bar: float | None = None
    read: EncoderWithHead = read_all
    complete: bool = True
    """False: some entities are not marked, so that precision is over part of the links; held to no bar."""

    @property
    def is_here(self) -> bool:
        """Tell if the file can be read on this machine."""
        return self.path.is_file()

    def documents(self, limit: int | None = None) -> list[Document]:
        """Read the gold documents, at most `limit` of them."""
        return self.read(self.path)[:limit]


_LINKING, _TEXT = DATA / "linking", DATA / "text"
_MEASURE = _TEXT / "measure_only"

SETS: tuple[LinkingSet, ...] = (
    LinkingSet("webqsp", "questions", _LINKING / "webqsp_train.jsonl", bar=0.93, read=read_webqsp),
    LinkingSet(
        "simplequestions", "questions", _LINKING / "simplequestions_valid.jsonl", bar=0.94, read=read_with_spans
    ),
    LinkingSet("gerdaq_devel", "queries", _LINKING / "gerdaq_devel.jsonl", bar=0.55),
    LinkingSet("gerdaq_trainA", "queries", _MEASURE / "gerdaq_trainA.jsonl.xz", bar=0.55),
    LinkingSet("qinc_train", "queries", _MEASURE / "qinc_train.jsonl.xz"),
    LinkingSet("conel22_val", "dialogue", _TEXT / "conel22_val.jsonl.xz", bar=0.70),
    LinkingSet("conel21", "dialogue", _TEXT / "conel21.jsonl.xz"),
    LinkingSet("conel21_cast", "dialogue", _MEASURE / "conel21_cast.jsonl.xz"),
    LinkingSet("oke", "running text", _TEXT / "oke_train.jsonl.xz", bar=0.65),
    LinkingSet("reuters128", "running text", _MEASURE / "reuters128.jsonl.xz", bar=0.65),
    LinkingSet("spotlight", "running text", _MEASURE / "spotlight.jsonl.xz", bar=0.65),
    LinkingSet("iitb", "running text", _MEASURE / "iitb.jsonl.xz", bar=0.65),
    LinkingSet("rss500", "running text", _MEASURE / "rss500.jsonl.xz", read=read_marked_only, complete=False),
    LinkingSet("hipe2022_en", "running text", _MEASURE / "hipe2022_en.jsonl.xz", read=read_marked_only, complete=False),
    LinkingSet("schools", "running text", _LINKING / "text_schools2007.jsonl.xz", read=read_schools, complete=False),
    LinkingSet("gsc_dev", "abstracts", DATA / "hpo" / "gsc_dev.jsonl.xz", kb="hpo", bar=0.65),
    LinkingSet("products_dev", "tickets", PRODUCTS / "tickets.jsonl", kb="products", bar=0.90, read=read_half("dev")),
    LinkingSet("products_test", "tickets", PRODUCTS / "tickets.jsonl", kb="products", bar=0.90, read=read_half("test")),
)


def choose_sets(names: Iterable[str] | None) -> list[LinkingSet]:
    """Return the sets with these names, or all; an unknown name is an error that lists the known ones."""
    if names is None:
        return list(SETS)
    by_name = {one.name: one for one in SETS}
    names = list(names)
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"there is no set {', '.join(unknown)}; choose from {', '.join(by_name)}")
    return [by_name[name] for name in names]


def missing(sets: Sequence[LinkingSet]) -> str | None:
    """Say which sets cannot be read on this machine."""
    absent = [one.name for one in sets if not one.is_here]
    if not absent:
        return None
    return f"left out, no file in ../shared/data or WELLREAD_SHARED_DATA: {', '.join(absent)}"
