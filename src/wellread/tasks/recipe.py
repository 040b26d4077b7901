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

from wellread.errors import UsageError
from wellread.models.kam.inputs import MapsConfig
from wellread.models.kam.model import KamConfig
from wellread.models.knowbert.config import CandidateConfig, KnowBertConfig
from wellread.models.luke.recipe import LukeOptions
from wellread.tasks.classification import LabelledOptions, RelevanceOptions
from wellread.tasks.data_options import Data, EncoderOptions
from wellread.tasks.entity_typing import TypeOptions
from wellread.tasks.extractive_qa import QuestionOptions
from wellread.tasks.lama import LamaOptions
from wellread.tasks.masked_lm import MaskingOptions
from wellread.tasks.ner import NerOptions
from wellread.tasks.registry import find_task_type
from wellread.tasks.relations import RelationOptions
from wellread.tasks.senses import SenseOptions
from wellread.tasks.task_type import TaskSettings
from wellread.tasks.wic import WicOptions
from wellread.training.schedule import Schedule

__all__ = [
    "CandidateOptions",
    "Data",
    "EncoderOptions",
    "LabelledOptions",
    "MaskingOptions",
    "QuestionOptions",
    "TaskRecipe",
]

INFUSIONS = ("kam", "knowbert", "luke")
"""Infusions that a recipe can name; several are joined by "+"."""


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
        if "luke" in self.infusions and self.luke.links and self.own_entities:
            raise UsageError(f"{self.task} has its own entity tokens; remove luke.kb and luke.given")
        if self.kam.maps:
            raise UsageError(f"kam.maps is {list(self.kam.maps)}; list the maps in [maps], as maps.maps")

    @property
    def infusions(self) -> tuple[str, ...]:
        """Names in `infusion`; empty for "none"."""
        return () if self.infusion == "none" else tuple(self.infusion.split("+"))

    @property
    def own_entities(self) -> bool:
        """True if the task adds entity tokens itself, so that its texts are not linked for LUKE."""
        return find_task_type(self.task).own_entities(self.settings.options)

    @property
    def provides(self) -> bool:
        """True if knowledge maps must be computed: false for the plain encoder, and for KAM's convolution alone."""
        return "kam" in self.infusions and bool(self.maps.maps or self.maps.terms)

    @property
    def settings(self) -> TaskSettings:
        """Part of the recipe that the functions of its task get."""
        table = find_task_type(self.task).options
        return TaskSettings(
            self.task, self.data, self.encoder, options=getattr(self, table) if table else None, offers=self.offers
        )
