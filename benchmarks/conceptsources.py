"""Concept KBs for the link scorer: noun domains of WordNet as ontologies, with texts whose words have senses.

A domain (animals, body parts, states, ...) is a KB of lower-case terms with definitions and no priors, as the ontology
of a user is. Its texts are:

- SemCor, four sentences a document: every content word has its sense, so a term of the domain that is used in another
  sense is wrong;
- WordNet's tagged definitions, which are dense in terms: words without a tag are left open.

Half of the domains have names that begin with a capital letter, as most ontologies write them.

`python -m benchmarks.conceptsources FOLDER` writes what `recipes/elq-minilm.toml` trains the encoder on: a KB of all
domains (`concepts.kb`), and half of SemCor, half of the definitions, and MASC linked to it (`concepts.jsonl`). The
scorer is trained on the other halves: it must see what the encoder makes of text that it was not trained on.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from benchmarks.data import DATA
from wellread import assets
from wellread.document import Document, Link
from wellread.io.files import read_lines, write_atomically
from wellread.kb.build import Origin, build
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.kb.readers.wordnet import read_nouns
from wellread.kb.records import Entity, Record, Tally
from wellread.kb.store import KnowledgeBase

DOMAINS = {
    "acts": ("04", False),
    "animals": ("05", False),
    "artifacts": ("06", True),
    "attributes": ("07", True),
    "body": ("08", False),
    "foods": ("13", True),
    "plants": ("20", True),
    "states": ("26", True),
    "substances": ("27", False),
}
"""Number of WordNet's lexicographer file, and whether names begin with a capital letter."""

_DISEASES = ("14052046-n", "14304060-n", "14465048-n", "14235200-n")
"""Synsets above all diseases: ill health, syndrome, birth defect, tumour."""
_SENTENCES = 4
_WITH, _WITHOUT = 160, 40
"""Documents of SemCor with and without a term of the domain."""
_DEFINITIONS = 300
_LEAST_TERMS = 2
"""Terms of the KB in a text that the encoder is trained on."""
_NO_SPACE_BEFORE = (",", ".", ";", ":", "?", "!", ")", "'", "’", "n't", "%", "''", "”")
_NO_SPACE_AFTER = ("(", "``", "“", "$")


def concept_kb(folder: Path, domain: str) -> Path:
    """Build the KB of a domain, or find it in the folder."""
    path = folder / f"wordnet-{domain}.kb"
    if not path.exists():
        number, capitals = DOMAINS[domain]
        wordnet = assets.fetch("wordnet")
        wanted = {
            f"{fields[0].decode()}-n"
            for _, line in read_lines(wordnet / "data.noun", Tally())
            if not line.startswith(b"  ") and (fields := line.split(maxsplit=2))[1].decode() == number
        }
        entities = [entity for entity in read_nouns(wordnet, Tally()) if entity.id in wanted]
        if capitals:
            entities = [_capitalised(entity) for entity in entities]

        def records(tally: Tally) -> Iterator[Record]:
            return iter(entities)

        build(records, path, origin=Origin("benchmarks"))
    return path


def disease_kb(folder: Path) -> Path:
    """Build a KB of WordNet's diseases, disorders and tumours, or find it in the folder; names have capitals."""
    path = folder / "wordnet-diseases.kb"
    if not path.exists():
        nouns = {entity.id: entity for entity in read_nouns(assets.fetch("wordnet"), Tally())}
        narrower = defaultdict(list)
        for entity in nouns.values():
            for relation, other in entity.facts:
                if relation == "hypernym":
                    narrower[other].append(entity.id)
        wanted, todo = set[str](), list(_DISEASES)
        while todo:
            if (id := todo.pop()) not in wanted:
                wanted.add(id)
                todo += narrower[id]

        def records(tally: Tally) -> Iterator[Record]:
            return (_capitalised(nouns[id]) for id in sorted(wanted))

        build(records, path, origin=Origin("benchmarks"))
    return path


