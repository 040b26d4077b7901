"""What KnowBERT's authors released: an archive as AllenNLP writes it (allenai/kb), read without running anything in it.

    config.json      the settings of the training; `model` says what is computed
    weights.th       a state dict
    vocabulary/      a list of entities for each knowledge base, `entity.txt` or by its namespace

`config.json` may be Jsonnet's plain part: comments, and commas behind the last entry, with which they were shipped.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tarfile
import typing
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from wellread import config as settings
from wellread.encoders.foreign_checkpoint import Weights, read_weights
from wellread.errors import InputError
from wellread.io.files import BROKEN, decode, storage

CONFIG, WEIGHTS, VOCABULARY, PIECES = "config.json", "weights.th", "vocabulary", "vocab.txt"
PADDING, UNKNOWN, MASK, NULL = "@@PADDING@@", "@@UNKNOWN@@", "@@MASK@@", "@@NULL@@"
"""Entities of theirs that are none."""

_CHUNK = 1 << 20
_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENTS = re.compile(rf"({_STRING})|//[^\n]*|\#[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockParams:
    """The size of a transformer block."""

    num_attention_heads: int
    intermediate_size: int
    num_hidden_layers: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class LinkerParams:
    """The linker of a knowledge base."""

    type: Literal["entity_linking_with_candidate_mentions"]
    span_encoder_config: BlockParams
    loss_type: Literal["margin", "softmax"] = "margin"
    margin: float = 0.2
    decode_threshold: float = 0.0
    namespace: str = "entity"
    output_feed_forward_hidden_dim: int = 100


@dataclasses.dataclass(frozen=True, slots=True)
class LayerParams:
    """The layer of a knowledge base."""

    type: Literal["soldered_kg"]
    entity_linker: LinkerParams
    span_attention_config: BlockParams


@dataclasses.dataclass(frozen=True, slots=True)
class KnowBertParams:
    """The authors' settings that say what a model computes; the others in their file are about its training."""

    type: Literal["knowbert"]
    bert_model_name: str
    soldered_layers: dict[str, int]
    soldered_kgs: dict[str, LayerParams]

    @classmethod
    def parse(cls, text: str, where: str) -> KnowBertParams:
        """From the text of their config.json; `where` names it in messages."""
        fix = "give the archive of a model whose type is knowbert, such as knowbert_wiki_wordnet_model.tar.gz"
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no JSON ({error}); {fix}") from None
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, dict):
            raise InputError(f"{where} has no table `model`; {fix}")
        try:
            read = settings.from_dict(cls, _known(cls, model))
        except InputError as error:
            raise InputError(f"{where}: model: {error}; {fix}") from None
        if not read.soldered_kgs or read.soldered_kgs.keys() != read.soldered_layers.keys():
            told = [", ".join(part) or "none" for part in (read.soldered_kgs, read.soldered_layers)]
            raise InputError(f"{where} has the layers of {told[0]}, and tells the places of {told[1]}; {fix}")
        for name, layer in read.soldered_kgs.items():
            blocks = (layer.entity_linker.span_encoder_config, layer.span_attention_config)
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise InputError(f"{where}: {name!r} cannot be the name of a folder; rename that knowledge base")
            if len({(block.num_attention_heads, block.intermediate_size) for block in blocks}) > 1:
                raise InputError(f"{where}: the two blocks of {name} have not the same size, as those of {fix}")
            if blocks[0].num_hidden_layers != 1:
                raise InputError(f"{where}: {name} has more than one block over its mentions; {fix}")
        return read


def parse_json(text: str) -> Any:
    """JSON, and what was shipped as such: with comments, and with commas behind the last entry of a table or list."""
    without = _COMMENTS.sub(lambda found: found[1] or " ", text)
    return json.loads(_LAST_COMMAS.sub(lambda found: found[1] or "", without))


def _known(kind: Any, data: Any) -> Any:
    """Only what the dataclass has a field for, in what lies below it too."""
    if typing.get_origin(kind) is dict and isinstance(data, Mapping):
        return {key: _known(typing.get_args(kind)[1], value) for key, value in data.items()}
    if not dataclasses.is_dataclass(kind) or not isinstance(data, Mapping):
        return data
    hints = typing.get_type_hints(kind)
    return {key: _known(hints[key], value) for key, value in data.items() if key in hints}


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """The files of an archive, in a folder."""

    folder: Path
    name: str
    """How messages call it."""

    @classmethod
    def open(cls, path: str | Path, scratch: Path) -> Archive:
        """A folder as it is; what is needed of a tar file in `scratch`, whatever its compression."""
        path = Path(path)
        if not path.is_dir():
            _unpack(path, scratch)
        archive = cls(path if path.is_dir() else scratch, str(path))
        for name in (CONFIG, WEIGHTS):
            archive.find(name)
        return archive

    def find(self, name: str, fix: str = "") -> Path:
        """A file that must be there."""
        file = self.folder / name
        if not file.is_file():
            fix = fix or "give an archive with config.json, weights.th and vocabulary/, as AllenNLP writes it"
            raise InputError(f"{self.name} has no {name}; {fix}, or download it again")
        return file

    def params(self) -> KnowBertParams:
        """What the model computes."""
        return KnowBertParams.parse(self._read(CONFIG), f"{CONFIG} of {self.name}")

    def weights(self) -> Weights:
        """All weights, by their names."""
        return read_weights(self.find(WEIGHTS), name=f"{WEIGHTS} of {self.name}", such_as=WEIGHTS)

    def entities(self, namespace: str, kb: str) -> list[str]:
        """The ids of a knowledge base by their rows; the first one stands for padding."""
        fix = f"give its list of entities, an id a line (--entities {kb}=FILE)"
        return parse_entities(self._read(f"{VOCABULARY}/{namespace}.txt", fix))

    def _read(self, name: str, fix: str = "") -> str:
        return decode(self.find(name, fix).read_bytes(), f"{name} of {self.name}")


def parse_entities(text: str) -> list[str]:
    """A list of ids, a line each, as AllenNLP reads it: padding comes before the first."""
    return [PADDING, *(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))]


def _unpack(path: Path, folder: Path) -> None:
    """Write the files that are needed; links, other names and ways out of the folder are not looked at."""
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                wanted = parts in ((CONFIG,), (WEIGHTS,), (PIECES,)) or (
                    len(parts) == 2 and parts[0] == VOCABULARY and parts[1] != ".."
                )
                source = tar.extractfile(member) if wanted and member.isfile() else None
                if source is not None:
                    _copy(source, folder.joinpath(*parts))
            while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
                pass  # only at its end a compressed file tells whether all of it was right
    except FileNotFoundError:
        raise InputError(f"there is no {path}; give the archive or the folder it was unpacked to") from None
    except PermissionError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    except (tarfile.TarError, *BROKEN) as error:
        reason = str(error).partition("\n")[0].removesuffix(":")
        raise InputError(
            f"{path} is no archive, or cut off or damaged ({reason}); give model.tar.gz as it was released, or "
            "download it again"
        ) from error


def _copy(source: IO[bytes], to: Path) -> None:
    with storage(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        file = open(to, "wb")  # noqa: SIM115  # what reading raises is not the disk's fault
    with file:
        while chunk := source.read(_CHUNK):
            with storage(to):
                file.write(chunk)
