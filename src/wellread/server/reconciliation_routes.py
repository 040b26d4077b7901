"""Routes of the reconciliation service: /reconcile for the first KB, /reconcile/{kb} for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse

from wellread.errors import InputError
from wellread.kb.store import KnowledgeBase
from wellread.server import reconciliation
from wellread.server.cross_origin import CrossOriginMiddleware
from wellread.server.engine import Engine
from wellread.server.responses import json_response, wait_for_result

_PREFIX = "/reconcile"
_COMPARED = 100
"""Candidates that a query with types chooses from."""
Prefix = Annotated[str, Query(max_length=500)]
Cursor = Annotated[int, Query(ge=0, le=1_000)]
Id = Annotated[str, Query(max_length=2_000)]
Limit = Annotated[int | None, Query(ge=1, le=10_000)]
Kind = Annotated[str | None, Query(max_length=2_000)]
Suggest = Callable[[KnowledgeBase, str, int, reconciliation.Stop], list[dict[str, Any]]]


def add_reconciliation_routes(app: FastAPI, engine: Engine) -> None:
    """Add the routes, open to pages of the origins in the server's settings."""
    origins = engine.settings.origins
    app.add_middleware(CrossOriginMiddleware, prefix=_PREFIX, origins=origins, frames="/preview")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self' {' '.join(origins)}".strip()

    async def wait(request: Request, answer: Awaitable[Any]) -> Any:
        return await wait_for_result(request, answer, engine.settings.limits.seconds)

    async def answer(request: Request, kb: str | None, fields: dict[str, str]) -> Response:
        name = next(iter(engine.registry.served_kbs)) if kb is None else kb
        opened = engine.registry.served_kb(name).kb
        if "callback" in fields:
            raise InputError("JSONP is not offered, use CORS: start the server with --allow-origin ORIGIN of the page")
        if "queries" in fields:
            batch = reconciliation.read_batch(fields["queries"])
            request.state.note(strings=len(batch), kbs=[name])
            return json_response(await wait(request, _reconcile(engine, name, batch)))
        if "extend" in fields:
            extension = reconciliation.read_extension(fields["extend"])
            extended = engine.run_search(lambda stop: reconciliation.extend(opened, extension, stop))
            return json_response(await wait(request, extended))
        if fields:
            raise InputError(f"unknown parameter {min(fields)!r}; give queries or extend, or none for the manifest")
        base = _base(request)
        return json_response(await wait(request, engine.look_up(lambda: reconciliation.manifest(opened, name, base))))

    async def get(request: Request, kb: str | None = None) -> Response:
        """Return the service manifest, or the answers to `queries` or `extend`."""
        return await answer(request, kb, dict(request.query_params))

    async def post(request: Request, kb: str | None = None) -> Response:
        """Return the answers to `queries` or `extend` in a form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise InputError("send queries as a form: content-type application/x-www-form-urlencoded")
        try:
            form = parse_qs((await request.body()).decode(), keep_blank_values=True, errors="strict", max_num_fields=20)
        except ValueError as error:
            raise InputError(f"the form cannot be read ({type(error).__name__}); encode it as UTF-8 and %XX") from None
        fields = {name: values[0] for name, values in form.items()}
        if not fields.keys() & {"queries", "extend"}:
            raise InputError("the form has neither queries nor extend; send one of them")
        return await answer(request, kb, fields)

    for path in (_PREFIX, f"{_PREFIX}/{{kb}}"):
        app.add_api_route(path, get, methods=["GET"], include_in_schema=False)
        app.add_api_route(path, post, methods=["POST"], include_in_schema=False)

    def opened(kb: str) -> KnowledgeBase:
        return engine.registry.served_kb(kb).kb

    def add_suggestions(what: str, suggest: Suggest) -> None:
        async def suggestions(request: Request, kb: str, prefix: Prefix = "", cursor: Cursor = 0) -> Response:
            found = await wait(request, engine.run_search(lambda stop: suggest(opened(kb), prefix, cursor, stop)))
            return json_response({"result": found})

        app.add_api_route(f"{_PREFIX}/{{kb}}/suggest/{what}", suggestions, methods=["GET"], include_in_schema=False)

    add_suggestions("entity", reconciliation.suggest_entities)
    add_suggestions("type", reconciliation.suggest_types)
    add_suggestions("property", reconciliation.suggest_properties)

    @app.get(f"{_PREFIX}/{{kb}}/properties", include_in_schema=False)
    async def properties(request: Request, kb: str, type: Kind = None, limit: Limit = None) -> Response:
        """Return the properties that can be fetched."""
        found = engine.look_up(lambda: reconciliation.proposed_properties(opened(kb), type, limit))
        return json_response(await wait(request, found))

    @app.get(f"{_PREFIX}/{{kb}}/preview", include_in_schema=False)
    async def preview(request: Request, kb: str, id: Id) -> Response:
        """Return a small page about an entity, for a frame."""
        page = await wait(request, engine.look_up(lambda: reconciliation.preview(opened(kb), id)))
        return HTMLResponse(page, headers={"content-security-policy": policy})


async def _reconcile(engine: Engine, name: str, batch: dict[str, reconciliation.Query]) -> dict[str, Any]:
    """Return the candidates of each query; contexts are used if the KB has a linker that compares meaning."""
    queries = list(batch.values())
    texts = [query.query or query.context for query in queries]
    contexts = [query.context if query.query else "" for query in queries]
    context = contexts if any(contexts) and engine.compares_meaning(name) else None
    best = max((_COMPARED if query.types else int(min(query.limit, _COMPARED)) for query in queries), default=1)
    mapped = await engine.map(name, texts, context, best=best, threshold=0.0)
    kb = engine.registry.served_kb(name).kb

    def results() -> dict[str, Any]:
        with kb.snapshot():
            return {
                key: {"result": reconciliation.candidates(kb, query, found)}
                for key, query, found in zip(batch, queries, mapped, strict=True)
            }

    return await engine.look_up(results)


def _base(request: Request) -> str:
    """Return the address of the server as the client sees it."""
    secure = request.headers.get("x-forwarded-proto", "").lower() == "https"
    scheme = "https" if secure else request.url.scheme
    return f"{scheme}://{request.headers.get('host', request.url.netloc)}"
