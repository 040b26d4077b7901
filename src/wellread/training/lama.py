"""The LAMA probe of models that stand ready: runs that learned masked words, and encoders that came with a head.

Models are asked the same facts, and answer in the same words: those that are one piece for each of them. A tokenizer
that knows no capitals makes all of them compare words without.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from wellread.errors import InputError, UsageError
from wellread.evaluation.probe import ProbeScores
from wellread.mentions.segments import Segmenter
from wellread.nn.encoders import load_encoder, load_tokenizer, positions_of
from wellread.nn.infusion import InfusedEncoder, infuse
from wellread.tasks.lama import MaskedFact, common_vocabulary
from wellread.tasks.learner import ask
from wellread.tasks.probing import Probing
from wellread.tasks.task import Reader
from wellread.tasks.words import WordHead, load_word_head, words_of
from wellread.training.task import MODEL, TaskModel, load_task

LONGEST = 512
"""Pieces of a sentence at most, for an encoder that is no run."""


@dataclass(frozen=True, slots=True)
class Prober:
    """A model that can be asked for words."""

    name: str
    reader: Reader
    segmenter: Segmenter
    lender: Any
    words: Collection[str]
    """Those that may be its answers."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self.segmenter.tokenizer


@dataclass(frozen=True, slots=True)
class Probed:
    """What models know: scores in the order of the models, all over the same facts and the same vocabulary."""

    models: tuple[str, ...]
    scores: tuple[ProbeScores, ...]
    vocabulary: int
    """How many words there are to choose from."""
    left_out: int
    """Facts that were not asked, because their object is no word of the vocabulary."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, for JSON."""
        told = [{"model": name, **score.to_dict()} for name, score in zip(self.models, self.scores, strict=True)]
        return {"vocabulary": self.vocabulary, "left_out": self.left_out, "models": told}


def is_run(model: str | Path) -> bool:
    """Whether this is the folder of a run, or its `model`; else it is an encoder."""
    folder = Path(model)
    return (
        any((place / "task.json").exists() for place in (folder, folder / MODEL)) or (folder / "recipe.toml").exists()
    )


def load_prober(model: str | Path, changes: Sequence[str] = ()) -> Prober:
    """A run whose task is "masking" or "lama", or an encoder (asset, folder, hub) whose checkpoint has a head.

    `changes` say where a run's knowledge lies now, as those of `load_task`; an encoder has none.
    """
    if is_run(model):
        return prober_of(model, load_task(model, changes))
    name = str(model)
    tokenizer, encoder = load_tokenizer(name), load_encoder(name)
    if learned := [str(each["kind"]) for each in getattr(encoder.config, "infusions", ())]:
        # Nothing in such a folder says what lends it knowledge, and without that another model would answer.
        raise UsageError(
            f"{name} takes knowledge ({', '.join(dict.fromkeys(learned))}), and does not say where that comes from; "
            f'give the run that it is of, or train one, by a recipe with task = "masking" and encoder.name = "{name}"'
        )
    infuse(encoder, [])
    head = WordHead(cast(InfusedEncoder, encoder))
    if not load_word_head(head, name):
        raise InputError(
            f"{name} has no head for masked words, so it cannot be asked for facts; train one, by a recipe with "
            f'task = "masking" and encoder.name = "{name}", and give its run'
        )
    segmenter = Segmenter(tokenizer, longest=min(LONGEST, positions_of(name)))
    return Prober(name, Reader(cast(InfusedEncoder, encoder), head).eval(), segmenter, None, words_of(tokenizer))


def prober_of(model: str | Path, made: TaskModel) -> Prober:
    """A run that is loaded already, to be asked for words."""
    if not isinstance(made.reader.head, WordHead):
        raise UsageError(
            f"{model} was trained for {made.recipe.task}, and cannot be asked for words; give a run with "
            'task = "masking", or an encoder that has a head for masked words'
        )
    words = made.task.words if isinstance(made.task, Probing) else words_of(made.segmenter.tokenizer)
    return Prober(str(model), made.reader, made.segmenter, made.lender, words)


def probe_models(
    probers: Sequence[Prober],
    facts: Sequence[MaskedFact],
    vocabulary: Collection[str] | None = None,
    *,
    at: Sequence[int] = (10,),
) -> Probed:
    """Ask all models for the same facts, over the words that all of them have, and that `vocabulary` has."""
    known = common_words([prober.words for prober in probers], [prober.tokenizer for prober in probers], vocabulary)
    tasks = [Probing(prober.tokenizer, words, at=at) for prober, words in zip(probers, known, strict=True)]
    asked = [task.place_usable(facts) for task in tasks]
    places = [place for place in range(len(facts)) if all(place in some for some in asked)]
    if not places:
        raise InputError(
            f"none of the {len(facts):,} facts has an object that is one piece for every model; give models with "
            "larger vocabularies, or other facts"
        )
    scores = []
    for prober, task, some in zip(probers, tasks, asked, strict=True):
        chosen = [some[place] for place in places]
        answers = ask(task, prober.reader, prober.segmenter, chosen, lender=prober.lender)
        scores.append(task.report(chosen, answers))
    size = min(len(task.words) for task in tasks)
    return Probed(tuple(prober.name for prober in probers), tuple(scores), size, len(facts) - len(places))


def common_words(
    words: Sequence[Collection[str]], tokenizers: Sequence[Tokenizer], vocabulary: Collection[str] | None = None
) -> list[frozenset[str]]:
    """For each model those of its words that all of them have; without regard to capitals if one knows none."""
    folded = any(tokenizer.encode("A").ids == tokenizer.encode("a").ids for tokenizer in tokenizers)

    def key(word: str) -> str:
        return word.lower() if folded else word

    every = [*words, *([] if vocabulary is None else [vocabulary])]
    shared = common_vocabulary([{key(word) for word in some} for some in every])
    return [frozenset(word for word in some if key(word) in shared) for some in words]
