"""Masked language modelling (Devlin et al. 2019).

1. 15 % of a text's tokens are chosen, at least one: single tokens, or whole words. Of these 80 % become the mask, 10 %
   another token, 10 % stay.
2. The original tokens are predicted at these positions only.

In training the choice is random each time; in evaluation it is a function of the text, so that all models are tested on
the same masks. Knowledge must not reveal the target: the word of a chosen token has no entry in maps, and no auxiliary
terms.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wellread.data.corpus import Corpus, Unit
from wellread.data.splits import split_by
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import UsageError
from wellread.tasks.lm_head import WordHead, load_word_head, mask_of, ordinary_ids
from wellread.tasks.task import Batch, in_full
from wellread.tasks.task_type import TaskMetadata, TaskSettings, TaskType
from wellread.text.tokenization import TextTokenizer, Tokenization, encode_many


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedText(Tokenization):
    """Input in which some tokens are masked."""

    places: Int64[np.ndarray, " masked"]
    gold: Int64[np.ndarray, " masked"]
    """Original ids at these positions."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """Predictions of the masked tokens of a text: count, number right, and sum of log-probabilities."""

    masked: int
    right: int
    log_chance: float


class MaskedWords:
    """Head, target and loss that all tasks with masked words share."""

    start: str | None

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """Build a head with a score per vocabulary token."""
        return word_head(encoder, self.start)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """Add (position among all tokens, original id) of all masked tokens as the target."""
        starts = batch.packing.starts.tolist()
        found = [
            np.stack((_masked(one).places + start, _masked(one).gold), 1)
            for one, start in zip(batch.inputs, starts, strict=True)
        ]
        target: Int[Tensor, "masked two"] = torch.from_numpy(np.concatenate(found))
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy at the masked positions, over the vocabulary."""
        places, gold = batch.target.unbind(1)
        return {"word": cross_entropy(in_full(head(states[places])), gold)}


