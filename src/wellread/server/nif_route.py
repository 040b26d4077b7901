"""/nif: linking of NIF documents in Turtle, as GERBIL sends them to an annotator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response

from wellread.data.nif import nif_drafts, to_nif
from wellread.document import Document, refuse_halves
from wellread.errors import InputError
from wellread.linking.given_spans import Spans
from wellread.server.engine import Engine
from wellread.server.registry import LinkerKey
from wellread.server.responses import ERROR_RESPONSES, wait_for_result
from wellread.server.schemas import MOST_SPANS
from wellread.server.served_kb import LinkJob

_EXAMPLE = """\
@prefix nif: <http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#> .
<http://example.org/text#offset_0_30> a nif:Context ; nif:isString "Marie Curie was born in Warsaw" .
"""
_TRIPLES = 12 * MOST_SPANS
"""Maximum triples of a request, enough for the phrases of GERBIL; they take most of the time."""
_TURTLE = "text/turtle; charset=utf-8"


def add_nif_route(app: FastAPI, engine: Engine) -> None:
    """Add the route of an engine."""
    limits = engine.settings.limits
    example = {"text/turtle": {"schema": {"type": "string"}, "example": _EXAMPLE}}
    answer: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/turtle": {"schema": {"type": "string"}}}, "description": "The texts with their links"}
    }

    @app.post(
        "/nif",
        response_class=Response,
        responses={**answer, **ERROR_RESPONSES},
        openapi_extra={"requestBody": {"required": True, "content": example}},
        tags=["reading"],
    )
    async def nif(
        request: Request,
        kb: Annotated[str | None, Query(max_length=500, description="Knowledge base; the first by default.")] = None,
        model: Annotated[str, Query(max_length=500, description="A model named by /health.")] = "auto",
        threshold: Annotated[
            float | None, Query(ge=0, le=1, allow_inf_nan=False, description="Minimum score of a link.")
        ] = None,
        nil: Annotated[bool, Query(description="Include NIL links, as http://aksw.org/notInWiki/….")] = False,
        prefix: Annotated[
            str | None,
            Query(max_length=500, pattern=r"^(https?|urn):[!-;=?-Z_a-z~]*$", description="IRI before entity ids."),
        ] = None,
    ) -> Response:
        """Link the texts of a NIF document; where it has phrases, only these. Answers with NIF 2.1."""
        body = await request.body()
        given = await wait_for_result(request, engine.parse(lambda stop: _read(body, stop)), limits.seconds)
        request.state.note(texts=len(given), characters=sum(len(document.text) for document in given))
        name = kb if kb is not None else next(iter(engine.registry.served_kbs))
        key = engine.registry.key(name, model, threshold=threshold)
        linked = await wait_for_result(request, _link(engine, key, given, threshold, nil), limits.seconds)
        written = engine.parse(lambda stop: to_nif(linked, prefix=prefix))
        return Response(await wait_for_result(request, written, limits.seconds), media_type=_TURTLE)


async def _link(
    engine: Engine, key: LinkerKey, given: list[Document], threshold: float | None, nil: bool
) -> list[Document]:
    texts = tuple(document.text for document in given)
    job = LinkJob(texts, threshold, 0, None, nil)
    if any(document.links for document in given):
        spans: tuple[Spans, ...] = tuple(tuple((link.start, link.end) for link in document.links) for document in given)
        job = replace(job, spans=spans)
    (answer,) = await engine.link([key], job)
    linked = [Document.from_json(one.decode()) for one in answer.documents]
    return [replace(after, id=before.id) for before, after in zip(given, linked, strict=True)]


def _read(body: bytes, stop: Callable[[], bool]) -> list[Document]:
    try:
        turtle = body.decode()
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8; send Turtle as UTF-8") from None
    documents = [draft() for draft in nif_drafts(turtle, "request", "the request", most=_TRIPLES, stop=stop)]
    if not documents:
        raise InputError("the request has no text; send a nif:Context with its nif:isString")
    if (many := sum(len(document.links) for document in documents)) > MOST_SPANS:
        raise InputError(f"the request has {many:,} phrases; send at most {MOST_SPANS:,} at once")
    for document in documents:
        refuse_halves(document.text, "the text")
    return documents
