"""Estimated cost of six million entities, and of ten terabytes of text: `python -m benchmarks.scale`.

Nothing is measured here. A unit cost that was measured, with the words that tell it in docs/log.md (or docs/scale.md),
is multiplied by a size, and every row shows how. `--entities`, `--terabytes` and `--cores` take your own sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

ENTITIES = 6_000_000
"""About as many as English Wikipedia has articles."""
TERABYTES = 10.0
CORES = 1_000
MILLION = 1_000_000


@dataclass(frozen=True)
class Seen:
    """A figure that was measured, and words of a page in docs that tell it."""

    value: float
    words: str
    page: str = "log.md"


BUILD = Seen(103e-6, "90, 103 µs: 1.21 ×, 1.08 ×")
"""Seconds an entity with three names, at a million; the slower of two runs."""
DISK = Seen(1_166, "| on disk | 111 MB | 1,166 MB |")
PEAK = Seen(841e6, "| peak memory | 199 MB | 841 MB")
PEAK_SMALL = Seen(199e6, "| peak memory | 199 MB | 841 MB")
"""Peak memory with 100,000 entities."""
ADD = Seen(0.13, "linking one: 0.13 s")
INDEX = Seen(133e-6, "| building the index | 12 s | 133 s |")
INDEX_MEMORY = Seen(498, "50 and 498 MB, 7.3 and 16.3 ms")
SEARCH = Seen(16.3e-3, "50 and 498 MB, 7.3 and 16.3 ms")
"""Seconds for 80 queries."""
HALVES = Seen(768, "768 bytes an entity as float16", "scale.md")
ENCODE = Seen(24.4e-3, "1,004 of the vital articles in 24.5 s: 24.4 ms an entity", "scale.md")
"""Seconds of one core for an entity's title and description."""
LUKE = Seen(4.1e9, "500,000 entities take 4.1 GB at most")
LUKE_SMALL = Seen(1.6e9, "4,000 entities 1.6 GB and 4.2 s")
WORD = Seen(6.35, "6.35 bytes a word", "scale.md")
MATCH = Seen(1 / 12.8e6, "| wellread, longest, with word forms | **12.8**")
CANDIDATES = Seen(1 / 458e3, "WordNet 458,000 words a second from text to arrays")
COUNT = Seen(1.40e-6, "1.40 s of processor time a million words")
COUNT_TWO = Seen(0.94e6, "**0.94 M words a second, 3.3 GB of the 4 given")
"""Words a second, by the clock: two cores are busy 1.35 × on average."""
READ = Seen(2 / 3_128, "2,674, 3,104, 3,128 words a second")
"""Seconds of one core for a word of documents of 10,000 words, in floats: two cores were busy."""
INT8 = Seen(463 / 230, "230 questions a second in floats, 463-502 in int8")
"""How many times as fast as floats: the least."""
SENSES = Seen(2 / 4_212, "**4,212 and 4,521 words a second**")
OUTPUT = Seen(1.12, "54,254 bytes of text became 60,545 bytes of Parquet", "scale.md")
"""Bytes of Parquet that `wellread annotate` writes for a byte of text, text included."""


@dataclass(frozen=True)
class Row:
    """One cost: seconds (of one core, if there are several), or bytes."""

    what: str
    arithmetic: str
    value: float
    unit: str
    sure: str

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        return self.what, self.arithmetic, time(self.value) if self.unit == "s" else size(self.value), self.sure


def entity_rows(entities: int = ENTITIES) -> list[Row]:
    """Return the cost of a knowledge base with this number of entities."""
    times = entities / MILLION
    n = f"{entities:,}"
    build_more = (PEAK.value - PEAK_SMALL.value) / (MILLION - 100_000)
    luke_more = (LUKE.value - LUKE_SMALL.value) / (500_000 - 4_000)
    line, root = "in a line from 1 M", "guess: clusters grow with √n"
    return [
        Row("build the KB, three names an entity", f"{n} × 103 µs", entities * BUILD.value, "s", line),
        Row("… memory while building", f"199 MB + ({n} − 100,000) × {build_more:.0f} B",
            PEAK_SMALL.value + (entities - 100_000) * build_more, "B", "in a line through 100 k and 1 M"),
        Row("… KB and compiled names on disk", f"{n} × 1,166 B", entities * DISK.value, "B", line),
        Row("encode the entities, one core", f"{n} × {ENCODE.value * 1e3:.1f} ms", entities * ENCODE.value, "s",
            "in a line from 1,004 long ones"),
        Row("… their vectors on disk", f"{n} × 768 B", entities * HALVES.value, "B", "exact"),
        Row("make the index, if all grows in a line", f"{n} × 133 µs", entities * INDEX.value, "s", line),
        Row("… if clusters cost what they grow by", f"{n} × 133 µs × √{times:g}",
            entities * INDEX.value * sqrt(times), "s", root),
        Row("… its memory, shared by all processes", f"{n} × 498 B", entities * INDEX_MEMORY.value, "B", line),
        Row("search 80 mentions", f"16.3 ms × √{times:g}", SEARCH.value * sqrt(times), "s", root),
        Row("add 100 entities and link one", "0.13 s", ADD.value, "s", "seen at 1 M; not above"),
        Row("pretrain LUKE with a row for each", f"1.6 GB + ({n} − 4,000) × {luke_more:,.0f} B",
            LUKE_SMALL.value + (entities - 4_000) * luke_more, "B", "in a line through 4 k and 500 k"),
    ]  # fmt: skip


