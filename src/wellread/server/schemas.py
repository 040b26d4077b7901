"""Request and response bodies of the HTTP API; the examples work with the packaged knowledge bases."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(min_length=1, max_length=500)]
Span = tuple[int, int]
MOST_SPANS = 5_000
"""Maximum given spans of a request."""
Count = Annotated[float, Field(ge=0, le=1e300, allow_inf_nan=False)]


class Request(BaseModel):
    """A request body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", str_max_length=4 << 20)


class Texts(Request):
    """One text or several."""

    text: str | None = Field(None, description="One text.")
    texts: list[str] | None = Field(None, min_length=1, description="Several texts, instead of one.")

    @model_validator(mode="after")
    def _one_or_many(self) -> Texts:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        return self

    @property
    def given(self) -> tuple[str, ...]:
        """The texts, one or several."""
        return (self.text,) if self.text is not None else tuple(self.texts or ())


class LinkOptions(Request):
    """Options of linking."""

    kb: str | list[str] | None = Field(
        None, description="One knowledge base or several; all of the server's by default."
    )
    model: str = Field("auto", max_length=500, description="A model named by /health; auto is each KB's default.")
    threshold: float | None = Field(
        None, ge=0, le=1, allow_inf_nan=False, description="Minimum score of a link; the model's own by default."
    )
    top_k: int = Field(10, ge=0, le=100, description="Candidates of each link.")
    overlaps: Literal["auto", "drop", "keep"] | None = Field(None, description="Drop or keep overlapping links.")
    nil: bool = Field(False, description="Include NIL links: mentions without an entity in the KB.")
    among: list[Name] | None = Field(None, max_length=10_000, description="Link only to entities with these ids.")
    kinds: list[Name] | None = Field(
        None, min_length=1, max_length=1_000, description="Link only to entities of these kinds."
    )


class LinkRequest(Texts, LinkOptions):
    """Texts to link, or given spans of them."""

    spans: list[Span] | list[list[Span]] | None = Field(
        None,
        description="Link these spans only, one link each: [start, end] pairs of `text`, or a list of such pairs for "
        "each of `texts`. NIL links are always included.",
    )
    never_nil: bool = Field(
        False, description="With spans: choose the best entity instead of NIL, if there is any candidate."
    )
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "Marie Curie was born in Warsaw."},
                {"texts": ["Mozart lived in Vienna.", "Mercury is near the Sun."], "threshold": 0.5, "top_k": 3},
                {"text": "Marie Curie was born in Warsaw.", "spans": [[0, 11]], "never_nil": True},
            ]
        }
    )

    @model_validator(mode="after")
    def _spans_fit(self) -> LinkRequest:
        if self.spans is None:
            if self.never_nil:
                raise ValueError("never_nil needs spans; give spans too")
            return self
        given = self.given_spans or ()
        if len(given) != len(self.given):
            raise ValueError(f"spans has {len(given)} lists for {len(self.given)} texts; give one for each text")
        if (many := sum(map(len, given))) > MOST_SPANS:
            raise ValueError(f"the request has {many:,} spans; send at most {MOST_SPANS:,} at once")
        for text, spans in zip(self.given, given, strict=True):
            for start, end in spans:
                if not 0 <= start < end <= len(text):
                    raise ValueError(f"the span {start}:{end} is not in its text of {len(text):,} characters")
        return self

    @property
    def given_spans(self) -> tuple[list[Span], ...] | None:
        """The given spans of each text; None if there are none."""
        if self.spans is None:
            return None
        nested = [spans for spans in self.spans if isinstance(spans, list)]
        pairs = [span for span in self.spans if isinstance(span, tuple)]
        if self.text is not None:
            if nested:
                raise ValueError("spans has lists of spans, but there is one text; give [[start, end], …]")
            return (pairs,)
        if pairs:
            raise ValueError("spans has [start, end] pairs, but there are several texts; give a list of pairs for each")
        return tuple(nested)


class CandidateShape(BaseModel):
    """A candidate entity of a mention."""

    entity: str
    title: str
    prior: float = Field(description="p(entity | name) of the KB.")
    score: float = Field(description="Score of the linker.")


class LinkShape(BaseModel):
    """A mention and what it is linked to; offsets are characters (code points), `end` exclusive."""

    start: int
    end: int
    text: str
    entity: str | None = Field(description="null: NIL, not in the knowledge base")
    title: str | None
    score: float
    candidates: list[CandidateShape]
    kb: str | None
    mention_score: float | None
    found_by: str | None = Field(
        description="How the span was found: as a name (exact, case, inflected, typo, …), by the encoder, or given."
    )


class DocumentShape(BaseModel):
    """A text with its links, as in `wellread link --format json`."""

    text: str
    links: list[LinkShape]
    id: str | None
    meta: dict[str, Any]


class Linked(BaseModel):
    """One document per text, and the revision of each KB."""

    documents: list[DocumentShape]
    revisions: dict[str, int]


Encoder = Annotated[str, Field(max_length=500, description="An encoder named by /health; auto is the first.")]


class EmbedRequest(Texts):
    """Texts to embed."""

    model: Encoder = "auto"
    of: Literal["texts", "words", "pieces"] = "texts"
    pooling: Literal["mean", "first"] = Field("mean", description="Pooling of a text's vector.")
    unit: bool = Field(False, description="Normalise vectors to length 1.")
    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["a river bank", "a savings bank"]}]})


class VectorShape(BaseModel):
    """A vector and its character span."""

    start: int
    end: int
    text: str
    vector: list[float]


