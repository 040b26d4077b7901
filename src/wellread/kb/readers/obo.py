r"""Ontologies in OBO format (1.0 to 1.4): HPO, Gene Ontology, MONDO, ChEBI, …

    [Term]
    id: HP:0000003
    name: Multicystic kidney dysplasia
    alt_id: HP:0004715
    def: "Multicystic dysplasia of the kidney is …" [https://orcid.org/0000-0002-0736-9199]
    synonym: "Multicystic kidneys" EXACT []
    xref: UMLS:C3714581
    is_a: HP:0000107 ! Renal cyst

A term is an entity: its definition is the description, its namespace the kind. Its name has the count 2, an exact
synonym 1, others ½. `is_a` and `relationship` become facts; relations are called by the names of their Typedefs.
`alt_id` and the ids of obsolete terms that name one replacement are former ids, `xref` are cross-references. Obsolete
terms and synonyms are skipped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from wellread.errors import InputError, UsageError
from wellread.io.files import decode, path_name, read_lines
from wellread.kb.readers.hierarchy import descendants
from wellread.kb.records import XREF, Entity, OtherId, Record, Tally

Scope = Literal["exact", "narrow", "broad", "related"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

NAME_COUNT, EXACT_COUNT, OTHER_COUNT = 2.0, 1.0, 0.5
"""Counts of names: the term's own, an exact synonym, another synonym."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(.*)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "W": " ", "t": "\t"}
_OLD_SYNONYMS = {f"{scope}_synonym": scope for scope in SCOPES}
_GONE = re.compile("obsolete|deprecated", re.IGNORECASE)
"""Types of synonyms that are out of use."""


@dataclass(slots=True)
class _Stanza:
    """The tags and values between two headings in brackets, and the line of its heading."""

    type: str
    line: int
    tags: list[tuple[str, str]] = field(default_factory=list)

    def all(self, *names: str) -> list[str]:
        return [value for tag, value in self.tags if tag in names]

    def first(self, name: str) -> str:
        return next((value for tag, value in self.tags if tag == name), "")


@dataclass(slots=True)
class _Survey:
    """Names of relations, and parents of terms, read before the first entity is made."""

    relations: dict[str, str] = field(default_factory=dict)
    parents: dict[str, list[str]] = field(default_factory=dict)


def read_obo(
    path: str | Path, tally: Tally, *, below: Collection[str] = (), scopes: Collection[Scope] = SCOPES
) -> Iterator[Record]:
    """Yield the terms of an OBO file, plain or compressed, and their other ids.

    `below` keeps the terms below some terms by `is_a`, without these; `scopes` are the synonyms to take.
    """
    if unknown := set(scopes) - set(SCOPES):
        raise UsageError(f"scope {min(unknown)!r} is not known; choose from {', '.join(SCOPES)}")
    if below and not Path(path).is_file():
        raise UsageError(f"terms below others need a file that can be read twice, not {path_name(path)}")
    survey = _survey(path) if Path(path).is_file() else _Survey()
    kept = descendants(survey.parents, below, path_name(path)) if below else None
    namespace, replaced, ids = "", [], set[str]()
    for stanza in _stanzas(path, tally):
        if not stanza.type:
            namespace = stanza.first("default-namespace")
            continue
        if stanza.type != "Term":
            if stanza.type != "Typedef":
                tally.skip(f"{stanza.type}, not a term", f"line {stanza.line}")
            continue
        term = _word(stanza.first("id"))
        if stanza.first("is_obsolete") == "true":
            tally.skip("obsolete term", term)
            if len(new := stanza.all("replaced_by")) == 1:
                replaced.append((term, _word(new[0])))
            continue
        if kept is not None and term not in kept:
            tally.skip(f"term not below {', '.join(below)}")
            continue
        if not term or not stanza.first("name"):
            tally.skip("term without an id or a name", f"{term} in line {stanza.line}")
            continue
        tally.read += 1
        ids.add(term)
        yield _entity(term, stanza, namespace, survey.relations, scopes, tally)
        yield from (OtherId(_word(value), term) for value in stanza.all("alt_id"))
        yield from (OtherId(_word(value), term, XREF) for value in stanza.all("xref"))
    yield from (OtherId(old, new) for old, new in replaced if new in ids)


