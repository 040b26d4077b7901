"""Linker backend of LUKE: masked entities predicted among candidates, the most confident first (Yamada et al. 2022).

1. Mentions are the aliases of the KB found in a text (or those of an annotator), with the candidates of their names.
2. All mentions of a window are [MASK] entities, also those without candidates. The probability of a candidate is the
   softmax of the entity head's logits over the candidates, times the prior to the power of `trust`.
3. `local`: that is the result. `global`: the most confident mention is linked, its entity replaces its mask, and the
   window is encoded again, so that the others are chosen given it. If there are more mentions than `passes`, several
   of the most confident are linked per pass.
4. A mention without candidates in the KB is NIL. Candidates without a row in the entity table keep the share of their
   prior, and the others divide the rest; if none has a row, the prior decides. The number of such cases is logged.

Unlike the authors' code: the prior is used by default, windows are batched, texts of any length are split into
windows without splitting a mention, and candidates without a row keep their prior (theirs all become [UNK]). As in
theirs, a mention without any candidate with a row is [UNK] from the second pass on, and one without candidates stays
[MASK].
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from wellread.data.batches import gather
from wellread.document import Candidate, Document, Mention
from wellread.encoders.devices import find_device
from wellread.encoders.files import load_tokenizer, positions_of
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.io import console
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored
from wellread.linking.prior import Annotator
from wellread.mentions.annotators import given
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.models.luke.mention_windows import MentionTokenizer, MentionWindow
from wellread.models.luke.model import ENTITIES, Luke, luke_of
from wellread.models.luke.vocabulary import FILE, EntityVocabulary
from wellread.text.tokenization import Mark

Order = Literal["global", "local"]

_TOKENS = 4096
"""Tokens per forward pass."""
_LONGEST = 256
"""Maximum tokens per window."""
_FLOOR = 1e-6
"""Lower bound of priors, to avoid log(0)."""


@dataclass(slots=True)
class _MentionState:
    """Mention with its candidates and their probabilities so far."""

    mention: Mention
    candidates: tuple[Candidate, ...]
    rows: Ints
    """Row of each candidate in the entity table, -1 for none."""
    priors: Floats
    """Normalised over the candidates."""
    log_p: Floats
    linked: bool = False

    @property
    def known(self) -> Ints:
        """Indices of the candidates with a row."""
        return np.flatnonzero(self.rows >= 0)


@dataclass(slots=True)
class _Window:
    """Window with its mentions, and the entity row that each mention currently has as input."""

    input: MentionWindow
    mentions: list[_MentionState]
    rows: list[int] = field(default_factory=list)

    @property
    def open(self) -> list[int]:
        """Indices of the mentions that are not linked yet."""
        return [place for place, one in enumerate(self.mentions) if not one.linked]


class LukeBackend:
    """Linker backend that chooses among the candidates of mentions by their context and the other entities."""

    kind: Literal["luke"] = "luke"
    """Type of model."""

    def __init__(
        self,
        encoder: InfusedEncoder,
        window_tokenizer: MentionTokenizer,
        vocabulary: EntityVocabulary,
        kb: KnowledgeBase,
        *,
        decoding: Decoding | None = None,
        order: Order = "global",
        passes: int = 8,
        trust: float = 1.0,
        annotator: Annotator | None = None,
        reading: MatchOptions | None = None,
        among: Iterable[str] | None = None,
        name: str | None = None,
    ) -> None:
        """Build from parts; `passes` is the maximum of forward passes per window, `trust` the exponent of the prior."""
        if order not in ("global", "local"):
            raise UsageError(f"order={order!r} is not known; choose global or local")
        if passes < 1 or trust < 0:
            raise UsageError(f"passes is {passes} and trust is {trust}; expected 1 or more, and 0 or more")
        self.encoder, self.window_tokenizer, self.vocabulary, self.kb = encoder, window_tokenizer, vocabulary, kb
        self.luke: Luke = luke_of(encoder)
        if self.luke.prediction is None:
            raise UsageError("this model has no head for entities; use a pretrained one: wellread pretrain luke")
        self.decoding = decoding or Decoding(threshold=0.0, nil=False)
        self.passes, self.trust = 1 if order == "local" else passes, trust
        self.annotator, self.name = annotator, name or kb.path.stem
        self.finder = CandidateFinder(kb, reading)
        self._among = None if among is None else frozenset(among)
        self._logged = False

    def part(self, among: Iterable[str] | None) -> LukeBackend:
        """Return a backend restricted to some entities, which shares the model."""
        backend = copy.copy(self)
        backend.finder = CandidateFinder(self.kb, self.finder.reading)
        backend._among = None if among is None else frozenset(among)
        return backend

    def link_many(self, texts: Sequence[str]) -> Iterator[Document]:
        """Yield the links of each text."""
        return (scored.document() for scored in self.score_many(texts))

    def score_many(self, texts: Sequence[str]) -> list[Scored]:
        """Return the scored mentions of each text."""
        return self._score(texts, self._mentions(texts))

    def score_given(self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> list[Scored]:
        """Return the scores of given spans of each text."""
        unlinked = [[(start, end, None) for start, end in of_text] for of_text in spans]
        return self._score(texts, map(self._with_candidates, map(given, texts, unlinked)))

    def _score(self, texts: Sequence[str], mentions: Iterable[Iterable[Mention]]) -> list[Scored]:
        states = [self._states_of(of_text) for of_text in mentions]
        windows = list(self._windows(texts, states))
        if not self._logged:
            self._log_by_prior([state for of_text in states for state in of_text])
        with torch.inference_mode():
            for window in windows:
                window.rows = [self.vocabulary.mask] * len(window.mentions)
            passes = self.passes
            while unread := [window for window in windows if window.open]:
                by_length = sorted(unread, key=lambda window: len(window.input))
                for batch in gather(by_length, largest=_TOKENS, size=_size):
                    self._score_batch(batch)
                for window in unread:
                    self._link_surest(window, passes)
                passes -= 1
        return [self._scored(text, of_text) for text, of_text in zip(texts, states, strict=True)]

    def _mentions(self, texts: Sequence[str]) -> Iterable[list[Mention]]:
        if self.annotator is None:
            return self.finder.mentions_of_many(texts)
        found = list(self.annotator.annotate(texts))
        if len(found) != len(texts):
            raise UsageError(
                f"the annotator returned {len(found)} lists for {len(texts)} texts; expected one list per text"
            )
        return [self._with_candidates(mentions) for mentions in found]

    def _with_candidates(self, mentions: Iterable[Mention]) -> list[Mention]:
        """Return given mentions with the candidates of their names."""
        return [replace(mention, candidates=tuple(self.finder.candidates(mention.text))) for mention in mentions]

    def _states_of(self, mentions: Iterable[Mention]) -> list[_MentionState]:
        """Return the state of each mention; mentions with the same span share one."""
        by_span: dict[tuple[int, int], _MentionState] = {}
        return [by_span.setdefault((one.start, one.end), self._state_of(one)) for one in mentions]

    def _state_of(self, mention: Mention) -> _MentionState:
        candidates = tuple(one for one in mention.candidates if self._among is None or one.entity in self._among)
        rows = self.vocabulary.rows_of([one.entity for one in candidates], unknown="drop")
        priors = np.array([one.prior for one in candidates], np.float64)
        priors = np.maximum(priors / max(priors.sum(), _FLOOR), _FLOOR)
        return _MentionState(mention, candidates, rows, priors, np.log(priors), linked=not (rows >= 0).any())

    def _windows(self, texts: Sequence[str], states: Sequence[Sequence[_MentionState]]) -> Iterator[_Window]:
        """Yield the windows of texts with a mention that the model can decide.

        Mentions in no window keep their prior.
        """
        spans = [{(state.mention.start, state.mention.end): state for state in of_text} for of_text in states]
        kept = [place for place, of_text in enumerate(states) if any(not state.linked for state in of_text)]
        inputs = [((texts[place],), [Mark(0, start, end) for start, end in spans[place]]) for place in kept]
        for place, tokenized in zip(kept, self.window_tokenizer.tokenize_many(inputs), strict=True):
            by_span = spans[place]
            for window in tokenized.windows:
                if window.marks:
                    yield _Window(window, [by_span[mark.start, mark.end] for mark in window.marks])
            for dropped in tokenized.dropped:
                by_span[dropped.mark.start, dropped.mark.end].linked = True

    def _log_by_prior(self, states: Sequence[_MentionState]) -> None:
        """Log how often the prior decides, because candidates have no row or a mention is in no window."""
        named = [one for one in states if one.candidates]
        rows = np.concatenate([one.rows for one in named]) if named else np.zeros(0, np.int64)
        lacking, by_prior = int((rows < 0).sum()), sum(one.linked for one in named)
        parts = []
        if lacking:
            ids = [candidate.entity for one in named for candidate in one.candidates]
            examples = dict.fromkeys(ids[place] for place in np.flatnonzero(rows < 0).tolist())
            parts.append(
                f"{lacking:,} of {len(ids):,} candidates ({lacking / len(ids):.1%}) have no row in the model's entity "
                f"vocabulary and keep their prior: {', '.join(list(examples)[:3])}"
            )
        if by_prior:
            parts.append(
                f"{by_prior:,} of {len(named):,} mentions ({by_prior / len(named):.1%}) have only such candidates or "
                "fit into no window, and are linked by the prior"
            )
        if parts:
            self._logged = True
            console.note("; ".join(parts))

    def _score_batch(self, windows: Sequence[_Window]) -> None:
        """Encode windows and update the probabilities of their open mentions."""
        device = self.luke.table.weight.device
        inputs = [window.input for window in windows]
        ids = torch.from_numpy(np.concatenate([one.ids for one in inputs])).to(device)
        types = torch.from_numpy(np.concatenate([one.types for one in inputs])).to(device)
        counts = torch.tensor([len(window.mentions) for window in windows])
        spans = torch.from_numpy(np.concatenate([one.mark_tokens for one in inputs])) - torch.tensor([0, 1])
        entities = {
            "text_of": torch.repeat_interleave(torch.arange(len(windows)), counts).to(device),
            "ids": torch.tensor([row for window in windows for row in window.rows], device=device),
            "spans": spans.to(device),
        }
        packing = Packing.of([len(one) for one in inputs], device)
        outputs: Tensor = self.encoder.read(ids, packing, types, entities=entities).outputs[ENTITIES]
        firsts = (counts.cumsum(0) - counts).tolist()
        places = [
            (window, place, first + place)
            for window, first in zip(windows, firsts, strict=True)
            for place in window.open
        ]
        head = self.luke.entity_head
        projected = head(outputs[torch.tensor([at for *_, at in places], device=device)])
        states = [window.mentions[place] for window, place, _ in places]
        sizes = torch.tensor([len(one.known) for one in states])
        rows = torch.from_numpy(np.concatenate([one.rows[one.known] for one in states])).to(device)
        owner = torch.repeat_interleave(torch.arange(len(states)), sizes).to(device)
        logits = ((projected[owner] * self.luke.table.weight[rows]).sum(1) + head.bias[rows]).cpu()
        for state, own in zip(states, logits.double().split(sizes.tolist()), strict=True):
            state.log_p = self._log_probabilities(state, own.numpy())

    def _log_probabilities(self, state: _MentionState, logits: Floats) -> Floats:
        """Return the log probabilities of a mention's candidates, from the head's logits and the prior."""
        log_p, known = np.log(state.priors), state.known
        weighted = logits + self.trust * log_p[known]
        log_p[known] = weighted - np.logaddexp.reduce(weighted) + math.log(state.priors[known].sum())
        return np.asarray(np.minimum(log_p, 0.0))

    def _link_surest(self, window: _Window, passes: int) -> None:
        """Link the most confident open mentions of a window; all of them in the last pass."""
        order = sorted(window.open, key=lambda place: -float(window.mentions[place].log_p.max()))
        for place in order[: -(-len(order) // max(passes, 1))]:
            one = window.mentions[place]
            one.linked = True
            best = int(one.rows[int(one.log_p.argmax())])
            window.rows[place] = best if best >= 0 else self.vocabulary.unk
        for place, one in enumerate(window.mentions):
            if one.candidates and not len(one.known):
                window.rows[place] = self.vocabulary.unk

    def _scored(self, text: str, states: Sequence[_MentionState]) -> Scored:
        width = max((len(one.candidates) for one in states), default=0) or 1
        rows, log_p = np.full((len(states), width), NONE, np.int64), np.full((len(states), width), -np.inf)
        priors = np.zeros((len(states), width))
        names: list[tuple[str, str]] = []
        for place, one in enumerate(states):
            order = np.argsort(-one.log_p, kind="stable")
            count = len(order)
            rows[place, :count] = len(names) + np.arange(count)
            log_p[place, :count] = one.log_p[order]
            priors[place, :count] = [one.candidates[at].prior for at in order.tolist()]
            names += [(one.candidates[at].entity, one.candidates[at].title) for at in order.tolist()]
            if not count:
                rows[place, 0], log_p[place, 0] = NIL, 0.0
        spans = np.array([(one.mention.start, one.mention.end) for one in states], np.int64).reshape(-1, 2)
        return Scored(
            text,
            spans,
            np.zeros(len(states)),
            rows,
            log_p,
            priors,
            Calibration(),
            self.decoding,
            lambda wanted: [names[row] for row in wanted],
            self.name,
            (("kb", self.name), ("model", "luke")),
        )


def _size(window: _Window) -> int:
    return len(window.input) + len(window.mentions)


def find_folder(model: str | Path) -> Path | None:
    """Return the folder of a LUKE with an entity vocabulary (a pretraining run or a conversion), or None."""
    if str(model) == "luke":
        raise UsageError(
            "wellread has no packaged luke; give the folder of one that you pretrained (wellread pretrain luke) or "
            "converted (wellread convert luke)"
        )
    for folder in (Path(model), Path(model) / "model"):
        try:
            infusions = json.loads((folder / "config.json").read_bytes()).get("infusions", ())
        except (OSError, ValueError, AttributeError):
            continue
        if (folder / FILE).is_file() and any(infusion.get("kind") == "luke" for infusion in infusions):
            return folder
    return None


def load_backend(
    kb: KnowledgeBase,
    folder: Path,
    *,
    threshold: float | None,
    overlaps: Literal["auto", "drop", "keep"],
    nil: bool,
    order: Order,
    passes: int,
    trust: float | None,
    annotator: Annotator | None,
    reading: MatchOptions | None,
    among: Iterable[str] | None,
    name: str,
    device: str = "cpu",
) -> LukeBackend:
    """Load the backend of a model folder for inference."""
    encoder = load_encoder(str(folder))
    nn.Module.to(encoder, find_device(device))
    encoder.train(False)
    longest = min(_LONGEST, positions_of(str(folder)))
    vocabulary = EntityVocabulary.load(folder).named_by(kb)
    return LukeBackend(
        cast(InfusedEncoder, encoder),
        MentionTokenizer(load_tokenizer(str(folder)), longest=longest, most=128),
        vocabulary,
        kb,
        decoding=Decoding(threshold=threshold or 0.0, overlaps=overlaps, nil=nil),
        order=order,
        passes=passes,
        trust=1.0 if trust is None else trust,
        annotator=annotator,
        reading=reading,
        among=among,
        name=name,
    )