def write_training_data(folder: Path) -> tuple[Path, int]:
    """Write a KB of all domains and texts linked to it; return the file of texts and their number.

    A word whose sense is of another domain is NIL. Words that are not a name of the KB as they stand (plurals) are left
    out.
    """
    entities: dict[str, Entity] = {}
    for domain in DOMAINS:
        with KnowledgeBase.open(concept_kb(folder, domain)) as kb:
            entities |= {entity.id: entity for entity in kb.entities()}

    def records(tally: Tally) -> Iterator[Record]:
        return iter(entities.values())

    if not (folder / "concepts.kb").exists():
        build(records, folder / "concepts.kb", origin=Origin("benchmarks"))
    names = {name.casefold() for entity in entities.values() for name in (entity.title, *entity.aliases)}
    keys = SenseKeys.read()
    rows = chain(_rows("masc"), (row for row in _rows("wngt") if not _is_for_scorer(row)))
    singles = (_document([row], keys) for row in rows if row["senses"])
    path, count = folder / "concepts.jsonl", 0
    with write_atomically(path) as file:
        for document in chain(_semcor(keys, "semcor_brown1"), singles):
            links = [link for link in document.links if link.text.casefold() in names]
            if len({link.entity for link in links if link.entity in entities}) < _LEAST_TERMS:
                continue
            mentions = [[link.start, link.end, link.entity if link.entity in entities else None] for link in links]
            file.write(json.dumps({"text": document.text, "mentions": mentions}).encode() + b"\n")
            count += 1
    return path, count


def _capitalised(entity: Entity) -> Entity:
    aliases = {name[0].upper() + name[1:]: count for name, count in entity.aliases.items()}
    return replace(entity, title=entity.title[0].upper() + entity.title[1:], aliases=aliases)


class ConceptTexts:
    """SemCor and WordNet's definitions, linked to synsets."""

    def __init__(self) -> None:
        keys = SenseKeys.read()
        self._semcor = list(_semcor(keys, "semcor_brown2"))
        rows = (row for row in _rows("wngt") if row["kind"] == "def" and row["senses"] and _is_for_scorer(row))
        self._definitions = [_document([row], keys) for row in rows]

    def semcor(self, entities: set[str], seed: int = 0) -> list[Document]:
        """Return documents whose links to other entities are NIL; four in five have a term of the domain."""
        documents = [_limited(document, entities) for document in self._semcor]
        random.Random(seed).shuffle(documents)
        has, has_not = _parted(documents, 1)
        return [*has[:_WITH], *has_not[:_WITHOUT]]

    def definitions(self, entities: set[str], seed: int = 0) -> list[Document]:
        """Return definitions with two terms of the domain or more."""
        documents = [_limited(document, entities) for document in self._definitions]
        random.Random(seed).shuffle(documents)
        return _parted(documents, 2)[0][:_DEFINITIONS]


def _semcor(keys: SenseKeys, part: str) -> Iterator[Document]:
    by_document = defaultdict(list)
    for row in _rows(part):
        by_document[row["id"].rpartition(".")[0]].append(row)
    for rows in by_document.values():
        for begin in range(0, len(rows), _SENTENCES):
            yield _document(rows[begin : begin + _SENTENCES], keys)


def _is_for_scorer(row: dict) -> bool:  # type: ignore[type-arg]
    """Tell if a definition trains the scorer: half of the synsets do, the encoder is trained on those of the others."""
    return hashlib.sha256(str(row["synset"]).encode()).digest()[0] % 2 == 1


def _rows(name: str) -> Iterator[dict]:  # type: ignore[type-arg]
    with lzma.open(DATA / "senses" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _document(rows: Sequence[dict], keys: SenseKeys) -> Document:  # type: ignore[type-arg]
    """Join sentences, with a link for each word that has a sense."""
    text, links, glue = "", list[Link](), True
    for row in rows:
        spans = []
        for token in row["tokens"]:
            word = token.replace("_", " ") if len(token) > 1 else token
            if text and not glue and not word.startswith(_NO_SPACE_BEFORE):
                text += " "
            spans.append((len(text), len(text) + len(word)))
            text += word
            glue = word in _NO_SPACE_AFTER
        for place, _, _, senses, _ in [*row["senses"], *row.get("auto", ())]:
            start, end = spans[place]
            links.append(Link(start, end, text[start:end], next(iter(keys.synsets(senses)), None)))
    return Document(text, links=tuple(sorted(links, key=lambda link: (link.start, link.end))))


def _limited(document: Document, entities: set[str]) -> Document:
    """Return a document in which links to other entities are NIL."""
    links = tuple(link if link.entity in entities else replace(link, entity=None) for link in document.links)
    return replace(document, links=links)


def _parted(documents: Sequence[Document], least: int) -> tuple[list[Document], list[Document]]:
    """Return documents with at least so many links to an entity, and those with none."""
    counts = [sum(link.entity is not None for link in document.links) for document in documents]
    pairs = list(zip(documents, counts, strict=True))
    return [one for one, count in pairs if count >= least], [one for one, count in pairs if not count]


if __name__ == "__main__":
    file, number = write_training_data(Path(sys.argv[1]))
    print(f"{file}: {number:,} texts")
