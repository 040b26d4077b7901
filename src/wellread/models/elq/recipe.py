"""Recipe of an ELQ linker, as read from TOML; free of torch, so that a wrong setting is reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from wellread.data.synthetic.variation import Variation
from wellread.errors import UsageError
from wellread.models.elq.config import ElqConfig
from wellread.training.schedule import Schedule

Negatives = Literal["hard", "batch"]
EntityLoss = Literal["softmax", "bce"]


@dataclass(frozen=True, slots=True)
class Text:
    """File of linked text to train on (JSONL, AIDA or NIF)."""

    file: str
    develop: int = 0
    """Number of documents split off for validation; the same in every run."""
    hold_out: int = 0
    """Number of further documents left out of training, to fit a link scorer on; the same in every run."""
    most: int | None = None
    """Number of documents sampled for each epoch; None: all of them."""
    most_chars: int | None = None
    """Maximum length of a document in characters; longer ones are left out."""
    repeat: int = 1
    """Number of times that each document is used in an epoch."""
    complete: bool = True
    """True if every mention is annotated. If False, names of the KB without a link are ignored in the mention loss."""
    entities: bool = True
    """False for named-entity annotation without entity ids: mentions without an id train the mention head only."""
    spans: bool = True
    """False if the annotated spans should not train the mention head, e.g. terms of an ontology."""
    kb: str | None = None
    """Name or path of the knowledge base of its entities; None: the recipe's."""

    @property
    def unlinked(self) -> Literal["nil", "unknown"]:
        """Meaning of a mention without an id."""
        return "nil" if self.entities else "unknown"


@dataclass(frozen=True, slots=True)
class LinkerRecipe:
    """Recipe for training a linker: knowledge base, data, model and training options."""

    kb: str
    """Name of a packaged knowledge base, or a path."""
    text: tuple[Text, ...] = ()
    made: int = 0
    """Number of documents generated from the KB: descriptions, facts and aliases in sentences and questions."""
    made_develop: int = 0
    """Number of generated documents that are used for validation."""
    model: ElqConfig = field(default_factory=ElqConfig)
    start: str | None = None
    """Trained linker to start from: "elq", or a folder."""
    loss: EntityLoss = "softmax"
    negatives: Negatives = "hard"
    """hard: the nearest entities and those with the same alias, searched in every step. batch: gold entities of the
    batch's other mentions."""
    nearest: int = 10
    leave_out: float = 0.1
    """Share of gold entities that are removed from the candidates, to train NIL."""
    drop_names: float = 0.0
    """Share of mentions whose candidates are scored without their names."""
    variation: Variation = field(default_factory=Variation)
    """Changes of the text (other aliases, typos, lower case), drawn for every epoch."""
    dropout: float | None = None
    """Dropout of the encoder in training; None: that of its config. 0 is about 25 % faster on a CPU."""
    batch_pieces: int = 1024
    schedule: Schedule = field(default_factory=lambda: Schedule(epochs=3, learning_rate=5e-4))

    def __post_init__(self) -> None:
        if not self.text and not self.made:
            raise UsageError("the recipe has nothing to train on; give a [[text]] with its file, or made = 10000")
        if not self.made_develop and not any(text.develop for text in self.text):
            raise UsageError("the recipe has nothing to validate on; give develop = 500 in a [[text]], or made_develop")
        if self.made_develop and self.made_develop >= self.made:
            raise UsageError(
                f"made_develop is {self.made_develop} of {self.made} generated documents; leave some to train on"
            )

    @property
    def is_made_up(self) -> bool:
        """True if all validation documents are generated from the KB: scores on them say little about real text."""
        return self.made_develop > 0 and not any(text.develop for text in self.text)
