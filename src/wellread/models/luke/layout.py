"""LUKE as others have it: folders of Hugging Face's layout and the authors' own files, read as models of ours.

    model = from_hf("luke-base")      # an infused RoBERTa with the head that the folder says

`LukeModel` and all its heads, mLUKE, and what the authors of LUKE released (`metadata.json`, `pytorch_model.bin`,
`entity_vocab.tsv`). Outputs are theirs. How they are written again is in `models.luke.conversion`.

Facts of such checkpoints: the authors' files have no prefix and none of the three queries, which start as copies, and
[MASK2] as a copy of [MASK]. Files saved by transformers 4 have no `lm_head.decoder`, since it was the word embedding;
version 5 saves it and has it learn apart, so where both differ we keep them apart. The authors' checkpoints for entity
disambiguation are a BERT (positions from 0) and have a vector of their own for [MASK] entities of the input; it becomes
the row of [MASK]. Weights with names that no LUKE has are refused.

Unlike the authors' code: the score of the row [MASK] itself, which is never a candidate, is that of the input's vector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LukeConfig as TheirConfig
from transformers import PreTrainedConfig, PreTrainedModel

from wellread.encoders.foreign_checkpoint import Weights, rename_weights, some
from wellread.encoders.infusion.infuse import infused_class
from wellread.encoders.load import silence
from wellread.errors import InputError
from wellread.models.luke.folder import (
    AUTHORS,
    DISAMBIGUATION,
    MASK_VECTOR,
    TABLE,
    WORDS,
    buildable,
    config_file,
    family_of,
    find_vocabulary,
    is_ours,
    read_config,
    read_encoder,
    read_files,
    saved_as,
)
from wellread.models.luke.heads import HEADS
from wellread.models.luke.model import luke_in
from wellread.models.luke.vocabulary import MASK, MASK2, EntityVocabulary

LUKE = "infusions.0."
ENCODER = {
    "entity_embeddings.entity_embeddings.": f"{LUKE}table.",
    "entity_embeddings.entity_embedding_dense.": f"{LUKE}wide.",
    "entity_embeddings.position_embeddings.": f"{LUKE}positions.",
    "entity_embeddings.token_type_embeddings.": f"{LUKE}types.",
    "entity_embeddings.LayerNorm.": f"{LUKE}norm.",
    "entity_predictions.transform.dense.": f"{LUKE}prediction.dense.",
    "entity_predictions.transform.LayerNorm.": f"{LUKE}prediction.norm.",
    "entity_predictions.bias": f"{LUKE}prediction.bias",
}
"""How names begin in transformers' LUKE, without "luke.", and how in an encoder of ours; others are the same."""
QUERIES = {"w2e_query": "word_to_entity", "e2w_query": "entity_to_word", "e2e_query": "entity_to_entity"}
_QUERY = re.compile(r"encoder\.layer\.(\d+)\.attention\.self\.(\w+_query)\.(\w+)")
_LAYERS = re.compile(r"\b(layer|queries)\.\d")
PARTS = ("embeddings.", "encoder.", "entity_embeddings.", "entity_predictions.", "pooler.")
"""How names begin of what is the encoder's, with what it knows of entities."""
_HEADS = ("lm_head.", "cls.", "classifier.", "qa_outputs.", "pooler.", f"{LUKE}prediction.")
"""Prefixes of weights of heads, which are left out where another head or the encoder alone is asked for."""
_UNKNOWN = "outputs would be others without them: convert a model whose classes transformers or LUKE's authors have"
_TIED = "entity_predictions.decoder.weight"
"""The entity table under another name."""
HEAD = {
    ("roberta", "ForSequenceClassification"): {
        "pooler.dense.": "classifier.dense.",
        "classifier.": "classifier.out_proj.",
    },
    ("bert", "ForMaskedLM"): {
        "lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
        "lm_head.decoder.": "cls.predictions.decoder.",
        "lm_head.bias": "cls.predictions.bias",
    },
}
"""How names begin in their heads, and how in ours; others are the same."""
FIELDS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
    "attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range layer_norm_eps "
    "classifier_dropout pad_token_id bos_token_id eos_token_id id2label label2id problem_type"
).split()


def from_hf(folder: str | Path, head: str | None = None) -> PreTrainedModel:
    """The LUKE of a folder as an infused encoder, under the head that it was saved with or the one that is named.

    `head` is "Model", "ForMaskedLM", "ForEntitySpanClassification" and so on.
    """
    folder = Path(folder)
    told = read_config(folder)
    saved, weights = saved_as(told, folder), read_encoder(folder)
    if head is None:
        head = _guess(weights) if saved is None else saved.removeprefix("Luke")
    family = "bert" if MASK_VECTOR in weights else family_of(told)
    return _make(_class_of(folder, family, head), told, weights, folder)


