"""Linking with a model that guesses masked entities (LUKE), by candidates, the surest first (Yamada et al. 2022).

1. Mentions are the names of the KB in a text (or those of an annotator), with the candidates that their names have.
2. All mentions of a window are [MASK] entities, also those without candidates. The entity head gives a score for each
   candidate; their softmax, times the prior to the power of `trust`, is what each candidate is given.
3. *local*: that is the answer. *global*: the surest mention is linked, its entity takes the place of its mask, and the
   window is read again, so that others are chosen in its light. With `passes` less than there are mentions, several of
   the surest are linked at a time.
4. A mention none of whose candidates the KB has is NIL. Candidates that the model has no row for keep the share of
   their prior, and the others share the rest; where it has a row for none, the prior decides. A note says how many.

Unlike the authors' code: the prior has a say by choice, windows go side by side, texts of any length are read, in
windows of which no mention is cut in two, and candidates without a row keep their prior (theirs all become [UNK]). As
in theirs, a mention none of whose candidates has a row is [UNK] from the second pass on, and one without candidates
stays [MASK].
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from wellread.data.batches import gather
from wellread.document import Candidate, Document, Mention
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import load_encoder, load_tokenizer, positions_of
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.io import console
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import NIL, NONE, Calibration, Decoding, Floats, Ints, Scored
from wellread.linking.prior import Annotator
from wellread.mentions.annotators import given
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.models.luke.mention_windows import Marked, MentionTokenizer
from wellread.models.luke.model import ENTITIES, Luke, luke_of
from wellread.models.luke.vocabulary import FILE, EntityVocabulary
from wellread.text.tokenization import Mark

Order = Literal["global", "local"]

_TOKENS = 4096
"""Pieces of one pass."""
_LONGEST = 256
"""Pieces of a window at most."""
_FLOOR = 1e-6
"""The least prior that is reckoned with."""


@dataclass(slots=True)
class _Asked:
    """A mention, its candidates, and what is known of them so far."""

    mention: Mention
    candidates: tuple[Candidate, ...]
    rows: Ints
    """Of the model's table; -1: it has none."""
    log_p: Floats
    done: bool = False

    @property
    def known(self) -> Ints:
        """The candidates that the model has rows for."""
        return np.flatnonzero(self.rows >= 0)


@dataclass(slots=True)
class _Window:
    """A window with the mentions in it, and the row that each is told as."""

    input: Marked
    asked: list[_Asked]
    told: list[int] = field(default_factory=list)

    @property
    def open(self) -> list[int]:
        """The mentions that are still to be linked."""
        return [place for place, one in enumerate(self.asked) if not one.done]


