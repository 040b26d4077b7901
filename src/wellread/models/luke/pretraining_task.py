"""Pretraining task of LUKE: masked words and masked entities of linked text (Yamada et al. 2020, section 3.3).

1. 15 % of a window's tokens are selected, whole words, at least one: 80 % become the mask, 10 % a random token, 10 %
   are kept. 15 % of its entities are selected too, at least one, and always become [MASK]; their words stay visible.
2. Only these positions are predicted: words with the encoder's embeddings, entities with an exact softmax over all
   rows of the entity table; or among the candidates of their names, as the authors fine-tune for entity
   disambiguation (Yamada et al. 2022). Then only entities that are candidates of their names are masked.

In training the selection is random in every epoch; in validation it is a function of the window. Scores include
baselines: the most frequent entity, the entity a name is most often linked to in the training text, and the unigram
perplexity of tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device  # type: ignore[import-untyped]
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from wellread.data.batches import Lazy, by_length, split_groups
from wellread.encoders.packing import Packing
from wellread.errors import UsageError
from wellread.models.luke.linked_text import BEGINS, SPECIAL, LinkedWindow, LinkedWindows
from wellread.models.luke.model import ENTITIES, Luke, candidate_loss, luke_in, luke_of
from wellread.models.luke.vocabulary import EntityVocabulary, NameCandidates
from wellread.tasks.lm_head import mask_of, ordinary_ids
from wellread.tasks.task import EncoderWithHead, in_full

_AT_ONCE = 4096
BLOCK = 1 << 25
"""Maximum number of logits in memory at once."""


@dataclass(frozen=True, slots=True)
class MaskedWindow:
    """Window after masking of words and entities."""

    ids: NDArray[np.int64]
    masked_tokens: NDArray[np.int64]
    """Positions of masked tokens."""
    rows: NDArray[np.int64]
    masked_entities: NDArray[np.int64]
    """Indices of masked entities."""


@dataclass(frozen=True, slots=True)
class LinkedBatch:
    """Packed windows with their masked words and entities."""

    ids: Int[Tensor, " token"]
    packing: Packing
    entities: dict[str, Tensor]
    """Entity inputs of `Luke`."""
    masked_tokens: Int[Tensor, " masked"]
    """Positions of masked tokens in the batch."""
    gold_ids: Int[Tensor, " masked"]
    masked_entities: Int[Tensor, " masked"]
    """Indices of masked entities in the batch."""
    gold_rows: Int[Tensor, " masked"]
    candidates: Int[Tensor, "masked cand"] | None = None
    """Candidate rows of masked entities, padded with -1; None for all rows."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    def to(self, device: torch.device) -> LinkedBatch:
        """Return the batch on a device."""
        parts = {part.name: getattr(self.packing, part.name) for part in fields(self.packing)}
        tensors = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "packing"}
        return replace(
            self, packing=replace(self.packing, **send_to_device(parts, device)), **send_to_device(tensors, device)
        )


class EntityMasking:
    """Masking of words and entities."""

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

    def mask(self, window: LinkedWindow, rng: np.random.Generator) -> MaskedWindow:
        """Mask some words and entities of a window."""
        tokens = choose_words(window.roles, rng, self.words)
        ids, dice = window.ids.copy(), rng.random(len(tokens))
        ids[tokens[dice < 0.8]] = self.mask_id
        replaced = tokens[(dice >= 0.8) & (dice < 0.9)]
        ids[replaced] = rng.choice(self.ordinary, len(replaced))
        known = np.flatnonzero(window.rows != self.vocabulary.unk)  # [UNK] is not a useful target
        if self.candidates is not None:
            known = known[(self.candidates.take(window.names[known]) == window.rows[known, None]).any(1)]
        count = min(len(known), max(1, round(self.entities * len(known))))
        entities = np.sort(rng.permutation(known)[:count])
        rows = window.rows.copy()
        rows[entities] = self.vocabulary.mask
        return MaskedWindow(ids, tokens, rows, entities)

    def batch(self, windows: Sequence[LinkedWindow], *, learning: bool) -> LinkedBatch:
        """Return a masked batch; the selection is random with `learning`, else a function of each window."""
        masked = [self.mask(window, _rng(window, learning)) for window in windows]
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
            join([one.masked_tokens + start for one, start in zip(masked, starts, strict=True)]),
            join([window.ids[one.masked_tokens] for window, one in zip(windows, masked, strict=True)]),
            join([one.masked_entities + begin for one, begin in zip(masked, begins, strict=True)]),
            join([window.rows[one.masked_entities] for window, one in zip(windows, masked, strict=True)]),
            None if self.candidates is None else torch.from_numpy(self.candidates.take(_names(windows, masked))),
        )


