"""Sessions of onnxruntime over windows of tokens of any length.

Windows are sorted by length and sent as runs of equal length: nothing is padded, so that a window's states do not
depend on the other windows, and they come out in the order in which the windows came in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from wellread.io.cores import granted_threads
from wellread.runtime.weights import Floats

WORDS, STATES = "words", "states"
"""Input and output of an encoder's graph."""
_TOKENS = 512
"""Tokens of one run and thread: more would not stay in a core's cache."""

Ids = NDArray[np.int64]
_INHERITED: list[object] = []
"""Sessions of a parent process: destroying one in a child would wait for threads that the child does not have."""


def open_session(graph: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Return a session on the CPU whose threads sleep while they wait.

    The graph runs as it is written: its operators are fused already, so that optimising would only cost time, and
    SkipLayerNormalization, which onnxruntime makes of Add and LayerNormalization, takes four times as long as they do.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it would keep a plan for every shape that it meets
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class EncoderSession:
    """Runs the graph of an encoder; threads may share it.

    The session of onnxruntime is opened when first used, and again in a forked process: threads do not survive a fork.
    """

    def __init__(self, graph: bytes, words: NDArray[Any], *, threads: int | None = None) -> None:
        self._graph, self._words, self._threads = graph, words, threads
        self._opened: tuple[int, int, onnxruntime.InferenceSession] | None = None

    def _open(self) -> tuple[int, onnxruntime.InferenceSession]:
        """Return the number of threads and the session of this process."""
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            if opened is not None:
                _INHERITED.append(opened)
            threads = self._threads or granted_threads()
            opened = self._opened = os.getpid(), threads, open_session(self._graph, threads)
        return opened[1:]

    @property
    def threads(self) -> int:
        """Number of threads of the session."""
        return self._open()[0]

    @cached_property
    def dim(self) -> int:
        """Size of a state."""
        return int(self._open()[1].get_outputs()[0].shape[-1])

    def states(self, windows: Sequence[Ids]) -> Floats:
        """Return the states (token, dim) of all windows' tokens, end to end in the order given."""
        lengths = _lengths(windows)
        starts = np.cumsum(lengths) - lengths
        packed = np.empty((int(lengths.sum()), self.dim), np.float32)
        for rows, (states,) in self.outputs(windows, [STATES]):
            flat, begin, last = states.reshape(-1, self.dim), int(starts[rows[0]]), int(starts[rows[-1]])
            if last - begin == (len(rows) - 1) * states.shape[1]:  # neighbours: one copy
                packed[begin : begin + len(flat)] = flat
            else:
                packed[(starts[rows][:, None] + np.arange(states.shape[1])).ravel()] = flat
        return packed

    def pooled(
        self, windows: Sequence[Ids], pooling: Literal["mean", "cls"] = "mean", *, normalise: bool = True
    ) -> Floats:
        """Return one vector per window: the mean of its states or its first one, of length 1 if normalised."""
        vectors = np.zeros((len(windows), self.dim), np.float32)
        for rows, (states,) in self.outputs(windows, [STATES]):
            vectors[rows] = states.mean(1) if pooling == "mean" else states[:, 0]
        return normalised(vectors) if normalise else vectors

    def outputs(self, windows: Sequence[Ids], names: Sequence[str]) -> Iterator[tuple[Ids, list[NDArray[Any]]]]:
        """Yield the numbers of equally long windows, and the named outputs of the graph for them."""
        threads, session = self._open()
        for rows in equal_runs(_lengths(windows), _TOKENS * threads):
            ids = np.stack([windows[row] for row in rows.tolist()])
            words = self._words[ids].astype(np.float32, copy=False)
            yield rows, session.run(names, {WORDS: words})


def equal_runs(lengths: Ids, most: int) -> Iterator[Ids]:
    """Yield the numbers of windows of one length, shortest first, as many as have `most` tokens together.

    >>> [run.tolist() for run in equal_runs(np.array([3, 2, 0, 3, 3]), 6)]
    [[1], [0, 3], [4]]
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    borders = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
    for begin, end in pairwise(borders):
        if begin == end or not ordered[begin]:
            continue
        size = max(1, most // int(ordered[begin]))
        for first in range(begin, end, size):
            yield order[first : min(first + size, end)]


def normalised(vectors: Floats) -> Floats:
    """Return vectors of length 1 in the same directions; zeros stay."""
    lengths: Floats = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.float32(1e-12)))


def _lengths(windows: Sequence[Ids]) -> Ids:
    return np.array([len(window) for window in windows], np.int64)
