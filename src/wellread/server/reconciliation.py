"""Reconciliation of one KB: manifest, queries, suggestions, previews and data extension.

Implements the Reconciliation Service API 0.2 of the W3C Entity Reconciliation Community Group
(https://www.w3.org/community/reports/reconciliation/CG-FINAL-specs-0.2-20230410/), which OpenRefine speaks. Types are
the kinds of a KB, properties its fields and relations. The routes are in `reconciliation_routes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from wellread import __version__
from wellread.errors import InputError, UnknownEntityError
from wellread.kb.records import Entity
from wellread.kb.schema import sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.mapping.results import MappedString
from wellread.plots.html import escape
from wellread.server.responses import describe_errors

BATCH = 50
"""Queries of a batch that the manifest names; `MOST` are accepted."""
MOST = 500
MATCH = 0.9
"""Probability from which on a candidate is a match, which OpenRefine takes without asking."""
SUGGESTIONS = 10
_GENERIC = {"id": "entity", "name": "Entity"}
"""The type of all entities."""
_TYPES = 10
"""Maximum types of the manifest."""
FIELDS = {"title": "title", "description": "description", "kind": "kind", "aliases": "aliases"}
"""Properties of every entity; the relations of its facts are properties too."""
_STYLE = "body{margin:.6rem;font:13px/1.4 system-ui,sans-serif}h1{font-size:15px;margin:0 0 .3rem}p{margin:.2rem 0}"
Value = str | int | float | bool | dict[str, Any]
Stop = Callable[[], bool]
Text = Annotated[str, Field(max_length=2_000)]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PropertyValue(_Given):
    """A property and the values that the entity should have."""

    pid: Text
    v: Value | list[Value]


class Query(_Given):
    """A reconciliation query."""

    query: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    type: Text | list[Text] | list[dict[str, Any]] | None = None
    limit: float = Field(5, ge=1)
    properties: list[PropertyValue] = Field(default_factory=list, max_length=50)
    type_strict: Literal["any", "all", "should"] = "any"

    @model_validator(mode="after")
    def _asks(self) -> Query:
        if self.query is None and not self.properties:
            raise ValueError("give query, or properties with values")
        return self

    @property
    def types(self) -> list[str]:
        """The kinds that were asked for; empty for any."""
        given = self.type if isinstance(self.type, list) else [] if self.type is None else [self.type]
        ids = [str(one.get("id", "")) if isinstance(one, dict) else one for one in given]
        return [id for id in ids if id not in ("", _GENERIC["id"])]

    @property
    def context(self) -> str:
        """The values of the properties as one text."""
        found: list[str] = []
        for one in self.properties:
            for value in one.v if isinstance(one.v, list) else [one.v]:
                found.append(str(value.get("name") or value.get("id", "")) if isinstance(value, dict) else str(value))
        return ", ".join(part for part in found if part)[:2_000]


class _Property(_Given):
    id: Text
    settings: dict[str, Any] = Field(default_factory=dict)


class Extension(_Given):
    """A data extension query: the values of properties of entities."""

    ids: list[Text] = Field(max_length=1_000)
    properties: list[_Property] = Field(max_length=50)


_BATCHES = TypeAdapter(dict[str, Query])


def read_batch(text: str) -> dict[str, Query]:
    """Read a batch of queries from JSON."""
    try:
        batch = _BATCHES.validate_json(text)
    except ValidationError as error:
        raise InputError(f"queries: {describe_errors(error.errors(include_url=False, include_input=False))}") from None
    if len(batch) > MOST:
        raise InputError(f"the batch has {len(batch)} queries; send at most {MOST}, best {BATCH}")
    return batch


def read_extension(text: str) -> Extension:
    """Read a data extension query from JSON."""
    try:
        return Extension.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"extend: {describe_errors(error.errors(include_url=False, include_input=False))}") from None


def manifest(kb: KnowledgeBase, name: str, base: str) -> dict[str, Any]:
    """Return the service manifest of a KB that is served at `base`."""
    here = f"{base}/reconcile/{quote(name, safe='')}"
    kinds = _kinds(kb)[:_TYPES]
    preview = {"url": f"{here}/preview?id={{{{id}}}}", "width": 400, "height": 160}
    return {
        "versions": ["0.2"],
        "name": f"{name} (wellread)",
        "identifierSpace": _identifier_space(kb),
        "schemaSpace": f"urn:wellread:kb:{kb.metadata['uid']}:schema",
        "serviceVersion": __version__,
        "defaultTypes": [_type(kind) for kind in kinds] or [_GENERIC],
        "view": {"url": preview["url"]},
        "preview": preview,
        "suggest": {
            what: {"service_url": here, "service_path": f"/suggest/{what}"} for what in ("entity", "type", "property")
        },
        "extend": {
            "propose_properties": {"service_url": here, "service_path": "/properties"},
            "property_settings": [],
        },
        "batchSize": BATCH,
    }


def _identifier_space(kb: KnowledgeBase) -> str:
    """Return Wikidata's space if all ids are Wikidata's, else one of this KB."""
    with sqlite_errors(kb.path):
        other = kb.connection.execute(
            "SELECT 1 FROM entities WHERE id NOT GLOB 'Q[0-9]*' OR substr(id, 2) GLOB '*[^0-9]*' LIMIT 1"
        ).fetchone()
    return f"urn:wellread:kb:{kb.metadata['uid']}:" if other else "http://www.wikidata.org/entity/"


def _kinds(kb: KnowledgeBase) -> list[str]:
    """Return the kinds of a KB, those of most entities first."""
    with sqlite_errors(kb.path):
        rows = kb.connection.execute(
            "SELECT kind FROM entities WHERE kind != '' GROUP BY kind ORDER BY count(*) DESC, kind"
        ).fetchall()
    return [str(kind) for (kind,) in rows]


def _type(kind: str) -> dict[str, str]:
    return {"id": kind, "name": kind} if kind else dict(_GENERIC)


def candidates(kb: KnowledgeBase, query: Query, mapped: MappedString | None) -> list[dict[str, Any]]:
    """Return the candidates of a query, best first.

    With types, the probability is shared again by the entities of these types and no entity. An id of the KB as the
    query is that entity.
    """
    limit = int(min(query.limit, 100))
    matches = list(mapped.matches) if mapped else []
    described = {match.entity: _brief(kb, match.entity) for match in matches}
    matches = [match for match in matches if described[match.entity] is not None]
    wanted = query.types
    scores = {match.entity: match.score for match in matches}
    if wanted and query.type_strict != "should":
        nothing = max(0.0, 1 - sum(scores.values()))
        kinds = set(wanted) if query.type_strict == "any" or len(set(wanted)) == 1 else set()  # an entity has one
        matches = [match for match in matches if (described[match.entity] or ("", ""))[0] in kinds]
        total = nothing + sum(scores[match.entity] for match in matches)
        scores = {match.entity: scores[match.entity] / total if total else 0.0 for match in matches}
    found = []
    for match in matches:
        kind, description = described[match.entity] or ("", "")
        found.append(_candidate(match.entity, match.title, kind, description, scores[match.entity], match.found_by))
    if query.query is not None and (itself := _brief(kb, query.query)) is not None:
        entity = kb.get(query.query)
        found = [one for one in found if one["id"] != entity.id]
        found.insert(0, _candidate(entity.id, entity.title, *itself, 1.0, "id"))
    return found[:limit]


def _candidate(id: str, title: str, kind: str, description: str, score: float, way: str) -> dict[str, Any]:
    return {
        "id": id,
        "name": title,
        "description": description,
        "type": [_type(kind)],
        "score": round(100 * score, 2),
        "match": score >= MATCH,
        "features": [
            {"id": "probability", "value": round(score, 4)},
            *({"id": f"found_by_{one}", "value": way == one} for one in ("exact", "typo", "meaning")),
        ],
    }


def _brief(kb: KnowledgeBase, id: str) -> tuple[str, str] | None:
    """Return kind and shortened description of an entity; None if it was removed meanwhile."""
    with sqlite_errors(kb.path):
        row = kb.connection.execute("SELECT kind, description FROM entities WHERE id = ?", (id,)).fetchone()
    return None if row is None else (str(row[0]), str(row[1])[:200])


def suggest_entities(kb: KnowledgeBase, prefix: str, cursor: int, stop: Stop) -> list[dict[str, Any]]:
    """Return entities whose names begin with a prefix, or whose id it is; misspelt ones if there are none."""
    most = cursor + SUGGESTIONS
    found = kb.search(prefix, limit=most, stop=stop) or kb.search(prefix, how="fuzzy", limit=most, stop=stop)
    if prefix in kb:
        found = [kb.get(prefix), *(one for one in found if one.id != prefix)]
    return [
        {
            "id": one.id,
            "name": one.title,
            "description": one.description[:200],
            "notable": [_type(one.kind)] if one.kind else [],
        }
        for one in found[cursor:most]
    ]


def suggest_types(kb: KnowledgeBase, prefix: str, cursor: int, stop: Stop) -> list[dict[str, Any]]:
    """Return kinds that contain a prefix, those that begin with it first."""
    return _suggested(_kinds(kb), prefix, cursor)


def suggest_properties(kb: KnowledgeBase, prefix: str, cursor: int, stop: Stop) -> list[dict[str, Any]]:
    """Return fields and relations that contain a prefix."""
    return _suggested([*FIELDS, *relations(kb)], prefix, cursor)


def _suggested(names: Sequence[str], prefix: str, cursor: int) -> list[dict[str, Any]]:
    given = prefix.casefold()
    found = [name for name in names if given in name.casefold()]
    found.sort(key=lambda name: not name.casefold().startswith(given))
    return [{"id": name, "name": name} for name in found[cursor : cursor + SUGGESTIONS]]


def relations(kb: KnowledgeBase) -> list[str]:
    """Return the names of a KB's relations."""
    with sqlite_errors(kb.path):
        return [str(name) for (name,) in kb.connection.execute("SELECT name FROM relations ORDER BY num")]


