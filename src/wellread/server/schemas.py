"""What clients send and get, as OpenAPI tells it: each with an example that works with the packaged knowledge bases."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(min_length=1, max_length=500)]
Span = tuple[int, int]
MOST_SPANS = 5_000
"""Given spans of one request."""
Count = Annotated[float, Field(ge=0, le=1e300, allow_inf_nan=False)]


class Request(BaseModel):
    """A body; a field that is not known is refused, since it is a slip of the pen."""

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
        """All of them."""
        return (self.text,) if self.text is not None else tuple(self.texts or ())


class LinkOptions(Request):
    """How texts are linked."""

    kb: str | list[str] | None = Field(
        None, description="A knowledge base or several, each a layer of links; all of the server's unless given."
    )
    model: str = Field("auto", max_length=500, description="Of those that /health names; auto is each KB's usual one.")
    threshold: float | None = Field(
        None, ge=0, le=1, allow_inf_nan=False, description="Leave out weaker links; the model's own unless given."
    )
    top_k: int = Field(10, ge=0, le=100, description="Candidates told with each link.")
    overlaps: Literal["auto", "drop", "keep"] | None = Field(None, description="Whether links may overlap.")
    nil: bool = Field(False, description="Also give NIL links: mentions of what the KB does not have.")
    among: list[Name] | None = Field(None, max_length=10_000, description="Link only to entities with these ids.")
    kinds: list[Name] | None = Field(
        None, min_length=1, max_length=1_000, description="Link only to entities of these kinds."
    )


class LinkRequest(Texts, LinkOptions):
    """Texts to link, or given spans of them."""

    spans: list[Span] | list[list[Span]] | None = Field(
        None,
        description="Link these spans and look for no others, one link for each: [start, end] pairs of `text`, or a "
        "list of such pairs for each of `texts`. NIL links are always given.",
    )
    never_nil: bool = Field(False, description="With spans: always choose the best entity, if there is any.")
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
                raise ValueError("never_nil is for given spans; give spans too")
            return self
        given = self.given_spans or ()
        if len(given) != len(self.given):
            raise ValueError(f"spans has {len(given)} lists for {len(self.given)} texts; give one for each text")
        if (many := sum(map(len, given))) > MOST_SPANS:
            raise ValueError(f"there are {many:,} spans; send at most {MOST_SPANS:,} at once")
        for text, spans in zip(self.given, given, strict=True):
            for start, end in spans:
                if not 0 <= start < end <= len(text):
                    raise ValueError(f"the span {start}:{end} is not in its text of {len(text):,} characters")
        return self

    @property
    def given_spans(self) -> tuple[list[Span], ...] | None:
        """The spans of each text."""
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
    """An entity that a mention may mean."""

    entity: str
    title: str
    prior: float = Field(description="What the name alone says.")
    score: float = Field(description="What the linker says.")


class LinkShape(BaseModel):
    """A mention and what it is linked to; offsets are characters (code points), `end` exclusive."""

    start: int
    end: int
    text: str
    entity: str | None = Field(description="null: named, but not in the knowledge base")
    title: str | None
    score: float
    candidates: list[CandidateShape]
    kb: str | None
    mention_score: float | None
    found_by: str | None = Field(
        description="How the span was found: as a name (exact, case, inflected, typo, …), by the encoder, or given."
    )


class DocumentShape(BaseModel):
    """A text with its links: what `wellread link --format json` writes."""

    text: str
    links: list[LinkShape]
    id: str | None
    meta: dict[str, Any]


class Linked(BaseModel):
    """A document for each text, and the revision of each KB that they are of."""

    documents: list[DocumentShape]
    revisions: dict[str, int]


Encoder = Annotated[
    str, Field(max_length=500, description="Of the encoders that /health names; auto is the first of them.")
]


class EmbedRequest(Texts):
    """Texts to make vectors of."""

    model: Encoder = "auto"
    of: Literal["texts", "words", "pieces"] = "texts"
    pooling: Literal["mean", "first"] = Field("mean", description="What a text's vector is.")
    unit: bool = Field(False, description="Make every vector as long as 1.")
    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["a river bank", "a savings bank"]}]})


class VectorShape(BaseModel):
    """A vector, and the characters that it is of."""

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
    """A text, or a pair, whose attention is looked at with knowledge and without."""

    text: str = Field(min_length=1)
    second: str | None = None
    model: Encoder = "auto"
    maps: list[Literal["entity", "phrase"]] | None = Field(None, description="What is lent; the model's unless given.")
    map_weight: Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)] | None = Field(
        None, description="A plain encoder: how much maps weigh."
    )
    alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="A plain encoder: the share of what convolution says."
    )
    layer: int | None = Field(None, ge=0, le=1000, description="From 0; the one that changes most unless given.")
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
    moved: list[list[float]] = Field(description="The share of attention moved, by layers: of the mean, then of heads.")
    maps: dict[str, list[list[float]]]


class EntityBody(Request):
    """What is to be known of an entity."""

    title: str = Field(min_length=1, max_length=2_000)
    description: str = Field("", max_length=100_000)
    kind: str = Field("", max_length=500)
    popularity: Count = 0.0
    aliases: dict[Name, Count] | list[Name] = Field(
        default_factory=dict, max_length=10_000, description="Names, with how often each was seen where that is known."
    )
    facts: list[tuple[Name, Name]] = Field(
        default_factory=list, max_length=10_000, description="(relation, id of another entity) pairs."
    )
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"title": "Aspirin Forte", "description": "a strong painkiller", "aliases": {"ASA forte": 3}}]
        }
    )


class FactShape(BaseModel):
    """A fact that joins an entity to another; `outgoing` when it is the subject."""

    relation: str
    entity: str
    title: str
    outgoing: bool


class EntityShape(BaseModel):
    """What is known of an entity."""

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
    more_neighbours: int = Field(description="How many there are besides.")
    revision: int


class Found(BaseModel):
    """Entities that were searched for, best first."""

    entities: list[EntityShape]


class Changed(BaseModel):
    """What was done, and the KB's revision since."""

    kb: str
    id: str
    what: Literal["added", "updated", "removed"]
    revision: int


class KbHealth(BaseModel):
    """A knowledge base and its linkers, the usual one first."""

    name: str
    entities: int
    revision: int
    models: list[str]
    thresholds: dict[str, float]
    overlaps: dict[str, Literal["best", "longest", "first"]]
    """How links are chosen among those that overlap, for whoever draws them at another threshold. first: from left to
    right the longest at each place, whatever its score; the threshold comes after."""


class EncoderHealth(BaseModel):
    """An encoder for /embed and /explain; the usual one is first."""

    name: str
    plain: bool = Field(description="Whether maps, and how much they weigh, can be chosen for /explain.")


class Health(BaseModel):
    """Whether the server works, and what it has."""

    status: Literal["ok", "failing"]
    ready: bool = Field(description="Whether requests can be expected to be answered; 503 where not.")
    problems: list[str] = Field(description="Why not, and what to do.")
    workers: dict[str, int] = Field(description="How many read, and how many that died or hung were replaced.")
    version: str
    kbs: list[KbHealth]
    encoders: list[EncoderHealth]
    waiting: int
    editable: bool
    limits: dict[str, float | None] = Field(description="null where the server chooses by its cores.")


class Problem(BaseModel):
    """Why a request was refused, and what to do."""

    error: str
