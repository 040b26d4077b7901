"""LUKE folders of wellread's layout, of Hugging Face's layout and of the authors, read as infused models.

Supported are `LukeModel` and all its heads, mLUKE, and the authors' files (`metadata.json`, `pytorch_model.bin`,
`entity_vocab.tsv`). A broken or missing file, or weights with unknown names, raise an error that names the file.

Particularities of these checkpoints: the authors' files have no prefix and none of the three entity queries, which
start as copies, and [MASK2] as a copy of [MASK]. Files saved by transformers 4 have no `lm_head.decoder`, which was
tied to the word embeddings; version 5 saves it separately, so that the two stay untied if they differ. The authors'
checkpoints for entity disambiguation are a BERT (positions from 0) with a separate vector for [MASK] entities of the
input, which becomes the row of [MASK].

Unlike the authors' code: the logit of the row [MASK], which is never a candidate, uses the input's vector.
"""

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
"""Weights that every LUKE has, by their names in transformers."""
DISAMBIGUATION, MASK_VECTOR = "ForEntityDisambiguation", "entity_embeddings.mask_embedding"
"""The authors' head for entity disambiguation, and a weight that only its checkpoints have: the vector of [MASK]."""
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
"""Prefixes of weight names in transformers' LUKE (without "luke.") and in an infused encoder; other names are the same.
"""
QUERIES = {"w2e_query": "word_to_entity", "e2w_query": "entity_to_word", "e2e_query": "entity_to_entity"}
_QUERY = re.compile(r"encoder\.layer\.(\d+)\.attention\.self\.(\w+_query)\.(\w+)")
_LAYERS = re.compile(r"\b(layer|queries)\.\d")
PARTS = ("embeddings.", "encoder.", "entity_embeddings.", "entity_predictions.", "pooler.")
"""Prefixes of the encoder's weights, including those of entities."""
_HEADS = ("lm_head.", "cls.", "classifier.", "qa_outputs.", "pooler.", f"{LUKE}prediction.")
"""Prefixes of weights of heads, which are skipped if another head, or the encoder alone, is loaded."""
_UNKNOWN = "without them outputs would differ: convert a model of a class in transformers or of LUKE's authors"
_TIED = "entity_predictions.decoder.weight"
"""Second name of the entity table."""
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
"""Prefixes of weight names in transformers' heads and in ours; other names are the same."""
FIELDS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
    "attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range layer_norm_eps "
    "classifier_dropout pad_token_id bos_token_id eos_token_id id2label label2id problem_type"
).split()


def is_hf(folder: str | Path) -> bool:
    """Return True if a folder has a LUKE of Hugging Face's layout."""
    try:
        return bool(json.loads((Path(folder) / "config.json").read_bytes())["model_type"] == "luke")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_ours(config_dict: Mapping[str, Any]) -> bool:
    """Return True for the configuration of a model that wellread saved."""
    return str(config_dict["model_type"]).startswith(_OURS)


def family_of(config_dict: Mapping[str, Any]) -> str:
    """Return the encoder family of a configuration; that of foreign ones follows from tokenizer or base model."""
    if is_ours(config_dict):
        return str(config_dict["model_type"]).removeprefix(_OURS)
    if f"Luke{DISAMBIGUATION}" in (config_dict.get("architectures") or ()):
        return "bert"
    named = (
        config_dict.get("tokenizer_class") == "MLukeTokenizer",
        str(config_dict.get("bert_model_name")).startswith("xlm-"),
    )
    return "xlm-roberta" if any(named) else "roberta"


