"""The folder that vectors and index of a knowledge base lie in: manifests, a lock, and who may be deleted.

A manifest (JSON) names the files of a state and is written last; a file is never changed once a manifest names it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wellread.errors import KnowledgeBaseError
from wellread.io.checksum import crc_of, is_damaged
from wellread.io.files import only_writer, write_atomically
from wellread.kb.store import KnowledgeBase

PATIENCE = 10.0
"""Seconds to wait for another process."""
_CHECKSUM = "checksum"
"""The key of a manifest's own CRC-32, of all its other keys."""


def vectors_folder(kb: KnowledgeBase, folder: str | Path | None = None) -> Path:
    """Where the vectors of a KB are, unless somewhere else is given: `my.kb.vectors`."""
    return Path(folder) if folder is not None else Path(f"{kb.path}.vectors")


def mending(kb: str | Path) -> str:
    """The command that makes vectors and index of a KB right again."""
    return f"wellread index build --kb {kb}"


@contextmanager
def locked(folder: Path, kb: str | Path) -> Iterator[None]:
    """One process at a time writes to a folder; others are told to wait."""
    refusal = KnowledgeBaseError(
        f"another process is writing to {folder}; wait for it, or choose another folder: {mending(kb)} --to FOLDER"
    )
    with only_writer(folder, refusal, patience=PATIENCE):
        yield


def read_manifest(path: Path, format: str) -> dict[str, Any] | None:
    """A manifest; None where there is none, or of another format."""
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise KnowledgeBaseError(f"{path} is damaged ({error}); delete {path.parent} and build it again") from error
    if isinstance(told, dict) and told.pop(_CHECKSUM, None) not in (None, _checksum(told)):
        raise KnowledgeBaseError(f"{path} is damaged (its checksum is wrong); delete {path.parent} and build it again")
    return told if isinstance(told, dict) and told.get("format") == format else None


def write_manifest(path: Path, told: dict[str, Any]) -> None:
    """Written last, whole or not at all: from here on the files it names are the state."""
    with write_atomically(path) as file:
        file.write(json.dumps({**told, _CHECKSUM: _checksum(told)}, indent=2).encode())


def _checksum(told: dict[str, Any]) -> int:
    plain = json.loads(json.dumps(told))  # keys that are numbers become strings, which sort otherwise
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def damaged_in(folder: Path) -> list[Path]:
    """Return the files of a folder of vectors and index that disagree with their checksums; reads all of them."""
    found = [path for path in sorted(folder.glob("*.safetensors")) if is_damaged(path)]
    for path in sorted(folder.glob("*.json")):
        try:
            crcs = json.loads(path.read_bytes()).get("crcs", {})
            found += [folder / name for name, crc in crcs.items() if crc_of(folder / name) != crc]
            read_manifest(path, "")
        except (KnowledgeBaseError, OSError, ValueError, AttributeError, TypeError):
            found.append(path)
    return found


def sweep_parts(folder: Path) -> None:
    """Delete what an interrupted encoding left, once there is nothing to go on with."""
    for left in folder.glob("*.part"):
        left.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Delete what no manifest of the folder names any more; who has it mapped keeps it."""
    named = "".join(path.read_text("utf-8") for path in folder.glob("*.json"))
    for path in folder.iterdir():
        if path.suffix in (".safetensors", ".faiss") and f'"{path.name}"' not in named:
            path.unlink(missing_ok=True)
