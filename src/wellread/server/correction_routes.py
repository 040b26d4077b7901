"""Routes of corrections: keep one, take it back, and export all, each with the token; and a text to try."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
from fastapi import Depends, FastAPI, Query, Request, Response

from wellread.errors import UnknownEntityError, UsageError
from wellread.kb.corrections import Correction, Corrections, corrections_path, to_json
from wellread.kb.store import KnowledgeBase
from wellread.server import schemas
from wellread.server.access import token_check
from wellread.server.engine import Engine
from wellread.server.entity_routes import CHANGES, Kb, kb_name
from wellread.server.responses import ERROR_RESPONSES, json_response, wait_for_result
from wellread.server.sample_text import sample_text
from wellread.server.served_kb import hide_kb_folder


def corrections_of(engine: Engine, kb: KnowledgeBase) -> Corrections:
    """Return the corrections of a served KB, beside it or in the folder of `--corrections`."""
    return Corrections(corrections_path(kb.path.resolve(), engine.settings.corrections))


def add_correction_routes(app: FastAPI, engine: Engine) -> None:
    """Add the routes of an engine."""
    check_token, limits = token_check(engine.settings), engine.settings.limits

    def keep(name: str, body: schemas.CorrectionBody) -> dict[str, object]:
        kb = engine.registry.served_kb(name).kb
        given = body.model_dump(exclude={"kb"})
        title = None
        if body.entity is not None:
            try:
                title = kb.get(body.entity).title
            except UnknownEntityError:
                raise UsageError(f"unknown entity {body.entity!r}; search for it with /entities?search=") from None
        with hide_kb_folder(kb):
            corrections = corrections_of(engine, kb)
            number = corrections.add(Correction(**given, title=title))
            return {"kb": name, "id": number, "count": len(corrections)}

    @app.post(
        "/corrections",
        status_code=201,
        response_model=schemas.CorrectionKept,
        responses=CHANGES,
        dependencies=[Depends(check_token)],
        tags=["knowledge"],
    )
    async def add(request: Request, body: schemas.CorrectionBody) -> Response:
        """Keep a correction: the right entity of a span, or that it is none; it replaces one of the same span."""
        name = kb_name(engine, body.kb)
        engine.check([body.text])
        kept = await wait_for_result(request, engine.run_change(lambda: keep(name, body)), limits.seconds)
        return json_response(kept, 201)

    @app.delete(
        "/corrections/{id}",
        response_model=schemas.CorrectionKept,
        responses=CHANGES,
        dependencies=[Depends(check_token)],
        tags=["knowledge"],
    )
    async def remove(request: Request, id: int, kb: Kb = None) -> Response:
        """Take a correction back."""
        name = kb_name(engine, kb)

        def take_back() -> dict[str, object]:
            opened = engine.registry.served_kb(name).kb
            with hide_kb_folder(opened):
                corrections = corrections_of(engine, opened)
                if not -(1 << 63) <= id < 1 << 63 or not corrections.remove(id):
                    raise UnknownEntityError(f"{name} has no correction {id}")
                return {"kb": name, "id": id, "count": len(corrections)}

        return json_response(await wait_for_result(request, engine.run_change(take_back), limits.seconds))

    @app.get(
        "/corrections",
        responses={
            **CHANGES,
            200: {"content": {"application/x-ndjson": {}}, "description": "One gold document per line"},
        },
        response_class=Response,
        dependencies=[Depends(check_token)],
        tags=["knowledge"],
    )
    async def export(request: Request, kb: Kb = None) -> Response:
        """Export the corrections of a KB as JSONL for `evaluate linking` and `adapt`: one document per text."""
        name = kb_name(engine, kb)

        def read() -> bytes:
            opened = engine.registry.served_kb(name).kb
            with hide_kb_folder(opened):
                documents = corrections_of(engine, opened).documents()
                return b"".join(orjson.dumps(to_json(document)) + b"\n" for document in documents)

        body = await wait_for_result(request, engine.run_look_up(read), limits.seconds)
        return Response(body, media_type="application/x-ndjson")

    @app.get("/sample", response_model=schemas.SampleText, responses=ERROR_RESPONSES, tags=["reading"])
    async def sample(
        request: Request, kb: Annotated[list[str] | None, Query(max_length=100, description="All by default.")] = None
    ) -> Response:
        """Return a text with names of the knowledge bases, to try the linkers with."""
        names = kb or list(engine.registry.served_kbs)

        def make() -> str:
            return sample_text([engine.registry.served_kb(name).kb for name in names])

        return json_response({"text": await wait_for_result(request, engine.run_look_up(make), limits.seconds)})


def folder_of(given: str | Path | None) -> Path | None:
    """Return the folder of `--corrections`; refuse one that does not exist."""
    if given is None:
        return None
    folder = Path(given)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; create it, or leave out --corrections to keep them beside the KB")
    return folder
