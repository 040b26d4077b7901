"""A KB of companies and people with namesakes, and an entity encoder that knows a few words."""

import numpy as np
import pytest

from wellread.index.entity_index import build_index
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mapping.mapper import Meaning, NameMapper

ENTITIES = (
    Entity("m1", "Siemens AG", "engineering company", "company", 90, {"Siemens": 30, "Siemens AG": 9}),
    Entity("m2", "Bosch GmbH", "tool maker", "company", 80, {"Bosch": 20, "Robert Bosch GmbH": 5}),
    Entity("m3", "Dr. Martens", "boots", "company", 40, {"Dr. Martens": 3}),
    Entity("m4", "United Nations", "organization", "organization", 99, {"United Nations": 50}),
    Entity("m5", "International Business Machines", "computers", "company", 70, {"IBM Corp.": 2}),
    Entity("p1", "Marie Curie", "physicist", "person", 95, {"Marie Curie": 40, "Curie": 5}),
    Entity("p2", "John Smith (explorer)", "explorer of Virginia", "person", 30, {"John Smith": 20}),
    Entity("p3", "John Smith (actor)", "actor in films", "person", 10, {"John Smith": 4}),
    Entity("g1", "Galaxy S21", "phone", "product", 20),
    Entity("g2", "Galaxy S22", "phone", "product", 20),
    Entity("c1", "Köln", "city on the Rhine", "city", 60, {"Köln": 9, "Cologne": 5}),
    Entity("x1", "C++", "programming language", "language", 50),
    Entity("x2", "東京", "capital of Japan", "city", 50),
    *(Entity(f"f{at}", f"{name} AG", "company", "company", at) for at, name in enumerate(("Falk", "Otto", "Krug"))),
)


class ToyEncoder:
    """Vectors of texts by a few words that mean the same."""

    dim = 8
    fingerprint = "toy"
    groups = (
        {"boots", "shoes"},
        {"phone", "mobile"},
        {"films", "cinema", "actor"},
        {"virginia", "explorer", "sailing"},
        {"physicist", "radium"},
        {"city", "rhine"},
        {"tool", "drill"},
        {"computers"},
    )

    def encode(self, entities):
        found = np.full((len(entities), self.dim), 0.01, np.float32)
        for at, text in enumerate(entities):
            words = set(" ".join(text).lower().replace(",", " ").split())
            found[at] += [len(words & group) for group in self.groups]
        return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def names_kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "names.kb"
    build(lambda tally: iter(ENTITIES), path, origin=Origin("test"))
    return path


@pytest.fixture(scope="session")
def mapper(names_kb):
    with KnowledgeBase.open(names_kb) as kb:
        yield NameMapper.load(kb)


@pytest.fixture(scope="session")
def meaning_mapper(names_kb):
    with KnowledgeBase.open(names_kb) as kb:
        encoder = ToyEncoder()
        yield NameMapper.load(kb, Meaning(build_index(kb, encoder), encoder))
