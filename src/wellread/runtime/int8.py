"""Int8 graphs of encoders with trained weights: from the cache, or built with shipped or newly measured ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wellread.runtime.cache import cached_graph, digest_of_file, digest_of_parts
from wellread.runtime.folding import fold
from wellread.runtime.ranges import FILE, has_ranges, load_ranges, measure_ranges
from wellread.runtime.weights import EncoderWeights

Sample = Callable[[], Sequence[NDArray[np.int64]]]
"""Returns windows of token ids on which activation ranges are measured."""


def int8_graph(
    weights_file: Path,
    read: Callable[[], EncoderWeights],
    *,
    parts: Sequence[object],
    layers: int = 1,
    sample: Sample | None = None,
    cache: Path | None = None,
    threads: int | None = None,
) -> bytes:
    """Return the int8 graph of an encoder; its states are the mean of the last `layers`.

    `weights_file` has the trained weights. Ranges are those in the file beside it, else those measured on the sample.
    `parts` are digests and settings of all else that the encoder, as returned by `read`, is made from.
    """
    ranges_file, weights_digest = weights_file.with_name(FILE), digest_of_file(weights_file)
    has = has_ranges(ranges_file, weights_digest)
    windows = [] if has or sample is None else list(sample())

    def build() -> bytes:
        from wellread.runtime.graph import write_int8_graph  # a cached graph does not need onnx

        encoder = read()
        ranges = load_ranges(ranges_file, encoder) if has else measure_ranges(encoder, windows, threads)
        return write_int8_graph(fold(encoder, ranges), layers=layers)

    measured = digest_of_file(ranges_file) if has else [window.tolist() for window in windows]
    return cached_graph(cache, digest_of_parts(*parts, layers, weights_digest, measured), build)
