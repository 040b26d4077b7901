"""Priors of names from a file of mentions with linked entities and counts, as KnowBERT's Wikipedia candidates.

`prob_yago_crosswikis_wikipedia_p_e_m.txt` (Ganea and Hofmann 2017; allenai/kb) has one mention per line: its text, its
count, and its candidates as page number, share and title, separated by tabs:

    France	412377	5843419,0.85009,France	250197,0.03393,France_national_football_team

Every title becomes an entity whose id is the title as written there, as in KnowBERT's archives; a share of a mention's
count becomes the count of an alias. Popularity is the count of the first name of an entity; files have their most
frequent mentions first.

Unlike the authors' code: spellings of a name that differ in case share their candidates, and a mention with two lines
has the candidates of both (in the authors' code: of the more frequent line, and of the more frequent one of the
spelling in the text and the same in title case). Looked up with `case="exact"`, a name has the candidates of its line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from wellread.errors import InputError
from wellread.io.files import decode, read_lines
from wellread.kb.records import Alias, Entity, Record, Tally

_PATIENCE = 100
"""Broken lines without a valid one after which the file is rejected."""


_MOST_PAGES = 1 << 32
"""Upper bound of page numbers: Wikipedia's have eight digits."""


class _Numbers:
    """Set of page numbers, one bit each: files have millions of entities."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> bool:
        """Add a number; return False if it was there already."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1 - len(self._bits), len(self._bits))))
        new = not self._bits[place] & bit
        self._bits[place] |= bit
        return new


def read_priors(
    path: str | Path, tally: Tally, *, candidates: int = 30, among: Collection[str] | None = None
) -> Iterator[Record]:
    """Yield the entities and aliases of a file of priors, plain, gz, bz2 or xz.

    `among` restricts the entities to these ids; each mention keeps the `candidates` likeliest of them.
    """
    seen = _Numbers()
    known = broken = 0
    for number, line in read_lines(path, tally):
        if not line.strip():
            continue
        try:
            mention, found = _read_line(decode(line, f"{path}, line {number}"), candidates, among)
        except (InputError, ValueError):
            broken += 1
            tally.skip("broken line", f"line {number}")
            if not known and broken == _PATIENCE:
                break
            continue
        known += 1
        tally.read += 1
        if not found:
            tally.skip("mention without an entity that is asked for", f"line {number}")
        for page, title, count in found:
            if seen.add(page):
                yield Entity(title, title.replace("_", " "), popularity=float(round(count)))
            yield Alias(mention, title, count)
    if not known:
        raise InputError(
            f"{path} is not a file of priors: expected lines of a mention, its count, and candidates as number,share,"
            "title, with tabs between them"
        )


def _read_line(line: str, most: int, among: Collection[str] | None) -> tuple[str, list[tuple[int, str, float]]]:
    """The mention of a line and its candidates as page number, title and count; a `ValueError` if it is broken."""
    mention, total, *parts = line.rstrip("\r\n").rstrip("\t").split("\t")
    found: list[tuple[int, str, float]] = []
    for part in parts:
        page, share, title = (one.strip() for one in part.split(",", 2))
        if not 0 <= int(page) < _MOST_PAGES or not title:
            raise ValueError(part)
        if len(found) < most and (among is None or title in among):
            found.append((int(page), title, int(total) * float(share)))
    if not parts or not mention.strip():
        raise ValueError(line)
    return mention, found


def read_ids(path: str | Path) -> frozenset[str]:
    """Read ids of entities, one per line, as in KnowBERT's archives (`vocabulary/entity.txt`)."""
    ids = (decode(line, f"{path}, line {number}").strip() for number, line in read_lines(path))
    return frozenset(filter(None, ids))
