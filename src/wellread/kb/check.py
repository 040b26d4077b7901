"""Consistency check of a knowledge base file: every rule that the rest of the library relies on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, zip_longest

import orjson

from wellread.errors import KnowledgeBaseError
from wellread.kb.lookup import grouped_names
from wellread.kb.schema import INDEXES, is_busy, sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.text import words as names

_CHUNK = 100_000

_RULES = (
    ("entities without a name", "SELECT id FROM entities WHERE num NOT IN (SELECT entity FROM aliases)"),
    ("aliases of no entity", "SELECT name FROM aliases WHERE entity NOT IN (SELECT num FROM entities)"),
    ("counts that are no numbers from 0 on", "SELECT name FROM aliases WHERE NOT (count BETWEEN 0 AND 1e308)"),
    (
        "popularities that are no numbers from 0 on",
        "SELECT id FROM entities WHERE NOT (popularity BETWEEN 0 AND 1e308)",
    ),
    ("aliases without a letter or sign", "SELECT entity FROM aliases WHERE key = 0"),
    ("facts of no subject", "SELECT subject FROM facts WHERE subject NOT IN (SELECT num FROM entities)"),
    ("facts of no object", "SELECT object FROM facts WHERE object NOT IN (SELECT num FROM entities)"),
    ("facts of no relation", "SELECT relation FROM facts WHERE relation NOT IN (SELECT num FROM relations)"),
    ("unfinished build", "SELECT key FROM metadata WHERE key = 'building'"),
    (
        "metadata missing",
        "SELECT column1 FROM (VALUES ('uid'), ('revision')) WHERE column1 NOT IN (SELECT key FROM metadata)",
    ),
    (
        "a revision that is no number",
        "SELECT value FROM metadata WHERE key = 'revision' AND (value = '' OR value GLOB '*[^0-9]*')",
    ),
    (
        "changes after the last revision",
        "SELECT max(revision) FROM (SELECT revision FROM changed_names UNION SELECT revision FROM changed_entities) "
        "HAVING max(revision) > (SELECT 0 + value FROM metadata WHERE key = 'revision')",
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
    """Return the faults of a KB, one per line; an empty list means that the file is sound."""
    if damage := list(_damage(kb)):
        return [f"the file is damaged: {line}" for line in damage]
    found: list[str] = []
    for part in (_missing_indexes, _broken_rules, _wrong_keys, _wrong_names, _wrong_text):
        try:
            with sqlite_errors(kb.path):
                found += part(kb)
        except KnowledgeBaseError as error:
            if is_busy(error.__cause__) or "no such table" in str(error.__cause__):
                raise
            found.append(f"the file is damaged: {error.__cause__ or error}")
        except (TypeError, AttributeError, ValueError) as error:  # e.g. a number where a text should be
            found.append(f"the file is damaged: {error}")
    return found


def _damage(kb: KnowledgeBase) -> Iterator[str]:
    try:
        with sqlite_errors(kb.path):
            yield from (row[0] for row in kb.connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok")
            kb.connection.execute("SELECT count(*) FROM vocabulary").fetchone()  # reads the whole text index
    except KnowledgeBaseError as error:
        if is_busy(error.__cause__):
            raise
        yield str(error.__cause__ or error)


def _missing_indexes(kb: KnowledgeBase) -> Iterator[str]:
    there = {name for (name,) in kb.connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    missing = sorted(set(re.findall(r"INDEX IF NOT EXISTS (\w+)", INDEXES)) - there)
    if missing:
        yield f"missing indexes: {', '.join(missing)}"


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


def _wrong_names(kb: KnowledgeBase) -> Iterator[str]:
    """Compare the table of names with the tables that it repeats."""
    there = kb.connection.execute("SELECT key, aliases FROM names ORDER BY key")
    for row, right in zip_longest(there, grouped_names(kb.connection)):
        if (
            row is None
            or right is None
            or (row[0], sorted(map(tuple, orjson.loads(row[1])))) != (right[0], sorted(right[1]))
        ):
            name = right[1][0][0] if right else row[1]
            yield f"the look-up of the name {name!r} does not say what its aliases and entities say"
            return


def _wrong_text(kb: KnowledgeBase) -> Iterator[str]:
    """Compare the word counts of the text index per entity (as varints) with those per word."""
    indexed = kb.connection.execute("SELECT coalesce(sum(cnt), 0) FROM vocabulary").fetchone()[0]
    sizes = kb.connection.execute("SELECT sz FROM entity_text_docsize")
    written = sum(sum(_varints(size)) for (size,) in sizes)
    if indexed != written:
        yield f"the text index holds {indexed:,} words of {written:,}; entities will not be found"


def _varints(data: bytes) -> Iterator[int]:
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            yield value
            value = 0
