"""How the server answers: JSON, errors with the status that clients expect, and nothing to those who have left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from wellread.errors import (
    AssetError,
    InputError,
    KnowledgeBaseError,
    MissingExtraError,
    ReplacedError,
    StorageError,
    UnknownEntityError,
    UsageError,
    WellreadError,
)
from wellread.server import schemas
from wellread.server.batching import BusyError, ClosedError
from wellread.server.linkers import TakenError
from wellread.server.workers import LostError

LATE = "this took too long; send less at once, or try again"
_STATUS: dict[type[WellreadError], int] = {
    BusyError: 429,
    ClosedError: 503,
    LostError: 503,
    UnknownEntityError: 404,
    UsageError: 422,
    InputError: 422,
    ReplacedError: 503,
    TakenError: 412,
    KnowledgeBaseError: 409,
    StorageError: 507,
    MissingExtraError: 501,
    AssetError: 501,
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": why}
    for status, why in (
        (400, "not to be read"),
        (408, "did not arrive in time"),
        (413, "too large"),
        (422, "not what is asked for"),
        (429, "too many texts are waiting; Retry-After says when to come again"),
        (503, "not answered in time, about to stop, or opening a knowledge base that was replaced"),
        (507, "the disk is full or fails"),
    )
}
LOADED: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    501: {"model": schemas.Problem, "description": "what it needs is not installed here, or cannot be loaded"},
}
_SOON = 0.25
"""Seconds."""
_LONGEST = 60
"""Letters of a name that is wrong, which a client may have made up."""
T = TypeVar("T")


def json_answer(told: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer; dataclasses and arrays are told as they are."""
    body = orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def status_of(error: WellreadError) -> int:
    """What an error of ours is in HTTP."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def refusal(error: Exception) -> Response | None:
    """What a client is told of an error; None where it is none of those that are expected."""
    if isinstance(error, WellreadError):
        headers = {}
        if isinstance(error, BusyError | ClosedError | ReplacedError):
            headers["retry-after"] = str(getattr(error, "seconds", 5))
        return json_answer({"error": str(error)}, status_of(error), headers)
    if isinstance(error, HTTPException):
        return json_answer({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))
    if isinstance(error, TimeoutError):
        return json_answer({"error": LATE}, 503, {"retry-after": "5"})
    return None


async def answered(request: Request, answer: Awaitable[T], seconds: float) -> T:
    """What was asked for, unless the client goes away before it is begun, or it takes too long."""
    asked = asyncio.ensure_future(answer)
    asked.add_done_callback(_heed)
    try:
        # Most are answered soon; a task that looks whether the client is there is made for the others alone.
        await asyncio.wait({asked}, timeout=min(_SOON, seconds))
        if asked.done():
            return asked.result()
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({asked, gone}, timeout=seconds - _SOON, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if gone.done():
                raise HTTPException(499, "the client went away")
        finally:
            gone.cancel()
        raise TimeoutError
    finally:
        asked.cancel()


def _heed(done: asyncio.Future[Any]) -> None:
    """An error that comes when nobody waits any more is none to complain of."""
    if not done.cancelled():
        done.exception()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def told_of(errors: Any) -> str:
    """Where a request is wrong and why, without what it said."""
    parts = []
    for error in _meant(list(errors))[:3]:
        place = ".".join(_cut(str(part)) for part in error["loc"] if part != "body" and not _is_kind(part))
        why = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            parts.append(f"{place} is no field of this request; /openapi.json names them")
        elif error["type"] == "json_invalid" and place:  # FastAPI's, whose place is a number
            parts.append(f"Invalid JSON: {error.get('ctx', {}).get('error', why)} at character {place}")
        else:
            parts.append(f"{place}: {why}" if place else why)
    return "; ".join(parts).encode("utf-8", "replace").decode()


_KIND = re.compile(r"(constrained-)?(str|int|float)|(dict|list|literal)\[.*", re.DOTALL)
"""What pydantic calls the kinds that a field may be of."""


def _is_kind(part: Any) -> bool:
    return isinstance(part, str) and _KIND.fullmatch(part) is not None


def _meant(errors: list[Any]) -> list[Any]:
    """Of a field that may be of several kinds, all of which are complained of, what is wrong deepest inside."""
    deepest: dict[Any, int] = {}
    for error in errors:
        if (field := _of_kinds(error["loc"])) is not None:
            deepest[field] = max(deepest.get(field, 0), len(error["loc"]))
    return [one for one in errors if (field := _of_kinds(one["loc"])) is None or len(one["loc"]) == deepest[field]]


def _of_kinds(place: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """("aliases", "list[str]", 3) -> ("aliases",); None where a field is of one kind."""
    return next((place[:at] for at, part in enumerate(place) if _is_kind(part)), None)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
