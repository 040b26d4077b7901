"""Routes of texts: /link, /link/stream, /embed, /explain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs

import orjson
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from wellread.document import Document
from wellread.errors import InputError, UsageError, WellreadError
from wellread.linking.multi import join, join_given
from wellread.plots.html import escape
from wellread.server import schemas
from wellread.server.batching import BusyError
from wellread.server.encoders import EmbedOptions, ExplainOptions
from wellread.server.engine import Engine
from wellread.server.middleware import Handler
from wellread.server.registry import LinkerKey
from wellread.server.responses import (
    ERROR_RESPONSES,
    MODEL_ERROR_RESPONSES,
    TIMEOUT_MESSAGE,
    describe_errors,
    error_response,
    json_response,
    status_of,
    wait_for_result,
)
from wellread.server.served_kb import LinkJob
from wellread.server.stream import LineStream
from wellread.server.workers import EncodedDocuments

if TYPE_CHECKING:
    from wellread.plots.attention import Seen

_MAX_TOKEN_CHARACTERS = 20_000
"""Maximum characters of a request for vectors of words or tokens: each vector is some kilobytes."""
_FRAME_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'self'; "
    "sandbox allow-scripts"
)
"""Content security policy of the attention view in its frame; its own policy allows its own script only."""


_ERROR_PAGE = (
    '<!doctype html><html lang="en"><meta name="color-scheme" content="light dark"><title>error</title>'
    "<style>body {{ padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }}</style><p>{}</p>"
    '<script>parent.postMessage(document.querySelector("p").textContent, "*")</script>'
)
"""Error page of the frame; it posts the message to the page around it, which cannot read inside."""


def add_text_routes(app: FastAPI, engine: Engine, fast_routes: dict[str, Handler]) -> None:
    """Add the routes of an engine.

    POST /link is also put into `fast_routes`, which `RequestMiddleware` calls without FastAPI's router, dependency
    resolution and response model: they would take a quarter of the time of a short text besides the model. Both call
    `answer_link`, and the declared route documents it in OpenAPI.
    """
    limits = engine.settings.limits

    async def answer_link(request_body: schemas.LinkRequest, request: Request) -> Response:
        given = request_body.given
        keys = _linker_keys(engine, request_body)
        request.state.note(texts=len(given), characters=sum(map(len, given)), kbs=[key.kb for key in keys])
        job = replace(_link_job(request_body, given), spans=request_body.given_spans, never_nil=request_body.never_nil)
        answers = await wait_for_result(request, engine.link(keys, job), limits.seconds)
        revisions = {key.kb: answer.revision for key, answer in zip(keys, answers, strict=True)}
        documents = join_documents(answers, join if request_body.spans is None else join_given)
        return json_response({"documents": list(map(orjson.Fragment, documents)), "revisions": revisions})

    async def link_fast(request: Request) -> Response:
        request.scope["route"] = declared_route
        try:
            return await answer_link(await parse_body(request), request)
        except Exception as error:
            response = error_response(error)
            if response is None:
                raise
            return response

    async def parse_body(request: Request) -> schemas.LinkRequest:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise InputError("the body is not declared as JSON; send it with content-type: application/json")
        try:
            return schemas.LinkRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise InputError(describe_errors(error.errors(include_url=False, include_input=False))) from None

    fast_routes["/link"] = link_fast

    @app.post("/link", response_model=schemas.Linked, responses=ERROR_RESPONSES, tags=["reading"])
    async def link(request_body: schemas.LinkRequest, request: Request) -> Response:
        """Link one text or several: one document each, with the links of all KBs."""
        return await answer_link(request_body, request)

    declared_route = app.router.routes[-1]
    streaming = asyncio.Semaphore(limits.streams)

    @app.post(
        "/link/stream",
        responses={
            200: {"content": {"application/x-ndjson": {}}, "description": "One document per line"},
            **ERROR_RESPONSES,
            431: {"model": schemas.Problem, "description": "the address is too long"},
        },
        response_class=Response,
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": '"Mozart in Vienna."\n'}},
            }
        },
        tags=["reading"],
    )
    async def stream(request: Request, options: Annotated[schemas.LinkOptions, Query()]) -> Response:
        """Link one text per line (a JSON string, or an object with text and id); send one document per line."""
        keys = _linker_keys(engine, options)
        if streaming.locked():
            raise BusyError(5)
        await streaming.acquire()

        def answer(text: str) -> Awaitable[dict[str, Any]]:
            return to_document(engine.link(keys, _link_job(options, (text,)), patient=True))

        async def to_document(results: Awaitable[list[EncodedDocuments]]) -> dict[str, Any]:
            answers = await results
            revisions = {key.kb: one.revision for key, one in zip(keys, answers, strict=True)}
            return {**orjson.loads(join_documents(answers)[0]), "revisions": revisions}

        ahead = max(1, min(limits.ahead, engine.queue) // len(keys))
        return LineStream(
            request,
            answer,
            ahead=ahead,
            longest=limits.body,
            seconds=limits.seconds,
            stopping=engine.stopping,
            done=streaming.release,
        )

    @app.post("/embed", response_model=schemas.Embedded, responses=MODEL_ERROR_RESPONSES, tags=["reading"])
    async def embed(request_body: schemas.EmbedRequest, request: Request) -> Response:
        """Compute contextual vectors of texts, words or tokens."""
        given = request_body.given
        request.state.note(texts=len(given), characters=sum(map(len, given)))
        if request_body.of != "texts" and sum(map(len, given)) > _MAX_TOKEN_CHARACTERS:
            raise InputError(
                f"vectors of {request_body.of} are limited to {_MAX_TOKEN_CHARACTERS:,} characters; send less at once"
            )
        encoder = engine.encoder(request_body.model)
        vectors = EmbedOptions(encoder.name, request_body.of, request_body.pooling, request_body.unit)
        rows = await wait_for_result(request, engine.embed(vectors, given), limits.seconds)
        texts = [
            [
                {"start": start, "end": end, "text": name, "vector": vector}
                for (start, end), name, vector in zip(one.spans.tolist(), one.names, one.vectors, strict=True)
            ]
            for one in rows
        ]
        return json_response({"model": encoder.name, "dim": encoder.embedder.dim, "texts": texts})

    @app.post("/explain", response_model=schemas.Explained, responses=MODEL_ERROR_RESPONSES, tags=["reading"])
    async def explain(request_body: schemas.ExplainRequest, request: Request) -> Response:
        """Return the attention of one layer and head, with and without knowledge."""
        request.state.note(texts=1, characters=len(request_body.text))
        attention, layer = await _attention(engine, request_body, request)
        from wellread.plots.attention import by_words

        shown = by_words(attention) if request_body.by == "words" else attention
        without, infused = shown.attention(layer, request_body.head)
        content = {
            "texts": shown.texts,
            "model": shown.model,
            "notes": shown.notes,
            "layers": shown.layers,
            "heads": shown.heads,
            "layer": layer,
            "head": request_body.head,
            "rows": shown.labels[: shown.rows],
            "columns": shown.labels,
            "without": without.round(5).tolist(),
            "infused": infused.round(5).tolist(),
            "moved": shown.moved.round(5).tolist(),
            "maps": {name: scores.round(5).tolist() for name, scores in shown.maps.items()},
        }
        return json_response(content)

    @app.post("/explain/page", include_in_schema=False)
    async def explain_page(request: Request) -> Response:
        """Return the attention view as HTML for the page's frame; errors are HTML too."""
        status, headers = 200, {"content-security-policy": _FRAME_POLICY, "cache-control": "no-store"}
        try:
            request_body = _form(await request.body(), engine)
            request.state.note(texts=1, characters=len(request_body.text))
            attention, layer = await _attention(engine, request_body, request)
            from wellread.plots.attention_page import explained_page

            page = explained_page(attention, layer=layer, head=request_body.head, by=request_body.by)
        except (WellreadError, TimeoutError) as error:
            status = status_of(error) if isinstance(error, WellreadError) else 503
            page = _ERROR_PAGE.format(escape(str(error) or TIMEOUT_MESSAGE))
        return HTMLResponse(page, status, headers)


