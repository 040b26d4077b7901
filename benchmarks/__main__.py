"""All benchmarks, one after the other: `python -m benchmarks [--quick] [--folder FOLDER]`."""

from __future__ import annotations

import sys

from benchmarks import (
    accuracy,
    building,
    candidates,
    counting,
    encoding,
    faults,
    graph,
    indexing,
    infusion,
    kar,
    linking,
    luke,
    mapping,
    maps,
    matching,
    opening,
    pretraining,
    reading,
    senses,
    serving,
)


def main() -> int:
    """The first exit code that is not 0, else 0."""
    rooms = (matching, opening, building, indexing, encoding, reading, senses, linking, mapping, accuracy)
    more = (counting, maps, infusion, candidates, kar, luke, pretraining, graph, serving, faults)
    codes = [benchmark.main(sys.argv[1:]) for benchmark in (*rooms, *more)]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
