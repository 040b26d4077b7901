"""LUKE folders of either layout, wellread's or Hugging Face's (or the authors' own files), read as models of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import LukeConfig as TheirConfig
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from wellread.encoders.foreign_checkpoint import IDLE, Weights, read_weights, rename_weights, some
from wellread.encoders.infusion.infuse import FAMILIES
from wellread.encoders.load import silence
from wellread.errors import InputError, WellreadError
from wellread.io.files import read_text
from wellread.models.luke.vocabulary import MASK, MASK2, SETTINGS, EntityVocabulary

AUTHORS = "metadata.json"
TABLE, WORDS = "entity_embeddings.entity_embeddings.weight", "embeddings.word_embeddings.weight"
"""What every LUKE has, by the names that transformers has for it."""
DISAMBIGUATION, MASK_VECTOR = "ForEntityDisambiguation", "entity_embeddings.mask_embedding"
"""The authors' head for entity disambiguation, and what only its checkpoints have: a vector for [MASK] of its own."""
_OURS = "infused-"
_AGAIN = "copy or download it again"
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


def is_hf(folder: str | Path) -> bool:
    """Whether a folder has a LUKE of Hugging Face's layout."""
    try:
        return bool(json.loads((Path(folder) / "config.json").read_bytes())["model_type"] == "luke")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_ours(told: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a model that wellread saved."""
    return str(told["model_type"]).startswith(_OURS)


def family_of(told: Mapping[str, Any]) -> str:
    """The family of the encoder, as ours says it, or as their tokenizer tells; or what the authors started from."""
    if is_ours(told):
        return str(told["model_type"]).removeprefix(_OURS)
    if f"Luke{DISAMBIGUATION}" in (told.get("architectures") or ()):
        return "bert"
    named = (told.get("tokenizer_class") == "MLukeTokenizer", str(told.get("bert_model_name")).startswith("xlm-"))
    return "xlm-roberta" if any(named) else "roberta"


def config_file(folder: Path) -> Path:
    """The file that says what model it is; the authors' own is called otherwise."""
    found = next((folder / name for name in ("config.json", AUTHORS) if (folder / name).is_file()), None)
    if found is None:
        named = re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)) and not folder.exists()
        more = f"; one on the hub must be downloaded first: hf download {folder} --local-dir NEW" if named else ""
        raise InputError(f"{folder} has no config.json; give the folder of a LUKE, ours or Hugging Face's{more}")
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration; the authors' own is inside of another."""
    file = config_file(folder)
    try:
        told = json.loads(read_text(file))
        told = told if file.name == "config.json" else {"model_type": "luke", **told["model_config"]}
        kind = str(told["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is no configuration of a LUKE; copy it again") from error
    if kind != "luke" and kind not in {f"{_OURS}{family}" for family in FAMILIES}:
        raise InputError(
            f"{folder} has a model of the kind {kind!r}; give the folder of a LUKE, ours or Hugging Face's"
        )
    if str(told.get("hidden_act", "gelu")) not in ACT2FN:
        raise InputError(
            f"{file} has hidden_act {told['hidden_act']!r}, which transformers does not know; {_AGAIN}, or name one "
            "such as gelu"
        )
    if "tokenizer_class" not in told:
        told["tokenizer_class"] = read_settings(folder).get("tokenizer_class")
    return cast(dict[str, Any], told)


def read_settings(folder: Path) -> dict[str, Any]:
    """What the tokenizer's settings say; nothing where there are none."""
    return _read_object(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}


def saved_as(told: Mapping[str, Any], folder: Path) -> str | None:
    """The class that a model was saved as, if its configuration says: "LukeForMaskedLM"."""
    named = told.get("architectures")
    if not named:
        return None
    if not isinstance(named, list) or not isinstance(named[0], str):
        raise InputError(
            f"{config_file(folder)} has architectures {named!r}; expected a list with the class that it was saved as, "
            'such as ["LukeModel"]'
        )
    return named[0]


def read_files(folder: Path) -> Weights:
    """The weights of a folder by their names, from one file or several."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = _read_object(index).get("weight_map")
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise InputError(f"{index} has no weight_map that says which file has which weight; {_AGAIN}")
            files = [folder / part for part in sorted(set(parts.values()))]
        elif (folder / name).is_file():
            files = [folder / name]
        else:
            continue
        weights: Weights = {}
        for file in files:
            weights |= _read_safe(file) if file.suffix == ".safetensors" else read_weights(file, such_as=name)
        return weights
    raise InputError(f"{folder} has neither model.safetensors nor pytorch_model.bin; copy or download it again")


def read_encoder(folder: Path) -> Weights:
    """The weights of a LUKE of others; those of the encoder without what they begin with under a head."""
    weights = {name.removeprefix("luke."): weight for name, weight in read_files(folder).items()}
    weights = {name: weight for name, weight in weights.items() if not name.endswith(IDLE)}
    for name, what in ((TABLE, "entities"), (WORDS, "words")):
        if name not in weights or weights[name].dim() != 2:
            raise InputError(f"{folder} has weights, but no embeddings of {what}; give the folder of a LUKE")
    return weights


def find_vocabulary(folder: Path, entities: int) -> EntityVocabulary | None:
    """The entity vocabulary of a folder, if it has one, for a table of so many rows."""
    found = EntityVocabulary.find(folder)
    if found is not None and max(found.masks) >= entities:
        file = next(iter(sorted(folder.glob("entity_vocab.*"))), folder / SETTINGS)
        raise InputError(
            f"{file} has [MASK] or [MASK2] in row {max(found.masks)}, but the model's entity table has {entities} "
            "rows, from 0; copy vocabulary and weights again, of one model"
        )
    return found


@contextmanager
def buildable(folder: Path) -> Iterator[None]:
    """What a configuration that cannot be makes transformers raise, which may be anything, in one line."""
    try:
        yield
    except MemoryError:
        raise
    except WellreadError as error:
        if str(folder) in str(error):
            raise
        raise InputError(f"{config_file(folder)}: {error}") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip().rstrip(".")
        raise InputError(
            f"{config_file(folder)} is of no model that can be built ({reason or type(error).__name__}); {_AGAIN}, "
            "or mend that line"
        ) from error


def _read_object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(file))
    except ValueError as error:
        raise InputError(f"{file} is no JSON ({error}); {_AGAIN}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} is no JSON object; {_AGAIN}")
    return found


def _read_safe(file: Path) -> Weights:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {file}: {error}; copy or download it again") from error


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
