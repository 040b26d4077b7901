"""Routes of knowledge bases: search, look, and for those who have the token, change."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException

from wellread.errors import KnowledgeBaseError, ReplacedError, UsageError
from wellread.kb.changes import fault
from wellread.kb.records import Entity
from wellread.kb.schema import is_busy
from wellread.server import schemas
from wellread.server.engine import Engine
from wellread.server.linkers import Edit, TakenError
from wellread.server.responses import REFUSALS, answered, json_answer

_SHOWN = 60
"""Neighbours of an entity that are told."""
_CHANGES: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    401: {"model": schemas.Problem, "description": "no token, or a wrong one"},
    403: {"model": schemas.Problem, "description": "this server changes nothing"},
    404: {"model": schemas.Problem, "description": "no such entity"},
    409: {"model": schemas.Problem, "description": "the knowledge base does not take it"},
}
Id = Annotated[str, Path(examples=["Q90"], description="An entity's id, as links and searches tell it.")]
Kb = Annotated[str | None, Query(max_length=500, description="The first knowledge base unless given.")]
New = Annotated[Literal["*"] | None, Header(description="Add a new entity, but replace none.")]
BEARER = HTTPBearer(auto_error=False, description="The token that the server was started with.")


class _Whole(Convertor[str]):
    """All of a path's rest; starlette's `path` ends before a line break, and would take "Q90\\n" for Q90."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def add_entities(app: FastAPI, engine: Engine) -> None:
    """The routes of an engine."""
    register_url_convertor("whole", _Whole())

    async def permitted(given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        token = engine.settings.token
        if token is None:
            raise HTTPException(403, "this server changes nothing; start it with --token-file to let it")
        said = "" if given is None else given.credentials
        digests = [hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest() for one in (said, token)]
        if not hmac.compare_digest(*digests):
            raise HTTPException(401, "give the server's token: Authorization: Bearer …", {"www-authenticate": "Bearer"})

    limits = engine.settings.limits

    async def change(request: Request, kb: str | None, id: str, entity: Entity | None, new: bool = False) -> Response:
        name = _name(engine, kb)
        try:
            done = await answered(request, engine.edit(Edit(name, id, entity, new)), limits.seconds)
        except (ReplacedError, TakenError):
            raise
        except KnowledgeBaseError as error:
            if is_busy(error.__cause__):
                why = f"{name} is being changed by another process; try again when it is done"
                raise HTTPException(503, why, {"retry-after": "5"}) from None
            # of an entity to be put it is a fact's object that is unknown
            raise KnowledgeBaseError(str(error)) if entity is not None else error from None
        told = {"kb": name, "id": id, "what": done.what, "revision": done.revision}
        return json_answer(told, 201 if done.what == "added" else 200)

    @app.get("/entities", response_model=schemas.Found, responses=REFUSALS, tags=["knowledge"])
    async def search(
        request: Request,
        search: Annotated[str, Query(max_length=500, examples=["mercury"], description="What a person types.")],
        how: Literal["prefix", "text", "fuzzy"] = "prefix",
        limit: Annotated[int, Query(ge=1, le=100)] = 10,
        kb: Kb = None,
    ) -> Response:
        """Entities by the beginning of a name, by words, or by a name with typing errors."""
        name = _name(engine, kb)
        asked = engine.search(engine.registry.served_kb(name).kb, search, how, limit)
        found = await answered(request, asked, limits.seconds)
        return json_answer({"entities": [{"kb": name, **asdict(entity)} for entity in found]})

    @app.get(
        "/entities/{id:whole}",
        response_model=schemas.EntityCard,
        responses={**REFUSALS, 404: {"model": schemas.Problem, "description": "no such entity"}},
        tags=["knowledge"],
    )
    async def entity(request: Request, id: Id, kb: Kb = None) -> Response:
        """An entity with its names, facts and neighbours."""
        name = _name(engine, kb)
        asked = engine.entity(engine.registry.served_kb(name).kb, id)
        known, neighbours, revision = await answered(request, asked, limits.seconds)
        told = {
            "kb": name,
            **asdict(known),
            "neighbours": neighbours[:_SHOWN],
            "more_neighbours": max(0, len(neighbours) - _SHOWN),
            "revision": revision,
        }
        return json_answer(told)

    @app.put(
        "/entities/{id:whole}",
        response_model=schemas.Changed,
        responses={
            **_CHANGES,
            201: {"model": schemas.Changed, "description": "added"},
            412: {"model": schemas.Problem, "description": "there already, and only a new one was to be added"},
        },
        dependencies=[Depends(permitted)],
        tags=["knowledge"],
    )
    async def put(
        request: Request, id: Id, body: schemas.EntityBody, kb: Kb = None, if_none_match: New = None
    ) -> Response:
        """Add an entity, or replace it; what is linked next knows of it."""
        aliases = body.aliases if isinstance(body.aliases, dict) else dict.fromkeys(body.aliases, 1.0)
        facts = tuple(body.facts)
        entity = Entity(id, body.title, body.description, body.kind, body.popularity, aliases, facts)
        if reason := fault(entity):
            raise UsageError(f"the entity {id!r} {reason}; mend it and try again")
        return await change(request, kb, id, entity, if_none_match is not None)

    @app.delete(
        "/entities/{id:whole}",
        response_model=schemas.Changed,
        responses=_CHANGES,
        dependencies=[Depends(permitted)],
        tags=["knowledge"],
    )
    async def delete(request: Request, id: Id, kb: Kb = None) -> Response:
        """Remove an entity with its names and every fact it stands in."""
        return await change(request, kb, id, None)


def _name(engine: Engine, kb: str | None) -> str:
    engine.registry.served_kb(kb)
    return kb if kb is not None else next(iter(engine.registry.served_kbs))