def read_obo_header(path: str | Path) -> dict[str, str]:
    """Return version, title and licence of an ontology, as far as its header names them."""
    if not Path(path).is_file():
        return {}
    header = next(_stanzas(path, Tally()), _Stanza("", 0))
    found = {"version": header.first("data-version") or header.first("ontology")}
    for value in header.all("property_value"):
        name, _, rest = value.partition(" ")
        quoted = _QUOTED.match(rest)
        text = _unescaped(quoted[1]) if quoted else _word(rest)
        for key in ("title", "license"):
            if re.split("[:/#]", name)[-1] == key and text:
                found.setdefault("licence" if key == "license" else key, text)
    return {key: value for key, value in found.items() if value}


def _survey(path: str | Path) -> _Survey:
    found = _Survey()
    for stanza in _stanzas(path, Tally()):
        id = _word(stanza.first("id"))
        if stanza.type == "Typedef":
            found.relations[id] = _unescaped(stanza.first("name")) or id
        elif stanza.type == "Term":
            found.parents[id] = [_word(value) for value in stanza.all("is_a")]
    return found


def _entity(
    id: str,
    stanza: _Stanza,
    namespace: str,
    relations: dict[str, str],
    scopes: Collection[Scope],
    tally: Tally,
) -> Entity:
    title = _unescaped(stanza.first("name"))
    aliases = dict(_synonyms(stanza, scopes, tally)) | {title: NAME_COUNT}
    facts = [("is_a", _word(value)) for value in stanza.all("is_a")]
    for value in stanza.all("relationship"):
        relation, _, other = value.partition(" ")
        facts.append((relations.get(relation, relation), _word(other)))
    definition = _QUOTED.match(stanza.first("def"))
    return Entity(
        id=id,
        title=title,
        description=" ".join(_unescaped(definition[1]).split()) if definition else "",
        kind=_word(stanza.first("namespace")) or namespace,
        aliases=aliases,
        facts=tuple(fact for fact in facts if fact[1]),
    )


def _synonyms(stanza: _Stanza, scopes: Collection[Scope], tally: Tally) -> Iterable[tuple[str, float]]:
    """Return the synonyms of the wanted scopes with their counts; of one name in two scopes, the higher."""
    found: dict[str, float] = {}
    for tag, value in stanza.tags:
        if tag != "synonym" and tag not in _OLD_SYNONYMS:
            continue
        quoted = _QUOTED.match(value)
        if quoted is None:
            tally.skip("synonym without quotation marks", f"line {stanza.line} and after")
            continue
        words = quoted[2].partition("[")[0].split()
        scope = _OLD_SYNONYMS.get(tag) or next((one for one in SCOPES if words[:1] == [one.upper()]), "related")
        if scope not in scopes:
            tally.skip(f"{scope} synonym")
        elif any(_GONE.search(word) for word in words[1:]):
            tally.skip("obsolete synonym", quoted[1])
        else:
            count = EXACT_COUNT if scope == "exact" else OTHER_COUNT
            name = _unescaped(quoted[1])
            found[name] = max(count, found.get(name, 0))
    return found.items()


def _stanzas(path: str | Path, tally: Tally) -> Iterator[_Stanza]:
    """Yield the header (of type "") and the stanzas; a file without a term or a typedef is an `InputError`."""
    stanza, any_stanza = _Stanza("", 1), False
    for number, data in read_lines(path, tally):
        line = decode(data, f"{path_name(path)}, line {number}").strip()
        if line.startswith("[") and line.endswith("]"):
            yield stanza
            stanza, any_stanza = _Stanza(line[1:-1], number), True
        elif line and not line.startswith("!"):
            tag, colon, value = line.partition(":")
            if not colon and not any_stanza:
                break
            stanza.tags.append((tag.strip(), value.strip()))
    if not any_stanza:
        raise InputError(
            f"{path_name(path)} is not OBO: it has no stanza such as [Term]; for RDF or OWL: wellread kb build skos"
        )
    yield stanza


def _word(value: str) -> str:
    """Return the first word of a value: an id without its comment ("! …") and modifiers ("{…}")."""
    word = value.split(maxsplit=1)[0] if value else ""
    return _unescaped(word)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text) if "\\" in text else text
