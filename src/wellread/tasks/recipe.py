"""Recipe of a task: data, encoder, infusion and schedule, as read from TOML.

    task = "RTE"
    infusion = "kam"

    [data]
    train = "RTE/train.tsv"
    develop = 300

    [maps]
    maps = ["entity", "phrase"]

    [schedule]
    epochs = 3

With `infusion = "none"` the plain encoder is trained, and [maps], [kam], [knowbert] and [luke] are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from wellread.errors import UsageError
from wellread.evaluation.classification import Metric
from wellread.evaluation.ranking import ESCI_GAINS
from wellread.models.kam.inputs import MapsConfig
from wellread.models.kam.model import KamConfig
from wellread.models.knowbert.mention_cache import CandidateConfig
from wellread.models.knowbert.model import KnowBertConfig
from wellread.models.luke.recipe import LukeOptions
from wellread.tasks.entity_typing import TypeOptions
from wellread.tasks.ner import NerOptions
from wellread.tasks.relations import RelationOptions
from wellread.tasks.senses import SenseOptions
from wellread.tasks.task import Pooling
from wellread.tasks.wic import WicOptions
from wellread.training.schedule import Schedule

INFUSIONS = ("kam", "knowbert", "luke")
"""Infusions that a recipe can name; several are joined by "+"."""


@dataclass(frozen=True, slots=True)
class Data:
    """Files of a task, in the task's own format."""

    train: str = ""
    """Training examples, plain or compressed (the suffix .xz, .gz or .bz2 may be omitted)."""
    root: str = ""
    """Folder of `train` and `dev`; "" is the current folder."""
    dev: str | None = None
    """Validation examples in a file of their own."""
    develop: int = 0
    """Alternatively, the number of examples of `train` to validate on, selected by a hash of their text."""
    most: int | None = None
    """Maximum training examples, selected by a hash of their text; validation examples do not depend on it."""
    most_dev: int | None = None
    """Maximum number of examples of `dev`."""

    def __post_init__(self) -> None:
        if self.dev is None and self.develop < 1:
            raise UsageError('no validation data; give develop = 500, or dev = "a file"')
        if self.dev is not None and self.develop:
            raise UsageError(f"dev is {self.dev!r} and develop is {self.develop}; give one of the two")
        for name in ("most", "most_dev"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more, or leave it out")


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Encoder, and pooling of its states."""

    name: str = "minilm"
    """Name of an asset, folder in the Hugging Face layout, or hub name with its commit."""
    longest: int = 128
    """Maximum tokens of an input (one text or a pair)."""
    pooling: Pooling = "mean"
    """Pooling of an input: the `mean` of its tokens, its `first` token, or a comparison of `both` texts of a pair."""
    rank: int = 0
    """Rank of LoRA adapters, with the encoder's own weights frozen; 0 trains all weights."""

    def __post_init__(self) -> None:
        if self.longest < 8:
            raise UsageError(f"longest is {self.longest}; expected 8 tokens or more")
        if self.rank < 0:
            raise UsageError(f"rank is {self.rank}; expected 0 (train all weights) or more")


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """Knowledge base that provides candidates, in [offers.NAME]; the defaults usually suffice."""

    kb: str | None = None
    """Name or path of the knowledge base; NAME by default."""
    vectors: str | None = None
    """Folder of its entity vectors; by default the one beside the knowledge base (`wellread index build`)."""
    reading: CandidateConfig = field(default_factory=CandidateConfig)
    """Options of mention detection and candidate generation."""


@dataclass(frozen=True, slots=True)
class LabelledOptions:
    """Your own texts with labels or numbers, for task = "labelled"."""

    labels: tuple[str, ...] = ()
    """Classes; by default those of the training file."""
    numbers: bool = False
    """Regression instead of classification."""
    low: float | None = None
    """Lower bound of the numbers."""
    high: float | None = None
    metrics: tuple[Metric, ...] = ()
    """By default accuracy and macro F1, or Pearson's and Spearman's correlation."""
    text: str = "text"
    text_b: str | None = None
    """Column of the second text, for pairs."""
    label: str = "label"
    id: str | None = None

    def __post_init__(self) -> None:
        if self.numbers and self.labels:
            raise UsageError("numbers = true and labels exclude each other; give one of the two")
        if (self.low is None) != (self.high is None) or (self.low is not None and not self.numbers):
            raise UsageError("low and high are the bounds of numbers; give both, with numbers = true")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise UsageError(f"low is {self.low} and high is {self.high}; expected low to be less")


@dataclass(frozen=True, slots=True)
class RelevanceOptions:
    """Queries and texts with graded labels, for task = "relevance"; the defaults are those of ESCI."""

    gains: dict[str, float] = field(default_factory=lambda: dict(ESCI_GAINS))
    """Gain of each label, for NDCG."""
    right: str | None = None
    """Positive label for AUC; by default the one with the highest gain."""
    query: str = "query"
    text: tuple[str, ...] = ("title", "brand", "bullet_points", "description")
    label: str = "esci"
    id: str = "asin"
    """Column of the text's id; "" uses the line number."""

    def __post_init__(self) -> None:
        if len(self.gains) < 2:
            raise UsageError(f"gains has {len(self.gains)} labels; give two or more, as in {{ good = 1, bad = 0 }}")
        if self.right is not None and self.right not in self.gains:
            raise UsageError(f"right is {self.right!r}, which is not one of {', '.join(self.gains)}")


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """Questions about passages, for task = "squad", "openqa" and "record"; windows have `encoder.longest` tokens."""

    stride: int | None = None
    """Overlap of neighbouring windows in tokens; a quarter of a window by default."""
    longest_answer: int = 30
    """Maximum tokens of an answer."""
    longest_question: int = 64
    """Maximum tokens of a question, longer ones are truncated; at most a third of a window."""
    threshold: float = 0.0
    """SQuAD 2.0: margin by which "no answer" must beat the best span."""
    layout: Literal["openqa", "quasar", "searchqa"] = "openqa"
    """File layout of open questions (`data.readers.open_qa`)."""
    contexts: str | None = None
    """Folder or file of the passages, relative to `data.root`, if they are not beside the questions."""
    sampled: int = 8
    """Open questions: windows of a question per training step."""
    most_passages: int | None = None
    """Open questions: maximum passages of a question."""

    def __post_init__(self) -> None:
        for name in ("longest_answer", "longest_question", "most_passages"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        if self.contexts is not None and self.layout == "searchqa":
            raise UsageError(f"contexts is {self.contexts!r}, and searchqa files contain the passages; remove contexts")
        if self.sampled < 2:
            raise UsageError(f"sampled is {self.sampled}; expected 2 or more: a positive and a negative window")


@dataclass(frozen=True, slots=True)
class MaskingOptions:
    """Masked language modelling, for task = "masking"; data are texts: files, folders, JSONL."""

    share: float = 0.15
    """Share of the tokens that is masked."""
    units: Literal["pieces", "words"] = "pieces"
    """Unit of masking: single tokens ("pieces") or whole words."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"share is {self.share}; expected a share of the tokens, between 0 and 1")


@dataclass(frozen=True, slots=True)
class LamaOptions:
    """Facts with masked objects, for task = "lama"; data are LAMA's `data` folder, or files of facts."""

    part: Literal["google_re", "trex", "conceptnet", "squad"] | None = None
    """Part of the folder; all that exist by default."""
    vocabulary: str | None = None
    """File of allowed answers, one a line; by default all words that are one token."""


@dataclass(frozen=True, slots=True)
class TaskRecipe:
    """Task, data, encoder, infusion and schedule of one training run."""

    task: str
    """Name of a GLUE task ("CoLA", "STS-B", …) or of a row in `tasks.registry`: "labelled" (own data), "relevance",
    "choice", "squad", "openqa", "masking", "lama", "ner", "record", "tacred", "semeval2010", "entity-types",
    "fact-probe", "senses", "wic", "wic-tsv".
    """
    infusion: str = "none"
    """Infusion of the encoder: "none", "kam", "knowbert", "luke", or several, as in "kam+knowbert"."""
    batch: int = 16
    """Examples in a batch."""
    data: Data = field(default_factory=lambda: Data(develop=500))
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    maps: MapsConfig = field(default_factory=MapsConfig)
    """Knowledge maps of KAM."""
    kam: KamConfig = field(default_factory=KamConfig)
    """Fusion of the maps by KAM; the maps themselves are listed in [maps]."""
    offers: dict[str, CandidateOptions] = field(default_factory=dict)
    """Knowledge bases of KnowBERT, and of tasks that need candidates."""
    knowbert: dict[str, KnowBertConfig] = field(default_factory=dict)
    """KnowBERT's layer for each knowledge base, by its name in [offers]: [knowbert.wordnet]."""
    luke: LukeOptions = field(default_factory=LukeOptions)
    """Entities of LUKE, and their source."""
    labelled: LabelledOptions = field(default_factory=LabelledOptions)
    relevance: RelevanceOptions = field(default_factory=RelevanceOptions)
    questions: QuestionOptions = field(default_factory=QuestionOptions)
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    lama: LamaOptions = field(default_factory=LamaOptions)
    ner: NerOptions = field(default_factory=NerOptions)
    relations: RelationOptions = field(default_factory=RelationOptions)
    types: TypeOptions = field(default_factory=TypeOptions)
    senses: SenseOptions = field(default_factory=SenseOptions)
    wic: WicOptions = field(default_factory=WicOptions)
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=3, learning_rate=5e-5))

    def __post_init__(self) -> None:
        from wellread.tasks.registry import find_task_type

        find_task_type(self.task)
        if self.batch < 1:
            raise UsageError(f"batch is {self.batch}; expected 1 or more")
        for name in self.infusions:
            if name not in INFUSIONS:
                raise UsageError(f"{name!r} is not an infusion; expected none, {', '.join(INFUSIONS)}")
        if len(set(self.infusions)) < len(self.infusions):
            raise UsageError(f"infusion is {self.infusion!r}; name each only once")
        if "knowbert" in self.infusions and not self.knowbert:
            raise UsageError("knowbert has no knowledge base; name one, with its layer: [knowbert.wordnet]")
        if "luke" in self.infusions and self.luke.links and find_task_type(self.task).own_entities:
            raise UsageError(f"{self.task} has its own entity tokens; remove luke.kb and luke.given")
        if self.kam.maps:
            raise UsageError(f"kam.maps is {list(self.kam.maps)}; list the maps in [maps], as maps.maps")

    @property
    def infusions(self) -> tuple[str, ...]:
        """Names in `infusion`; empty for "none"."""
        return () if self.infusion == "none" else tuple(self.infusion.split("+"))

    @property
    def provides(self) -> bool:
        """True if knowledge maps must be computed: false for the plain encoder, and for KAM's convolution alone."""
        return "kam" in self.infusions and bool(self.maps.maps or self.maps.terms)