class Embedded(BaseModel):
    """The vectors of each text."""

    model: str
    dim: int
    texts: list[list[VectorShape]]


class ExplainRequest(Request):
    """A text or pair whose attention is compared with and without knowledge."""

    text: str = Field(min_length=1)
    second: str | None = None
    model: Encoder = "auto"
    maps: list[Literal["entity", "phrase"]] | None = Field(
        None, description="Maps to infuse; the model's own by default."
    )
    map_weight: Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)] | None = Field(
        None, description="Weight of the maps; plain encoders only."
    )
    alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Share of the convolution; plain encoders only."
    )
    layer: int | None = Field(None, ge=0, le=1000, description="From 0; the layer with the largest change by default.")
    head: int | Literal["mean"] = Field("mean", description="From 0, or the mean of all.")
    by: Literal["words", "pieces"] = "words"
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "The Academy of Fine Arts is in Northern Maidan.", "maps": ["entity"], "map_weight": 10}
            ]
        }
    )


class Explained(BaseModel):
    """The attention of one layer and head: rows attend to columns."""

    texts: list[str]
    model: str
    notes: list[str]
    layers: int
    heads: int
    layer: int
    head: int | Literal["mean"]
    rows: list[str]
    columns: list[str]
    without: list[list[float]]
    infused: list[list[float]]
    moved: list[list[float]] = Field(description="Share of attention moved per layer: of the mean, then of each head.")
    maps: dict[str, list[list[float]]]


class EntityBody(Request):
    """An entity to add or replace."""

    title: str = Field(min_length=1, max_length=2_000)
    description: str = Field("", max_length=100_000)
    kind: str = Field("", max_length=500)
    popularity: Count = 0.0
    aliases: dict[Name, Count] | list[Name] = Field(
        default_factory=dict, max_length=10_000, description="Names, optionally with counts."
    )
    facts: list[tuple[Name, Name]] = Field(
        default_factory=list, max_length=10_000, description="(relation, id of another entity) pairs."
    )
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"title": "Aspirin Forte", "description": "a strong painkiller", "aliases": {"ASA forte": 3}}]
        }
    )


class CorrectionBody(Request):
    """The right entity of a span of a text."""

    text: str = Field(min_length=1)
    start: int = Field(ge=0)
    end: int = Field(ge=1)
    entity: str | None = Field(None, max_length=500, description="null: the span is not linked to any entity.")
    predicted: str | None = Field(None, max_length=500, description="What the linker had chosen; null if nothing.")
    score: float | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="The score of that link.")
    model: str | None = Field(None, max_length=500, description="The linker that had chosen it.")
    kb: str | None = Field(None, max_length=500, description="Knowledge base; the first by default.")
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"text": "Paris is a prince.", "start": 0, "end": 5, "entity": None, "predicted": "wp:Paris"}]
        }
    )

    @model_validator(mode="after")
    def _span_fits(self) -> CorrectionBody:
        if not self.start < self.end <= len(self.text):
            raise ValueError(f"the span {self.start}:{self.end} is not in its text of {len(self.text):,} characters")
        return self


class CorrectionKept(BaseModel):
    """A correction that was kept or taken back, and how many the KB has now."""

    kb: str
    id: int
    count: int


class SampleText(BaseModel):
    """A text to try the linkers with; empty if the knowledge bases are."""

    text: str


class FactShape(BaseModel):
    """A fact with another entity; `outgoing` if this entity is the subject."""

    relation: str
    entity: str
    title: str
    outgoing: bool


class EntityShape(BaseModel):
    """An entity of a KB."""

    kb: str
    id: str
    title: str
    description: str
    kind: str
    popularity: float
    aliases: dict[str, float]
    facts: list[tuple[str, str]]


class EntityCard(EntityShape):
    """An entity with its neighbours."""

    neighbours: list[FactShape]
    more_neighbours: int = Field(description="Number of neighbours that are not listed.")
    revision: int


class Found(BaseModel):
    """Search results, best first."""

    entities: list[EntityShape]


class Changed(BaseModel):
    """Outcome of a change, and the new KB revision."""

    kb: str
    id: str
    what: Literal["added", "updated", "removed"]
    revision: int


class KbHealth(BaseModel):
    """A knowledge base and its linkers, the default first."""

    name: str
    entities: int
    revision: int
    models: list[str]
    thresholds: dict[str, float]
    overlaps: dict[str, Literal["best", "longest", "first"]]
    """Rule for overlapping links, which the page needs to apply another threshold. first: from left to right the
    longest at each position, whatever its score; the threshold is applied afterwards."""
    corrections: int = Field(description="Number of corrections that users made.")


class EncoderHealth(BaseModel):
    """An encoder of /embed and /explain; the default is first."""

    name: str
    plain: bool = Field(description="True if /explain accepts maps and their weight.")


class Health(BaseModel):
    """Readiness, problems, KBs, encoders and limits."""

    status: Literal["ok", "failing"]
    ready: bool = Field(description="False with status 503 if the server has problems.")
    problems: list[str] = Field(description="Reasons, each with a fix.")
    workers: dict[str, int] = Field(description="Number of workers, and of replaced ones.")
    version: str
    kbs: list[KbHealth]
    encoders: list[EncoderHealth]
    waiting: int
    editable: bool
    limits: dict[str, float | None] = Field(description="null: chosen by the number of cores.")


class Ready(BaseModel):
    """Readiness for requests."""

    ready: bool = Field(description="False with status 503.")
    problems: list[str] = Field(description="Reasons.")


class Problem(BaseModel):
    """Error message: reason and fix."""

    error: str
