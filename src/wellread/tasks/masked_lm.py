"""Masked language modelling: which pieces stood where a text is masked (Devlin et al. 2019)?

1. Of a text's pieces 15 % are chosen, at least one: by themselves, or whole words at a time. Of these 80 % become the
   mask, 10 % another piece, 10 % stay.
2. What stood there is predicted, at these places only.

Where one learns the choice is made anew every time; where one does not, it is a function of the text, so that all
models are asked the same. Knowledge says nothing of what is to be predicted: the word of a chosen piece has no part in
maps, and no auxiliary terms.
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
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.errors import UsageError
from wellread.tasks.lm_head import WordHead, load_word_head, mask_of, ordinary_ids
from wellread.tasks.task import Batch, in_full
from wellread.text.tokenization import TextTokenizer, Tokenization, encode_many


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedText(Tokenization):
    """An input in which some pieces are hidden."""

    places: Int64[np.ndarray, " masked"]
    gold: Int64[np.ndarray, " masked"]
    """The ids of what stands there."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """How the hidden pieces of a text were guessed: how many were, how many rightly, and the sum of log-chances."""

    masked: int
    right: int
    log_chance: float


class MaskedWords:
    """What all tasks of masked words have in common: the head, the places that are asked, the loss."""

    start: str | None

    def head(self, encoder: InfusedEncoder) -> nn.Module:
        """A score for each piece of the vocabulary."""
        return word_head(encoder, self.start)

    def prepare(self, batch: Batch, *, learning: bool) -> Batch:
        """With (place among all pieces, what stands there) of all that is masked as its target."""
        starts = batch.packing.starts.tolist()
        found = [
            np.stack((_masked(one).places + start, _masked(one).gold), 1)
            for one, start in zip(batch.inputs, starts, strict=True)
        ]
        target: Int[Tensor, "masked two"] = torch.from_numpy(np.concatenate(found))
        return replace(batch, target=target)

    def loss(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of what stands at the masked places, over all words."""
        places, gold = batch.target.unbind(1)
        return {"word": cross_entropy(in_full(head(states[places])), gold)}


class Masking(MaskedWords):
    """What stands at masked places; examples are texts."""

    score = "accuracy"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        share: float = 0.15,
        units: Literal["pieces", "words"] = "pieces",
        start: str | None = None,
    ) -> None:
        """`start` is the encoder whose checkpoint may have a head to start from; without it the head starts anew."""
        if not 0 < share < 1:
            raise UsageError(f"share is {share}; expected a share of the pieces, between 0 and 1")
        _, self.mask_id = mask_of(tokenizer)
        self.ordinary = np.array(ordinary_ids(tokenizer), np.int64)
        self.share, self.units, self.start = share, units, start

    def tokenize(
        self, segmenter: TextTokenizer, examples: Sequence[str], *, learning: bool
    ) -> list[list[Tokenization]]:
        """One input for each text; what is longer than the segmenter's `longest` is cut off (see `read_texts`)."""
        tokenized = segmenter.tokenize_many([(text,) for text in examples])
        return [[one] if not learning or not one.special_mask.all() else [] for one in tokenized]

    def draw(self, example: str, inputs: Sequence[Tokenization], *, learning: bool) -> Sequence[Tokenization]:
        """The text with pieces hidden."""
        return [self._mask(one, _chance(one, learning)) for one in inputs]

    def answers(self, head: nn.Module, states: Float[Tensor, "token dim"], batch: Batch) -> list[Any]:
        """How each text's pieces were guessed (`Guesses`)."""
        places, gold = batch.target.unbind(1)
        found = in_full(head(states[places]))
        right = (found.argmax(1) == gold).tolist()
        chances = (-cross_entropy(found, gold, reduction="none")).tolist()
        told, begin = [], 0
        for one in batch.inputs:
            end = begin + len(_masked(one).places)
            told.append(Guesses(end - begin, sum(right[begin:end]), math.fsum(chances[begin:end])))
            begin = end
        return told

    def scores(self, examples: Sequence[str], answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """The share that is guessed rightly, the mean log-chance of what stands there, and its perplexity."""
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
    """A head on an encoder, with the weights that a checkpoint has for it, if it has any."""
    head = WordHead(encoder)
    if start is not None:
        load_word_head(head, start)
    return head


def choose_tokens(
    one: Tokenization, chance: np.random.Generator, *, share: float, units: Literal["pieces", "words"]
) -> NDArray[np.int64]:
    """The places of a share of a text's pieces, at least one if there are any; words are chosen while they fit."""
    there = np.flatnonzero(~one.special_mask)
    budget = max(1, round(share * len(there)))
    if units == "pieces":
        return np.sort(chance.permutation(there)[:budget])
    # A piece that is of no word is a unit of its own.
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
    """A text with other pieces, of which some are hidden: their words are unknown to whoever lends knowledge.

    All pieces of such a word are, and mentions and phrases that it is part of bind no other word either. What joins the
    words of a name is of none of them, but the name would tell it: such pieces are `hidden` by themselves.
    """
    covers = (one.segment_of >= 0) & (one.spans[:, 0] < one.spans[:, 1])
    joiners = places[(one.word_of[places] < 0) & covers[places]]
    hidden = set(one.word_of[places].tolist()) - {-1}
    word_of = np.where(np.isin(one.word_of, list(hidden)), -1, one.word_of)
    words = tuple("" if number in hidden else word for number, word in enumerate(one.words))
    told = {part.name: getattr(one, part.name) for part in dataclasses.fields(Tokenization)}
    told |= {"ids": ids, "word_of": word_of, "words": words, "hidden": tuple(joiners.tolist())}
    return MaskedText(**told, places=places, gold=one.ids[places])


def read_texts(
    paths: Sequence[str | Path],
    segmenter: TextTokenizer,
    *,
    unit: Unit = "paragraph",
    fields: Sequence[str] = ("text",),
) -> Iterator[str]:
    """The texts of files, folders and JSONL, compressed or not, in parts that fit the segmenter's `longest`."""
    corpus = Corpus.of_files(paths, unit=unit, fields=fields)
    for shard in range(len(corpus.shards)):
        yield from window_texts(corpus.documents(shard), segmenter)


def window_texts(texts: Iterable[str], segmenter: TextTokenizer) -> Iterator[str]:
    """Texts cut at words so that each part fits the segmenter's `longest`; blank ones are left out.

    Parts are texts of their own: their knowledge is that of the part.
    """
    for text in texts:
        if not text.strip():
            continue
        if segmenter.longest is None:
            yield text.strip()
            continue
        room = segmenter.longest - segmenter.tokenizer.num_special_tokens_to_add(False)
        code = encode_many(segmenter.tokenizer, [text], special=False)[0]
        words = [-1 if word is None else word for word in code.word_ids]
        first = 0
        while first < len(code):
            last = min(first + room, len(code))
            if last < len(code):
                # Back to where a word begins; a word that is longer than the room is cut.
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
