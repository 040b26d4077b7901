"""Conversion of the checkpoints of KnowBERT's authors to an infused BERT with the same states, scores and losses.

Their archive (allenai/kb, `models.knowbert.archive`) becomes a self-contained folder:

    config.json, model.safetensors    BERT with its masked-language-model head, and a knowledge layer for each KB
    tokenizer.json
    vectors/wiki/, vectors/wordnet/   entity vectors (`EntityVectors`, in their precision), with the entities' kinds

    model = AutoModelForMaskedLM.from_pretrained(folder)
    take_vectors(model, folder)

Facts of their code that are not in the paper:

- Layers count from 0, and a KB follows its layer; two KBs after one layer are ordered by name.
- The embedding of parts of speech has a row for every entity, of which nine are used: those become our kinds.
- MASK is an entity with a vector like all others; NULL is a copy of one that is not normed.
- In softmax mode there is no NULL: a mention without candidates gets the normed vector of the padding entity, which
  becomes our NULL.
- Accents are not stripped from tokens, even where they are lowercased.
- The pooling weights of a span are a softmax that includes zeros outside of it, then divided by their sum plus 1e-13.
  The difference matters only if token scores are below about -18.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers
from torch import Tensor
from transformers import BertForMaskedLM, BertModel, PreTrainedModel

from wellread.encoders.files import load_tokenizer
from wellread.encoders.foreign_checkpoint import (
    IDLE,
    KNOWBERT,
    KNOWBERT_ENTITIES,
    Weights,
    build_bert,
    rename_weights,
    some,
)
from wellread.encoders.infusion.infuse import base_of, infuse
from wellread.encoders.load import save_tokenizer, silence
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import ANY, VECTORS_FORMAT, EntityVectors, id_key, text_key
from wellread.index.folder import write_manifest
from wellread.io.arrays import Blocks, Strings, save_arrays
from wellread.io.files import read_text
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.elq.conversion import new_folder, read_vocab, refuse_full
from wellread.models.knowbert.archive import (
    MASK,
    NULL,
    PADDING,
    UNKNOWN,
    VOCAB,
    WEIGHTS,
    Archive,
    KnowBertParams,
    LayerParams,
    parse_entities,
)
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.model import KnowBert

_BERT, _HEAD = "pretrained_bert.bert.", "pretrained_bert.cls."
_DUPLICATES = ("pretraining_heads.", "pooler.")
"""Prefixes of weights that are also there under another name."""
_UNUSED = ("seq_relationship.",)
"""Prefix of the head's weights for next-sentence prediction."""
_BLOCK = 8192
_SYNSET = re.compile(r"(.+)\.([nvars])\.(\d+)")


def convert_knowbert(
    archive: str | Path,
    to: str | Path,
    *,
    vocab: str | Path | None = None,
    tokenizer: str | None = None,
    heads: int | None = None,
    entities: Mapping[str, str | Path] | None = None,
    senses: SenseKeys | None = None,
) -> KnowBertParams:
    """Convert the authors' archive (a tar file or a folder) to an infused BERT in a new folder.

    Their archives have no token vocabulary: give the `vocab.txt` of their `bert_model_name`, or an encoder with its
    tokenizer. `entities` are files of entity ids by KB, where the archive lacks them. With `senses`, synsets get
    the ids of the WordNet KB ("02084071-n" for "dog.n.01").
    """
    to = Path(to)
    refuse_full(to)
    with new_folder(to) as part:
        scratch = part / ".archive"
        opened = Archive.open(archive, scratch)
        params = opened.params()
        tokens = _find_tokenizer(params, opened, vocab, tokenizer)
        lists = _find_entities(params, opened, entities or {})
        weights = opened.weights()
        model, layers = _build(params, weights, lists, heads)
        _check_vocabulary(tokens, model, params)
        _write(part, model, weights, tokens)
        for layer in layers:
            layer.write(part / "vectors", senses)
        shutil.rmtree(scratch, ignore_errors=True)
    return params


def take_vectors(model: PreTrainedModel, folder: str | Path) -> None:
    """Set the entity vectors of a converted model's layers to those in its folder."""
    tables = open_tables(folder)
    for infusion in cast(Any, base_of(model)).infusions:
        if isinstance(infusion, KnowBert):
            infusion.take(tables[infusion.config.kb])


