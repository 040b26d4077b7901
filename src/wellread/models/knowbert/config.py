"""Settings of KnowBERT: the knowledge layer, and the search for mentions and candidates. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wellread.errors import UsageError
from wellread.kb.store import MOST_CANDIDATES, KnowledgeBase
from wellread.mentions.candidates import MatchOptions, has_senses
from wellread.mentions.matcher import Overlaps
from wellread.text.stopwords import spacy_stop_words
from wellread.text.words import Case

NO_ENTITY, MASK_ENTITY = -1, -2
"""Row numbers without a vector of the KB: padding of the candidate arrays, and the entity of masked mentions."""

_MINIMUM = {"dim": 1, "raw": 0, "kinds": 0, "kind_width": 1, "heads": 1, "inner": 1, "prior_width": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowBertConfig:
    """Position, mode and sizes of the knowledge layer of one KB."""

    kb: str = "wordnet"
    """Name of the KB; its candidates have the same name in a batch."""
    layer: int
    """Encoder layer, from 0, that the knowledge layer follows."""
    reads: int = 1
    """Number of encoder layers, this one and those before it, whose mean states are linked (not in the paper)."""
    mode: Literal["softmax", "margin"] = "softmax"
    """softmax: every mention means one of its candidates. margin: candidates below the threshold are excluded."""
    dim: int = 200
    """Width of entity vectors inside the layer (E)."""
    raw: int = 0
    """Width of the given entity vectors; recipes set it from the vectors."""
    project: bool = True
    """Project vectors from `raw` to `dim`; without it they must be `dim` wide."""
    kinds: int = 0
    """Number of entity kinds that have an embedding, which is projected together with the vector; 0 uses no kinds."""
    kind_width: int = 25
    heads: int = 4
    inner: int = 1024
    prior_width: int = 100
    """Hidden width of the network that scores a candidate by similarity and prior."""
    threshold: float = 0.0
    """Minimum psi of a candidate in margin mode (delta)."""
    margin: float = 0.2
    """Distance from zero that the margin loss demands of a score (gamma)."""
    dropout: float = 0.1
    norm: bool = True
    """Apply a LayerNorm to the output states, as the authors' code does."""
    start: Literal["inverse", "zero"] = "inverse"
    """Initial W2. `zero` without `norm` leaves the encoder unchanged until it is trained."""

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUM.items():
            if (value := getattr(self, name)) < minimum:
                raise UsageError(f"{name} is {value}; expected {minimum} or more")
        if self.dim % self.heads:
            raise UsageError(f"{self.heads} heads cannot share dim = {self.dim}; give a multiple of {self.heads}")
        if not self.project and self.raw not in (0, self.dim):
            raise UsageError(
                f"entity vectors of raw = {self.raw} numbers are not dim = {self.dim} wide; project them, or set "
                f"dim = {self.raw}"
            )
        if self.kinds and not self.project:
            raise UsageError("kinds are joined to vectors that are projected; set project = true or kinds = 0")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout is {self.dropout}; expected a share below 1")


@dataclass(frozen=True, slots=True)
class CandidateConfig:
    """Options for finding mentions of one KB in texts."""

    overlaps: Overlaps = "all"
    case: Case = "folded"
    max_words: int | None = None
    """Maximum number of words of a mention; by default 6 for WordNet, 5 for other KBs."""
    min_chars: int = 2
    candidates: int = MOST_CANDIDATES
    """Maximum number of candidates of a mention, those with the highest priors."""
    marks: bool = True
    """Use mentions that the data annotates."""
    stop_words: Literal["usual", "knowbert"] = "usual"
    """usual: names made only of stop words are skipped. knowbert: names that begin or end with one of spaCy's stop
    words ("many") are skipped, as the authors do for Wikipedia."""

    def __post_init__(self) -> None:
        for name in ("max_words", "min_chars", "candidates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} = {value}; it cannot be less than 1")

    def match_options(self, kb: KnowledgeBase) -> MatchOptions:
        """Return the same options for a `CandidateFinder`."""
        words = self.max_words or (6 if has_senses(kb) else 5)
        if self.stop_words == "usual":
            return MatchOptions(self.overlaps, self.case, None, self.min_chars, words, self.candidates)
        return MatchOptions(self.overlaps, self.case, (), self.min_chars, words, self.candidates, spacy_stop_words())
