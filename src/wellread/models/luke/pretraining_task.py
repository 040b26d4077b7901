"""Masked words and masked entities of linked text: what LUKE is pretrained with (Yamada et al. 2020, section 3.3).

1. Of a window's pieces 15 % are chosen, whole words at a time, at least one: 80 % become the mask, 10 % another piece,
   10 % stay. Of its entities 15 % are chosen too, at least one, and always become [MASK]; their words stay readable.
2. What stood there is predicted, at these places only: pieces by the encoder's own embeddings, entities by the table's
   rows, exactly, however many there are (`models.luke.blockwise_softmax`); or among the candidates of their names
   alone, as LUKE's authors fine-tune for entity disambiguation (Yamada et al. 2022). Then only entities that are
   candidates of their names are hidden.

Where one learns the choice is made anew every time; where one does not, it is a function of the window. Scores come
with those of guessing by frequency: the most frequent entity, the one that a name means most often in the text that is
learned from, and the perplexity of pieces by their frequency.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from wellread.data.batches import Lazy, by_length, split_groups
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.models.luke.blockwise_softmax import cross_entropy_over_rows, score_rows
from wellread.models.luke.linked_text import BEGINS, SPECIAL, LinkedWindows, Window
from wellread.models.luke.model import ENTITIES, EntityPrediction, Luke, candidate_loss, luke_in
from wellread.models.luke.name_candidates import NameCandidates
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.tasks.lm_head import mask_of, ordinary_ids
from wellread.tasks.task import EncoderWithHead, in_full

_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class MaskedWindow:
    """A window with words and entities hidden."""

    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    """Of hidden pieces."""
    rows: NDArray[np.int64]
    hidden: NDArray[np.int64]
    """Which entities are."""


@dataclass(frozen=True, slots=True)
class LinkedBatch:
    """Windows packed end to end, with what is hidden in them."""

    ids: Int[Tensor, " token"]
    packing: Packing
    entities: dict[str, Tensor]
    """As the encoder takes them."""
    places: Int[Tensor, " masked"]
    """Of hidden pieces, among all."""
    gold: Int[Tensor, " masked"]
    hidden: Int[Tensor, " masked"]
    """Hidden entities, among all."""
    gold_rows: Int[Tensor, " masked"]
    candidates: Int[Tensor, "masked cand"] | None = None
    """Rows that hidden entities are told apart from, -1 where there are no more; None: all rows."""

    @property
    def tokens(self) -> int:
        """How many pieces it has."""
        return len(self.ids)

    def to(self, device: torch.device) -> LinkedBatch:
        """The same on a device."""
        parts = {part.name: getattr(self.packing, part.name) for part in fields(self.packing)}
        told = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "packing"}
        return replace(
            self, packing=replace(self.packing, **send_to_device(parts, device)), **send_to_device(told, device)
        )


class EntityMasking:
    """What is hidden of a window, and where."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: EntityVocabulary,
        *,
        words: float = 0.15,
        entities: float = 0.15,
        candidates: NameCandidates | None = None,
    ) -> None:
        for name, share in (("words", words), ("entities", entities)):
            if not 0 < share < 1:
                raise UsageError(f"{name} is {share}; expected a share to mask, between 0 and 1")
        _, self.mask_id = mask_of(tokenizer)
        self.ordinary = np.array(ordinary_ids(tokenizer), np.int64)
        self.tokens = max(tokenizer.get_vocab().values()) + 1
        self.vocabulary, self.words, self.entities = vocabulary, words, entities
        self.candidates = candidates

    def mask(self, window: Window, chance: np.random.Generator) -> MaskedWindow:
        """Hide some words and entities."""
        places = choose_words(window.roles, chance, self.words)
        ids, dice = window.ids.copy(), chance.random(len(places))
        ids[places[dice < 0.8]] = self.mask_id
        others = places[(dice >= 0.8) & (dice < 0.9)]
        ids[others] = chance.choice(self.ordinary, len(others))
        told = np.flatnonzero(window.rows != self.vocabulary.unk)  # that it is unknown teaches nothing
        if self.candidates is not None:
            told = told[(self.candidates.take(window.names[told]) == window.rows[told, None]).any(1)]
        many = min(len(told), max(1, round(self.entities * len(told))))
        hidden = np.sort(chance.permutation(told)[:many])
        rows = window.rows.copy()
        rows[hidden] = self.vocabulary.mask
        return MaskedWindow(ids, places, rows, hidden)

    def batch(self, windows: Sequence[Window], *, learning: bool) -> LinkedBatch:
        """Windows as the encoder reads them, with some of each hidden."""
        masked = [self.mask(window, _chance(window, learning)) for window in windows]
        packing = Packing.of([len(window.ids) for window in windows])
        counts = [len(window.rows) for window in windows]
        begins = np.cumsum([0, *counts])[:-1]

        def join(parts: Sequence[NDArray[Any]]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts))

        starts = packing.starts.tolist()
        return LinkedBatch(
            join([one.ids for one in masked]),
            packing,
            {
                "text_of": torch.repeat_interleave(torch.arange(len(windows)), torch.tensor(counts)),
                "ids": join([one.rows for one in masked]),
                "spans": join([window.spans for window in windows]),
            },
            join([one.places + start for one, start in zip(masked, starts, strict=True)]),
            join([window.ids[one.places] for window, one in zip(windows, masked, strict=True)]),
            join([one.hidden + begin for one, begin in zip(masked, begins, strict=True)]),
            join([window.rows[one.hidden] for window, one in zip(windows, masked, strict=True)]),
            None if self.candidates is None else torch.from_numpy(self.candidates.take(_names(windows, masked))),
        )