def _names(windows: Sequence[LinkedWindow], masked: Sequence[MaskedWindow]) -> NDArray[np.uint64]:
    """Return the name keys of masked entities."""
    return np.concatenate([window.names[one.masked_entities] for window, one in zip(windows, masked, strict=True)])


def choose_words(roles: NDArray[np.uint8], rng: np.random.Generator, share: float) -> NDArray[np.int64]:
    """Return the positions of about `share` of a window's tokens, at least one, as whole words while they fit."""
    there = np.flatnonzero(roles != SPECIAL)
    word_of = np.cumsum(roles[there] == BEGINS) - 1
    word_of -= word_of[0] if len(word_of) else 0  # a window may begin within a word
    firsts = np.flatnonzero(np.diff(word_of, prepend=-1))
    sizes = np.diff(firsts, append=len(there))
    budget = max(1, round(share * len(there)))
    chosen: list[int] = []
    for word in rng.permutation(len(firsts)).tolist():
        if not chosen or len(chosen) + sizes[word] <= budget:
            chosen += there[firsts[word] : firsts[word] + sizes[word]].tolist()
        if len(chosen) >= budget:
            break
    return np.array(sorted(chosen), np.int64)


def _rng(window: LinkedWindow, learning: bool) -> np.random.Generator:
    if learning:
        return np.random.default_rng(int(torch.randint(1 << 62, ())))
    content = window.ids.tobytes() + window.rows.tobytes()
    return np.random.default_rng(list(hashlib.blake2b(content, digest_size=16).digest()))