def open_tables(folder: str | Path) -> dict[str, EntityTable]:
    """Open the entity vectors in the folder of a converted model, by KB, with the kinds of their entities."""
    tables = {}
    for manifest in sorted(Path(folder, "vectors").glob("*/vectors.json")):
        vectors = EntityVectors.open(manifest.parent)
        tables[manifest.parent.name] = EntityTable.of(vectors, vectors.kinds)
    if not tables:
        raise UsageError(f"there are no entity vectors in {Path(folder, 'vectors')}; give a converted folder")
    return tables


@dataclass(frozen=True)
class _Layer:
    """Layer of one KB in the archive: its weights by our names, and its entities."""

    kb: str
    config: KnowBertConfig
    weights: Weights
    ids: list[str]
    vectors: Tensor
    kinds: Tensor | None

    @classmethod
    def of(cls, kb: str, place: int, params: LayerParams, found: Weights, ids: list[str]) -> _Layer:
        begin = f"{kb}_soldered_kg."
        parts = {KNOWBERT_ENTITIES[name]: found.pop(name) for name in list(found) if name in KNOWBERT_ENTITIES}
        if "vectors" not in parts:
            raise InputError(f"weights are missing: {begin}{next(iter(KNOWBERT_ENTITIES))}; download the archive again")
        vectors, kinds, embeddings = parts["vectors"].float(), parts.get("kinds"), parts.get("kind_embeddings")
        if vectors.dim() != 2 or len(ids) != len(vectors):
            raise InputError(
                f"{kb} has {len(vectors)} entity vectors, padding among them, and a list of {len(ids) - 1} entities; "
                f"give the list that belongs to it (--entities {kb}=FILE)"
            )
        if (kinds is None) != (embeddings is None) or (kinds is not None and kinds.shape != (len(vectors),)):
            raise InputError(f"the parts of speech of {kb} do not fit its entities; download the archive again")
        if MASK not in ids and UNKNOWN not in ids:
            raise InputError(f"the entities of {kb} lack {MASK}; give the list that the archive was trained with")
        weights = {name: weight.float() for name, weight in rename_weights(found, KNOWBERT).items()}
        if kinds is not None and embeddings is not None:
            kinds = kinds.long()
            weights["linker.entities.kinds.weight"] = embeddings[: int(kinds.max()) + 1].float()
        return cls(kb, _config(kb, place, params, weights, vectors), weights, ids, vectors, kinds)

    @torch.no_grad()
    def load(self, layer: KnowBert) -> None:
        """Load the weights; the MASK and NULL entities of theirs become weights of ours."""
        weights = dict(self.weights)
        dim, softmax = self.config.dim, self.config.mode == "softmax"
        weights["linker.entities.mask"] = torch.zeros(dim)
        if softmax:
            weights["null"] = torch.zeros(dim)
        names = {ours: theirs for theirs, ours in KNOWBERT.items()}
        _load(layer, weights, f"{self.kb}_soldered_kg.", names)
        layer.linker.entities.mask.copy_(self._project(layer, self.ids.index(MASK if MASK in self.ids else UNKNOWN)))
        if softmax:
            layer.null.copy_(layer.linker.entities.norm(self._project(layer, self.ids.index(PADDING))))

    def _project(self, layer: KnowBert, row: int) -> Tensor:
        vector, parts = self.vectors[row], layer.linker.entities
        if parts.kinds is not None and self.kinds is not None:
            vector = torch.cat((vector, parts.kinds(self.kinds[row])))
        return vector if parts.linear is None else cast(Tensor, parts.linear(vector))

    def write(self, folder: Path, senses: SenseKeys | None) -> None:
        """Write the vectors in the order of `EntityVectors`, without entities that became weights."""
        rows = [row for row, id in enumerate(self.ids) if id not in (PADDING, MASK, NULL)]
        ids = [_synset_id(self.ids[row], senses) if senses is not None else self.ids[row] for row in rows]
        hashes = np.fromiter(map(id_key, ids), np.uint32, len(ids))
        order = np.argsort(hashes, kind="stable")
        taken, ids = np.array(rows, np.int64)[order], [ids[place] for place in order.tolist()]
        titles = [self.ids[row].replace("_", " ") for row in taken.tolist()]
        vectors = self.vectors.numpy()
        digest = hashlib.blake2b(vectors.data, digest_size=8).hexdigest()
        arrays: dict[str, NDArray[Any] | Blocks] = {
            "vectors": Blocks(np.float32, (len(taken), vectors.shape[1]), _blocks(vectors, taken)),
            "texts": np.fromiter((text_key(title, "") for title in titles), np.uint64, len(titles)),
            "hashes": hashes[order],
            **Strings.pack((id.encode() for id in ids), "ids"),
            **Strings.pack((title.encode() for title in titles), "titles"),
        }
        if self.kinds is not None:
            arrays["kinds"] = self.kinds.numpy()[taken].astype(np.uint16)
        manifest: dict[str, Any] = {
            "format": VECTORS_FORMAT,
            "kb": self.kb,
            "uid": ANY,
            "revision": 0,
            "fingerprint": digest,
        }
        manifest |= {"dim": vectors.shape[1], "count": len(taken), "file": f"vectors-{digest}.safetensors"}
        path = folder / self.kb
        path.mkdir(parents=True)
        save_arrays(path / manifest["file"], arrays, {"format": VECTORS_FORMAT, "uid": ANY, "revision": "0"})
        write_manifest(path / "vectors.json", manifest)