def _names(windows: Sequence[Window], masked: Sequence[MaskedWindow]) -> NDArray[np.uint64]:
    """The keys of the names of hidden entities."""
    return np.concatenate([window.names[one.hidden] for window, one in zip(windows, masked, strict=True)])


def choose_words(roles: NDArray[np.uint8], chance: np.random.Generator, share: float) -> NDArray[np.int64]:
    """The places of a share of a window's pieces, at least one; words are chosen while they fit."""
    there = np.flatnonzero(roles != SPECIAL)
    word_of = np.cumsum(roles[there] == BEGINS) - 1
    word_of -= word_of[0] if len(word_of) else 0  # a window may begin within a word
    firsts = np.flatnonzero(np.diff(word_of, prepend=-1))
    sizes = np.diff(firsts, append=len(there))
    budget = max(1, round(share * len(there)))
    chosen: list[int] = []
    for word in chance.permutation(len(firsts)).tolist():
        if not chosen or len(chosen) + sizes[word] <= budget:
            chosen += there[firsts[word] : firsts[word] + sizes[word]].tolist()
        if len(chosen) >= budget:
            break
    return np.array(sorted(chosen), np.int64)


def _chance(window: Window, learning: bool) -> np.random.Generator:
    if learning:
        return np.random.default_rng(int(torch.randint(1 << 62, ())))
    told = window.ids.tobytes() + window.rows.tobytes()
    return np.random.default_rng(list(hashlib.blake2b(told, digest_size=16).digest()))


