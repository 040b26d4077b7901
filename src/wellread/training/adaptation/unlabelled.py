"""Unlabelled texts: a sample from text files, JSONL, Parquet, CSV and TSV, and folders of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from wellread.data.corpus import Unit, suffix_of
from wellread.data.text_shards import Inputs
from wellread.errors import InputError
from wellread.io.files import BROKEN, csv_fault, open_bytes

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LONGEST = 20_000
"""Characters of a text that are read."""
_MOST_CHARS = 4_000_000
"""Characters of all texts of a sample: some minutes on two cores."""


class UnlabelledTexts:
    """Texts of files and folders; `files` says which, with their sizes and times."""

    def __init__(
        self, paths: Sequence[str | Path], *, field: str = "text", unit: Unit = "line", besides: str | Path
    ) -> None:
        self.field = field
        apart = Path(besides).resolve()
        self._tables, others = _tables(paths)
        self._tables = [path for path in self._tables if apart not in path.resolve().parents]
        self._inputs = None
        if others or not self._tables:
            self._inputs = Inputs.of_files(others, field=field, unit=unit, besides=besides)
        self.skipped: list[str] = []
        """Messages about texts that could not be read and were skipped."""

    @property
    def files(self) -> list[list[str | int]]:
        """[name, size, time] of each file: other files are other texts."""
        found: list[list[str | int]] = []
        for path in self._tables:
            info = path.stat()
            found.append([str(path), info.st_size, info.st_mtime_ns])
        return found + ([list(file) for file in self._inputs.files] if self._inputs else [])

    def __iter__(self) -> Iterator[str]:
        for path in self._tables:
            yield from _cells(path, self.field)
        if self._inputs is not None:
            for shard in range(len(self._inputs.shards)):
                for _, text in self._inputs.texts(shard, self.skipped):
                    yield text

    def sample(self, most: int, seed: int = 0) -> list[str]:
        """Return a random sample of at most `most` distinct texts, in order; long texts are truncated."""
        rng = Random(seed)  # noqa: S311
        kept: list[tuple[int, str]] = []
        seen: set[int] = set()
        for text in self:
            text = text.strip()[:_LONGEST]
            if not text or hash(text) in seen:
                continue
            number = len(seen)
            seen.add(hash(text))
            if len(kept) < most:
                kept.append((number, text))
            elif (place := rng.randrange(number + 1)) < most:
                kept[place] = (number, text)
        if not kept:
            reason = f"; the first that was skipped: {self.skipped[0]}" if self.skipped else ""
            raise InputError(f"no text in the files of --texts{reason}; give files with text")
        rng.shuffle(kept)
        total, few = 0, list[tuple[int, str]]()
        for number, text in kept:
            total += len(text)
            if few and total > _MOST_CHARS:
                break
            few.append((number, text))
        return [text for _, text in sorted(few)]


def _tables(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Return the CSV and TSV files, and the paths with other files."""
    tables: list[Path] = []
    others: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            (tables if suffix_of(path) in _DELIMITERS and path.is_file() else others).append(path)
            continue
        inside = [file for file in sorted(path.rglob("*")) if suffix_of(file) in _DELIMITERS and file.is_file()]
        inside = [file for file in inside if not file.name.startswith((".", "_"))]
        tables += inside
        if not inside or _has_others(path):
            others.append(path)
    return tables, others


def _has_others(folder: Path) -> bool:
    try:
        Inputs.of_files([folder])
    except InputError:
        return False
    return True


def _cells(path: Path, field: str) -> Iterator[str]:
    limit = csv.field_size_limit(1 << 27)
    try:
        with open_bytes(path) as below, io.TextIOWrapper(below, "utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter=_DELIMITERS[suffix_of(path)], strict=True)
            if field not in (rows.fieldnames or ()):
                has = ", ".join(rows.fieldnames or ()) or "none"
                raise InputError(f"{path} has no column {field} (its columns: {has}); name the texts' with --field")
            for row in rows:
                yield row[field] or ""
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; convert it: iconv -f latin1 -t utf-8 OLD > NEW") from None
    except (csv.Error, *BROKEN) as error:
        raise InputError(
            f"{path} cannot be read as a table ({csv_fault(error)}); repair it or copy it again"
        ) from error
    finally:
        csv.field_size_limit(limit)
