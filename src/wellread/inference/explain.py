"""Effect of knowledge on attention: every layer and head with and without it, on one text.

    explainer = Explainer.load("minilm", ("entity", "phrase"), map_weight=5)
    seen = explainer.explain("buy glipizide", "Fred Meyer Pharmacy Near Me")
    seen.changes(layer=3, head="mean")

The model reads the text twice: with its knowledge, and with none. The effect of a trained convolution by itself is in
both and cancels; `without="kam"` compares with KAM switched off instead. Differences include the effect of changes in
lower layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from transformers import PreTrainedModel

from wellread import config
from wellread.document import short
from wellread.encoders.files import load_tokenizer, positions_of
from wellread.encoders.infusion.infuse import Infused, InfusedEncoder, infuse
from wellread.encoders.load import load_encoder
from wellread.errors import InputError, UsageError
from wellread.linking.linker import Linker
from wellread.models.kam.inputs import KamInputs, KamProvider, MapName, MapsConfig
from wellread.models.kam.model import Kam, KamConfig
from wellread.plots.attention import Seen, Term
from wellread.text.tokenization import Tokenization

Without = Literal["knowledge", "kam"]
"""Baseline of the comparison: the model without knowledge inputs, or with KAM switched off."""
MOST_TOKENS = 128
"""Maximum number of tokens that a picture shows legibly."""
USUAL_TERMS = 8
"""Default tokens of auxiliary terms for a plain encoder with a correlation table."""


class Explainer:
    """Shows the effect of a model's knowledge on its attention."""

    def __init__(
        self,
        encoder: PreTrainedModel,
        provider: KamProvider,
        *,
        name: str = "",
        notes: Sequence[str] = (),
        longest: int = MOST_TOKENS,
    ) -> None:
        """Explain an encoder; `provider` has the maps of the encoder's KAM, in their order."""
        self.encoder = encoder
        encoder.train(False)
        self.provider, self.name, self.notes, self.longest = provider, name, tuple(notes), longest
        self._opened = ExitStack()
        fused, provided = _kam(encoder, name).config.maps, tuple(each.name for each in provider.maps)
        if fused != provided:
            raise UsageError(
                f"the model fuses the maps {_list(fused)}, the provider has {_list(provided)}; give the same ones"
            )

    @classmethod
    def load(
        cls,
        model: str = "minilm",
        maps: Sequence[str] | None = None,
        *,
        alpha: float | None = None,
        map_weight: float | None = None,
        **provided: Any,
    ) -> Explainer:
        """Load an infused model (its folder, or that of its run) or a plain encoder, which is then infused.

        `provided` are settings of `MapsConfig`, such as `correlation="wordnet.pmi"`; they override those of a run. A
        plain encoder takes any `maps`, with weight 0 unless `map_weight` is set. Close the explainer after use, or use
        it in a `with` block.
        """
        folder, settings = _run_of(model)
        encoder = load_encoder(folder)
        tokenizer = load_tokenizer(folder)
        longest = positions_of(folder)
        if isinstance(encoder, Infused):
            given = {"--alpha": alpha, "--map-weight": map_weight}
            if wrong := [option for option, value in given.items() if value is not None]:
                raise UsageError(f"{model} has trained map weights; omit {' and '.join(wrong)}")
            kam = _kam(encoder, model)
            notes = _trained_notes(kam)
            _check_maps(kam.config.maps, maps, model)
            chosen = _maps_config({**settings, "maps": kam.config.maps, **provided})
        else:
            if provided.get("correlation") is not None and provided.get("terms") is None:
                provided["terms"] = USUAL_TERMS
            wanted = tuple(maps) if maps is not None else _usual(provided)
            if provided.get("correlation") is None and ("correlation" in wanted or provided.get("terms")):
                raise UsageError(
                    "the correlation map and auxiliary terms need a table; make one with wellread correlate, and give "
                    "it with --correlation"
                )
            chosen = _maps_config({"maps": wanted, **provided})
            fresh = KamConfig(
                maps=chosen.maps,
                alpha=0.2 if alpha is None else alpha,
                map_init=0.0 if map_weight is None else map_weight,
            )
            encoder = infuse(encoder, [fresh])
            notes = _untrained_notes(fresh, bool(chosen.terms))
        if provided.get("kb") is not None and not chosen.needs_kb:
            raise UsageError(_unused_kb(chosen))
        opened = ExitStack()
        linker = opened.enter_context(Linker.load(str(chosen.kb), chosen.linker)) if chosen.needs_linker else None
        provider = KamProvider.build(chosen, tokenizer, linker=linker.link_many if linker is not None else None)
        made = cls(encoder, provider, name=model, notes=notes, longest=min(MOST_TOKENS, longest - chosen.terms))
        made._opened = opened
        return made

    @property
    def layers(self) -> int:
        """Number of layers of the encoder."""
        return int(self.encoder.config.num_hidden_layers)

    @property
    def heads(self) -> int:
        """Number of heads per layer."""
        return int(self.encoder.config.num_attention_heads)

    def close(self) -> None:
        """Close the knowledge base, if there is one."""
        self._opened.close()

    def __enter__(self) -> Explainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def explain(self, text: str, second: str | None = None, *, without: Without = "knowledge") -> Seen:
        """Return the attention on a text or pair, compared with the model without knowledge or without KAM."""
        texts = (text,) if second is None else (text, second)
        for number, one in enumerate(texts, 1):
            if not one.strip():
                which = f"text {number} of {len(texts)}" if len(texts) > 1 else "the text"
                raise InputError(f"{which} is empty; give a text to explain")
        tokenized = self.provider.segmenter.tokenize(*texts)
        if len(tokenized) > self.longest:
            raise InputError(
                f"the text {short(text, 40)!r} has {len(tokenized)} tokens, more than the {self.longest} that can be "
                "shown; give a shorter text, such as one sentence"
            )
        provided = self.provider.build_inputs([tokenized])
        plain, infused = self._attention(tokenized, provided, without)
        labels, words, word_of = self._named(tokenized, provided)
        names = [each.name for each in self.provider.maps]
        total = len(labels)
        return Seen(
            texts=texts,
            labels=tuple(labels),
            words=words,
            word_of=word_of,
            segment_of=np.concatenate((tokenized.segment_of, np.full(total - len(tokenized), -1))),
            without=plain,
            infused=infused,
            maps=dict(zip(names, provided.maps[0, :, :total, :total], strict=True)),
            terms=tuple(self._terms(tokenized, provided.terms[0])),
            model=self.name,
            notes=self.notes,
        )

    def _attention(self, tokenized: Tokenization, provided: KamInputs, without: Without) -> tuple[Any, Any]:
        encoder = cast(InfusedEncoder, self.encoder)
        ids, types = torch.from_numpy(tokenized.ids)[None], torch.from_numpy(tokenized.types)[None]
        text = {"input_ids": ids, "token_type_ids": types if encoder.family.has_token_types else None}
        known = {"maps": torch.from_numpy(provided.maps)} if self.provider.maps else {}
        if provided.term_ids.size:
            known |= {
                "term_ids": torch.from_numpy(provided.term_ids),
                "term_mask": torch.from_numpy(provided.term_mask),
            }
        with torch.no_grad():
            infused = self.encoder(**text, **known, output_attentions=True).attentions
            with encoder.without("kam") if without == "kam" else nullcontext():
                plain = self.encoder(**text, output_attentions=True).attentions
        return torch.cat(plain).numpy(), torch.cat(infused).numpy()

    def _named(self, tokenized: Tokenization, provided: KamInputs) -> tuple[list[str], tuple[str, ...], Any]:
        """Return a label per token, the words and terms, and the word of each token."""
        tokenizer, labels = self.provider.segmenter.tokenizer, []
        for place, id in enumerate(tokenized.ids.tolist()):
            segment, (start, end), word = tokenized.segment_of[place], tokenized.spans[place], tokenized.word_of[place]
            shown = tokenized.texts[segment][start:end] if segment >= 0 else ""
            shown = "␣" if shown.isspace() else shown
            continues = word >= 0 and place > 0 and tokenized.word_of[place - 1] == word
            labels.append(("·" if continues else "") + (shown or str(tokenizer.id_to_token(id))))
        numbers = tokenized.word_of.tolist()
        for number, (term, ids) in enumerate(
            zip(provided.terms[0], self.provider.segmenter.token_ids_of(provided.terms[0]), strict=True),
            len(tokenized.words),
        ):
            token_texts = [str(tokenizer.decode([id])).strip().removeprefix("##") for id in ids]
            labels += (
                [term] if len(ids) == 1 else [("·" if place else "") + one for place, one in enumerate(token_texts)]
            )
            numbers += [number] * len(ids)
        return labels, (*tokenized.words, *provided.terms[0]), np.array(numbers, np.int64)

    def _terms(self, tokenized: Tokenization, terms: Sequence[str]) -> Iterator[Term]:
        choice = self.provider.terms
        if choice is None or not terms:
            return
        known, table = choice.known(tokenized.words), choice.vocabulary.correlation
        for term, id in zip(terms, table.ids_of(terms).tolist(), strict=True):
            scores = table.relevance_of(np.full(len(known), id), known)
            order = np.argsort(-scores, kind="stable")
            by = tuple((str(table.words[int(known[at])]), float(scores[at])) for at in order if scores[at] > 0)
            yield Term(term, float(scores.mean()), by)


