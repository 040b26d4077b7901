"""Sources that the link scorer is trained on: knowledge bases × texts, and what their annotation says.

No file under `measure_only/` is among them. Beside the shared KB there are:

- `vital`, the packaged KB, with the same texts (entities are matched by title);
- parts of the shared KB (people, places, topics, works), in which most names of a text are not;
- `ncbi`: diseases, made from the annotated names of one half of NCBI-disease; the other half is the text;
- small catalogues: the gold entities of one set of texts and as many others, so that names are mostly meant;
- domains of WordNet as ontologies, with SemCor and tagged definitions (`conceptsources`);
- `diseases`: those of WordNet, with the same abstracts;
- catalogues of invented names, put into real texts (`renamedsources`);
- `crossner names`, `redocred names`: annotated names without descriptions, half of them from the texts themselves.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.conceptsources import DOMAINS, ConceptTexts, concept_kb, disease_kb
from benchmarks.data import DATA, shared_kb
from benchmarks.linkingsets import read_all, read_webqsp, read_with_spans
from benchmarks.renamedsources import renamed
from wellread.data.synthetic.variation import Variation, vary
from wellread.document import Document
from wellread.kb.build import Origin, build
from wellread.kb.packaged import kb_path
from wellread.kb.records import Entity, Record, Tally
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.training_task import split_off

PARTS: Mapping[str, Callable[[dict[str, list[str] | str]], bool]] = {
    "people": lambda row: _is_a(row, "people/person"),
    "places": lambda row: _is_a(row, "location/"),
    "topics": lambda row: not row.get("mid"),
    "works": lambda row: _is_a(row, "film/film", "music/", "tv/", "book/") and not _is_a(row, "people/person"),
}
"""Parts of the shared KB by what their entities are."""

_T = TypeVar("_T")

_PART = 2500
"""Entities of a part."""


@dataclass(frozen=True, slots=True)
class Source:
    """Linked texts of one kind and the KB they are linked to."""

    name: str
    kb: Path
    kind: str
    documents: Sequence[Document]
    complete: bool = True
    """Spans without a gold link are wrong."""
    entities: bool = True
    """False: named-entity annotation, which names no entities."""
    named: float | None = None
    """Without entities: probability that a mention with a name of the KB is that entity; None: to be estimated."""
    names_only: bool = False
    """The annotation marks names, not common concepts: it says little about words in lower case without a gold link."""


def sources(folder: Path) -> Iterator[Source]:
    """Yield all sources; knowledge bases are built in the folder where they are missing."""
    shared, texts = shared_kb(folder), _texts()
    for name, kind, documents, complete, entities in texts:
        yield Source(name, shared, kind, documents, complete, entities, names_only=complete and kind == "running text")
    by_name = {name: (kind, documents, complete, entities) for name, kind, documents, complete, entities in texts}
    ids = _vital_ids(shared)
    for name in ("webqsp", "conel22_val", "conel22_train", "gerdaq", "oke", "wikigold"):
        kind, documents, complete, entities = by_name[name]
        yield Source(
            f"vital {name}",
            kb_path("vital"),
            kind,
            _mapped(documents[:400], ids),
            complete,
            entities,
            names_only=complete and kind == "running text",
        )
    for part in PARTS:
        path = part_kb(folder, part)
        with KnowledgeBase.open(path) as kb:
            own = {entity.id: entity.id for entity in kb.entities()}
        for name in ("webqsp", "conel22_val", "gerdaq", "oke"):
            kind, documents, complete, entities = by_name[name]
            mapped = _mapped(documents[:300], own)
            names_only = complete and kind == "running text"
            yield Source(f"{part} {name}", path, kind, mapped, complete, entities, names_only=names_only)
    for name in ("webqsp", "conel22_val", "gerdaq", "oke"):
        kind, documents, complete, entities = by_name[name]
        path = catalogue_kb(folder, name, documents[:300])
        with KnowledgeBase.open(path) as kb:
            own = {entity.id: entity.id for entity in kb.entities()}
        mapped = _mapped(documents[:300], own)
        names_only = complete and kind == "running text"
        yield Source(f"catalogue {name}", path, kind, mapped, complete, entities, names_only=names_only)
    for name in ("crossner", "redocred"):
        documents = _by_name(by_name[name][1])
        yield Source(f"{name} names", names_kb(folder, name, documents), "running text", documents)
    yield Source("ncbi", ncbi_kb(folder), "abstracts", _ncbi("train", 1))
    yield Source("ncbi devel", ncbi_kb(folder), "abstracts", _ncbi("devel"))
    yield Source("ncbi, capitals", ncbi_kb(folder, capitals=True), "abstracts", _ncbi("train", 1))
    abstracts = _without_entities(_ncbi("train"))
    yield Source("diseases ncbi", disease_kb(folder), "abstracts", abstracts, entities=False, named=0.95)
    yield from _concepts(folder)
    for name in ("webqsp", "conel22_val", "conel22_train", "oke", "wikigold", "crossner", "redocred"):
        path, documents = renamed(folder, name, by_name[name][1])
        yield Source(f"renamed {name}", path, by_name[name][0], documents)


def _concepts(folder: Path) -> Iterator[Source]:
    """Yield the domains of WordNet with their texts."""
    texts = ConceptTexts()
    for domain in DOMAINS:
        path = concept_kb(folder, domain)
        with KnowledgeBase.open(path) as kb:
            own = {entity.id for entity in kb.entities()}
        yield Source(f"{domain} semcor", path, "fiction and essays", texts.semcor(own))
        yield Source(f"{domain} definitions", path, "definitions", texts.definitions(own), complete=False)


def _texts() -> list[tuple[str, str, list[Document], bool, bool]]:
    """Return (name, kind, documents, complete, entities) of the texts of the shared KB."""
    linking, text = DATA / "linking", DATA / "text"
    webqsp = _with_all_spans(read_webqsp(linking / "webqsp_train.jsonl"))
    questions = _with_all_spans(read_with_spans(linking / "simplequestions_valid.jsonl"))
    kept = _with_all_spans(split_off(read_all(linking / "simplequestions_train.jsonl"), 300)[1])
    oke = read_all(text / "oke_train.jsonl.xz")
    return [
        ("webqsp", "questions", webqsp, True, True),
        ("simplequestions", "questions", questions, True, True),
        ("simplequestions train", "questions", kept, True, True),
        ("webqsp, typos", "questions", _varied(webqsp, Variation(typo=1.0)), True, True),
        ("simplequestions, typos", "questions", _varied(questions[:400], Variation(typo=1.0)), True, True),
        ("conel22_val", "dialogue", read_all(text / "conel22_val.jsonl.xz"), True, True),
        ("conel22_train", "dialogue", _held_out(linking / "conel22_train.jsonl", 300), True, True),
        ("conel21", "dialogue", _held_out(text / "conel21.jsonl.xz", 250), True, True),
        ("gerdaq", "queries", read_all(linking / "gerdaq_devel.jsonl"), True, True),
        ("oke", "running text", oke, True, True),
        ("oke, lower case", "running text", _varied(oke, Variation(lower=1.0)), True, True),
        ("oke, typos", "running text", _varied(oke, Variation(typo=1.0)), True, True),
        ("crossner", "running text", _held_out(text / "crossner.jsonl.xz", 600), True, False),
        ("redocred", "running text", _held_out(text / "redocred.jsonl.xz", 100), True, False),
        ("wikigold", "running text", _held_out(text / "wikigold.jsonl.xz", 700), True, False),
        ("fewrel", "running text", _held_out(text / "fewrel.jsonl.xz", 2000), False, True),
    ]


def part_kb(folder: Path, part: str) -> Path:
    """Build a part of the shared KB, or find it in the folder."""
    path = folder / f"{part}.kb"
    if not path.exists():
        with lzma.open(DATA / "linking" / "kb.jsonl.xz", "rt", encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, lines) if PARTS[part](row)]
        random.Random(1).shuffle(rows)
        wanted = {row["id"] for row in rows[:_PART]}
        with KnowledgeBase.open(shared_kb(folder)) as kb:
            kept = [entity for entity in kb.entities() if entity.id in wanted]
        _build(path, kept)
    return path


def ncbi_kb(folder: Path, *, capitals: bool = False) -> Path:
    """Build a KB of diseases from the names in one half of the NCBI-disease abstracts, or find it in the folder.

    With `capitals` its names begin with a capital letter, as those of most ontologies do.
    """
    path = folder / ("ncbi-capitals.kb" if capitals else "ncbi.kb")
    if not path.exists():
        names: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for document in _ncbi("train", 0):
            for link in document.links:
                name = link.text[0].upper() + link.text[1:] if capitals else link.text
                names[link.entity or ""][name] += 1
        _build(path, [Entity(id, _title(counts), aliases=dict(counts)) for id, counts in names.items() if id])
    return path


def catalogue_kb(folder: Path, name: str, documents: Sequence[Document]) -> Path:
    """Build a KB of the gold entities of some texts and as many others of the shared KB, or find it in the folder."""
    path = folder / f"catalogue-{name}.kb"
    if not path.exists():
        gold = {link.entity for document in documents for link in document.links if link.entity is not None}
        with KnowledgeBase.open(shared_kb(folder)) as kb:
            entities = list(kb.entities())
        others = [entity for entity in entities if entity.id not in gold]
        wanted = gold | {entity.id for entity in _some(others, min(len(gold), len(others)))}
        _build(path, [entity for entity in entities if entity.id in wanted])
    return path


def names_kb(folder: Path, name: str, documents: Sequence[Document]) -> Path:
    """Build a KB of the names in every second document, without descriptions, or find it in the folder."""
    path = folder / f"{name}-names.kb"
    if not path.exists():
        names = {link.entity: link.text for document in documents[::2] for link in document.links if link.entity}
        _build(path, [Entity(id, title, aliases={title: 1}) for id, title in names.items()])
    return path


def _by_name(documents: Sequence[Document]) -> list[Document]:
    """Return documents in which each named entity is its own folded name; names of one or two letters are left out."""
    return [
        replace(
            document,
            links=tuple(
                replace(link, entity=link.text.casefold() if len(link.text) > 2 else None) for link in document.links
            ),
        )
        for document in documents
    ]


def _build(path: Path, entities: Sequence[Entity]) -> None:
    def records(tally: Tally) -> Iterator[Record]:
        return iter(entities)

    build(records, path, origin=Origin("benchmarks"))


def _title(counts: Counter[str]) -> str:
    return max(counts, key=lambda name: (counts[name], len(name), name))


def _ncbi(part: str, half: int | None = None) -> list[Document]:
    """Read abstracts with their disease ids as entities; `half` chooses by the digest of the text."""
    documents = read_all(DATA / "hpo" / f"ncbi_{part}.jsonl.xz")
    return [
        replace(document, links=tuple(replace(link, entity=link.title) for link in document.links))
        for document in documents
        if half is None or hashlib.sha256(document.text.encode()).digest()[0] % 2 == half
    ]


def _without_entities(documents: Sequence[Document]) -> list[Document]:
    """Return documents whose links are annotated names only."""
    return [
        replace(document, links=tuple(replace(link, entity=None) for link in document.links)) for document in documents
    ]


def _vital_ids(shared: Path) -> dict[str, str]:
    """Return the id in `vital` of entities of the shared KB with the same title."""
    with KnowledgeBase.open(kb_path("vital")) as vital, KnowledgeBase.open(shared) as kb:
        titles = {entity.title.lower(): entity.id for entity in vital.entities()}
        return {entity.id: titles[name] for entity in kb.entities() if (name := entity.title.lower()) in titles}


def _mapped(documents: Sequence[Document], ids: Mapping[str, str]) -> list[Document]:
    """Return documents with other ids; an entity without one is not in the KB."""
    return [
        replace(document, links=tuple(replace(link, entity=ids.get(link.entity or "")) for link in document.links))
        for document in documents
    ]


def _with_all_spans(documents: Sequence[Document]) -> list[Document]:
    """Leave out questions with a gold entity that has no span."""
    return [one for one in documents if len(one.meta.get("gold_qids") or ()) <= len(one.links)]


def _held_out(path: Path, count: int) -> list[Document]:
    """Read the documents that `recipes/elq-minilm.toml` holds out of the encoder's training."""
    return split_off(read_all(path), count)[1]


def _varied(documents: Sequence[Document], variation: Variation) -> list[Document]:
    chance = random.Random(7)
    return [vary(document, variation, chance, lambda entity: []) for document in documents]


def _some(items: Sequence[_T], count: int) -> list[_T]:
    return random.Random(1).sample(list(items), count)


def _is_a(row: dict[str, list[str] | str], *kinds: str) -> bool:
    return any(category.startswith(kinds) for category in row["categories"])
