"""Reader of the archives that KnowBERT's authors released (allenai/kb, written by AllenNLP); runs no code of them.

    config.json      settings of the training; `model` defines the computation
    weights.th       a state dict
    vocabulary/      a list of entities for each KB, `entity.txt` or named by its namespace

`config.json` may have comments and trailing commas, as the released ones do (a subset of Jsonnet).
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

CONFIG, WEIGHTS, VOCABULARY, VOCAB = "config.json", "weights.th", "vocabulary", "vocab.txt"
PADDING, UNKNOWN, MASK, NULL = "@@PADDING@@", "@@UNKNOWN@@", "@@MASK@@", "@@NULL@@"
"""Special entries of their entity lists."""

_CHUNK = 1 << 20
_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENTS = re.compile(rf"({_STRING})|//[^\n]*|\#[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockParams:
    """Sizes of a transformer block."""

    num_attention_heads: int
    intermediate_size: int
    num_hidden_layers: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class LinkerParams:
    """Settings of the entity linker of a KB."""

    type: Literal["entity_linking_with_candidate_mentions"]
    span_encoder_config: BlockParams
    loss_type: Literal["margin", "softmax"] = "margin"
    margin: float = 0.2
    decode_threshold: float = 0.0
    namespace: str = "entity"
    output_feed_forward_hidden_dim: int = 100


@dataclasses.dataclass(frozen=True, slots=True)
class LayerParams:
    """Settings of the layer of a KB."""

    type: Literal["soldered_kg"]
    entity_linker: LinkerParams
    span_attention_config: BlockParams


@dataclasses.dataclass(frozen=True, slots=True)
class KnowBertParams:
    """The authors' settings that define the computation; the others in their file are about training."""

    type: Literal["knowbert"]
    bert_model_name: str
    soldered_layers: dict[str, int]
    soldered_kgs: dict[str, LayerParams]

    @classmethod
    def parse(cls, text: str, where: str) -> KnowBertParams:
        """Parse the text of their config.json; `where` names it in errors."""
        fix = "give the archive of a model whose type is knowbert, such as knowbert_wiki_wordnet_model.tar.gz"
        try:
            data = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON ({error}); {fix}") from None
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, dict):
            raise InputError(f"{where} has no table `model`; {fix}")
        try:
            read = settings.from_dict(cls, _known(cls, model))
        except InputError as error:
            raise InputError(f"{where}: model: {error}; {fix}") from None
        if not read.soldered_kgs or read.soldered_kgs.keys() != read.soldered_layers.keys():
            layers, positions = (", ".join(part) or "none" for part in (read.soldered_kgs, read.soldered_layers))
            raise InputError(f"{where} has the layers of {layers}, but positions of {positions}; {fix}")
        for name, layer in read.soldered_kgs.items():
            blocks = (layer.entity_linker.span_encoder_config, layer.span_attention_config)
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise InputError(f"{where}: {name!r} cannot be the name of a folder; rename that knowledge base")
            if len({(block.num_attention_heads, block.intermediate_size) for block in blocks}) > 1:
                raise InputError(f"{where}: the two blocks of {name} have different sizes; {fix}")
            if blocks[0].num_hidden_layers != 1:
                raise InputError(f"{where}: {name} has more than one block over its mentions; {fix}")
        return read


def parse_json(text: str) -> Any:
    """Parse JSON with comments and trailing commas."""
    without = _COMMENTS.sub(lambda found: found[1] or " ", text)
    return json.loads(_LAST_COMMAS.sub(lambda found: found[1] or "", without))


def _known(kind: Any, data: Any) -> Any:
    """Return only the entries that the dataclass, or one nested in it, has a field for."""
    if typing.get_origin(kind) is dict and isinstance(data, Mapping):
        return {key: _known(typing.get_args(kind)[1], value) for key, value in data.items()}
    if not dataclasses.is_dataclass(kind) or not isinstance(data, Mapping):
        return data
    hints = typing.get_type_hints(kind)
    return {key: _known(hints[key], value) for key, value in data.items() if key in hints}


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """Unpacked archive."""

    folder: Path
    name: str
    """Name in error messages."""

    @classmethod
    def open(cls, path: str | Path, scratch: Path) -> Archive:
        """Open a folder, or unpack the needed files of a tar file (of any compression) to `scratch`."""
        path = Path(path)
        if not path.is_dir():
            _unpack(path, scratch)
        archive = cls(path if path.is_dir() else scratch, str(path))
        for name in (CONFIG, WEIGHTS):
            archive.find(name)
        return archive

    def find(self, name: str, fix: str = "") -> Path:
        """Return the path of a required file."""
        file = self.folder / name
        if not file.is_file():
            fix = fix or "give an archive with config.json, weights.th and vocabulary/, as AllenNLP writes it"
            raise InputError(f"{self.name} has no {name}; {fix}, or download it again")
        return file

    def params(self) -> KnowBertParams:
        """Return the settings of the model."""
        return KnowBertParams.parse(self._read(CONFIG), f"{CONFIG} of {self.name}")

    def weights(self) -> Weights:
        """Return all weights by name."""
        return read_weights(self.find(WEIGHTS), name=f"{WEIGHTS} of {self.name}", such_as=WEIGHTS)

    def entities(self, namespace: str, kb: str) -> list[str]:
        """Return the entity ids of a KB by row; the first one is the padding entity."""
        fix = f"give its list of entities, an id a line (--entities {kb}=FILE)"
        return parse_entities(self._read(f"{VOCABULARY}/{namespace}.txt", fix))

    def _read(self, name: str, fix: str = "") -> str:
        return decode(self.find(name, fix).read_bytes(), f"{name} of {self.name}")


def parse_entities(text: str) -> list[str]:
    """Parse a list of ids, one per line, with AllenNLP's padding entity before the first."""
    return [PADDING, *(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))]


def _unpack(path: Path, folder: Path) -> None:
    """Write the needed files; links, other names and paths out of the folder are ignored."""
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                wanted = parts in ((CONFIG,), (WEIGHTS,), (VOCAB,)) or (
                    len(parts) == 2 and parts[0] == VOCABULARY and parts[1] != ".."
                )
                source = tar.extractfile(member) if wanted and member.isfile() else None
                if source is not None:
                    _copy(source, folder.joinpath(*parts))
            while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
                pass  # the checksum of a compressed file is checked at its end
    except FileNotFoundError:
        raise InputError(f"there is no {path}; give the archive or the folder it was unpacked to") from None
    except PermissionError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    except (tarfile.TarError, *BROKEN) as error:
        reason = str(error).partition("\n")[0].removesuffix(":")
        raise InputError(
            f"{path} is not an archive, or it is truncated or damaged ({reason}); give model.tar.gz as it was "
            "released, or download it again"
        ) from error


def _copy(source: IO[bytes], to: Path) -> None:
    with storage(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        file = open(to, "wb")  # noqa: SIM115  # errors of reading are not storage errors
    with file:
        while chunk := source.read(_CHUNK):
            with storage(to):
                file.write(chunk)