def _run_of(model: str) -> tuple[str, dict[str, Any]]:
    """Return the encoder's folder, and [maps] of the recipe if it was trained for a task."""
    folder = Path(model)
    if (folder / "recipe.toml").is_file():
        folder = folder / "model"
        if not folder.is_dir():
            raise InputError(f"the run {model} has no model yet; run wellread train again to finish it")
    about = folder / "task.json"
    if not about.is_file():
        return str(folder) if folder.is_dir() else model, {}
    try:
        return str(folder), dict(json.loads(about.read_bytes())["recipe"]["maps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{about} cannot be read: {error!r}; copy it again, or train it again") from error


def _kam(encoder: PreTrainedModel, name: str) -> Kam:
    found = [part for part in getattr(encoder, "infusions", ()) if isinstance(part, Kam)]
    if not found:
        raise UsageError(
            f"{name or 'this model'} was trained without KAM, so there is nothing to explain; give a model trained "
            "with it, or a plain encoder such as minilm with --map-weight"
        )
    return found[0]


def _check_maps(learned: Sequence[str], given: Sequence[str] | None, model: str) -> None:
    if given is not None and tuple(given) != tuple(learned):
        raise UsageError(f"{model} fuses the maps {_list(learned)}, and no others; omit --maps")
    if own := [name for name in learned if name not in get_args(MapName)]:
        raise UsageError(
            f"{model} fuses the map {own[0]!r}, which wellread does not have; in Python, give a provider that has it: "
            "Explainer(encoder, provider)"
        )


def _usual(provided: dict[str, Any]) -> tuple[str, ...]:
    return ("entity", "phrase", "correlation") if provided.get("correlation") else ("entity", "phrase")


def _maps_config(settings: dict[str, Any]) -> MapsConfig:
    for name in settings["maps"]:
        if name not in get_args(MapName):
            raise UsageError(f"{name!r} is not a map; choose from {', '.join(get_args(MapName))}, or none")
    return config.from_dict(MapsConfig, {name: value for name, value in settings.items() if value is not None})


def _unused_kb(chosen: MapsConfig) -> str:
    """Return an error message for a knowledge base that the maps do not use."""
    if chosen.entities == "linker":
        return f"only the entity map uses linked entities, and the maps are {_list(chosen.maps)}; add entity to --maps"
    return (
        f"the knowledge base {chosen.kb} is not used by the maps {_list(chosen.maps)}, with entities of "
        f"{chosen.entities}; give --linker to link entities to it, --maps graph for its facts, or omit --kb"
    )


def _untrained_notes(kam: KamConfig, terms: bool) -> list[str]:
    if kam.map_init:
        return [
            "This encoder has not been trained with knowledge. Its maps have a weight that was set by hand, "
            f"{kam.map_init:g} in every layer and head (alpha is {kam.alpha:g}): this shows what maps do to attention, "
            "not what a model has learned to do with them."
        ]
    begin = "This encoder has not been trained with knowledge: its maps have weight 0 and change nothing."
    only = " Only the auxiliary terms have an effect, because they are read beside the text." if terms else ""
    return [f"{begin}{only} See what maps would do with --map-weight 5, or give a trained model."]


def _trained_notes(kam: Kam) -> list[str]:
    weights = [kernel[:, kam.heads :] for kernel in kam.kernels.values()]
    if kam.config.fusion == "convolution" and kam.config.maps and not any(bool(part.any()) for part in weights):
        return [
            "This model was not trained with its maps yet: their weight is 0 in every layer, and they change nothing."
        ]
    return []


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
