"""Linking of gold spans, with NIL and without: `python -m benchmarks.given [MODEL ...]`.

The spans are those of the gold mentions (`linkingsets`), so that only the choice of the entity is measured:

- `in KB`: share of the mentions whose entity the KB has that are linked to it.
- `NIL`: share of the mentions whose entity the KB does not have that are NIL; none are with `never`.
- `F1`: of links by exact spans, with mentions of what the KB does not have as further spans: a link there is wrong.

`model` leaves NIL to the model, `never` takes the best candidate wherever there is one (`--never-nil`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from benchmarks.linkingsets import KBS, choose_sets, missing
from wellread.assets import home
from wellread.document import Document
from wellread.kb.packaged import open_kb
from wellread.linking.given_spans import GivenNil
from wellread.linking.linker import Linker

SETS = ("webqsp", "simplequestions", "gerdaq_devel", "conel22_val", "oke", "products_dev")
COLUMNS = ("set", "model", "NIL by", "mentions in KB", "not in KB", "in KB", "NIL", "F1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure models on given spans and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.given", description=main.__doc__)
    parser.add_argument("models", nargs="*", default=["elq"], help='"elq", "prior" or the folder of a linker')
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="sets of benchmarks.linkingsets")
    parser.add_argument("--limit", type=int, help="documents of each set at most")
    parser.add_argument("--folder", type=Path, default=home() / "bench", help="where knowledge bases are kept")
    options = parser.parse_args(arguments)
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for row in measure(options.models, options.sets, options.limit, options.folder):
        print("| " + " | ".join(row) + " |", flush=True)
    return 0


def measure(models: Sequence[str], names: Sequence[str], limit: int | None, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each set, model and rule of NIL."""
    sets = choose_sets(names)
    if (absent := missing(sets)) is not None:
        print(f"given: {absent}", file=sys.stderr)
    sets = [one for one in sets if one.is_here]
    for kb_name in dict.fromkeys(one.kb for one in sets):
        with open_kb(KBS[kb_name](folder)) as kb:
            linkers = {model: Linker.load(kb, model) for model in models}
            for chosen in (one for one in sets if one.kb == kb_name):
                gold = chosen.documents(limit)
                for model, linker in linkers.items():
                    for nil in get_args(GivenNil):
                        yield (chosen.name, model, nil, *_figures(linker, gold, nil))


def _figures(linker: Linker, gold: Sequence[Document], nil: GivenNil) -> tuple[str, ...]:
    known = linker.kb.__contains__
    spans = [[(link.start, link.end) for link in document.links] for document in gold]
    inside = outside = right = quiet = linked = 0
    for document, found in zip(gold, linker.link_given([one.text for one in gold], spans, nil=nil), strict=True):
        entity = {(link.start, link.end): link.entity for link in found.links}
        linked += sum(link.entity is not None for link in found.links)
        for link in document.links:
            chosen = entity[link.start, link.end]
            if link.entity is not None and known(link.entity):
                inside += 1
                right += chosen == link.entity
            else:
                outside += 1
                quiet += chosen is None
    f1 = 2 * right / max(inside + linked, 1)
    shares = (f"{right / inside:.3f}" if inside else "–", f"{quiet / outside:.3f}" if outside else "–", f"{f1:.3f}")
    return (f"{inside:,}", f"{outside:,}", *shares)


if __name__ == "__main__":
    sys.exit(main())