class EntityMaskingLearner:
    """Trainable task of the training loop: an encoder with LUKE and a word head, on windows of linked text."""

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
        """`model` is an encoder with a LUKE infusion that predicts entities, and a `WordHead`."""
        self.masking, self.model, self.windows, self.dev = masking, model, windows, dev
        self.batch, self.seed = batch, seed
        found = luke_in(model.encoder)
        if found is None or found.prediction is None:
            raise UsageError("the encoder has no entities, or cannot predict them; infuse LukeConfig(predicts=True)")
        if found.config.entities != len(masking.vocabulary):
            raise UsageError(
                f"the entity table has {found.config.entities:,} rows and the vocabulary {len(masking.vocabulary):,}; "
                "give the vocabulary of the model"
            )

    @property
    def luke(self) -> Luke:
        """LUKE infusion of the encoder."""
        return luke_of(self.model.encoder)

    def batches(self, epoch: int) -> Sequence[LinkedBatch]:
        """Return the batches of an epoch, of windows of similar length, in an order that depends on the epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        groups = by_length(self._lengths, rng, examples=self.batch)
        return Lazy(groups, lambda group: self.masking.batch([self.windows[place] for place in group], learning=True))

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return self.windows.lengths

    def loss(self, batch: LinkedBatch) -> dict[str, Tensor]:
        """Return the losses of words and of entities, each the mean over the masked ones."""
        words, entities = self._read(batch)
        if batch.candidates is not None:
            scores = self.luke.predict_among(entities, batch.candidates)
            of_rows = candidate_loss(scores, batch.candidates, batch.gold_rows)
        else:
            head = self.luke.entity_head
            of_rows = cross_entropy_over_rows(head(entities), self.luke.table.weight, head.bias, batch.gold_rows)
        return {"word": cross_entropy(in_full(self.model.head(words)), batch.gold_ids), "entity": of_rows}

    def _score_entities(self, states: Tensor, batch: LinkedBatch) -> tuple[Tensor, Tensor]:
        """Return the log probability of the gold row of each masked entity, and whether it is the best."""
        if batch.candidates is None:
            head = self.luke.entity_head
            return score_rows(head(states), self.luke.table.weight, head.bias, batch.gold_rows)
        log_p = in_full(self.luke.predict_among(states, batch.candidates)).log_softmax(1)
        gold = (batch.candidates == batch.gold_rows[:, None]).int().argmax(1)
        return log_p[torch.arange(len(gold)), gold], log_p.argmax(1) == gold

    def _read(self, batch: LinkedBatch) -> tuple[Float[Tensor, "masked dim"], Float[Tensor, "masked dim"]]:
        """Return the states of masked tokens and of masked entities."""
        read = self.model.encoder.read(batch.ids, batch.packing, None, **{ENTITIES: batch.entities})
        return read.states[batch.masked_tokens], read.outputs[ENTITIES][batch.masked_entities]

    def evaluate(self) -> dict[str, float]:
        """Return accuracy and perplexity of masked words and entities on the validation windows, and the baselines."""
        device = next(self.model.parameters()).device
        words: list[Tensor] = []
        entities: list[Tensor] = []
        for group in split_groups(self.dev.lengths, np.argsort(self.dev.lengths).tolist(), tokens=_AT_ONCE):
            batch = self.masking.batch([self.dev[place] for place in group], learning=False).to(device)
            with torch.no_grad():
                states, of_entities = self._read(batch)
                scores = in_full(self.model.head(states))
                found = -cross_entropy(scores, batch.gold_ids, reduction="none"), scores.argmax(1) == batch.gold_ids
                words.append(torch.stack([part.double().cpu() for part in found]))
                found = self._score_entities(of_entities, batch)
                entities.append(torch.stack([part.double().cpu() for part in found]))
        log_p, right = torch.cat(words, 1).mean(1).tolist()
        entity_log_p, entity_right = torch.cat(entities, 1).mean(1).tolist()
        return {
            "log_chance": log_p + (0.0 if math.isnan(entity_log_p) else entity_log_p),
            "words.accuracy": right,
            "words.perplexity": math.exp(min(-log_p, 700.0)),
            "entities.accuracy": entity_right,
            "entities.perplexity": math.exp(min(-entity_log_p, 700.0)),
            **self.baselines,
        }

    @cached_property
    def frequencies(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log relative frequency of each token, and of each row of the vocabulary, in the training windows."""
        counts = (
            self.windows.count_tokens(self.masking.tokens),
            self.windows.count_rows(len(self.masking.vocabulary)),
        )
        # Add-one smoothing, for tokens and entities that do not occur.
        tokens, rows = (np.log((part + 1) / (part.sum() + len(part))) for part in counts)
        return tokens, rows

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Scores of predictions by training frequency, for the same masked words and entities."""
        log_tokens, log_rows = self.frequencies
        best = self.windows.best_named(self.dev.name_keys())
        frequent = int(log_rows.argmax())
        of_tokens, of_rows, top, by_name = [], [], [], []
        for place in range(len(self.dev)):
            window = self.dev[place]
            masked = self.masking.mask(window, _rng(window, learning=False))
            gold = window.rows[masked.masked_entities]
            of_tokens.append(log_tokens[window.ids[masked.masked_tokens]])
            of_rows.append(log_rows[gold])
            top.append(gold == frequent)
            by_name.append([best.get(key, frequent) for key in window.names[masked.masked_entities].tolist()] == gold)
        means = [float(np.concatenate(values).mean()) for values in (of_tokens, of_rows, top, by_name)]
        return {
            "words.frequent_perplexity": math.exp(-means[0]),
            "entities.frequent_perplexity": math.exp(-means[1]),
            "entities.frequent": means[2],
            "entities.by_name": means[3],
        }


def cross_entropy_over_rows(
    states: Float[Tensor, "masked dim"],
    table: Float[Tensor, "row dim"],
    bias: Float[Tensor, " row"],
    gold: Int[Tensor, " masked"],
    *,
    block: int = BLOCK,
) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(states · table + bias) at the gold rows, in bounded memory.

    Equal to `cross_entropy` of all logits, but these are computed in blocks of states, together with their gradients
    (as in Liger's kernels): beside the table's gradient this takes the memory of one block, and no logit is computed
    twice.
    """
    found: Tensor = _CrossEntropy.apply(states, table, bias, gold, block)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def score_rows(
    states: Float[Tensor, "masked dim"],
    table: Float[Tensor, "row dim"],
    bias: Float[Tensor, " row"],
    gold: Int[Tensor, " masked"],
    *,
    block: int = BLOCK,
) -> tuple[Float[Tensor, " masked"], Bool[Tensor, " masked"]]:
    """Return the log probability of each gold row, and whether it has the highest logit."""
    log_p, right = [states.new_zeros(0)], [gold.new_zeros(0, dtype=torch.bool)]
    for _, scores, rows in _blocks(states, table, bias, gold, block):
        of_gold = scores.gather(1, rows[:, None])[:, 0]
        log_p.append(of_gold - scores.logsumexp(1))
        right.append(scores.argmax(1) == rows)
    return torch.cat(log_p), torch.cat(right)


