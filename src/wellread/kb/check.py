"""Is a knowledge base whole? Every rule that the rest of the library relies on, asked of the file itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from wellread.kb import names
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase

_CHUNK = 100_000

_RULES = (
    ("entities without a name", "SELECT id FROM entities WHERE num NOT IN (SELECT entity FROM aliases)"),
    ("aliases of no entity", "SELECT name FROM aliases WHERE entity NOT IN (SELECT num FROM entities)"),
    ("negative counts", "SELECT name FROM aliases WHERE count < 0"),
    ("facts of no subject", "SELECT subject FROM facts WHERE subject NOT IN (SELECT num FROM entities)"),
    ("facts of no object", "SELECT object FROM facts WHERE object NOT IN (SELECT num FROM entities)"),
    ("facts of no relation", "SELECT relation FROM facts WHERE relation NOT IN (SELECT num FROM relations)"),
    ("unfinished build", "SELECT key FROM metadata WHERE key = 'building'"),
    (
        "changes after the last revision",
        "SELECT revision FROM changed_names WHERE revision > (SELECT 0 + value FROM metadata WHERE key = 'revision')",
    ),
    (
        "entities missing from the text index",
        "SELECT id FROM entities WHERE num NOT IN (SELECT id FROM entity_text_docsize)",
    ),
    (
        "text of entities that are gone",
        "SELECT id FROM entity_text_docsize WHERE id NOT IN (SELECT num FROM entities)",
    ),
)


def check(kb: KnowledgeBase) -> list[str]:
    """What is wrong, a line each; an empty list means that the file is sound."""
    with sqlite_errors(kb.path):
        damage = [row[0] for row in kb.connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        if damage:
            return [f"the file is damaged: {line}" for line in damage]
        return [*_broken_rules(kb), *_wrong_keys(kb)]


def _broken_rules(kb: KnowledgeBase) -> Iterator[str]:
    for rule, query in _RULES:
        rows = kb.connection.execute(query)
        first = rows.fetchone()
        if first is not None:
            count = 1 + sum(1 for _ in rows)
            yield f"{rule}: {count:,} (first: {first[0]})"


def _wrong_keys(kb: KnowledgeBase) -> Iterator[str]:
    rows = kb.connection.execute("SELECT name, key FROM aliases")
    while chunk := list(islice(rows, _CHUNK)):
        found = names.keys([name for name, _ in chunk]).view("int64").tolist()
        for (name, key), right in zip(chunk, found, strict=True):
            if key != right:
                yield f"the alias {name!r} has a wrong key; it was not written by wellread"
                return
