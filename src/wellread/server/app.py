"""The FastAPI application of an `Engine`: routes, error handlers, page, /health and /metrics."""

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
from wellread.server.correction_routes import add_correction_routes, corrections_of
from wellread.server.docs_routes import add_docs_routes
from wellread.server.engine import Engine
from wellread.server.entity_routes import add_entity_routes
from wellread.server.mapping_routes import add_mapping_routes
from wellread.server.middleware import Handler, RequestMiddleware
from wellread.server.nif_route import add_nif_route
from wellread.server.ready_route import add_ready_route
from wellread.server.reconciliation_routes import add_reconciliation_routes
from wellread.server.responses import describe_errors, error_response, json_response
from wellread.server.served_kb import hide_folder
from wellread.server.text_routes import add_text_routes

PAGE = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "marks.js": "text/javascript",
    "card.js": "text/javascript",
    "knowledge.js": "text/javascript",
    "corrections.js": "text/javascript",
    "map.js": "text/javascript",
    "parts.js": "text/javascript",
}
"""Files of the page besides its HTML; no other file is served."""


def create_app(engine: Engine) -> FastAPI:
    """Create the application; it closes the engine on shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(
        title="wellread",
        version=__version__,
        summary="Link text to knowledge bases; vectors and attention of encoders.",
        lifespan=lifespan,
        docs_url=None,  # loads scripts from a CDN; `docs_routes` does not
        redoc_url=None,
    )
    fast_routes: dict[str, Handler] = {}
    app.add_middleware(RequestMiddleware, settings=engine.settings, metrics=engine.metrics, fast_routes=fast_routes)
    _add_errors(app, engine)
    add_text_routes(app, engine, fast_routes)
    add_entity_routes(app, engine)
    add_mapping_routes(app, engine)
    add_reconciliation_routes(app, engine)
    add_nif_route(app, engine)
    add_ready_route(app, engine)
    add_docs_routes(app)
    add_correction_routes(app, engine)
    _add_page(app, engine)
    return app


def _add_errors(app: FastAPI, engine: Engine) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.detail == HTTPStatus(error.status_code).phrase:
            error = _router_error(app, request, error)  # raised by the router
        if isinstance(error, KnowledgeBaseError | StorageError):
            for served_kb in engine.registry.served_kbs.values():
                error = hide_folder(error, served_kb.kb)
        response = error_response(error)
        assert response is not None
        return response

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return json_response({"error": describe_errors(error.errors())}, 422)

    app.add_exception_handler(RequestValidationError, invalid)
    for kind in (WellreadError, HTTPException, TimeoutError):
        app.add_exception_handler(kind, refuse)


def _router_error(app: FastAPI, request: Request, error: HTTPException) -> HTTPException:
    """Return an error that names the allowed methods, or /openapi.json for an unknown address."""
    found = {method for route in app.routes if _matches(route, request) for method in getattr(route, "methods", ())}
    if not found:
        return HTTPException(error.status_code, "unknown address; see /openapi.json")
    allowed = ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))
    why = f"method not allowed; use {allowed}, see /openapi.json"
    return HTTPException(error.status_code, why, {"allow": allowed})


def _matches(route: BaseRoute, request: Request) -> bool:
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
            raise HTTPException(404, "unknown file of the page")
        return Response(parts[name], media_type=PAGE[name], headers=fresh)

    sizes: dict[str, tuple[tuple[int, int], int]] = {}

    revisions: dict[str, tuple[KnowledgeBase, int]] = {}

    def revision(name: str, kb: KnowledgeBase) -> int:
        """Return the revision; the last known one if the file was replaced and is not reopened yet."""
        try:
            revisions[name] = kb, kb.revision
        except ReplacedError:
            if name not in revisions or revisions[name][0] is not kb:
                raise
        return revisions[name][1]

    def size(name: str, kb: KnowledgeBase) -> int:
        """Return the number of entities, cached per revision: counting millions is slow."""
        state = id(kb), revision(name, kb)
        if name not in sizes or sizes[name][0] != state:
            sizes[name] = state, len(kb)
        return sizes[name][1]

    def corrections_count(kb: KnowledgeBase) -> int:
        """Return the number of corrections; 0 if they cannot be read, which is not a reason to be unhealthy."""
        try:
            return len(corrections_of(engine, kb))
        except WellreadError:
            return 0

    def about() -> list[dict[str, Any]]:
        content = []
        for name in list(engine.registry.served_kbs):
            served_kb = engine.registry.served_kb(name)
            backends = {model: linker.backend for model, linker in served_kb.linkers.items()}
            content.append(
                {
                    "name": name,
                    "entities": size(name, served_kb.kb),
                    "revision": revision(name, served_kb.kb),
                    "models": list(backends),
                    "thresholds": {
                        model: backend.threshold if isinstance(backend, PriorBackend) else backend.decoding.threshold
                        for model, backend in backends.items()
                    },
                    "overlaps": {model: _overlap_rule(backend) for model, backend in backends.items()},
                    "corrections": corrections_count(served_kb.kb),
                }
            )
        return content

    why = "not ready: workers died or hang, or a knowledge base cannot be read; see `problems`"
    failing: dict[int | str, dict[str, Any]] = {503: {"model": schemas.Health, "description": why}}

    @app.get("/health", response_model=schemas.Health, responses=failing, tags=["server"])
    async def health() -> Response:
        """Return readiness, problems, KBs, encoders and limits."""
        problems = await engine.run_info(lambda: engine.problems)
        content = {
            "status": "failing" if problems else "ok",
            "ready": not problems,
            "problems": problems,
            "workers": {"count": engine.workers, "replaced": engine.replaced},
            "version": __version__,
            "kbs": await engine.run_info(about),
            "encoders": [{"name": name, "plain": one.plain} for name, one in engine.encoders.items()],
            "waiting": engine.batcher.waiting,
            "editable": engine.settings.token is not None
            and any(served_kb.kb.writable for served_kb in engine.registry.served_kbs.values()),
            "limits": asdict(replace(engine.settings.limits, queue=engine.queue, readers=engine.workers)),
        }
        return json_response(content, 503 if problems else 200)

    @app.get("/metrics", response_class=Response, tags=["server"])
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        seen = await engine.run_info(
            lambda: {name: revision(name, served_kb.kb) for name, served_kb in list(engine.registry.served_kbs.items())}
        )
        return Response(engine.metrics.render(seen), media_type="text/plain; version=0.0.4; charset=utf-8")


def _overlap_rule(backend: Any) -> str:
    if isinstance(backend, PriorBackend):
        return "first"
    config = getattr(backend, "config", None)  # LUKE's backend has none
    return "longest" if getattr(config, "mode", "") == "softmax" else "best"
