"""Routes of knowledge bases: search, look up, and with the token, change entities."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from wellread.errors import KnowledgeBaseError, ReplacedError, UsageError
from wellread.kb.changes import fault
from wellread.kb.records import Entity
from wellread.kb.schema import is_busy
from wellread.server import schemas
from wellread.server.access import token_check
from wellread.server.engine import Engine
from wellread.server.registry import Edit, EntityExistsError
from wellread.server.responses import ERROR_RESPONSES, json_response, wait_for_result

_MAX_NEIGHBOURS = 60
"""Maximum neighbours in a response."""
CHANGES: dict[int | str, dict[str, Any]] = {
    **ERROR_RESPONSES,
    401: {"model": schemas.Problem, "description": "no token, or a wrong one"},
    403: {"model": schemas.Problem, "description": "the server is read-only"},
    404: {"model": schemas.Problem, "description": "no such entity"},
    409: {"model": schemas.Problem, "description": "the knowledge base refuses the change"},
}
"""Responses of routes that need the token."""
Id = Annotated[str, Path(examples=["Q90"], description="An entity's id, as in links and search results.")]
Kb = Annotated[str | None, Query(max_length=500, description="Knowledge base; the first by default.")]
New = Annotated[Literal["*"] | None, Header(description="Add a new entity; do not replace an existing one.")]


class _RestOfPath(Convertor[str]):
    """Converter for the rest of a path; starlette's `path` ends at a line break, and would read "Q90\\n" as Q90."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def add_entity_routes(app: FastAPI, engine: Engine) -> None:
    """Add the routes of an engine."""
    register_url_convertor("whole", _RestOfPath())

    check_token = token_check(engine.settings)
    limits = engine.settings.limits

    async def change(request: Request, kb: str | None, id: str, entity: Entity | None, new: bool = False) -> Response:
        name = kb_name(engine, kb)
        try:
            done = await wait_for_result(request, engine.edit(Edit(name, id, entity, new)), limits.seconds)
        except (ReplacedError, EntityExistsError):
            raise
        except KnowledgeBaseError as error:
            if is_busy(error.__cause__):
                why = f"{name} is locked by another process; try again in a few seconds"
                raise HTTPException(503, why, {"retry-after": "5"}) from None
            # in an entity that is added, the unknown id is the object of a fact
            raise KnowledgeBaseError(str(error)) if entity is not None else error from None
        content = {"kb": name, "id": id, "what": done.what, "revision": done.revision}
        return json_response(content, 201 if done.what == "added" else 200)

    @app.get("/entities", response_model=schemas.Found, responses=ERROR_RESPONSES, tags=["knowledge"])
    async def search(
        request: Request,
        search: Annotated[str, Query(max_length=500, examples=["mercury"], description="Search text.")],
        how: Literal["prefix", "text", "fuzzy"] = "prefix",
        limit: Annotated[int, Query(ge=1, le=100)] = 10,
        kb: Kb = None,
    ) -> Response:
        """Search entities by the beginning of a name, by words, or by a name with typos."""
        name = kb_name(engine, kb)
        pending = engine.search(engine.registry.served_kb(name).kb, search, how, limit)
        found = await wait_for_result(request, pending, limits.seconds)
        return json_response({"entities": [{"kb": name, **asdict(entity)} for entity in found]})

    @app.get(
        "/entities/{id:whole}",
        response_model=schemas.EntityCard,
        responses={**ERROR_RESPONSES, 404: {"model": schemas.Problem, "description": "no such entity"}},
        tags=["knowledge"],
    )
    async def entity(request: Request, id: Id, kb: Kb = None) -> Response:
        """Return an entity with its aliases, facts and neighbours."""
        name = kb_name(engine, kb)
        pending = engine.entity(engine.registry.served_kb(name).kb, id)
        known, neighbours, revision = await wait_for_result(request, pending, limits.seconds)
        content = {
            "kb": name,
            **asdict(known),
            "neighbours": neighbours[:_MAX_NEIGHBOURS],
            "more_neighbours": max(0, len(neighbours) - _MAX_NEIGHBOURS),
            "revision": revision,
        }
        return json_response(content)

    @app.put(
        "/entities/{id:whole}",
        response_model=schemas.Changed,
        responses={
            **CHANGES,
            201: {"model": schemas.Changed, "description": "added"},
            412: {"model": schemas.Problem, "description": "the entity exists, and If-None-Match: * was sent"},
        },
        dependencies=[Depends(check_token)],
        tags=["knowledge"],
    )
    async def put(
        request: Request, id: Id, body: schemas.EntityBody, kb: Kb = None, if_none_match: New = None
    ) -> Response:
        """Add or replace an entity; it is used for the next texts."""
        aliases = body.aliases if isinstance(body.aliases, dict) else dict.fromkeys(body.aliases, 1.0)
        facts = tuple(body.facts)
        entity = Entity(id, body.title, body.description, body.kind, body.popularity, aliases, facts)
        if reason := fault(entity):
            raise UsageError(f"the entity {id!r} {reason}; correct it and send it again")
        return await change(request, kb, id, entity, if_none_match is not None)

    @app.delete(
        "/entities/{id:whole}",
        response_model=schemas.Changed,
        responses=CHANGES,
        dependencies=[Depends(check_token)],
        tags=["knowledge"],
    )
    async def delete(request: Request, id: Id, kb: Kb = None) -> Response:
        """Remove an entity with its aliases and all facts that contain it."""
        return await change(request, kb, id, None)


def kb_name(engine: Engine, kb: str | None) -> str:
    """Return the name of a served KB; None is the first."""
    engine.registry.served_kb(kb)
    return kb if kb is not None else next(iter(engine.registry.served_kbs))
