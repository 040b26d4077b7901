"""Routes that read texts: links, vectors, attention."""

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
from wellread.server.encoders import ExplainOptions, Vectors
from wellread.server.engine import Engine
from wellread.server.linkers import LinkJob, Source
from wellread.server.middleware import Handler
from wellread.server.responses import LATE, LOADED, REFUSALS, answered, json_answer, refusal, status_of, told_of
from wellread.server.stream import LineStream
from wellread.server.workers import EncodedDocuments

if TYPE_CHECKING:
    from wellread.plots.attention import Seen

_SPELLED = 20_000
"""Characters whose words or pieces have vectors: each is some kilobytes."""
_EXPLAINED = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'self'; "
    "sandbox allow-scripts"
)
"""What the attention view may do in its frame; its own policy lets no script run but its own."""


_WRONG = (
    '<!doctype html><html lang="en"><meta name="color-scheme" content="light dark"><title>error</title>'
    "<style>body {{ padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }}</style><p>{}</p>"
    '<script>parent.postMessage(document.querySelector("p").textContent, "*")</script>'
)
"""An error in the frame, of which the page around it is told: it cannot see inside."""


def add_reading(app: FastAPI, engine: Engine, quick: dict[str, Handler]) -> None:
    """The routes of an engine; in `quick` those that are answered past the application, which declares them."""
    limits = engine.settings.limits

    async def answer_link(asked: schemas.LinkRequest, request: Request) -> Response:
        given = asked.given
        sources = _sources(engine, asked)
        request.state.note(texts=len(given), characters=sum(map(len, given)), kbs=[one.kb for one in sources])
        wanted = replace(_asked(asked, given), spans=asked.given_spans, never_nil=asked.never_nil)
        answers = await answered(request, engine.link(sources, wanted), limits.seconds)
        revisions = {source.kb: answer.revision for source, answer in zip(sources, answers, strict=True)}
        documents = joined(answers, join if asked.spans is None else join_given)
        return json_answer({"documents": list(map(orjson.Fragment, documents)), "revisions": revisions})

    async def quick_link(request: Request) -> Response:
        request.scope["route"] = declared
        try:
            return await answer_link(await posted(request), request)
        except Exception as error:
            told = refusal(error)
            if told is None:
                raise
            return told

    async def posted(request: Request) -> schemas.LinkRequest:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise InputError("the body is not said to be JSON; send it with content-type: application/json")
        try:
            return schemas.LinkRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise InputError(told_of(error.errors(include_url=False, include_input=False))) from None

    # The application's own work would be a quarter of what a short text costs besides the model.
    quick["/link"] = quick_link

    @app.post("/link", response_model=schemas.Linked, responses=REFUSALS, tags=["reading"])
    async def link(asked: schemas.LinkRequest, request: Request) -> Response:
        """Link one text or several: a document for each, with the links of all layers."""
        return await answer_link(asked, request)

    declared = app.router.routes[-1]
    streaming = asyncio.Semaphore(limits.streams)

    @app.post(
        "/link/stream",
        responses={
            200: {"content": {"application/x-ndjson": {}}, "description": "A document a line"},
            **REFUSALS,
            431: {"model": schemas.Problem, "description": "more in the address than a head may have"},
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
        """Link a text a line (a JSON string, or an object with text and id): a document a line, as they are ready."""
        sources = _sources(engine, options)
        if streaming.locked():
            raise BusyError(5)
        await streaming.acquire()

        def answer(text: str) -> Awaitable[dict[str, Any]]:
            return told(engine.link(sources, _asked(options, (text,)), patient=True))

        async def told(asked: Awaitable[list[EncodedDocuments]]) -> dict[str, Any]:
            answers = await asked
            revisions = {source.kb: one.revision for source, one in zip(sources, answers, strict=True)}
            return {**orjson.loads(joined(answers)[0]), "revisions": revisions}

        ahead = max(1, min(limits.ahead, engine.queue) // len(sources))
        return LineStream(
            request,
            answer,
            ahead=ahead,
            longest=limits.body,
            seconds=limits.seconds,
            stopping=engine.stopping,
            done=streaming.release,
        )

    @app.post("/embed", response_model=schemas.Embedded, responses=LOADED, tags=["reading"])
    async def embed(asked: schemas.EmbedRequest, request: Request) -> Response:
        """Contextual vectors of texts, of their words, or of their pieces."""
        given = asked.given
        request.state.note(texts=len(given), characters=sum(map(len, given)))
        if asked.of != "texts" and sum(map(len, given)) > _SPELLED:
            raise InputError(f"vectors of {asked.of} are made for at most {_SPELLED:,} characters at once; send fewer")
        reading = engine.reading(asked.model)
        vectors = Vectors(reading.name, asked.of, asked.pooling, asked.unit)
        rows = await answered(request, engine.embed(vectors, given), limits.seconds)
        texts = [
            [
                {"start": start, "end": end, "text": name, "vector": vector}
                for (start, end), name, vector in zip(one.spans.tolist(), one.names, one.vectors, strict=True)
            ]
            for one in rows
        ]
        return json_answer({"model": reading.name, "dim": reading.embedder.dim, "texts": texts})

    @app.post("/explain", response_model=schemas.Explained, responses=LOADED, tags=["reading"])
    async def explain(asked: schemas.ExplainRequest, request: Request) -> Response:
        """What knowledge changes in attention: one layer and head, with knowledge and without."""
        request.state.note(texts=1, characters=len(asked.text))
        seen, layer = await _explained(engine, asked, request)
        from wellread.plots.attention import by_words

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
        return json_answer(told)

    @app.post("/explain/page", include_in_schema=False)
    async def explain_page(request: Request) -> Response:
        """The attention view for a frame of the page, which asks for it with a form; errors are for people there."""
        status, headers = 200, {"content-security-policy": _EXPLAINED, "cache-control": "no-store"}
        try:
            asked = _form(await request.body(), engine)
            request.state.note(texts=1, characters=len(asked.text))
            seen, layer = await _explained(engine, asked, request)
            from wellread.plots.attention_page import explained_page

            page = explained_page(seen, layer=layer, head=asked.head, by=asked.by)
        except (WellreadError, TimeoutError) as error:
            status = status_of(error) if isinstance(error, WellreadError) else 503
            page = _WRONG.format(escape(str(error) or LATE))
        return HTMLResponse(page, status, headers)


def _sources(engine: Engine, asked: schemas.LinkOptions) -> list[Source]:
    """A linker for each layer; a model that only some of all KBs have is theirs alone."""
    options: dict[str, Any] = {"among": asked.among, "kinds": asked.kinds, "threshold": asked.threshold}
    if asked.kb is None and asked.model != "auto":
        names = [name for name, served_kb in engine.registry.served_kbs.items() if asked.model in served_kb.linkers]
        names = names or list(engine.registry.served_kbs)
    else:
        names = (
            list(engine.registry.served_kbs)
            if asked.kb is None
            else [asked.kb]
            if isinstance(asked.kb, str)
            else asked.kb
        )
    if not names:
        raise UsageError("there is no knowledge base in kb; name one, or leave it out for all")
    return [engine.registry.source(name, asked.model, **options) for name in dict.fromkeys(names)]


def _asked(options: schemas.LinkOptions, texts: tuple[str, ...]) -> LinkJob:
    return LinkJob(texts, options.threshold, options.top_k, options.overlaps, options.nil)


def joined(answers: Sequence[EncodedDocuments], join: Callable[[Sequence[Document]], Document] = join) -> list[bytes]:
    """Return a document for each text, with the links of all layers, as `Linkers` joins them."""
    if len(answers) == 1:
        return answers[0].documents
    layers = ([Document.from_json(one.decode()) for one in answer.documents] for answer in answers)
    return [orjson.dumps(join(some)) for some in zip(*layers, strict=True)]


def _form(body: bytes, engine: Engine) -> schemas.ExplainRequest:
    """What a form asks for; a model that has learned its maps is shown with those."""
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=32)
        given: dict[str, Any] = {name: values[0] for name, values in form.items() if name != "maps"}
        if engine.reading(given.get("model", "auto")).plain:
            given["maps"] = form.get("maps", [])
        else:
            given.pop("map_weight", None)
        return schemas.ExplainRequest.model_validate(given)
    except ValidationError as error:
        raise InputError(told_of(error.errors())) from None
    except ValueError:
        raise InputError("the form has too many fields; send it from the page") from None


async def _explained(engine: Engine, asked: schemas.ExplainRequest, request: Request) -> tuple[Seen, int]:
    name = engine.reading(asked.model).name
    maps = None if asked.maps is None else tuple(dict.fromkeys(asked.maps))  # one that is named twice is lent once
    provided = ExplainOptions(name, maps, asked.map_weight, asked.alpha)
    seen = await answered(request, engine.explain(provided, asked.text, asked.second), engine.settings.limits.seconds)
    layer = seen.best_layer if asked.layer is None else asked.layer
    if layer >= seen.layers:
        raise UsageError(f"there is no layer {layer}; the model has {seen.layers}, from 0")
    if asked.head != "mean" and not 0 <= asked.head < seen.heads:
        raise UsageError(f"there is no head {asked.head}; the model has {seen.heads}, from 0, and their mean")
    return seen, layer