def _linker_keys(engine: Engine, request_body: schemas.LinkOptions) -> list[LinkerKey]:
    """Return a linker for each requested KB; without kb, all KBs that have the model."""
    options: dict[str, Any] = {
        "among": request_body.among,
        "kinds": request_body.kinds,
        "threshold": request_body.threshold,
    }
    if request_body.kb is None and request_body.model != "auto":
        names = [
            name for name, served_kb in engine.registry.served_kbs.items() if request_body.model in served_kb.linkers
        ]
        names = names or list(engine.registry.served_kbs)
    else:
        names = (
            list(engine.registry.served_kbs)
            if request_body.kb is None
            else [request_body.kb]
            if isinstance(request_body.kb, str)
            else request_body.kb
        )
    if not names:
        raise UsageError("kb is an empty list; name a knowledge base, or omit kb for all")
    return [engine.registry.key(name, request_body.model, **options) for name in dict.fromkeys(names)]


def _link_job(options: schemas.LinkOptions, texts: tuple[str, ...]) -> LinkJob:
    return LinkJob(texts, options.threshold, options.top_k, options.overlaps, options.nil)


def join_documents(
    answers: Sequence[EncodedDocuments], join: Callable[[Sequence[Document]], Document] = join
) -> list[bytes]:
    """Return a document for each text, with the links of all KBs joined as `Linkers` joins them."""
    if len(answers) == 1:
        return answers[0].documents
    layers = ([Document.from_json(one.decode()) for one in answer.documents] for answer in answers)
    return [orjson.dumps(join(some)) for some in zip(*layers, strict=True)]


def _form(body: bytes, engine: Engine) -> schemas.ExplainRequest:
    """Return the request of a form; an encoder with infusions keeps its own maps."""
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=32)
        given: dict[str, Any] = {name: values[0] for name, values in form.items() if name != "maps"}
        if engine.encoder(given.get("model", "auto")).plain:
            given["maps"] = form.get("maps", [])
        else:
            given.pop("map_weight", None)
        return schemas.ExplainRequest.model_validate(given)
    except ValidationError as error:
        raise InputError(describe_errors(error.errors())) from None
    except ValueError:
        raise InputError("the form has too many fields; send it from the page") from None


async def _attention(engine: Engine, request_body: schemas.ExplainRequest, request: Request) -> tuple[Seen, int]:
    name = engine.encoder(request_body.model).name
    maps = None if request_body.maps is None else tuple(dict.fromkeys(request_body.maps))  # without duplicates
    options = ExplainOptions(name, maps, request_body.map_weight, request_body.alpha)
    attention = await wait_for_result(
        request, engine.explain(options, request_body.text, request_body.second), engine.settings.limits.seconds
    )
    layer = attention.best_layer if request_body.layer is None else request_body.layer
    if layer >= attention.layers:
        raise UsageError(f"there is no layer {layer}; the model has layers 0 to {attention.layers - 1}")
    if request_body.head != "mean" and not 0 <= request_body.head < attention.heads:
        raise UsageError(
            f"there is no head {request_body.head}; the model has heads 0 to {attention.heads - 1}, and mean"
        )
    return attention, layer