def _blocks(
    states: Tensor, table: Tensor, bias: Tensor, gold: Tensor, block: int
) -> Iterator[tuple[slice, Float[Tensor, "block row"], Int[Tensor, " block"]]]:
    size = max(1, block // max(1, len(table)))
    for begin in range(0, len(states), size):
        part = slice(begin, begin + size)
        with torch.autocast(states.device.type, enabled=False):
            scores = torch.addmm(bias, states[part].to(table.dtype), table.t())
        yield part, scores, gold[part]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, table: Tensor, bias: Tensor, gold: Tensor, block: int) -> Tensor:
        ctx.save_for_backward(states, table, bias, gold)
        ctx.block = block
        mean, ctx.gradients = _gradients(states, table, bias, gold, block, ctx.needs_input_grad[:3])
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # multiplied in place, as the table's is large
        if gradients is None:  # second backward pass through a retained graph
            states, table, bias, gold = ctx.saved_tensors
            _, gradients = _gradients(states, table, bias, gold, ctx.block, ctx.needs_input_grad[:3])
        return *(None if part is None else part.mul_(above.to(part.dtype)) for part in gradients), None, None


def _gradients(
    states: Tensor, table: Tensor, bias: Tensor, gold: Tensor, block: int, needs: Sequence[bool]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the mean loss, and the gradients of the inputs that need one."""
    total = table.new_zeros(())
    of_states, of_table, of_bias = gradients = tuple(
        torch.zeros_like(part) if needed else None for part, needed in zip((states, table, bias), needs, strict=True)
    )
    for part, scores, rows in _blocks(states, table, bias, gold, block):
        every = scores.logsumexp(1, keepdim=True)
        total += (every - scores.gather(1, rows[:, None])).sum()
        if not any(needs):
            continue
        change = scores.sub_(every).exp_()
        change.scatter_add_(1, rows[:, None], change.new_full((len(rows), 1), -1.0))
        change.div_(len(states))
        with torch.autocast(states.device.type, enabled=False):
            if of_states is not None:
                of_states[part] = change @ table
            if of_table is not None:
                of_table.addmm_(change.t(), states[part].to(table.dtype))
            if of_bias is not None:
                of_bias += change.sum(0)
    return total / max(1, len(states)), gradients
