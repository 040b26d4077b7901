"""Folder of a KB's vectors and index: manifests, lock, and deletion of unused files.

A manifest (JSON) names the files of a state and is written last; a file never changes once a manifest names it.
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
"""Key of a manifest's own CRC-32, computed over all its other keys."""


def vectors_folder(kb: KnowledgeBase, folder: str | Path | None = None) -> Path:
    """Return the folder of a KB's vectors: the given one, or `my.kb.vectors`."""
    return Path(folder) if folder is not None else Path(f"{kb.path}.vectors")


def build_command(kb: str | Path) -> str:
    """Return the command that builds the vectors and the index of a KB again."""
    return f"wellread index build --kb {kb}"


@contextmanager
def locked(folder: Path, kb: str | Path) -> Iterator[None]:
    """Lock a folder for writing; raise KnowledgeBaseError if another process does not release it in time."""
    refusal = KnowledgeBaseError(
        f"another process is writing to {folder}; wait for it, or choose another folder: {build_command(kb)} --to "
        "FOLDER"
    )
    with only_writer(folder, refusal, patience=PATIENCE):
        yield


def read_manifest(path: Path, format: str) -> dict[str, Any] | None:
    """Return a manifest; None if there is none, or one of another format."""
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise KnowledgeBaseError(f"{path} is damaged ({error}); delete {path.parent} and build it again") from error
    if isinstance(manifest, dict) and manifest.pop(_CHECKSUM, None) not in (None, _checksum(manifest)):
        raise KnowledgeBaseError(f"{path} is damaged (its checksum is wrong); delete {path.parent} and build it again")
    return manifest if isinstance(manifest, dict) and manifest.get("format") == format else None


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest atomically; the files that it names are then the state of the folder."""
    with write_atomically(path) as file:
        file.write(json.dumps({**manifest, _CHECKSUM: _checksum(manifest)}, indent=2).encode())


def _checksum(manifest: dict[str, Any]) -> int:
    plain = json.loads(json.dumps(manifest))  # keys that are numbers become strings, which sort otherwise
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


def delete_parts(folder: Path) -> None:
    """Delete the files of an interrupted build."""
    for left in folder.glob("*.part"):
        left.unlink(missing_ok=True)


def delete_unused(folder: Path) -> None:
    """Delete files that no manifest of the folder names; processes that have them mapped can still use them."""
    named = "".join(path.read_text("utf-8") for path in folder.glob("*.json"))
    for path in folder.iterdir():
        if path.suffix in (".safetensors", ".faiss") and f'"{path.name}"' not in named:
            path.unlink(missing_ok=True)
