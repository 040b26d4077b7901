"""Unlabelled texts: a sample from text files, JSONL, Parquet, CSV and TSV, and folders of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from wellread.data.corpus import Unit
from wellread.data.text_shards import Inputs
from wellread.errors import InputError

_LONGEST = 20_000
"""Characters of a text that are read."""
_MOST_CHARS = 4_000_000
"""Characters of all texts of a sample: some minutes on two cores."""


class UnlabelledTexts:
    """Texts of files and folders; `files` says which, with their sizes and times."""

    def __init__(
        self, paths: Sequence[str | Path], *, field: str = "text", unit: Unit = "line", besides: str | Path
    ) -> None:
        self._inputs = Inputs.of_files(paths, field=field, unit=unit, besides=besides)
        self.skipped: list[str] = []
        """Messages about texts that could not be read and were skipped."""

    @property
    def files(self) -> list[list[str | int]]:
        """[name, size, time] of each file: other files are other texts."""
        return [list(file) for file in self._inputs.files]

    def __iter__(self) -> Iterator[str]:
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
