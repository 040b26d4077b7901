"""Selection of the entities below others in a hierarchy of classes or concepts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from wellread.errors import InputError


def descendants(parents: Mapping[str, Iterable[str]], roots: Collection[str], where: str) -> set[str]:
    """Return what is below the roots, without these; a root that is not there is an error that names the file."""
    children: defaultdict[str, list[str]] = defaultdict(list)
    for child, above in parents.items():
        for parent in above:
            children[parent].append(child)
    if absent := [root for root in roots if root not in parents and root not in children]:
        raise InputError(f"{where} has no {', '.join(absent)} to be below of; give ids as in the file")
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found - set(roots)