def config_file(folder: Path) -> Path:
    """Return the configuration file of a folder: config.json, or the authors' metadata.json."""
    found = next((folder / name for name in ("config.json", AUTHORS) if (folder / name).is_file()), None)
    if found is None:
        named = re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)) and not folder.exists()
        more = f"; a model on the hub must be downloaded first: hf download {folder} --local-dir NEW" if named else ""
        raise InputError(f"{folder} has no config.json; give the folder of a LUKE, ours or Hugging Face's{more}")
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a folder; the authors' is nested in their metadata."""
    file = config_file(folder)
    try:
        config_dict = json.loads(read_text(file))
        if file.name == AUTHORS:
            config_dict = {"model_type": "luke", **config_dict["model_config"]}
        kind = str(config_dict["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not a configuration of a LUKE; copy it again") from error
    if kind != "luke" and kind not in {f"{_OURS}{family}" for family in FAMILIES}:
        raise InputError(f"{folder} has a model of type {kind!r}; give the folder of a LUKE, ours or Hugging Face's")
    if str(config_dict.get("hidden_act", "gelu")) not in ACT2FN:
        raise InputError(
            f"{file} has hidden_act {config_dict['hidden_act']!r}, which transformers does not know; "
            f"{_AGAIN}, or set one such as gelu"
        )
    if "tokenizer_class" not in config_dict:
        config_dict["tokenizer_class"] = read_settings(folder).get("tokenizer_class")
    return cast(dict[str, Any], config_dict)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the tokenizer settings of a folder, {} without any."""
    return _read_object(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}


def saved_as(config_dict: Mapping[str, Any], folder: Path) -> str | None:
    """Return the class name in `architectures`, such as "LukeForMaskedLM", or None."""
    named = config_dict.get("architectures")
    if not named:
        return None
    if not isinstance(named, list) or not isinstance(named[0], str):
        raise InputError(
            f"{config_file(folder)} has architectures {named!r}; expected a list with the class that it was saved as, "
            'such as ["LukeModel"]'
        )
    return named[0]


def read_files(folder: Path) -> Weights:
    """Return the weights of a folder by name, from one file or several shards."""
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
    """Return the weights of a foreign LUKE, without the prefix "luke." that they have under a head."""
    weights = {name.removeprefix("luke."): weight for name, weight in read_files(folder).items()}
    weights = {name: weight for name, weight in weights.items() if not name.endswith(IDLE)}
    for name, what in ((TABLE, "entities"), (WORDS, "words")):
        if name not in weights or weights[name].dim() != 2:
            raise InputError(f"{folder} has weights, but no embeddings of {what}; give the folder of a LUKE")
    return weights


def find_vocabulary(folder: Path, entities: int) -> EntityVocabulary | None:
    """Return the entity vocabulary of a folder, or None; check that its masks fit a table of `entities` rows."""
    found = EntityVocabulary.find(folder)
    if found is not None and max(found.masks) >= entities:
        file = next(iter(sorted(folder.glob("entity_vocab.*"))), folder / SETTINGS)
        raise InputError(
            f"{file} has [MASK] or [MASK2] in row {max(found.masks)}, but the model's entity table has {entities} "
            "rows, counted from 0; copy vocabulary and weights again, of one model"
        )
    return found


@contextmanager
def configuration_errors(folder: Path) -> Iterator[None]:
    """Raise any error of transformers about an invalid configuration as an `InputError` that names the file."""
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
            f"{config_file(folder)} describes a model that cannot be built ({reason or type(error).__name__}); "
            f"{_AGAIN}, or correct that line"
        ) from error


def _read_object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(file))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); {_AGAIN}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file} is not a JSON object; {_AGAIN}")
    return found


def _read_safe(file: Path) -> Weights:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {file}: {error}; copy or download it again") from error


def read_hf(
    folder: str | Path,
    model_class: type[PreTrainedModel],
    *,
    dtype: Any = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    resizes: bool = False,
    weights: Weights | None = None,
) -> PreTrainedModel:
    """Load a folder of Hugging Face's layout as a model of this class, optionally in another precision.

    `changes` override settings of the folder. If they include labels, a head that is not in the folder starts fresh;
    with `resizes`, so does a head with another number of labels. `weights` are those of `read_encoder`, if they
    were read before.
    """
    folder = Path(folder)
    config_dict = read_config(folder)
    weights = read_encoder(folder) if weights is None else weights
    head = head_in(model_class.__name__)
    if unknown := sorted(name for name in weights if not name.startswith((*PARTS, *_HEADS))):
        raise InputError(f"{folder} has weights that no LUKE has: {some(unknown)}; {_UNKNOWN}")
    vocabulary = find_vocabulary(folder, len(weights[TABLE]))
    _complete(weights, config_dict, folder)
    disambiguates = MASK_VECTOR in weights
    if disambiguates:
        _move_mask(weights, 2 if vocabulary is None else vocabulary.mask, model_class, folder)
    with configuration_errors(folder):
        config = _our_config(config_dict, weights, model_class, head)
        config.update(dict(changes))
        if model_class.base_model_prefix == "bert" and not disambiguates:
            _start_at_zero(weights, config)
    if vocabulary is not None:  # "lite" vocabularies have [MASK] first
        cast(Any, config).infusions[0]["masks"] = vocabulary.masks
    fresh = resizes or not changes.keys().isdisjoint(("num_labels", "id2label"))
    more: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    more |= {"ignore_mismatched_sizes": True} if resizes else {}
    return build_strictly(model_class, config, _rename(weights, model_class, head), folder, fresh, **more)


def _complete(weights: Weights, config_dict: dict[str, Any], folder: Path) -> None:
    """Add weights that are missing in the authors' files but known, and remove tied copies."""
    aware = config_dict.setdefault("use_entity_aware_attention", True)
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
        # a clone, as only one of two shared tensors is saved
        weights["lm_head.bias"] = weights["lm_head.decoder.bias"].clone()


def _move_mask(weights: Weights, row: int, model_class: type[PreTrainedModel], folder: Path) -> None:
    """Move the vector of masked input entities into the row of [MASK]; ours has one vector for both uses."""
    if model_class.base_model_prefix != "bert":
        raise InputError(
            f"{folder} has a model for entity disambiguation, which is a BERT; load it as a model of the family "
            f"bert: wellread.models.luke.conversion.load({str(folder)!r})"
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
    config_dict: Mapping[str, Any], weights: Mapping[str, Tensor], model_class: type[PreTrainedModel], head: str
) -> PreTrainedConfig:
    """Return the configuration of the infused model; table sizes are those of the weights."""
    theirs = TheirConfig.from_dict({name: value for name, value in config_dict.items() if name != "architectures"})
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
    moved = "pooler.dense." in head_table(model_class, head)
    pooler = "pooler.dense.weight" in weights and not moved
    more = {"vocab_size": len(words), "infusions": [luke], "pooler": pooler, "tie_word_embeddings": not apart}
    kind: Any = model_class.config_class
    config: PreTrainedConfig = kind(**fields | more)
    return config


def _rename(weights: Mapping[str, Tensor], model_class: type[PreTrainedModel], head: str) -> Weights:
    """Return foreign weights by our names, without those of other heads."""
    table = head_table(model_class, head)
    moved = tuple(begin for begin in table if begin.startswith(PARTS))
    parts = {
        name: weight
        for name, weight in weights.items()
        if name.startswith(PARTS) and not name.startswith(moved or "\0")
    }
    rest = {name: weight for name, weight in weights.items() if name not in parts}
    prefix = "" if head == "Model" else f"{model_class.base_model_prefix}."
    renamed = {
        f"{prefix}{_QUERY.sub(_name_query, name)}": weight for name, weight in rename_weights(parts, ENCODER).items()
    }
    return renamed | ({} if head == "Model" else rename_weights(rest, table))


def _name_query(match: re.Match[str]) -> str:
    return f"{LUKE}queries.{match[1]}.{QUERIES[match[2]]}.{match[3]}"


def head_table(model_class: type[PreTrainedModel], head: str) -> dict[str, str]:
    """Return the prefixes of a head's weight names that differ between transformers' LUKE and this class."""
    kind = "bert" if model_class.base_model_prefix == "bert" else "roberta"
    return HEAD.get((kind, head), {})


def build_strictly(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    weights: Weights,
    folder: Path,
    fresh: bool = False,
    **more: Any,
) -> PreTrainedModel:
    """Build a model from weights; raise `InputError` for missing, unexpected or mismatched ones.

    With `fresh`, the weights of the head may be missing.
    """
    head = head_in(model_class.__name__)
    refusal = "config.json and weights must be of the same model: copy or download it again"
    another = InputError(
        f"{folder} has weights of another size than its config.json says, or than a {model_class.__name__} has; "
        f"{refusal}, and load it with the head that it was saved with"
    )
    with configuration_errors(folder), silence():
        try:
            loaded: Any = model_class.from_pretrained(
                None, config=config, state_dict=weights, output_loading_info=True, **more
            )
        except RuntimeError as error:  # sizes that differ
            raise another from error
    model, report = loaded
    prefix = "" if head == "Model" else f"{model_class.base_model_prefix}."
    needless = "pooler." if head in ("Model", "ForMaskedLM", DISAMBIGUATION) else "\0"  # unused by these heads
    missing = sorted(name for name in report["missing_keys"] if needless not in name)
    if missing := [name for name in missing if not fresh or name.startswith(prefix)]:
        raise InputError(
            f"{folder} lacks weights of its model: {some(missing)}; {refusal}; to train a new head, load it with "
            "from_pretrained and num_labels"
        )
    if left := sorted(name for name in report["unexpected_keys"] if _LAYERS.search(name)):
        raise InputError(f"{folder} has more layers than its config.json says: {some(left)}; {refusal}")
    if left := sorted(name for name in report["unexpected_keys"] if not name.removeprefix(prefix).startswith(_HEADS)):
        raise InputError(f"{folder} has weights that a {model_class.__name__} does not have: {some(left)}; {_UNKNOWN}")
    if any(str(name[0]).startswith(prefix) for name in report["mismatched_keys"]):
        raise another
    return cast(PreTrainedModel, model)


def head_in(name: str) -> str:
    """Return the head of a class name: InfusedBertForMaskedLM -> ForMaskedLM, InfusedBertModel -> Model."""
    _, found, head = name.partition("For")
    return f"For{head}" if found else "Model"


def _start_at_zero(weights: Weights, config: Any) -> None:
    """Drop the position rows of a LUKE that BERT does not have: LUKE's positions start behind the padding id."""
    first = int(config.pad_token_id) + 1
    for part, kept in (("embeddings", slice(first, None)), ("entity_embeddings", slice(-first))):
        name = f"{part}.position_embeddings.weight"
        if name in weights:  # else reported as missing later
            weights[name] = weights[name][kept].clone()
    config.max_position_embeddings -= first