def _blocks(vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    for begin in range(0, len(rows), _BLOCK):
        yield vectors[rows[begin : begin + _BLOCK]]


def _synset_id(name: str, senses: SenseKeys) -> str:
    """Return the id of a synset in the WordNet KB: "dog.n.01" -> "02084071-n"; other names are unchanged."""
    if (match := _SYNSET.fullmatch(name)) is None:
        return name
    keys = senses.senses(match[1], "a" if match[2] == "s" else match[2])
    number = int(match[3])
    return senses.synsets(keys[number - 1 : number])[0] if 0 < number <= len(keys) else name


def _config(kb: str, place: int, params: LayerParams, weights: Weights, vectors: Tensor) -> KnowBertConfig:
    linker, block = params.entity_linker, params.span_attention_config
    narrow, project = weights.get("linker.narrow.weight"), "linker.entities.linear.weight" in weights
    kinds = weights.get("linker.entities.kinds.weight")
    if narrow is None:
        raise InputError(f"weights are missing: {kb}_soldered_kg.{next(iter(KNOWBERT))}*; download the archive again")
    more: dict[str, Any] = {} if kinds is None else {"kinds": len(kinds), "kind_width": kinds.shape[1]}
    try:
        return KnowBertConfig(
            kb=kb,
            layer=place,
            mode=linker.loss_type,
            dim=len(narrow),
            raw=vectors.shape[1],
            project=project,
            heads=block.num_attention_heads,
            inner=block.intermediate_size,
            prior_width=linker.output_feed_forward_hidden_dim,
            threshold=linker.decode_threshold,
            margin=linker.margin,
            **more,
        )
    except UsageError as error:
        raise InputError(f"{kb}: {error}; config and weights must be of one archive") from None


def _build(
    params: KnowBertParams, weights: Weights, lists: Mapping[str, list[str]], heads: int | None
) -> tuple[PreTrainedModel, list[_Layer]]:
    """Build the model and its layers, bottom up."""
    begins = [_BERT, _HEAD, *(f"{kb}_soldered_kg." for kb in params.soldered_kgs)]
    parts: dict[str, Weights] = {begin: {} for begin in begins}
    unknown = []
    for name, weight in weights.items():
        begin = next((begin for begin in begins if name.startswith(begin)), None)
        if begin is not None:
            parts[begin][name.removeprefix(begin)] = weight
        elif not name.startswith(_DUPLICATES):
            unknown.append(name)
    if unknown or not parts[_BERT]:
        raise InputError(
            f"{WEIGHTS} {'has weights that its config.json does not define' if unknown else 'lacks weights'}: "
            f"{some(unknown or [_BERT + '*'])}; only models of type knowbert can be converted"
        )
    bert = build_bert(
        {name: part.float() for name, part in parts[_BERT].items() if not name.endswith(IDLE)}, heads, where=_BERT
    )
    order = sorted((place, kb) for kb, place in params.soldered_layers.items())
    layers = [
        _Layer.of(kb, place, params.soldered_kgs[kb], parts[f"{kb}_soldered_kg."], lists[kb]) for place, kb in order
    ]
    model = _with_head(bert, parts[_HEAD])
    try:
        model = infuse(model, [layer.config for layer in layers])
    except UsageError as error:
        raise InputError(f"{error}; config and weights must be of one archive") from None
    for layer, infusion in zip(layers, cast(Any, base_of(model)).infusions, strict=True):
        layer.load(infusion)
    model.train(False)
    return model, layers


def _with_head(bert: BertModel, head: Weights) -> PreTrainedModel:
    head = {name: part.float() for name, part in head.items() if not name.startswith(_UNUSED)}
    if not head:
        return bert
    tied = head.pop("predictions.decoder.weight", None)
    if tied is not None and not torch.equal(tied, bert.embeddings.word_embeddings.weight):
        raise InputError(
            f"{_HEAD}predictions.decoder.weight is not the token embedding, as in BERT; download the archive again"
        )
    model = BertForMaskedLM(bert.config)  # type: ignore[no-untyped-call]
    model.bert.load_state_dict({n: part for n, part in bert.state_dict().items() if not n.startswith("pooler.")})
    head["predictions.decoder.weight"] = bert.embeddings.word_embeddings.weight
    if "predictions.bias" in head:
        head["predictions.decoder.bias"] = head["predictions.bias"]
    _load(model.cls, head, _HEAD, {})
    return cast(PreTrainedModel, model)


def _load(module: torch.nn.Module, weights: Weights, where: str, names: Mapping[str, str]) -> None:
    """Load all weights of a module; `names` maps our names to theirs, for errors."""
    ours, given = ({name: tuple(part.shape) for name, part in all.items()} for all in (module.state_dict(), weights))
    for found, problem in (
        ([name for name in ours if name not in given], "are missing"),
        ([name for name in given if name not in ours], "are not KnowBERT's"),
        ([name for name in ours if name in given and given[name] != ours[name]], "have other sizes"),
    ):
        if found:
            theirs = [where + next(iter(rename_weights({name: torch.empty(0)}, names))) for name in found]
            raise InputError(
                f"weights {problem}: {some(theirs)}; convert a released model, with the config.json that belongs to it"
            )
    module.load_state_dict(weights)


def _find_entities(params: KnowBertParams, archive: Archive, given: Mapping[str, str | Path]) -> dict[str, list[str]]:
    if unknown := sorted(given.keys() - params.soldered_kgs.keys()):
        raise UsageError(f"the archive has no {unknown[0]}; its knowledge bases are: {', '.join(params.soldered_kgs)}")
    return {
        kb: parse_entities(read_text(given[kb])) if kb in given else archive.entities(layer.entity_linker.namespace, kb)
        for kb, layer in params.soldered_kgs.items()
    }


def _find_tokenizer(
    params: KnowBertParams, archive: Archive, vocab: str | Path | None, tokenizer: str | None
) -> Tokenizer:
    own = archive.folder / VOCAB
    if vocab is None and tokenizer is None and own.is_file():
        vocab = own
    if (vocab is None) == (tokenizer is None):
        raise UsageError(
            f"the archive has no token vocabulary; give either the vocab.txt of {params.bert_model_name} (--vocab) "
            "or the folder or hub name of an encoder with its tokenizer (--tokenizer)"
        )
    if tokenizer is not None:
        tokens = load_tokenizer(tokenizer)
    else:
        lowercase = "uncased" in params.bert_model_name or "cased" not in params.bert_model_name
        tokens = read_vocab(str(vocab), lowercase)
        tokens.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    missing = [token for token in ("[CLS]", "[SEP]", "[UNK]", "[MASK]") if tokens.token_to_id(token) is None]
    if missing:
        raise InputError(
            f"{tokenizer or vocab} has no token {', '.join(missing)}; give the vocabulary of {params.bert_model_name}"
        )
    return tokens


def _check_vocabulary(tokens: Tokenizer, model: PreTrainedModel, params: KnowBertParams) -> None:
    if tokens.get_vocab_size() != model.config.vocab_size:
        raise InputError(
            f"the vocabulary has {tokens.get_vocab_size()} tokens and the weights {model.config.vocab_size}; give that "
            f"of {params.bert_model_name}"
        )


def _write(folder: Path, model: PreTrainedModel, weights: Weights, tokens: Tokenizer) -> None:
    """Write model and tokenizer; with BERT's pooler, which the masked-LM model lacks, for loading it as an encoder."""
    state = model.state_dict()
    if model is not base_of(model):
        state |= {f"bert.pooler.dense.{n}": weights[f"{_BERT}pooler.dense.{n}"].float() for n in ("weight", "bias")}
        model.config.pooler = True
    model.config.precision = "fp32"  # default precision of linkers with this model
    with silence():
        model.save_pretrained(folder, state_dict=state)
    save_tokenizer(tokens, folder, model.config)
