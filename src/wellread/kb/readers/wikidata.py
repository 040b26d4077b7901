"""Wikidata's JSON dump (`latest-all.json.gz`): an entity per item, with names, facts and popularity.

The dump is one JSON array with an item or property a line, so it is read line by line, one item in memory. An item
becomes an `Entity`:

- title: its label in the language, else its label for all languages (`mul`), else the title of its Wikipedia page;
- aliases: the label, the aliases, the title of the page with and without its parenthesis, each counted as often as it
  was given;
- kind: the first class it is an instance of (P31), statements of preferred rank first;
- facts: (property, item) for every statement whose value is an item; deprecated ones are left out, and so are values
  that are unknown or that do not exist;
- popularity: the number of its sitelinks, that is of pages about it in all wikis.

Properties and lexemes are skipped; a relation is called by its id ("P36").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from wellread.errors import InputError
from wellread.io.files import read_lines
from wellread.kb.readers.wikitext import bare_title
from wellread.kb.records import Entity, Record, Tally

_INSTANCE_OF = "P31"
_ALL_LANGUAGES = "mul"
_OTHERS = ("property", "lexeme", "mediainfo")
_PATIENCE = 100
"""Broken lines without a valid one after which the file is rejected."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    language: str
    classes: Collection[str] | None
    with_page: bool

    @property
    def wiki(self) -> str:
        return f"{self.language.replace('-', '_')}wiki"

    @property
    def no_page(self) -> InputError:
        return InputError(f"no page in {self.wiki}")


def read_wikidata(
    path: str | Path,
    tally: Tally,
    *,
    language: str = "en",
    classes: Collection[str] | None = None,
    with_page: bool = False,
) -> Iterator[Record]:
    """Yield the items of a dump, plain, gz, bz2 or xz, as entities.

    `classes` keeps the direct instances of some classes (`{"Q5"}`: humans), but not those of their subclasses: name
    these too. `with_page` keeps items with a page in the Wikipedia of the language.
    """
    wanted = _Wanted(language, classes, with_page)
    page_key = f'"{wanted.wiki}"'.encode()
    known = broken = 0
    for number, line in read_lines(path, tally):
        line = line.strip().removesuffix(b",")
        if line in (b"", b"[", b"]"):
            continue
        try:
            # Most items have no page, and this test takes a fraction of the time of parsing.
            if with_page and page_key not in line and line.startswith(b'{"type":"item"') and line.endswith(b"}"):
                raise wanted.no_page
            entity = _read_item(orjson.loads(line), wanted)
        except InputError as reason:
            known += 1
            tally.skip(str(reason), f"line {number}")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            broken += 1
            tally.skip("broken line", f"line {number}")
            if not known and broken == _PATIENCE:
                break
        else:
            known += 1
            tally.read += 1
            yield entity
    if not known:
        expected = '{"type":"item","id":"Q42",…}'
        raise InputError(f"{path} is not a Wikidata dump: expected a line for each item, {expected}, and found none")


def _read_item(data: Any, wanted: _Wanted) -> Entity:
    """Return the entity of a line; `InputError` is a reason to skip it, any other error means that it is broken."""
    if data["type"] in _OTHERS:
        raise InputError(f"{data['type']}, not an item")
    if data["type"] != "item":
        raise KeyError(data["type"])
    # Wikidata writes an empty map as an empty list.
    labels, aliases, sitelinks, claims = (data.get(key) or {} for key in ("labels", "aliases", "sitelinks", "claims"))
    page = str(sitelinks[wanted.wiki]["title"]) if wanted.wiki in sitelinks else ""
    if wanted.with_page and not page:
        raise wanted.no_page
    kinds = list(_values(claims.get(_INSTANCE_OF, ())))
    if wanted.classes is not None and not any(kind in wanted.classes for kind in kinds):
        raise InputError("not an instance of the classes")
    label = _term(labels, wanted.language) or _term(labels, _ALL_LANGUAGES) or page
    if not label:
        raise InputError(f"no label in {wanted.language}")
    names = Counter([label, *dict.fromkeys((page, bare_title(page)) if page else ())])
    names.update(str(alias["value"]) for key in (wanted.language, _ALL_LANGUAGES) for alias in aliases.get(key, ()))
    return Entity(
        id=str(data["id"]),
        title=label,
        description=_term(data.get("descriptions") or {}, wanted.language),
        kind=kinds[0] if kinds else "",
        popularity=float(len(sitelinks)),
        aliases={name: float(count) for name, count in names.items()},
        facts=tuple(
            dict.fromkeys((relation, value) for relation, statements in claims.items() for value in _values(statements))
        ),
    )


def _term(terms: Mapping[str, Any], language: str) -> str:
    return str(terms[language]["value"]) if language in terms else ""


def _values(statements: Collection[Any]) -> Iterator[str]:
    """Yield the items that are values of the statements of one property, preferred rank first."""
    for statement in sorted(statements, key=lambda statement: statement["rank"] != "preferred"):
        snak = statement["mainsnak"]
        if statement["rank"] == "deprecated" or snak["snaktype"] != "value":
            continue
        value = snak["datavalue"]["value"]
        if snak["datavalue"]["type"] == "wikibase-entityid" and value["entity-type"] == "item":
            yield value.get("id") or f"Q{value['numeric-id']}"  # dumps before 2017 have only the number