def read_hf(
    folder: str | Path,
    made: type[PreTrainedModel],
    *,
    dtype: Any = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    resizes: bool = False,
) -> PreTrainedModel:
    """The same as a model of this class, in another precision if wanted.

    `changes` are settings that are to be others than the folder's. Where they say the labels, a head that the folder
    has not starts afresh; so does one of other labels, where it `resizes`.
    """
    folder = Path(folder)
    told, weights = read_config(folder), read_encoder(folder)
    return _make(made, told, weights, folder, dtype=dtype, changes=changes, resizes=resizes)


def _make(
    made: type[PreTrainedModel],
    told: dict[str, Any],
    weights: Weights,
    folder: Path,
    *,
    dtype: Any = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    resizes: bool = False,
) -> PreTrainedModel:
    head = head_in(made.__name__)
    if unknown := sorted(name for name in weights if not name.startswith((*PARTS, *_HEADS))):
        raise InputError(f"{folder} has weights that no LUKE has: {some(unknown)}; {_UNKNOWN}")
    vocabulary = find_vocabulary(folder, len(weights[TABLE]))
    _complete(weights, told, folder)
    disambiguates = MASK_VECTOR in weights
    if disambiguates:
        _take_mask(weights, 2 if vocabulary is None else vocabulary.mask, made, folder)
    with buildable(folder):
        config = _our_config(told, weights, made, head)
        config.update(dict(changes))
        if made.base_model_prefix == "bert" and not disambiguates:
            _begin_at_zero(weights, config)
    if vocabulary is not None:  # "lite" ones have [MASK] first
        cast(Any, config).infusions[0]["masks"] = vocabulary.masks
    fresh = resizes or not changes.keys().isdisjoint(("num_labels", "id2label"))
    more: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    more |= {"ignore_mismatched_sizes": True} if resizes else {}
    return _build(made, config, _rename(weights, made, head), folder, fresh, **more)


def load(folder: str | Path, head: str | None = None) -> PreTrainedModel:
    """The LUKE of a folder, in whichever layout, under the head that it was saved with or the one that is named."""
    folder = Path(folder)
    told = read_config(folder)
    return _open_ours(folder, told, head) if is_ours(told) else from_hf(folder, head)


def _guess(weights: Mapping[str, Tensor]) -> str:
    """The authors' files do not say; those of pretraining have both heads."""
    if MASK_VECTOR in weights:
        return DISAMBIGUATION
    return "ForMaskedLM" if "lm_head.dense.weight" in weights else "Model"


def _class_of(folder: Path, family: str, head: str) -> type[PreTrainedModel]:
    try:
        return HEADS.get(head, {}).get(family) or infused_class(family, head)
    except AttributeError:
        raise InputError(
            f"{folder} cannot be loaded: there is no head Luke{head} for {family}; name one that transformers' LUKE "
            "has, or Model"
        ) from None


def _complete(weights: Weights, told: dict[str, Any], folder: Path) -> None:
    """What is not in their files but known."""
    aware = told.setdefault("use_entity_aware_attention", True)
    for name in [name for name in weights if ".attention.self.query." in name]:
        for query in QUERIES:
            new = name.replace(".query.", f".{query}.")
            if aware:
                weights.setdefault(new, weights[name].clone())
            else:
                weights.pop(new, None)
    weights.pop(_TIED, None)
    if config_file(folder).name == AUTHORS:
        table = weights[TABLE]
        names = EntityVocabulary.load(folder).row_of
        if MASK2 in names:
            table[names[MASK2]] = table[names[MASK]]
    if "lm_head.bias" not in weights and "lm_head.decoder.bias" in weights:
        weights["lm_head.bias"] = weights["lm_head.decoder.bias"].clone()  # one tensor would be saved but once


def _take_mask(weights: Weights, row: int, made: type[PreTrainedModel], folder: Path) -> None:
    """Put the vector of masked entities of the input into the entity table, which has one for both uses."""
    if made.base_model_prefix != "bert":
        raise InputError(
            f"{folder} has a model for entity disambiguation, whose words are BERT's; load it as a model of the family "
            f"bert: luke_layout.load({str(folder)!r})"
        )
    vector, table = weights.pop(MASK_VECTOR).flatten(), weights[TABLE].clone()
    if len(vector) != table.shape[1] or row >= len(table):
        raise InputError(
            f"{folder} has a [MASK] of {len(vector)} numbers for row {row} of an entity table of {tuple(table.shape)}; "
            "copy or download it again"
        )
    table[row] = vector
    weights[TABLE] = table


def _our_config(
    told: Mapping[str, Any], weights: Mapping[str, Tensor], made: type[PreTrainedModel], head: str
) -> PreTrainedConfig:
    """Sizes of tables are those of the weights, whatever the configuration says."""
    theirs = TheirConfig.from_dict({name: value for name, value in told.items() if name != "architectures"})
    fields = {name: getattr(theirs, name) for name in FIELDS}
    entities, dim = weights[TABLE].shape
    luke = {
        "kind": "luke",
        "entities": entities,
        "dim": dim,
        "aware": bool(theirs.use_entity_aware_attention),
        "predicts": "entity_predictions.bias" in weights,
    }
    words, decoder = weights[WORDS], weights.get("lm_head.decoder.weight")
    apart = head == "ForMaskedLM" and decoder is not None and not torch.equal(words, decoder)
    moved = "pooler.dense." in head_table(made, head)
    pooler = "pooler.dense.weight" in weights and not moved
    more = {"vocab_size": len(words), "infusions": [luke], "pooler": pooler, "tie_word_embeddings": not apart}
    kind: Any = made.config_class
    config: PreTrainedConfig = kind(**fields | more)
    return config


