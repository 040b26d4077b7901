"""POST /map: map strings without a text around them to the entities of a served KB."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from wellread.mapping.results import THRESHOLD, MappedString
from wellread.server import schemas
from wellread.server.engine import Engine
from wellread.server.responses import ERROR_RESPONSES, json_response, wait_for_result

MOST_STRINGS = 1_000
"""Maximum strings of a request."""
_String = Annotated[str, Field(max_length=500)]


class MapRequest(schemas.Request):
    """Strings to map, with a context of each if given."""

    strings: list[_String] = Field(min_length=1, max_length=MOST_STRINGS)
    context: list[Annotated[str, Field(max_length=2_000)] | None] | None = Field(
        None, max_length=MOST_STRINGS, description="A text for each string that tells namesakes apart; needs an elq KB."
    )
    kb: str | None = Field(None, max_length=500, description="Knowledge base; the first by default.")
    best: int = Field(1, ge=1, le=100, description="Candidates of each string.")
    threshold: float = Field(THRESHOLD, ge=0, le=1, allow_inf_nan=False, description="Minimum probability of a match.")
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"strings": ["Curie, Marie", "Warsow"], "best": 3}]},
    )

    @model_validator(mode="after")
    def _contexts_fit(self) -> MapRequest:
        if self.context is not None and len(self.context) != len(self.strings):
            raise ValueError(
                f"context has {len(self.context)} texts for {len(self.strings)} strings; give one for each"
            )
        return self


class MatchShape(BaseModel):
    """An entity that a string may name."""

    entity: str
    title: str
    score: float = Field(description="Probability that it is the right one.")
    name: str = Field(description="Its most similar name.")
    found_by: str = Field(description="exact, case, punctuation, order, initials, typo, words or meaning.")


class MappedShape(BaseModel):
    """A string with its match, nulls if it is unmatched, and its best candidates."""

    text: str
    entity: str | None
    title: str | None
    score: float | None
    found_by: str | None
    candidates: list[MatchShape]


class Mapped(BaseModel):
    """One result per string, in order."""

    kb: str
    strings: list[MappedShape]


def add_mapping_routes(app: FastAPI, engine: Engine) -> None:
    """Add POST /map."""

    @app.post("/map", response_model=Mapped, responses=ERROR_RESPONSES, tags=["reading"])
    async def map_strings(request_body: MapRequest, request: Request) -> Response:
        """Map strings, such as the cells of a column, to entities of one knowledge base."""
        name = next(iter(engine.registry.served_kbs)) if request_body.kb is None else request_body.kb
        strings = request_body.strings
        request.state.note(strings=len(strings), kbs=[name])
        pending = engine.map(
            name, strings, request_body.context, best=request_body.best, threshold=request_body.threshold
        )
        found: list[MappedString] = await wait_for_result(request, pending, engine.settings.limits.seconds)
        return json_response({"kb": name, "strings": [one.to_dict() for one in found]})