def proposed_properties(kb: KnowledgeBase, kind: str | None, limit: int | None) -> dict[str, Any]:
    """Return the properties that entities may have; kinds do not restrict them."""
    found = [{"id": name, "name": name} for name in (*FIELDS, *relations(kb))]
    answer: dict[str, Any] = {"properties": found if limit is None else found[:limit]}
    if kind is not None:
        answer["type"] = kind
    if limit is not None:
        answer["limit"] = limit
    return answer


def extend(kb: KnowledgeBase, extension: Extension, stop: Stop) -> dict[str, Any]:
    """Return the values of properties, as far as they are read when `stop` returns True.

    An unknown entity or property has no values.
    """
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    wanted = list(dict.fromkeys(one.id for one in extension.properties))
    for id in dict.fromkeys(extension.ids):
        if stop():
            break
        try:
            entity: Entity | None = kb.get(id)
        except UnknownEntityError:
            entity = None
        rows[id] = {name: [] for name in wanted} if entity is None else _values(kb, entity, wanted)
    return {"meta": [{"id": name, "name": name} for name in wanted], "rows": rows}


def _values(kb: KnowledgeBase, entity: Entity, wanted: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the values of each property; the facts of an entity, which may be many, are read once."""
    values: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    if any(name not in FIELDS for name in wanted):
        for one in kb.neighbours(entity.id):
            if one.outgoing and one.relation in values and one.relation not in FIELDS:
                values[one.relation].append({"id": one.entity, "name": one.title})
    for name in wanted:
        if name == "aliases":
            values[name] = [{"str": alias} for alias in entity.aliases]
        elif name in FIELDS and (value := str(getattr(entity, name))):
            values[name] = [{"str": value}]
    return values


def preview(kb: KnowledgeBase, id: str) -> str:
    """Return a small page about an entity."""
    entity = kb.get(id)
    others = [alias for alias in entity.aliases if alias != entity.title][:8]
    lines = [f"<p>{escape(entity.description[:300])}</p>" if entity.description else ""]
    lines.append(f"<p><small>{escape(entity.kind)}</small></p>" if entity.kind else "")
    lines.append(f"<p><small>also: {escape(', '.join(others))}</small></p>" if others else "")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(entity.title)}</title><style>{_STYLE}</style>"
        f"<h1><bdi>{escape(entity.title)}</bdi> <small>{escape(entity.id)}</small></h1>{''.join(lines)}</html>"
    )