def text_rows(terabytes: float = TERABYTES) -> list[Row]:
    """Return the cost of this amount of text, in seconds of one core."""
    volume = terabytes * 1e12
    words = volume / WORD.value
    w = power(words)
    return [
        Row("words in it", f"{power(volume)} B / 6.35 B", words, "", "as in leads of Wikipedia"),
        Row("find all names (with word forms)", f"{power(volume)} B / 12.8 MB/s", volume * MATCH.value, "s",
            "seen on 2 MB, 148,730 names"),
        Row("… and their candidates, as arrays", f"{w} / 458,000 a second", words * CANDIDATES.value, "s",
            "seen with WordNet"),
        Row("count which words meet", f"{w} × 1.40 µs", words * COUNT.value, "s", "seen on 100 M words"),
        Row("link by reading, floats", f"{w} × 2 cores / 3,128 a second", words * READ.value, "s",
            "seen on 10,000 words"),
        Row("… in 8 bits", "the same × 230 / 463", words * READ.value / INT8.value, "s", "ratio seen on questions"),
        Row("tell word senses, without tags", f"{w} × 2 cores / 4,212 a second", words * SENSES.value, "s",
            "seen on 51,190 words"),
        Row("what `annotate` writes (Parquet)", f"{power(volume)} B × {OUTPUT.value:g}", volume * OUTPUT.value, "B",
            "seen on 100 leads"),
    ]  # fmt: skip


def day_rows() -> list[tuple[str, str, str]]:
    """Return the amount of work that two cores do in a day."""
    seconds = 2 * 86_400
    return [
        ("find names", "2 × 86,400 s × 12.8 MB/s", size(seconds / MATCH.value)),
        ("count words", "86,400 s × 0.94 M a second", f"{power(86_400 * COUNT_TWO.value)} words"),
        ("link by reading, floats", "86,400 s × 3,128 a second", f"{power(seconds / READ.value)} words"),
        ("… in 8 bits", "the same × 463 / 230", f"{power(seconds / READ.value * INT8.value)} words"),
        ("tell word senses", "86,400 s × 4,212 a second", f"{power(seconds / SENSES.value)} words"),
        ("encode entities", f"2 × 86,400 s / {ENCODE.value * 1e3:.1f} ms",
         f"{power(seconds / ENCODE.value)} entities"),
        ("build KBs, one core", "86,400 s / 103 µs", f"{power(86_400 / BUILD.value)} entities"),
    ]  # fmt: skip


def table(rows: Sequence[Row], cores: int | None = None) -> list[str]:
    """The rows in Markdown; with `cores`, also how long so many take if none waits for another."""
    head = ["what", "arithmetic", "is" if cores is None else "on one core", "how sure"]
    cells = [list(row.cells()) for row in rows]
    if cores is not None:
        head.insert(3, f"on {cores:,}")
        for row, line in zip(rows, cells, strict=True):
            line.insert(3, time(row.value / cores) if row.unit == "s" else "")
            line[2] = line[2] if row.unit else power(row.value)
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *cells)]


def day_table() -> list[str]:
    """Return the rows of `day_rows` as a Markdown table."""
    head = [("two cores, a day", "arithmetic", "is"), ("---",) * 3]
    return [f"| {' | '.join(line)} |" for line in (*head, *day_rows())]


def time(seconds: float) -> str:
    """540 -> "9 min"; 3e8 -> "9.5 years"."""
    for unit, length in (("years", 31_557_600), ("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return f"{_digits(seconds / length)} {unit}"
    return f"{_digits(seconds * 1e3)} ms"


def size(count: float) -> str:
    """7e9 -> "7 GB"."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= length:
            return f"{_digits(count / length)} {unit}"
    return f"{count:,.0f} B"


def power(number: float) -> str:
    """1.57e12 -> "1.57 × 10¹²"."""
    exponent = int(f"{number:.2e}".partition("e")[2])
    return f"{number / 10**exponent:.3g} × 10{str(exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entities", type=int, default=ENTITIES)
    parser.add_argument("--terabytes", type=float, default=TERABYTES)
    parser.add_argument("--cores", type=int, default=CORES)
    options = parser.parse_args(given)
    parts = table(entity_rows(options.entities)), table(text_rows(options.terabytes), options.cores), day_table()
    print("\n\n".join("\n".join(lines) for lines in parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
