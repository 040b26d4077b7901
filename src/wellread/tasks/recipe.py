"""The recipe of a task: what is asked of which texts, by which encoder, lent what, and how it learns.

    task = "RTE"
    infusion = "kam"

    [data]
    train = "RTE/train.tsv"
    develop = 300

    [maps]
    maps = ["entity", "phrase"]

    [schedule]
    epochs = 3

`infusion` is "none" for the plain encoder: then nothing of [maps], [kam], [knowbert] and [luke] is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from wellread.errors import UsageError
from wellread.evaluation.classification import Metric
from wellread.evaluation.ranking import ESCI_GAINS
from wellread.models.kam.inputs import MapsConfig
from wellread.models.kam.model import KamConfig
from wellread.models.knowbert.config import CandidateConfig, KnowBertConfig
from wellread.models.luke.recipe import LukeOptions
from wellread.tasks.entity_typing import TypeOptions
from wellread.tasks.ner import NerOptions
from wellread.tasks.relations import RelationOptions
from wellread.tasks.senses import SenseOptions
from wellread.tasks.task import Pooling
from wellread.tasks.wic import WicOptions
from wellread.training.schedule import Schedule

INFUSIONS = ("kam", "knowbert", "luke")
"""What a recipe can lend an encoder; several are joined by "+"."""


@dataclass(frozen=True, slots=True)
class Data:
    """The files of a task, in the format that the task's data has."""

    train: str = ""
    """The examples to learn from, plain or compressed (the name may leave .xz, .gz or .bz2 away)."""
    root: str = ""
    """The folder that `train` and `dev` are in; "" is where you are."""
    dev: str | None = None
    """Examples to develop on, in a file of their own."""
    develop: int = 0
    """Or: so many examples of `train`, chosen by their text, the same ones in every run."""
    most: int | None = None
    """Learn from so many examples at most, chosen by their text too; the development part does not depend on it."""
    most_dev: int | None = None
    """Develop on so many examples of `dev` at most."""

    def __post_init__(self) -> None:
        if self.dev is None and self.develop < 1:
            raise UsageError('there is nothing to develop on; give develop = 500, or dev = "a file"')
        if self.dev is not None and self.develop:
            raise UsageError(f"dev is {self.dev!r} and develop is {self.develop}; give one of the two")
        for name in ("most", "most_dev"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more, or leave it out")


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """The encoder that reads, and how its states become an answer."""

    name: str = "minilm"
    """An asset, a folder in the Hugging Face layout, or a name on the hub with its commit."""
    longest: int = 128
    """Pieces of a text, or of both, at most."""
    pooling: Pooling = "mean"
    """What an input is judged by: the `mean` of its pieces, its `first` piece, or `both` texts held against each other
    (for pairs, with sentence encoders)."""
    rank: int = 0
    """Rank of the adapters that learn while the encoder's own weights stay; 0: all weights learn."""

    def __post_init__(self) -> None:
        if self.longest < 8:
            raise UsageError(f"longest is {self.longest}; expected 8 pieces or more")
        if self.rank < 0:
            raise UsageError(f"rank is {self.rank}; expected 0 (all weights learn) or more")


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """A knowledge base whose mentions and candidates are offered, in [offers.NAME]; usually there is nothing to say."""

    kb: str | None = None
    """By its name or path; without it NAME is one."""
    vectors: str | None = None
    """The folder of its entity vectors; without it those beside the knowledge base (`wellread index build`)."""
    reading: CandidateConfig = field(default_factory=CandidateConfig)
    """How its mentions are looked for."""


@dataclass(frozen=True, slots=True)
class LabelledOptions:
    """Texts with labels or numbers of your own, for task = "labelled"."""

    labels: tuple[str, ...] = ()
    """The classes; without them, those that the training file has."""
    numbers: bool = False
    """Whether numbers are asked for instead of labels."""
    low: float | None = None
    """The lowest number there can be."""
    high: float | None = None
    metrics: tuple[Metric, ...] = ()
    """Accuracy and macro F1, or Pearson's and Spearman's correlation, if nothing else is said."""
    text: str = "text"
    text_b: str | None = None
    """The column of the second text, for pairs."""
    label: str = "label"
    id: str | None = None

    def __post_init__(self) -> None:
        if self.numbers and self.labels:
            raise UsageError("numbers = true has no labels; leave one of the two out")
        if (self.low is None) != (self.high is None) or (self.low is not None and not self.numbers):
            raise UsageError("low and high are the bounds of numbers; give both, with numbers = true")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise UsageError(f"low is {self.low} and high is {self.high}; expected low to be less")


@dataclass(frozen=True, slots=True)
class RelevanceOptions:
    """Queries and texts with graded labels, for task = "relevance"; the defaults are those of ESCI."""

    gains: dict[str, float] = field(default_factory=lambda: dict(ESCI_GAINS))
    """What a text of each label is worth, for NDCG."""
    right: str | None = None
    """The label that AUC tells from the others; the one that gains most if none is named."""
    query: str = "query"
    text: tuple[str, ...] = ("title", "brand", "bullet_points", "description")
    label: str = "esci"
    id: str = "asin"
    """The column that names a text; "" where there is none: then it is the number of its line."""

    def __post_init__(self) -> None:
        if len(self.gains) < 2:
            raise UsageError(f"gains has {len(self.gains)} labels; give two or more, as in {{ good = 1, bad = 0 }}")
        if self.right is not None and self.right not in self.gains:
            raise UsageError(f"right is {self.right!r}, which is none of {', '.join(self.gains)}")


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """Questions about passages, for task = "squad", "openqa" and "record"; windows have `encoder.longest` pieces."""

    stride: int | None = None
    """Pieces that neighbouring windows share; a quarter of a window if nothing is said."""
    longest_answer: int = 30
    """In pieces."""
    longest_question: int = 64
    """What is longer is cut, so that a passage has room; at most a third of a window."""
    threshold: float = 0.0
    """SQuAD 2.0: by how much "no answer" must be better than the best span."""
    layout: Literal["openqa", "quasar", "searchqa"] = "openqa"
    """How the files of open questions are laid out (`data.readers.open_qa`)."""
    contexts: str | None = None
    """The folder of their passages, or a file, if they are not beside the questions; in `data.root`."""
    sampled: int = 8
    """Open questions: windows of a question that are read at a step."""
    most_passages: int | None = None
    """Open questions: passages of each at most."""

    def __post_init__(self) -> None:
        for name in ("longest_answer", "longest_question", "most_passages"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected 1 or more")
        if self.contexts is not None and self.layout == "searchqa":
            raise UsageError(
                f"contexts is {self.contexts!r}, and searchqa has passages with its questions; leave it out"
            )
        if self.sampled < 2:
            raise UsageError(f"sampled is {self.sampled}; expected 2 or more: one with an answer, one to tell it from")


@dataclass(frozen=True, slots=True)
class MaskingOptions:
    """Masked words, for task = "masking"; data are texts: files, folders, JSONL."""

    share: float = 0.15
    """Of the pieces, that are masked."""
    units: Literal["pieces", "words"] = "pieces"
    """What is masked at once."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"share is {self.share}; expected a share of the pieces, between 0 and 1")


@dataclass(frozen=True, slots=True)
class LamaOptions:
    """Facts whose objects are masked, for task = "lama"; data are LAMA's `data` folder, or files of facts."""

    part: Literal["google_re", "trex", "conceptnet", "squad"] | None = None
    """Of the folder; all that are there if none is named."""
    vocabulary: str | None = None
    """A file of the words that may be answers, one a line; without it all that are one piece of the tokenizer."""


@dataclass(frozen=True, slots=True)
class TaskRecipe:
    """What is learned, from what, and how."""

    task: str
    """One of GLUE ("CoLA", "STS-B", …), "labelled" (data of your own), "relevance", "choice", "squad", "openqa",
    "masking", "lama", "ner", "record", "tacred", "semeval2010", "entity-types", "fact-probe", "senses", "wic",
    "wic-tsv"; see `tasks.registry`."""
    infusion: str = "none"
    """What the encoder is lent: "none", "kam", "knowbert", "luke", or several, as in "kam+knowbert"."""
    batch: int = 16
    """Examples read together."""
    data: Data = field(default_factory=lambda: Data(develop=500))
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    maps: MapsConfig = field(default_factory=MapsConfig)
    """The knowledge that KAM is lent."""
    kam: KamConfig = field(default_factory=KamConfig)
    """How KAM fuses it; which maps there are is said in [maps]."""
    offers: dict[str, CandidateOptions] = field(default_factory=dict)
    """Where the knowledge bases of KnowBERT, and of tasks that ask for candidates, are."""
    knowbert: dict[str, KnowBertConfig] = field(default_factory=dict)
    """KnowBERT's layer for each knowledge base, by its name in [offers]: [knowbert.wordnet]."""
    luke: LukeOptions = field(default_factory=LukeOptions)
    """How LUKE takes entities, and where they come from."""
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
                raise UsageError(f"{name!r} is no infusion; there are: none, {', '.join(INFUSIONS)}")
        if len(set(self.infusions)) < len(self.infusions):
            raise UsageError(f"infusion is {self.infusion!r}; name each once")
        if "knowbert" in self.infusions and not self.knowbert:
            raise UsageError("knowbert is lent no knowledge base; say which, and after which layer: [knowbert.wordnet]")
        if "luke" in self.infusions and self.luke.links and find_task_type(self.task).own_entities:
            raise UsageError(
                f"{self.task} asks about mentions by entities of its own; leave luke.kb and luke.given out"
            )
        if self.kam.maps:
            raise UsageError(f"kam.maps is {list(self.kam.maps)}; say which maps there are in [maps], as maps.maps")

    @property
    def infusions(self) -> tuple[str, ...]:
        """The names in `infusion`: "none" is none."""
        return () if self.infusion == "none" else tuple(self.infusion.split("+"))

    @property
    def provides(self) -> bool:
        """Whether anything is computed for [maps]: not for the plain encoder, nor for a convolution alone."""
        return "kam" in self.infusions and bool(self.maps.maps or self.maps.terms)