class EntityMaskingLearner:
    """What the loop trains: an encoder that takes entities, with a head for words, on windows of linked text."""

    score = "log_chance"

    def __init__(
        self,
        masking: EntityMasking,
        model: EncoderWithHead,
        windows: LinkedWindows,
        dev: LinkedWindows,
        *,
        batch: int = 16,
        seed: int = 0,
    ) -> None:
        """`model` is an encoder with LUKE's infusion, and its head for entities, and a `WordHead`."""
        self.masking, self.model, self.windows, self.dev = masking, model, windows, dev
        self.batch, self.seed = batch, seed
        found = luke_in(model.encoder)
        if found is None or found.prediction is None:
            raise UsageError("the encoder takes no entities, or cannot guess them; infuse LukeConfig(predicts=True)")
        if found.config.entities != len(masking.vocabulary):
            raise UsageError(
                f"the entity table has {found.config.entities:,} rows and the vocabulary {len(masking.vocabulary):,}; "
                "give the vocabulary that the model was made with"
            )

    @property
    def luke(self) -> Luke:
        """The encoder's infusion."""
        found = luke_in(self.model.encoder)
        assert found is not None
        return found

    def batches(self, epoch: int) -> Sequence[LinkedBatch]:
        """Windows of like length together, in an order of their own for every epoch."""
        draw = np.random.default_rng((self.seed, epoch))
        groups = by_length(self._lengths, draw, examples=self.batch)
        return Lazy(groups, lambda group: self.masking.batch([self.windows[place] for place in group], learning=True))

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return self.windows.lengths

    def loss(self, batch: LinkedBatch) -> dict[str, Tensor]:
        """Of words and of entities, each the mean over what is hidden."""
        words, entities = self._read(batch)
        if batch.candidates is not None:
            scores = self.luke.predict_among(entities, batch.candidates)
            of_rows = candidate_loss(scores, batch.candidates, batch.gold_rows)
        else:
            head = self._prediction
            of_rows = cross_entropy_over_rows(head(entities), self.luke.table.weight, head.bias, batch.gold_rows)
        return {"word": cross_entropy(in_full(self.model.head(words)), batch.gold), "entity": of_rows}

    def _score_entities(self, states: Tensor, batch: LinkedBatch) -> tuple[Tensor, Tensor]:
        """(log probability of the gold row, is it the best) of each hidden entity."""
        if batch.candidates is None:
            head = self._prediction
            return score_rows(head(states), self.luke.table.weight, head.bias, batch.gold_rows)
        log_p = in_full(self.luke.predict_among(states, batch.candidates)).log_softmax(1)
        gold = (batch.candidates == batch.gold_rows[:, None]).int().argmax(1)
        return log_p[torch.arange(len(gold)), gold], log_p.argmax(1) == gold

    @property
    def _prediction(self) -> EntityPrediction:
        head = self.luke.prediction
        assert head is not None
        return head

    def _read(self, batch: LinkedBatch) -> tuple[Float[Tensor, "masked dim"], Float[Tensor, "masked dim"]]:
        """The states of what is hidden: pieces and entities."""
        read = self.model.encoder.read(batch.ids, batch.packing, None, **{ENTITIES: batch.entities})
        return read.states[batch.places], read.outputs[ENTITIES][batch.hidden]

    def evaluate(self) -> dict[str, float]:
        """How well hidden words and entities are guessed, and how well by frequency alone."""
        device = next(self.model.parameters()).device
        words: list[Tensor] = []
        entities: list[Tensor] = []
        for group in split_groups(self.dev.lengths, np.argsort(self.dev.lengths).tolist(), tokens=_AT_ONCE):
            batch = self.masking.batch([self.dev[place] for place in group], learning=False).to(device)
            with torch.no_grad():
                states, of_entities = self._read(batch)
                scores = in_full(self.model.head(states))
                found = -cross_entropy(scores, batch.gold, reduction="none"), scores.argmax(1) == batch.gold
                words.append(torch.stack([part.double().cpu() for part in found]))
                found = self._score_entities(of_entities, batch)
                entities.append(torch.stack([part.double().cpu() for part in found]))
        chance, right = torch.cat(words, 1).mean(1).tolist()
        entity_chance, entity_right = torch.cat(entities, 1).mean(1).tolist()
        return {
            "log_chance": chance + (0.0 if math.isnan(entity_chance) else entity_chance),
            "words.accuracy": right,
            "words.perplexity": math.exp(min(-chance, 700.0)),
            "entities.accuracy": entity_right,
            "entities.perplexity": math.exp(min(-entity_chance, 700.0)),
            **self.baselines,
        }

    @cached_property
    def frequencies(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The log of the share of each piece, and of each row of the vocabulary, in the text that is learned from."""
        counts = (
            self.windows.count_tokens(self.masking.tokens),
            self.windows.count_rows(len(self.masking.vocabulary)),
        )
        # Add-one, so that what was never seen has a chance.
        tokens, rows = (np.log((some + 1) / (some.sum() + len(some))) for some in counts)
        return tokens, rows

    @cached_property
    def baselines(self) -> dict[str, float]:
        """What frequencies in the text that is learned from say of the same hidden words and entities."""
        log_tokens, log_rows = self.frequencies
        best = self.windows.best_named(self.dev.name_keys())
        frequent = int(log_rows.argmax())
        of_tokens, of_rows, top, by_name = [], [], [], []
        for place in range(len(self.dev)):
            window = self.dev[place]
            masked = self.masking.mask(window, _chance(window, learning=False))
            gold = window.rows[masked.hidden]
            of_tokens.append(log_tokens[window.ids[masked.places]])
            of_rows.append(log_rows[gold])
            top.append(gold == frequent)
            by_name.append([best.get(key, frequent) for key in window.names[masked.hidden].tolist()] == gold)
        told = [float(np.concatenate(some).mean()) for some in (of_tokens, of_rows, top, by_name)]
        return {
            "words.frequent_perplexity": math.exp(-told[0]),
            "entities.frequent_perplexity": math.exp(-told[1]),
            "entities.frequent": told[2],
            "entities.by_name": told[3],
        }