def _rename(weights: Mapping[str, Tensor], made: type[PreTrainedModel], head: str) -> Weights:
    """Their weights by our names, without those of other heads."""
    table = head_table(made, head)
    moved = tuple(begin for begin in table if begin.startswith(PARTS))
    parts = {
        name: weight
        for name, weight in weights.items()
        if name.startswith(PARTS) and not name.startswith(moved or "\0")
    }
    rest = {name: weight for name, weight in weights.items() if name not in parts}
    prefix = "" if head == "Model" else f"{made.base_model_prefix}."
    renamed = {
        f"{prefix}{_QUERY.sub(_name_query, name)}": weight for name, weight in rename_weights(parts, ENCODER).items()
    }
    return renamed | ({} if head == "Model" else rename_weights(rest, table))


def _name_query(match: re.Match[str]) -> str:
    return f"{LUKE}queries.{match[1]}.{QUERIES[match[2]]}.{match[3]}"


def head_table(made: type[PreTrainedModel], head: str) -> dict[str, str]:
    """How names of a head begin in theirs and in a model of this class, where that differs."""
    kind = "bert" if made.base_model_prefix == "bert" else "roberta"
    return HEAD.get((kind, head), {})


def _build(
    made: type[PreTrainedModel],
    config: PreTrainedConfig,
    weights: Weights,
    folder: Path,
    fresh: bool = False,
    **more: Any,
) -> PreTrainedModel:
    """A model of these weights, all of them; a head may be `fresh`."""
    head = head_in(made.__name__)
    refusal = "its config.json and weights must be of one model: copy or download it again"
    another = InputError(
        f"{folder} has weights of another size than its config.json says, or than a {made.__name__} takes; {refusal}, "
        "and load it under the head that it was saved with"
    )
    with buildable(folder), silence():
        try:
            loaded: Any = made.from_pretrained(
                None, config=config, state_dict=weights, output_loading_info=True, **more
            )
        except RuntimeError as error:  # sizes that differ
            raise another from error
    model, report = loaded
    prefix = "" if head == "Model" else f"{made.base_model_prefix}."
    needless = "pooler." if head in ("Model", "ForMaskedLM", DISAMBIGUATION) else "\0"  # which nobody asks there
    missing = sorted(name for name in report["missing_keys"] if needless not in name)
    if missing := [name for name in missing if not fresh or name.startswith(prefix)]:
        raise InputError(
            f"{folder} lacks weights of its model: {some(missing)}; {refusal}; to learn a new head, load it by "
            "from_pretrained with num_labels"
        )
    if left := sorted(name for name in report["unexpected_keys"] if _LAYERS.search(name)):
        raise InputError(f"{folder} has more layers than its config.json says: {some(left)}; {refusal}")
    if left := sorted(name for name in report["unexpected_keys"] if not name.removeprefix(prefix).startswith(_HEADS)):
        raise InputError(f"{folder} has weights that a {made.__name__} has no place for: {some(left)}; {_UNKNOWN}")
    if any(str(name[0]).startswith(prefix) for name in report["mismatched_keys"]):
        raise another
    return cast(PreTrainedModel, model)


def _open_ours(folder: Path, told: Mapping[str, Any], head: str | None) -> PreTrainedModel:
    """A model that wellread saved."""
    saved = saved_as(told, folder)
    if head is None and saved is None:
        raise InputError(
            f"{folder / 'config.json'} does not say in architectures which head the model was saved with; copy it "
            'again, or load it under a head that you name: luke_layout.load(folder, "Model")'
        )
    made = _class_of(folder, family_of(told), head or head_in(str(saved)))
    weights, kind = read_files(folder), cast(type[PreTrainedConfig], made.config_class)
    with buildable(folder):
        config = kind.from_pretrained(folder, local_files_only=True)
    model = _build(made, config, weights, folder)
    if (luke := luke_in(model)) is not None:
        find_vocabulary(folder, luke.config.entities)
    return model


def head_in(name: str) -> str:
    """InfusedBertForMaskedLM -> ForMaskedLM, InfusedBertModel -> Model."""
    _, found, head = name.partition("For")
    return f"For{head}" if found else "Model"


def _begin_at_zero(weights: Weights, config: Any) -> None:
    """The same for a LUKE that becomes a BERT: fewer rows."""
    first = int(config.pad_token_id) + 1
    for part, kept in (("embeddings", slice(first, None)), ("entity_embeddings", slice(-first))):
        name = f"{part}.position_embeddings.weight"
        if name in weights:  # else it is missed soon
            weights[name] = weights[name][kept].clone()
    config.max_position_embeddings -= first