class Masking(MaskedWords):
    """Original tokens at masked positions; examples are texts."""

    score = "accuracy"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        share: float = 0.15,
        units: Literal["pieces", "words"] = "pieces",
        start: str | None = None,
    ) -> None:
        """Set up masking; `start` is the encoder whose checkpoint may have a pretrained head."""
        if not 0 < share < 1:
            raise UsageError(f"share is {share}; expected a share of the tokens, between 0 and 1")
        _, self.mask_id = mask_of(tokenizer)
        self.ordinary = np.array(ordinary_ids(tokenizer), np.int64)
        self.share, self.units, self.start = share, units, start

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[str], *, learning: bool
    ) -> list[list[Tokenization]]:
        """Return one input per text, truncated to the segmenter's `longest` (see `read_texts`)."""
        tokenized = segmenter.tokenize_many([(text,) for text in examples])
        return [[one] if not learning or not one.special_mask.all() else [] for one in tokenized]

    def draw(self, example: str, inputs: Sequence[Tokenization], *, learning: bool) -> Sequence[Tokenization]:
        """Return the text with tokens masked."""
        return [self._mask(one, _chance(one, learning)) for one in inputs]

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """Return the predictions of each text (`Guesses`)."""
        places, gold = batch.target.unbind(1)
        found = in_full(head(states[places]))
        right = (found.argmax(1) == gold).tolist()
        chances = (-cross_entropy(found, gold, reduction="none")).tolist()
        guesses, begin = [], 0
        for one in batch.inputs:
            end = begin + len(_masked(one).places)
            guesses.append(Guesses(end - begin, sum(right[begin:end]), math.fsum(chances[begin:end])))
            begin = end
        return guesses

    def scores(self, examples: Sequence[str], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """Return accuracy, mean log-probability of the original tokens, and perplexity."""
        every = [one for some in answers for one in some]
        masked = sum(one.masked for one in every)
        if not masked:
            return dict.fromkeys(("accuracy", "log_chance", "perplexity"), math.nan)
        mean = math.fsum(one.log_chance for one in every) / masked
        right = sum(one.right for one in every) / masked
        return {"accuracy": right, "log_chance": mean, "perplexity": math.exp(min(-mean, 700.0))}

    def _mask(self, one: Tokenization, chance: np.random.Generator) -> MaskedText:
        places = choose_tokens(one, chance, share=self.share, units=self.units)
        ids, dice = one.ids.copy(), chance.random(len(places))
        ids[places[dice < 0.8]] = self.mask_id
        others = places[(dice >= 0.8) & (dice < 0.9)]
        ids[others] = chance.choice(self.ordinary, len(others))
        return hide(one, ids, places)


def word_head(encoder: InfusedEncoder, start: str | None) -> WordHead:
    """Build a head on an encoder, with a checkpoint's weights if it has any."""
    head = WordHead(encoder)
    if start is not None:
        load_word_head(head, start)
    return head


def choose_tokens(
    one: Tokenization, chance: np.random.Generator, *, share: float, units: Literal["pieces", "words"]
) -> NDArray[np.int64]:
    """Return positions of a share of the tokens, at least one; whole words are chosen while they fit."""
    there = np.flatnonzero(~one.special_mask)
    budget = max(1, round(share * len(there)))
    if units == "pieces":
        return np.sort(chance.permutation(there)[:budget])
    # A token that belongs to no word is a unit of its own.
    unit = np.where(one.word_of[there] >= 0, one.word_of[there], len(one.words) + there)
    chosen: list[int] = []
    for number in chance.permutation(np.unique(unit)).tolist():
        tokens = there[unit == number].tolist()
        if not chosen or len(chosen) + len(tokens) <= budget:
            chosen += tokens
        if len(chosen) >= budget:
            break
    return np.array(sorted(chosen), np.int64)


def hide(one: Tokenization, ids: NDArray[np.int64], places: NDArray[np.int64]) -> MaskedText:
    """Return a text with new token ids, in which the words at `places` are hidden from knowledge providers.

    All tokens of such a word are hidden, and mentions and phrases that contain it do not link its other words either.
    Joining characters of a name belong to no word, but the name would reveal them: their tokens are listed in `hidden`.
    """
    covers = (one.segment_of >= 0) & (one.spans[:, 0] < one.spans[:, 1])
    joiners = places[(one.word_of[places] < 0) & covers[places]]
    hidden = set(one.word_of[places].tolist()) - {-1}
    word_of = np.where(np.isin(one.word_of, list(hidden)), -1, one.word_of)
    words = tuple("" if number in hidden else word for number, word in enumerate(one.words))
    values = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
    values |= {"ids": ids, "word_of": word_of, "words": words, "hidden": tuple(joiners.tolist())}
    return MaskedText(**values, places=places, gold=one.ids[places])


def read_texts(
    paths: Sequence[str | Path],
    segmenter: TextTokenizer,
    *,
    unit: Unit = "paragraph",
    fields: Sequence[str] = ("text",),
) -> Iterator[str]:
    """Yield the texts of files, folders and JSONL, compressed or not, split to fit the segmenter's `longest`."""
    corpus = Corpus.of_files(paths, unit=unit, fields=fields)
    for shard in range(len(corpus.shards)):
        yield from window_texts(corpus.documents(shard), segmenter)


def window_texts(texts: Iterable[str], segmenter: TextTokenizer) -> Iterator[str]:
    """Split texts at word boundaries so that each part fits the segmenter's `longest`; blank parts are dropped.

    Each part is a text of its own, also for knowledge providers.
    """
    for text in texts:
        if not text.strip():
            continue
        if segmenter.longest is None:
            yield text.strip()
            continue
        size = segmenter.longest - segmenter.tokenizer.num_special_tokens_to_add(False)
        code = encode_many(segmenter.tokenizer, [text], special=False)[0]
        words = [-1 if word is None else word for word in code.word_ids]
        first = 0
        while first < len(code):
            last = min(first + size, len(code))
            if last < len(code):
                # Back to the start of a word; a word that is longer than an input is split.
                last = next((at for at in range(last, first, -1) if words[at] != words[at - 1]), last)
            part = text[code.offsets[first][0] : code.offsets[last - 1][1]].strip()
            if part:
                yield part
            first = last


def _chance(one: Tokenization, learning: bool) -> np.random.Generator:
    if learning:
        return np.random.default_rng(int(torch.randint(1 << 62, ())))
    return np.random.default_rng(list(hashlib.blake2b(one.ids.tobytes(), digest_size=16).digest()))


def _masked(one: Tokenization) -> MaskedText:
    assert isinstance(one, MaskedText)
    return one


# registry


def _read(settings: TaskSettings, metadata: TaskMetadata, path: str, broken: list[str]) -> Iterator[str]:
    return read_texts([path], TextTokenizer(load_tokenizer(settings.encoder.name), longest=settings.encoder.longest))


def _build(settings: TaskSettings, metadata: TaskMetadata, tokenizer: Tokenizer) -> Masking:
    options: MaskingOptions = settings.options
    return Masking(tokenizer, share=options.share, units=options.units, start=settings.encoder.name)


TASKS = {
    "masking": TaskType(
        options="masking",
        read=_read,
        split=lambda texts, count: split_by(texts, count, lambda text: text),
        build=_build,
        has_gold=lambda text: True,
    )
}
