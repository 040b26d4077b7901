"""The routes of the server, over an `Engine`."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import parse_qs

import orjson
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from wellread import __version__
from wellread.errors import (
    AssetError,
    InputError,
    KnowledgeBaseError,
    MissingExtraError,
    UnknownEntityError,
    UsageError,
    WellreadError,
)
from wellread.kb.records import Entity
from wellread.linker.prior import PriorReader
from wellread.pictures.attention import Seen, by_words
from wellread.pictures.attention_page import explained_page
from wellread.server import schemas
from wellread.server.batching import BusyError, ClosedError
from wellread.server.engine import Engine
from wellread.server.guard import Guard
from wellread.server.reading import Lent, Vectors
from wellread.server.shelf import Asked, Edit, Source
from wellread.server.stream import LineStream
from wellread.text import Document

PAGE = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "marks.js": "text/javascript",
    "card.js": "text/javascript",
    "knowledge.js": "text/javascript",
    "parts.js": "text/javascript",
}
"""The files of the page besides its HTML; nothing else is given out."""
_SHOWN = 60
"""Neighbours of an entity that are told."""
_SPELLED = 20_000
"""Characters whose words or pieces have vectors: each is some kilobytes."""
_EXPLAINED = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'self'; "
    "sandbox allow-scripts"
)
"""What the attention view may do in its frame; its own policy lets no script run but its own."""
_STATUS: dict[type[WellreadError], int] = {
    BusyError: 429,
    ClosedError: 503,
    UnknownEntityError: 404,
    UsageError: 422,
    InputError: 422,
    KnowledgeBaseError: 409,
    MissingExtraError: 501,
    AssetError: 501,
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem, "description": why}
    for status, why in (
        (400, "not to be read"),
        (413, "too large"),
        (422, "not what is asked for"),
        (429, "too many texts are waiting; Retry-After says when to come again"),
        (503, "not answered in time, or about to stop"),
    )
}
_CHANGES: dict[int | str, dict[str, Any]] = {
    **_REFUSALS,
    401: {"model": schemas.Problem, "description": "no token, or a wrong one"},
    403: {"model": schemas.Problem, "description": "this server changes nothing"},
    404: {"model": schemas.Problem, "description": "no such entity"},
    409: {"model": schemas.Problem, "description": "the knowledge base does not take it"},
}
T = TypeVar("T")
Kb = Annotated[str | None, Query(max_length=500, description="The first knowledge base unless given.")]


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
    app.add_middleware(Guard, settings=engine.settings, metrics=engine.metrics)
    _add_errors(app)
    _add_reading(app, engine)
    _add_entities(app, engine)
    _add_page(app, engine)
    return app


def _add_errors(app: FastAPI) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, WellreadError)
        status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
        headers = {}
        if isinstance(error, BusyError | ClosedError):
            headers["retry-after"] = str(getattr(error, "seconds", 5))
        return _json({"error": str(error)}, status, headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _json({"error": _told(error.errors())}, 422)

    async def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _json({"error": str(error.detail)}, error.status_code, dict(error.headers or {}))

    async def late(request: Request, error: Exception) -> Response:
        return _json({"error": "this took too long; send less at once, or try again"}, 503, {"retry-after": "5"})

    app.add_exception_handler(WellreadError, refuse)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)
    app.add_exception_handler(TimeoutError, late)


def _add_reading(app: FastAPI, engine: Engine) -> None:
    limits = engine.settings.limits

    @app.post("/link", response_model=schemas.Linked, responses=_REFUSALS, tags=["reading"])
    async def link(asked: schemas.LinkRequest, request: Request) -> Response:
        """Link one text or several: a document for each, with the links of all layers."""
        given = asked.given
        sources = _sources(engine, asked)
        request.state.note(texts=len(given), characters=sum(map(len, given)), kbs=[one.kb for one in sources])
        answers = await _answered(request, engine.link(sources, _asked(asked, given)), limits.seconds)
        made = [join_layers(layers) for layers in zip(*(answer.documents for answer in answers), strict=True)]
        revisions = {source.kb: answer.revision for source, answer in zip(sources, answers, strict=True)}
        return _json({"documents": made, "revisions": revisions})

    streaming = asyncio.Semaphore(limits.streams)

    @app.post(
        "/link/stream",
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "A document a line"}, **_REFUSALS},
        response_class=Response,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": '"Mozart in Vienna."\n'}},
            }
        },
        tags=["reading"],
    )
    async def stream(
        request: Request,
        kb: Annotated[list[str] | None, Query(max_length=100)] = None,
        model: Annotated[str, Query(max_length=500)] = "auto",
        threshold: Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)] = None,
        top_k: Annotated[int, Query(ge=0, le=100)] = 10,
        nil: bool | None = None,
    ) -> Response:
        """Link a text a line (a JSON string, or an object with text and id): a document a line, as they are ready."""
        options = schemas.LinkOptions.model_validate(
            {"kb": kb, "model": model, "threshold": threshold, "top_k": top_k, "nil": nil}
        )
        sources = _sources(engine, options)
        if streaming.locked():
            engine.metrics.refused.inc()
            raise BusyError(5)
        await streaming.acquire()

        async def answer(text: str) -> dict[str, Any]:
            answers = await engine.link(sources, _asked(options, (text,)))
            document = join_layers([one.documents[0] for one in answers])
            revisions = {source.kb: one.revision for source, one in zip(sources, answers, strict=True)}
            return {**_fields(document), "revisions": revisions}

        ahead = min(limits.ahead, max(1, limits.queue // 2))
        return LineStream(request, answer, ahead=ahead, longest=limits.body, done=streaming.release)

    @app.post("/embed", response_model=schemas.Embedded, responses=_REFUSALS, tags=["reading"])
    async def embed(asked: schemas.EmbedRequest, request: Request) -> Response:
        """Contextual vectors of texts, of their words, or of their pieces."""
        given = asked.given
        request.state.note(texts=len(given), characters=sum(map(len, given)))
        if asked.of != "texts" and sum(map(len, given)) > _SPELLED:
            raise InputError(f"vectors of {asked.of} are made for at most {_SPELLED:,} characters at once; send fewer")
        vectors = Vectors(asked.of, asked.pooling, asked.unit)
        rows = await _answered(request, engine.embed(vectors, given), limits.seconds)
        texts = [
            [
                {"start": start, "end": end, "text": name, "vector": vector}
                for (start, end), name, vector in zip(one.spans.tolist(), one.names, one.vectors, strict=True)
            ]
            for one in rows
        ]
        return _json({"model": engine.settings.encoder, "dim": engine.reading.embedder.dim, "texts": texts})

    @app.post("/explain", response_model=schemas.Explained, responses=_REFUSALS, tags=["reading"])
    async def explain(asked: schemas.ExplainRequest, request: Request) -> Response:
        """What knowledge changes in attention: one layer and head, with knowledge and without."""
        request.state.note(texts=1, characters=len(asked.text))
        seen, layer = await _explained(engine, asked, request)
        shown = by_words(seen) if asked.by == "words" else seen
        without, infused = shown.attention(layer, asked.head)
        told = {
            "texts": shown.texts,
            "model": shown.model,
            "notes": shown.notes,
            "layers": shown.layers,
            "heads": shown.heads,
            "layer": layer,
            "head": asked.head,
            "rows": shown.labels[: shown.rows],
            "columns": shown.labels,
            "without": without.round(5).tolist(),
            "infused": infused.round(5).tolist(),
            "moved": shown.moved.round(5).tolist(),
            "maps": {name: scores.round(5).tolist() for name, scores in shown.maps.items()},
        }
        return _json(told)

    @app.post("/explain/page", include_in_schema=False)
    async def explain_page(request: Request) -> Response:
        """The attention view for a frame of the page, which asks for it with a form."""
        form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=32)
        given: dict[str, Any] = {name: values[0] for name, values in form.items() if values[0] and name != "maps"}
        try:
            asked = schemas.ExplainRequest.model_validate({**given, "maps": form.get("maps")})
        except ValidationError as error:
            raise InputError(_told(error.errors())) from None
        request.state.note(texts=1, characters=len(asked.text))
        seen, layer = await _explained(engine, asked, request)
        page = explained_page(seen, layer=layer, head=asked.head, by=asked.by)
        return HTMLResponse(page, headers={"content-security-policy": _EXPLAINED, "cache-control": "no-store"})


def _add_entities(app: FastAPI, engine: Engine) -> None:
    bearer = HTTPBearer(auto_error=False, description="The token that the server was started with.")

    def permitted(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        token = engine.settings.token
        if token is None:
            raise HTTPException(403, "this server changes nothing; start it with --token-file to let it")
        said = "" if given is None else given.credentials
        digests = [hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest() for one in (said, token)]
        if not hmac.compare_digest(*digests):
            raise HTTPException(401, "give the server's token: Authorization: Bearer …", {"www-authenticate": "Bearer"})

    async def change(kb: str | None, id: str, entity: Entity | None) -> Response:
        name = _name(engine, kb)
        book = engine.shelf.book(name)
        try:
            done = await engine.edit(Edit(name, id, entity))
        except KnowledgeBaseError as error:
            raise type(error)(str(error).replace(f"{book.kb.path.parent}/", "")) from None
        told = {"kb": name, "id": id, "what": done.what, "revision": done.revision}
        return _json(told, 201 if done.what == "added" else 200)

    @app.get("/entities", response_model=schemas.Found, responses=_REFUSALS, tags=["knowledge"])
    async def search(
        search: Annotated[str, Query(max_length=500, examples=["mercury"], description="What a person types.")],
        how: Literal["prefix", "text", "fuzzy"] = "prefix",
        limit: Annotated[int, Query(ge=1, le=100)] = 10,
        kb: Kb = None,
    ) -> Response:
        """Entities by the beginning of a name, by words, or by a name with typing errors."""
        name = _name(engine, kb)
        found = await engine.search(engine.shelf.book(name).kb, search, how, limit)
        return _json({"entities": [{"kb": name, **asdict(entity)} for entity in found]})

    @app.get(
        "/entities/{id:path}",
        response_model=schemas.EntityCard,
        responses={**_REFUSALS, 404: {"model": schemas.Problem, "description": "no such entity"}},
        tags=["knowledge"],
    )
    async def entity(id: str, kb: Kb = None) -> Response:
        """An entity with its names, facts and neighbours."""
        name = _name(engine, kb)
        known, neighbours, revision = await engine.entity(engine.shelf.book(name).kb, id)
        told = {
            "kb": name,
            **asdict(known),
            "neighbours": neighbours[:_SHOWN],
            "more_neighbours": max(0, len(neighbours) - _SHOWN),
            "revision": revision,
        }
        return _json(told)

    @app.put(
        "/entities/{id:path}",
        response_model=schemas.Changed,
        responses={**_CHANGES, 201: {"model": schemas.Changed, "description": "added"}},
        dependencies=[Depends(permitted)],
        tags=["knowledge"],
    )
    async def put(id: str, body: schemas.EntityBody, kb: Kb = None) -> Response:
        """Add an entity, or replace it; what is linked next knows of it."""
        aliases = body.aliases if isinstance(body.aliases, dict) else dict.fromkeys(body.aliases, 1.0)
        facts = tuple(body.facts)
        return await change(
            kb, id, Entity(id, body.title, body.description, body.kind, body.popularity, aliases, facts)
        )

    @app.delete(
        "/entities/{id:path}",
        response_model=schemas.Changed,
        responses=_CHANGES,
        dependencies=[Depends(permitted)],
        tags=["knowledge"],
    )
    async def delete(id: str, kb: Kb = None) -> Response:
        """Remove an entity with its names and every fact it stands in."""
        return await change(kb, id, None)


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

    def about() -> list[dict[str, Any]]:
        told = []
        for name, book in list(engine.shelf.books.items()):
            readers = {model: linker.reader for model, linker in book.linkers.items()}
            told.append(
                {
                    "name": name,
                    "entities": len(book.kb),
                    "revision": book.kb.revision,
                    "models": list(readers),
                    "thresholds": {
                        model: reader.threshold if isinstance(reader, PriorReader) else reader.decoding.threshold
                        for model, reader in readers.items()
                    },
                    "overlaps": {model: _rule(reader) for model, reader in readers.items()},
                }
            )
        return told

    @app.get("/health", response_model=schemas.Health, tags=["server"])
    async def health() -> Response:
        """Whether the server works, what it has, and what it allows."""
        told = {
            "status": "ok" if engine.worker.alive else "failing",
            "version": __version__,
            "kbs": await engine.aside(about),
            "encoder": engine.settings.encoder,
            "waiting": engine.worker.waiting,
            "editable": engine.settings.token is not None,
            "limits": asdict(engine.settings.limits),
        }
        return _json(told, 200 if engine.worker.alive else 503)

    @app.get("/metrics", response_class=Response, tags=["server"])
    async def metrics() -> Response:
        """Figures for Prometheus."""
        revisions = await engine.aside(
            lambda: {name: book.kb.revision for name, book in list(engine.shelf.books.items())}
        )
        return Response(engine.metrics.tell(revisions), media_type="text/plain; version=0.0.4; charset=utf-8")


def _rule(reader: Any) -> str:
    if isinstance(reader, PriorReader):
        return "fixed"
    return "longest" if getattr(reader.config, "mode", "") == "softmax" else "best"


def _name(engine: Engine, kb: str | None) -> str:
    engine.shelf.book(kb)
    return kb if kb is not None else next(iter(engine.shelf.books))


def _sources(engine: Engine, asked: schemas.LinkOptions) -> list[Source]:
    """A linker for each layer; a model that only some of all KBs have is theirs alone."""
    options: dict[str, Any] = {"among": asked.among, "kinds": asked.kinds, "threshold": asked.threshold}
    if asked.kb is None and asked.model != "auto":
        names = [name for name, book in engine.shelf.books.items() if asked.model in book.linkers]
        names = names or list(engine.shelf.books)
    else:
        names = list(engine.shelf.books) if asked.kb is None else [asked.kb] if isinstance(asked.kb, str) else asked.kb
    if not names:
        raise UsageError("there is no knowledge base in kb; name one, or leave it out for all")
    return [engine.shelf.source(name, asked.model, **options) for name in dict.fromkeys(names)]


def _asked(options: schemas.LinkOptions, texts: tuple[str, ...]) -> Asked:
    return Asked(texts, options.threshold, options.top_k, options.overlaps, options.nil)


def join_layers(layers: Any) -> Document:
    """Documents of one text as one, as `Linkers` joins them."""
    from wellread.linker.several import join

    return cast(Document, layers[0]) if len(layers) == 1 else join(layers)


def _fields(document: Document) -> dict[str, Any]:
    return {"text": document.text, "links": document.links, "id": document.id, "meta": document.meta}


async def _explained(engine: Engine, asked: schemas.ExplainRequest, request: Request) -> tuple[Seen, int]:
    lent = Lent(None if asked.maps is None else tuple(asked.maps), asked.map_weight, asked.alpha)
    seen = await _answered(request, engine.explain(lent, asked.text, asked.second), engine.settings.limits.seconds)
    layer = seen.best_layer if asked.layer is None else asked.layer
    if layer >= seen.layers:
        raise UsageError(f"there is no layer {layer}; the model has {seen.layers}, from 0")
    if asked.head != "mean" and not 0 <= asked.head < seen.heads:
        raise UsageError(f"there is no head {asked.head}; the model has {seen.heads}, from 0, and their mean")
    return seen, layer


async def _answered(request: Request, answer: Awaitable[T], seconds: float) -> T:
    """What was asked for, unless the client goes away before it is begun, or it takes too long."""
    asked = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({asked, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        if gone.done():
            raise HTTPException(499, "the client went away")
        raise TimeoutError
    finally:
        gone.cancel()
        asked.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told(errors: Any) -> str:
    """Where a request is wrong and why, without what it said."""
    parts = []
    for error in list(errors)[:3]:
        place = ".".join(str(part) for part in error["loc"] if part != "body")
        parts.append(f"{place}: {error['msg']}" if place else str(error["msg"]))
    return "; ".join(parts).encode("utf-8", "replace").decode()


def _json(told: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")
