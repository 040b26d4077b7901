"""Ranges of activations: the least and greatest value of each channel that goes into a projection, over some texts.

They are measured once, when a linker is trained or packaged, with the graph in floats, and kept in a small file of the
safetensors layout beside the model (`ranges.safetensors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wellread.errors import InputError
from wellread.io.arrays import map_arrays, map_with_metadata, save_arrays
from wellread.runtime.folding import MEASURED, Range, Ranges
from wellread.runtime.session import EncoderSession
from wellread.runtime.weights import EncoderWeights

FILE = "ranges.safetensors"
_FORMAT = "wellread ranges 1"
_ENDS = ("low", "high")
_RANDOM = 24
"""Random windows that stand in for a sample of texts."""


def measure_ranges(encoder: EncoderWeights, windows: Sequence[NDArray[np.int64]], threads: int | None = None) -> Ranges:
    """Return the ranges of an encoder's activations over windows of token ids like those to come."""
    from wellread.runtime.graph import range_name, write_graph  # here: reading ranges needs no onnx

    windows = [window for window in windows if len(window)]
    if not windows:
        windows = random_windows(encoder)
    session = EncoderSession(write_graph(encoder, measure=True), encoder.words, threads=threads)
    names = [
        range_name(number, part, end) for number in range(len(encoder.layers)) for part in MEASURED for end in _ENDS
    ]
    ends: dict[str, NDArray[np.float32]] = {}
    for _, made in session.outputs(windows, names):
        for name, values in zip(names, made, strict=True):
            join = np.minimum if name.endswith("low") else np.maximum
            ends[name] = join(ends[name], values) if name in ends else values
    return tuple(
        {part: Range(*(ends[range_name(number, part, end)] for end in _ENDS)) for part in MEASURED}
        for number in range(len(encoder.layers))
    )


def random_windows(encoder: EncoderWeights) -> list[NDArray[np.int64]]:
    """Return windows of random tokens, the same each time: they give nearly the ranges of real ones."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, min(64, len(encoder.positions)) + 1, _RANDOM)
    return [draw.integers(0, len(encoder.words), length) for length in lengths.tolist()]


def save_ranges(ranges: Ranges, file: Path, *, weights: str = "") -> None:
    """Write ranges; the file appears whole or not at all.

    `weights` is the digest of the file with the weights that they were measured with (`cache.digest_of_file`).
    """
    arrays = {
        f"{number}.{part}.{end}": getattr(measured[part], end)
        for number, measured in enumerate(ranges)
        for part in MEASURED
        for end in _ENDS
    }
    save_arrays(file, arrays, {"format": _FORMAT, "weights": weights})


def has_ranges(file: Path, weights: str) -> bool:
    """Return True if there is a file of ranges, and it does not say that it was measured with other weights."""
    if not file.exists():
        return False
    try:
        return map_with_metadata(file)[1].get("weights", "") in ("", weights)
    except (OSError, ValueError, KeyError):
        return True  # `load_ranges` raises the error


def load_ranges(file: Path, encoder: EncoderWeights) -> Ranges:
    """Read the ranges of an encoder; a file that is damaged or of another encoder is refused."""
    try:
        arrays = map_arrays(file)
        ranges = tuple(
            {part: Range(*(np.array(arrays.pop(f"{number}.{part}.{end}")) for end in _ENDS)) for part in MEASURED}
            for number in range(len(encoder.layers))
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} does not hold the ranges of its encoder ({error}); delete it, so that they are measured again"
        ) from error
    widths = {part: getattr(encoder.layers[0], part).weight.shape[1] for part in MEASURED}
    fits = all(
        end.shape == (widths[part],) and bool(np.isfinite(end).all())
        for measured in ranges
        for part, one in measured.items()
        for end in (one.low, one.high)
    )
    if arrays or not fits:
        raise InputError(f"{file} holds the ranges of another encoder; delete it, so that they are measured again")
    return ranges