class LukeBackend:
    """Links mentions to what the context and the other entities make most likely."""

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
        """`passes` is how often a window is read at most, `trust` how much the prior counts (0: not at all)."""
        if order not in ("global", "local"):
            raise UsageError(f"order={order!r} is not known; choose global or local")
        if passes < 1 or trust < 0:
            raise UsageError(f"passes is {passes} and trust is {trust}; expected 1 or more, and 0 or more")
        self.encoder, self.window_tokenizer, self.vocabulary, self.kb = encoder, window_tokenizer, vocabulary, kb
        self.luke: Luke = luke_of(encoder)
        if self.luke.prediction is None:
            raise UsageError(
                "this model has no head for entities; take one that was pretrained: wellread pretrain luke"
            )
        self.decoding = decoding or Decoding(threshold=0.0, nil=False)
        self.passes, self.trust = 1 if order == "local" else passes, trust
        self.annotator, self.name = annotator, name or kb.path.stem
        self.finder = CandidateFinder(kb, reading)
        self._among = None if among is None else frozenset(among)
        self._noted = False

    def part(self, among: Iterable[str] | None) -> LukeBackend:
        """The same to some entities only; it shares the model."""
        return LukeBackend(
            self.encoder,
            self.window_tokenizer,
            self.vocabulary,
            self.kb,
            decoding=self.decoding,
            passes=self.passes,
            trust=self.trust,
            annotator=self.annotator,
            reading=self.finder.reading,
            among=among,
            name=self.name,
        )

    def link_many(self, texts: Sequence[str]) -> Iterator[Document]:
        """The links of each text."""
        return (scored.document() for scored in self.score_many(texts))

    def score_many(self, texts: Sequence[str]) -> list[Scored]:
        """The scores of each text."""
        return self._score(texts, self._mentions(texts))

    def score_given(self, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]) -> list[Scored]:
        """The scores of spans that somebody else has found."""
        told = [[(start, end, None) for start, end in some] for some in spans]
        return self._score(texts, map(self._named, map(given, texts, told)))

    def _score(self, texts: Sequence[str], mentions: Iterable[Iterable[Mention]]) -> list[Scored]:
        asked = [self._ask_all(some) for some in mentions]
        windows = list(self._windows(texts, asked))
        if not self._noted:
            self._note_unasked([one for some in asked for one in some])
        with torch.inference_mode():
            for window in windows:
                window.told = [self.vocabulary.mask] * len(window.asked)
            steps = self.passes
            while unread := [window for window in windows if window.open]:
                for batch in gather(sorted(unread, key=lambda one: len(one.input)), largest=_TOKENS, size=_size):
                    self._read(batch)
                for window in unread:
                    self._settle(window, steps)
                steps -= 1
        return [self._scored(text, some) for text, some in zip(texts, asked, strict=True)]

    def _mentions(self, texts: Sequence[str]) -> Iterable[list[Mention]]:
        if self.annotator is None:
            return self.finder.mentions_of_many(texts)
        found = [list(some) for some in self.annotator.annotate(texts)]
        if len(found) != len(texts):
            raise UsageError(
                f"the annotator gave {len(found)} lists of mentions for {len(texts)} texts; it owes one each"
            )
        return [self._named(some) for some in found]

    def _named(self, found: Iterable[Mention]) -> list[Mention]:
        """Mentions that somebody else has found, with the candidates that their names have."""
        return [replace(one, candidates=tuple(self.finder.candidates(one.text))) for one in found]

    def _ask_all(self, mentions: Iterable[Mention]) -> list[_Asked]:
        """Return one for each mention; mentions with the same span share theirs."""
        by_span: dict[tuple[int, int], _Asked] = {}
        return [by_span.setdefault((one.start, one.end), self._ask(one)) for one in mentions]

    def _ask(self, mention: Mention) -> _Asked:
        candidates = tuple(one for one in mention.candidates if self._among is None or one.entity in self._among)
        rows = self.vocabulary.rows_of([one.entity for one in candidates], unknown="drop")
        priors = np.array([one.prior for one in candidates], np.float64)
        log_p = np.log(np.maximum(priors / max(priors.sum(), _FLOOR), _FLOOR)) if len(priors) else priors
        return _Asked(mention, candidates, rows, log_p, done=not (rows >= 0).any())

    def _windows(self, texts: Sequence[str], asked: Sequence[Sequence[_Asked]]) -> Iterator[_Window]:
        """Texts with all their mentions, where the model is asked about one of them.

        A mention that is in no window keeps its prior.
        """
        spans = [{(one.mention.start, one.mention.end): one for one in some} for some in asked]
        kept = [place for place, some in enumerate(asked) if any(not one.done for one in some)]
        inputs = [((texts[place],), [Mark(0, start, end) for start, end in spans[place]]) for place in kept]
        for place, tokenized in zip(kept, self.window_tokenizer.tokenize_many(inputs), strict=True):
            by_span = spans[place]
            for window in tokenized.windows:
                mine = [by_span[mark.start, mark.end] for mark in window.marks]
                if mine:
                    yield _Window(window, mine)
            for lost in tokenized.lost:
                by_span[lost.mark.start, lost.mark.end].done = True

    def _note_unasked(self, asked: Sequence[_Asked]) -> None:
        """Say how often names decide, since the model has no row for a candidate, or the mention is in no window."""
        named = [one for one in asked if one.candidates]
        rows = np.concatenate([one.rows for one in named]) if named else np.zeros(0, np.int64)
        lacking, by_prior = int((rows < 0).sum()), sum(one.done for one in named)
        parts = []
        if lacking:
            ids = [candidate.entity for one in named for candidate in one.candidates]
            some = dict.fromkeys(ids[place] for place in np.flatnonzero(rows < 0).tolist())
            parts.append(
                f"{lacking:,} of {len(ids):,} candidates ({lacking / len(ids):.1%}) have no row in the model's entity "
                f"vocabulary and keep their prior: {', '.join(list(some)[:3])}"
            )
        if by_prior:
            parts.append(
                f"{by_prior:,} of {len(named):,} mentions ({by_prior / len(named):.1%}) have only such candidates or "
                "fit into no window, and are linked by the prior"
            )
        if parts:
            self._noted = True
            console.note("; ".join(parts))

    def _read(self, windows: Sequence[_Window]) -> None:
        """What the head says of the candidates of mentions that are still open."""
        inputs = [window.input for window in windows]
        ids = torch.from_numpy(np.concatenate([one.ids for one in inputs]))
        types = torch.from_numpy(np.concatenate([one.types for one in inputs]))
        counts = torch.tensor([len(window.asked) for window in windows])
        spans = torch.from_numpy(np.concatenate([one.mark_tokens for one in inputs])) - torch.tensor([0, 1])
        entities = {
            "text_of": torch.repeat_interleave(torch.arange(len(windows)), counts),
            "ids": torch.tensor([row for window in windows for row in window.told]),
            "spans": spans,
        }
        packing = Packing.of([len(one) for one in inputs])
        states: Tensor = self.encoder.read(ids, packing, types, entities=entities).told[ENTITIES]
        firsts = (counts.cumsum(0) - counts).tolist()
        places = [
            (window, place, first + place)
            for window, first in zip(windows, firsts, strict=True)
            for place in window.open
        ]
        assert self.luke.prediction is not None
        heads = self.luke.prediction(states[torch.tensor([at for *_, at in places])])
        asked = [window.asked[place] for window, place, _ in places]
        sizes = torch.tensor([len(one.known) for one in asked])
        rows = torch.from_numpy(np.concatenate([one.rows[one.known] for one in asked]))
        owner = torch.repeat_interleave(torch.arange(len(asked)), sizes)
        scores = (heads[owner] * self.luke.table.weight[rows]).sum(1) + self.luke.prediction.bias[rows]
        for one, mine in zip(asked, scores.double().split(sizes.tolist()), strict=True):
            one.log_p = self._weigh(one, mine.numpy())

    def _weigh(self, one: _Asked, scores: Floats) -> Floats:
        """The logarithms of the candidates' chances, by the head and the prior."""
        priors = np.array([candidate.prior for candidate in one.candidates], np.float64)
        priors = np.maximum(priors / max(priors.sum(), _FLOOR), _FLOOR)
        known = one.known
        weighed = scores + self.trust * np.log(priors[known])
        log_p = np.log(priors)
        log_p[known] = weighed - np.logaddexp.reduce(weighed) + math.log(priors[known].sum())
        return np.asarray(np.minimum(log_p, 0.0))

    def _settle(self, window: _Window, steps: int) -> None:
        """Link the surest of the mentions that are open: all of them in the last step."""
        unsure = window.open
        order = sorted(unsure, key=lambda place: -float(window.asked[place].log_p.max()))
        for place in order[: -(-len(order) // max(steps, 1))]:
            one = window.asked[place]
            one.done = True
            best = int(one.rows[int(one.log_p.argmax())])
            window.told[place] = best if best >= 0 else self.vocabulary.unk
        for place, one in enumerate(window.asked):
            if one.candidates and not len(one.known):
                window.told[place] = self.vocabulary.unk

    def _scored(self, text: str, asked: Sequence[_Asked]) -> Scored:
        width = max((len(one.candidates) for one in asked), default=0) or 1
        rows, log_p = np.full((len(asked), width), NONE, np.int64), np.full((len(asked), width), -np.inf)
        priors = np.zeros((len(asked), width))
        names: list[tuple[str, str]] = []
        for place, one in enumerate(asked):
            order = np.argsort(-one.log_p, kind="stable")
            count = len(order)
            rows[place, :count] = len(names) + np.arange(count)
            log_p[place, :count] = one.log_p[order]
            priors[place, :count] = [one.candidates[at].prior for at in order.tolist()]
            names += [(one.candidates[at].entity, one.candidates[at].title) for at in order.tolist()]
            if not count:
                rows[place, 0], log_p[place, 0] = NIL, 0.0
        spans = np.array([(one.mention.start, one.mention.end) for one in asked], np.int64).reshape(-1, 2)
        return Scored(
            text,
            spans,
            np.zeros(len(asked)),
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
    return len(window.input) + len(window.asked)


def find_folder(model: str | Path) -> Path | None:
    """The folder of a model that guesses entities, of a pretraining or a conversion; None: it is something else."""
    if str(model) == "luke":
        raise UsageError(
            "no luke comes with this wellread; give the folder of one that you pretrained (wellread pretrain luke) or "
            "converted (wellread convert luke)"
        )
    for folder in (Path(model), Path(model) / "model"):
        try:
            told = json.loads((folder / "config.json").read_bytes()).get("infusions", ())
        except (OSError, ValueError, AttributeError):
            continue
        if (folder / FILE).is_file() and any(entry.get("kind") == "luke" for entry in told):
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
) -> LukeBackend:
    """A reader for inference, by the folder of its model."""
    encoder = load_encoder(str(folder))
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
