"""The released checkpoints of KnowBERT's authors as an infused BERT of ours, with the same states, scores and losses.

Theirs (allenai/kb) is an archive of AllenNLP (`models.knowbert.archive`). What it becomes is a folder that needs
nothing outside of itself:

    config.json, model.safetensors    BERT with its head for hidden words, and a knowledge layer for each KB
    tokenizer.json
    vectors/wiki/, vectors/wordnet/   entity vectors (`EntityVectors`, as precise as theirs), with the entities' kinds

    model = AutoModelForMaskedLM.from_pretrained(folder)
    take_vectors(model, folder)

Facts of their code that are not in the paper:

- Layers count from 0, and a knowledge base comes after its layer; two after one layer go by their names.
- The embedding of parts of speech has a row for every entity, of which nine are used: those are our kinds.
- MASK is an entity with a vector like all others; NULL is a copy of one, which is not normed.
- In softmax mode there is no NULL: a mention without candidates takes the normed vector of the padding entity. So that
  is what our NULL becomes.
- Accents are not stripped from pieces, though letters are made small.
- A span's weights are a softmax over zeros outside of it too, then divided by their sum plus 1e-13. It makes a
  difference only where scores of pieces are below -18 or so.
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
from wellread.encoders.load import load_tokenizer, save_tokenizer, silence
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
    PIECES,
    UNKNOWN,
    WEIGHTS,
    Archive,
    KnowBertParams,
    LayerParams,
    parse_entities,
)
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.model import KnowBert, KnowBertConfig

_BERT, _HEAD = "pretrained_bert.bert.", "pretrained_bert.cls."
_TWICE = ("pretraining_heads.", "pooler.")
"""How names begin of what is there under another name already."""
_UNUSED = ("seq_relationship.",)
"""What the head has for the order of sentences."""
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
    """Write the authors' archive (a tar file or a folder) as an infused BERT to a new folder.

    Their archives have no vocabulary of pieces: give the `vocab.txt` of their `bert_model_name`, or an encoder with its
    tokenizer. `entities` are lists of ids where the archive lacks them, by knowledge base. With `senses`, synsets are
    called as in the WordNet KB ("02084071-n" for "dog.n.01").
    """
    to = Path(to)
    refuse_full(to)
    with new_folder(to) as part:
        scratch = part / ".archive"
        opened = Archive.open(archive, scratch)
        params = opened.params()
        pieces = _find_pieces(params, opened, vocab, tokenizer)
        lists = _find_entities(params, opened, entities or {})
        weights = opened.weights()
        model, layers = _build(params, weights, lists, heads)
        _check_pieces(pieces, model, params)
        _write(part, model, weights, pieces)
        for layer in layers:
            layer.write(part / "vectors", senses)
        shutil.rmtree(scratch, ignore_errors=True)
    return params


def take_vectors(model: PreTrainedModel, folder: str | Path) -> None:
    """Give the knowledge layers of a converted model the entity vectors that lie beside it."""
    tables = open_tables(folder)
    for infusion in cast(Any, base_of(model)).infusions:
        if isinstance(infusion, KnowBert):
            infusion.take(tables[infusion.config.kb])


def open_tables(folder: str | Path) -> dict[str, EntityTable]:
    """The entity vectors in the folder of a converted model, by knowledge base, with the kinds of their entities."""
    tables = {}
    for place in sorted(Path(folder, "vectors").glob("*/vectors.json")):
        vectors = EntityVectors.open(place.parent)
        tables[place.parent.name] = EntityTable.of(vectors, vectors.kinds)
    if not tables:
        raise UsageError(f"there are no entity vectors in {Path(folder, 'vectors')}; give what convert knowbert wrote")
    return tables


@dataclass(frozen=True)
class _Layer:
    """The layer of one knowledge base in the archive: its weights by our names, and its entities."""

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
        """Load the weights, and make weights of what is an entity in theirs."""
        without = dict(self.weights)
        dim, softmax = self.config.dim, self.config.mode == "softmax"
        without["linker.entities.mask"] = torch.zeros(dim)
        if softmax:
            without["null"] = torch.zeros(dim)
        names = {ours: theirs for theirs, ours in KNOWBERT.items()}
        _load(layer, without, f"{self.kb}_soldered_kg.", names)
        layer.linker.entities.mask.copy_(self._project(layer, self.ids.index(MASK if MASK in self.ids else UNKNOWN)))
        if softmax:
            layer.null.copy_(layer.linker.entities.norm(self._project(layer, self.ids.index(PADDING))))

    def _project(self, layer: KnowBert, row: int) -> Tensor:
        vector, parts = self.vectors[row], layer.linker.entities
        if parts.kinds is not None and self.kinds is not None:
            vector = torch.cat((vector, parts.kinds(self.kinds[row])))
        return vector if parts.linear is None else cast(Tensor, parts.linear(vector))

    def write(self, folder: Path, senses: SenseKeys | None) -> None:
        """Write the vectors in the order of `EntityVectors`, without those of entities that became weights."""
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
        told: dict[str, Any] = {
            "format": VECTORS_FORMAT,
            "kb": self.kb,
            "uid": ANY,
            "revision": 0,
            "fingerprint": digest,
        }
        told |= {"dim": vectors.shape[1], "count": len(taken), "file": f"vectors-{digest}.safetensors"}
        place = folder / self.kb
        place.mkdir(parents=True)
        save_arrays(place / told["file"], arrays, {"format": VECTORS_FORMAT, "uid": ANY, "revision": "0"})
        write_manifest(place / "vectors.json", told)


def _blocks(vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    for begin in range(0, len(rows), _BLOCK):
        yield vectors[rows[begin : begin + _BLOCK]]


def _synset_id(name: str, senses: SenseKeys) -> str:
    """What the WordNet KB calls a synset: "dog.n.01" -> "02084071-n"; what is none keeps its name."""
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
    """The model, and its layers in the order in which they come."""
    begins = [_BERT, _HEAD, *(f"{kb}_soldered_kg." for kb in params.soldered_kgs)]
    parts: dict[str, Weights] = {begin: {} for begin in begins}
    unknown = []
    for name, weight in weights.items():
        begin = next((begin for begin in begins if name.startswith(begin)), None)
        if begin is not None:
            parts[begin][name.removeprefix(begin)] = weight
        elif not name.startswith(_TWICE):
            unknown.append(name)
    if unknown or not parts[_BERT]:
        raise InputError(
            f"{WEIGHTS} has {'names' if unknown else 'no weights'} that its config.json does not tell of: "
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
            f"{_HEAD}predictions.decoder.weight is not the embedding of pieces, as in BERT; download the archive again"
        )
    model = BertForMaskedLM(bert.config)  # type: ignore[no-untyped-call]
    model.bert.load_state_dict({n: part for n, part in bert.state_dict().items() if not n.startswith("pooler.")})
    head["predictions.decoder.weight"] = bert.embeddings.word_embeddings.weight
    if "predictions.bias" in head:
        head["predictions.decoder.bias"] = head["predictions.bias"]
    _load(model.cls, head, _HEAD, {})
    return cast(PreTrainedModel, model)


def _load(module: torch.nn.Module, weights: Weights, where: str, names: Mapping[str, str]) -> None:
    """Load all weights of a part; `names` are theirs by ours, for messages."""
    ours, given = ({name: tuple(part.shape) for name, part in all.items()} for all in (module.state_dict(), weights))
    for found, told in (
        ([name for name in ours if name not in given], "are missing"),
        ([name for name in given if name not in ours], "are not KnowBERT's"),
        ([name for name in ours if name in given and given[name] != ours[name]], "have other sizes"),
    ):
        if found:
            theirs = [where + next(iter(rename_weights({name: torch.empty(0)}, names))) for name in found]
            raise InputError(
                f"weights {told}: {some(theirs)}; convert a released model, with the config.json that belongs to it"
            )
    module.load_state_dict(weights)


def _find_entities(params: KnowBertParams, archive: Archive, given: Mapping[str, str | Path]) -> dict[str, list[str]]:
    if unknown := sorted(given.keys() - params.soldered_kgs.keys()):
        raise UsageError(f"the archive has no {unknown[0]}; its knowledge bases are: {', '.join(params.soldered_kgs)}")
    return {
        kb: parse_entities(read_text(given[kb])) if kb in given else archive.entities(layer.entity_linker.namespace, kb)
        for kb, layer in params.soldered_kgs.items()
    }


def _find_pieces(
    params: KnowBertParams, archive: Archive, vocab: str | Path | None, tokenizer: str | None
) -> Tokenizer:
    own = archive.folder / PIECES
    if vocab is None and tokenizer is None and own.is_file():
        vocab = own
    if (vocab is None) == (tokenizer is None):
        raise UsageError(
            f"the archive has no vocabulary of pieces; give either the vocab.txt of {params.bert_model_name} (--vocab) "
            "or the folder or hub name of an encoder with its tokenizer (--tokenizer)"
        )
    if tokenizer is not None:
        pieces = load_tokenizer(tokenizer)
    else:
        small = "uncased" in params.bert_model_name or "cased" not in params.bert_model_name
        pieces = read_vocab(str(vocab), small)
        pieces.normalizer = normalizers.BertNormalizer(lowercase=small, strip_accents=False)
    needed = [piece for piece in ("[CLS]", "[SEP]", "[UNK]", "[MASK]") if pieces.token_to_id(piece) is None]
    if needed:
        raise InputError(
            f"{tokenizer or vocab} has no piece {', '.join(needed)}; give the vocabulary of {params.bert_model_name}"
        )
    return pieces


def _check_pieces(pieces: Tokenizer, model: PreTrainedModel, params: KnowBertParams) -> None:
    if pieces.get_vocab_size() != model.config.vocab_size:
        raise InputError(
            f"the vocabulary has {pieces.get_vocab_size()} pieces and the weights {model.config.vocab_size}; give that "
            f"of {params.bert_model_name}"
        )


def _write(folder: Path, model: PreTrainedModel, weights: Weights, pieces: Tokenizer) -> None:
    """With BERT's pooler too, which a head for hidden words has not, but an encoder that is read from here does."""
    state = model.state_dict()
    if model is not base_of(model):
        state |= {f"bert.pooler.dense.{n}": weights[f"{_BERT}pooler.dense.{n}"].float() for n in ("weight", "bias")}
        model.config.pooler = True
    model.config.precision = "fp32"  # of linkers with this model, unless another one is asked for
    with silence():
        model.save_pretrained(folder, state_dict=state)
    save_tokenizer(pieces, folder, model.config)
