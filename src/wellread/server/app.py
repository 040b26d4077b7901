"""The application over an `Engine`: its routes, its errors, its page, and how it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from wellread import __version__
from wellread.errors import KnowledgeBaseError, ReplacedError, StorageError, WellreadError
from wellread.kb.store import KnowledgeBase
from wellread.linking.prior import PriorBackend
from wellread.server import schemas
from wellread.server.engine import Engine
from wellread.server.entity_routes import add_entities
from wellread.server.middleware import Guard, Handler
from wellread.server.responses import json_answer, refusal, told_of
from wellread.server.served_kb import without_folder
from wellread.server.text_routes import add_reading

PAGE = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "marks.js": "text/javascript",
    "card.js": "text/javascript",
    "knowledge.js": "text/javascript",
    "parts.js": "text/javascript",
}
"""The files of the page besides its HTML; nothing else is given out."""


def create_app(engine: Engine) -> FastAPI:
    """The application; it closes the engine when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(
        title="wellread",
        version=__version__,
        summary="Link text to knowledge bases, and see what knowledge does.",
        lifespan=lifespan,
        docs_url=None,  # its scripts would come from elsewhere
        redoc_url=None,
    )
    quick: dict[str, Handler] = {}
    app.add_middleware(Guard, settings=engine.settings, metrics=engine.metrics, quick=quick)
    _add_errors(app, engine)
    add_reading(app, engine, quick)
    add_entities(app, engine)
    _add_page(app, engine)
    return app


def _add_errors(app: FastAPI, engine: Engine) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.detail == HTTPStatus(error.status_code).phrase:
            error = _lost(app, request, error)  # the router's own
        if isinstance(error, KnowledgeBaseError | StorageError):
            for served_kb in engine.registry.served_kbs.values():
                error = without_folder(error, served_kb.kb)
        told = refusal(error)
        assert told is not None
        return told

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return json_answer({"error": told_of(error.errors())}, 422)

    app.add_exception_handler(RequestValidationError, invalid)
    for kind in (WellreadError, HTTPException, TimeoutError):
        app.add_exception_handler(kind, refuse)


def _lost(app: FastAPI, request: Request, error: HTTPException) -> HTTPException:
    """What is told at an address where nothing is, or not for that method."""
    found = {method for route in app.routes if _leads(route, request) for method in getattr(route, "methods", ())}
    if not found:
        return HTTPException(error.status_code, "there is nothing at this address; /openapi.json tells what is where")
    allowed = ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))
    why = f"this address is for {allowed}; /openapi.json tells what each does"
    return HTTPException(error.status_code, why, {"allow": allowed})


def _leads(route: BaseRoute, request: Request) -> bool:
    return route.matches(request.scope)[0] is not Match.NONE


def _add_page(app: FastAPI, engine: Engine) -> None:
    here = files("wellread.server").joinpath("page")
    page = here.joinpath("page.html").read_bytes()
    parts = {name: here.joinpath(name).read_bytes() for name in PAGE}
    fresh = {"cache-control": "no-cache"}

    @app.get("/", include_in_schema=False)
    async def home() -> Response:
        return HTMLResponse(page, headers=fresh)

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in parts:
            raise HTTPException(404, "the page has no such part")
        return Response(parts[name], media_type=PAGE[name], headers=fresh)

    sizes: dict[str, tuple[tuple[int, int], int]] = {}

    revisions: dict[str, tuple[KnowledgeBase, int]] = {}

    def revision(name: str, kb: KnowledgeBase) -> int:
        """The last that was seen where this thread has not opened a file that another was put in the place of."""
        try:
            revisions[name] = kb, kb.revision
        except ReplacedError:
            if name not in revisions or revisions[name][0] is not kb:
                raise
        return revisions[name][1]

    def size(name: str, kb: KnowledgeBase) -> int:
        """Counting millions takes a while, and whoever watches asks often."""
        state = id(kb), revision(name, kb)
        if name not in sizes or sizes[name][0] != state:
            sizes[name] = state, len(kb)
        return sizes[name][1]

    def about() -> list[dict[str, Any]]:
        told = []
        for name in list(engine.registry.served_kbs):
            served_kb = engine.registry.served_kb(name)
            backends = {model: linker.backend for model, linker in served_kb.linkers.items()}
            told.append(
                {
                    "name": name,
                    "entities": size(name, served_kb.kb),
                    "revision": revision(name, served_kb.kb),
                    "models": list(backends),
                    "thresholds": {
                        model: backend.threshold if isinstance(backend, PriorBackend) else backend.decoding.threshold
                        for model, backend in backends.items()
                    },
                    "overlaps": {model: _rule(backend) for model, backend in backends.items()},
                }
            )
        return told

    why = "not ready: what reads has ended or hangs, or a knowledge base cannot be read; `problems` says what to do"
    failing: dict[int | str, dict[str, Any]] = {503: {"model": schemas.Health, "description": why}}

    @app.get("/health", response_model=schemas.Health, responses=failing, tags=["server"])
    async def health() -> Response:
        """Whether the server works, what it has, and what it allows."""
        problems = await engine.aside(lambda: engine.problems)
        told = {
            "status": "failing" if problems else "ok",
            "ready": not problems,
            "problems": problems,
            "workers": {"count": engine.readers, "replaced": engine.replaced},
            "version": __version__,
            "kbs": await engine.aside(about),
            "encoders": [{"name": name, "plain": one.plain} for name, one in engine.readings.items()],
            "waiting": engine.worker.waiting,
            "editable": engine.settings.token is not None
            and any(served_kb.kb.writable for served_kb in engine.registry.served_kbs.values()),
            "limits": asdict(replace(engine.settings.limits, queue=engine.queue, readers=engine.readers)),
        }
        return json_answer(told, 503 if problems else 200)

    @app.get("/metrics", response_class=Response, tags=["server"])
    async def metrics() -> Response:
        """Figures for Prometheus."""
        seen = await engine.aside(
            lambda: {name: revision(name, served_kb.kb) for name, served_kb in list(engine.registry.served_kbs.items())}
        )
        return Response(engine.metrics.tell(seen), media_type="text/plain; version=0.0.4; charset=utf-8")


def _rule(backend: Any) -> str:
    if isinstance(backend, PriorBackend):
        return "first"
    config = getattr(backend, "config", None)  # LUKE's has none, and takes the best
    return "longest" if getattr(config, "mode", "") == "softmax" else "best"
