"""JSON responses, HTTP status of errors, validation messages, and timeouts of requests."""

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
from wellread.server.registry import EntityExistsError
from wellread.server.workers import LostError

TIMEOUT_MESSAGE = "the request timed out; send less at once, or try again"
_STATUS: dict[type[WellreadError], int] = {
    BusyError: 429,
    ClosedError: 503,
    LostError: 503,
    UnknownEntityError: 404,
    UsageError: 422,
    InputError: 422,
    ReplacedError: 503,
    EntityExistsError: 412,
    KnowledgeBaseError: 409,
    StorageError: 507,
    MissingExtraError: 501,
    AssetError: 501,
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": why}
    for status, why in (
        (400, "malformed request"),
        (408, "did not arrive in time"),
        (413, "too large"),
        (422, "invalid request"),
        (429, "the queue is full; Retry-After gives the seconds to wait"),
        (503, "timed out, stopping, or reopening a KB that was replaced"),
        (507, "the disk is full or fails"),
    )
}
MODEL_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    **ERROR_RESPONSES,
    501: {"model": schemas.Problem, "description": "a model or package is not installed, or cannot be loaded"},
}
_WATCH_AFTER = 0.25
"""Seconds after which a watch for the client's disconnect starts."""
_MAX_NAME = 60
"""Maximum characters of a field name quoted in an error."""
T = TypeVar("T")


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response; dataclasses and numpy arrays are serialised."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


def status_of(error: WellreadError) -> int:
    """Return the HTTP status of an error; 500 if it has none."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def error_response(error: Exception) -> Response | None:
    """Return the response to an expected error; None for any other."""
    if isinstance(error, WellreadError):
        headers = {}
        if isinstance(error, BusyError | ClosedError | ReplacedError):
            headers["retry-after"] = str(getattr(error, "seconds", 5))
        return json_response({"error": str(error)}, status_of(error), headers)
    if isinstance(error, HTTPException):
        return json_response({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))
    if isinstance(error, TimeoutError):
        return json_response({"error": TIMEOUT_MESSAGE}, 503, {"retry-after": "5"})
    return None


async def wait_for_result(request: Request, answer: Awaitable[T], seconds: float) -> T:
    """Await a result; raise TimeoutError after `seconds`, or 499 if the client disconnects."""
    task = asyncio.ensure_future(answer)
    task.add_done_callback(_retrieve_exception)
    try:
        # Most results arrive soon; only the others pay for a task that watches for a disconnect.
        await asyncio.wait({task}, timeout=min(_WATCH_AFTER, seconds))
        if task.done():
            return task.result()
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({task, gone}, timeout=seconds - _WATCH_AFTER, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise HTTPException(499, "the client disconnected")
        finally:
            gone.cancel()
        raise TimeoutError
    finally:
        task.cancel()


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Retrieve the exception, so that asyncio does not log it after a timeout."""
    if not done.cancelled():
        done.exception()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def describe_errors(errors: Any) -> str:
    """Return fields and reasons of validation errors, without the values sent."""
    parts = []
    for error in _deepest(list(errors))[:3]:
        place = ".".join(_shorten(str(part)) for part in error["loc"] if part != "body" and not _is_union_member(part))
        why = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            parts.append(f"{place} is not a field of this request; see /openapi.json")
        elif error["type"] == "json_invalid" and place:  # FastAPI gives the position as the location
            parts.append(f"Invalid JSON: {error.get('ctx', {}).get('error', why)} at character {place}")
        else:
            parts.append(f"{place}: {why}" if place else why)
    return "; ".join(parts).encode("utf-8", "replace").decode()


_UNION_MEMBER = re.compile(r"(constrained-)?(str|int|float)|(dict|list|literal)\[.*", re.DOTALL)
"""Names that pydantic adds to a location for the members of a union."""


def _is_union_member(part: Any) -> bool:
    return isinstance(part, str) and _UNION_MEMBER.fullmatch(part) is not None


def _deepest(errors: list[Any]) -> list[Any]:
    """Keep, for a field with a union type, the errors of the member that matched deepest."""
    deepest: dict[Any, int] = {}
    for error in errors:
        if (field := _union_field(error["loc"])) is not None:
            deepest[field] = max(deepest.get(field, 0), len(error["loc"]))
    return [one for one in errors if (field := _union_field(one["loc"])) is None or len(one["loc"]) == deepest[field]]


def _union_field(place: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the field of a union error: ("aliases", "list[str]", 3) -> ("aliases",); None if it is not a union."""
    return next((place[:at] for at, part in enumerate(place) if _is_union_member(part)), None)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}…"
