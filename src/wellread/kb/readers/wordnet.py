"""WordNet from its own files: a WNDB folder (data.noun, …, index.sense, noun.exc, …).

A synset is an entity: its id is offset and part of speech ("02084071-n"), its title the first word, its description the
gloss, its kind the part of speech (n, v, a, r; satellites are adjectives). Its words are its aliases. Pointers become
facts between synsets, also those between two words of them. The exception lists become forms.

The count of an alias is the sense count plus one (KnowBERT's prior), less a millionth for each sense that WordNet lists
before it, so that senses with equal counts stay in WordNet's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wellread.errors import InputError
from wellread.io.files import decode, read_lines
from wellread.kb.records import Entity, Form, Record, Tally

KINDS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}

LICENCE = "WordNet licence (Princeton University)"

RELATIONS = {
    "!": "antonym",
    "@": "hypernym",
    "@i": "instance hypernym",
    "~": "hyponym",
    "~i": "instance hyponym",
    "#m": "member holonym",
    "#s": "substance holonym",
    "#p": "part holonym",
    "%m": "member meronym",
    "%s": "substance meronym",
    "%p": "part meronym",
    "=": "attribute",
    "+": "derivationally related",
    ";c": "domain topic",
    "-c": "topic member",
    ";r": "domain region",
    "-r": "region member",
    ";u": "domain usage",
    "-u": "usage member",
    "*": "entailment",
    ">": "cause",
    "^": "also see",
    "$": "verb group",
    "&": "similar to",
    "<": "participle of",
    "\\": "pertains to",
}

_ORDER = 1e-6
"""Deduction from the count of a sense for each sense before it."""


def read_wordnet(folder: str | Path, tally: Tally) -> Iterator[Record]:
    """Yield synsets, then irregular forms; a folder that is not WNDB is an `InputError`."""
    folder = Path(folder)
    missing = [f"data.{part}" for part in KINDS if not (folder / f"data.{part}").is_file()]
    if missing:
        raise InputError(f"{folder} is not a WordNet database folder (WNDB): it has no {', '.join(missing)}")
    counts = _read_counts(folder, tally)
    for part in KINDS:
        yield from _read_synsets(folder, part, counts, tally)
    for part, kind in KINDS.items():
        if (folder / f"{part}.exc").is_file():
            yield from _read_forms(folder / f"{part}.exc", kind, tally)
        else:
            tally.skip(f"no {part}.exc: irregular forms are not known")


def read_nouns(folder: str | Path, tally: Tally) -> Iterator[Entity]:
    """Yield the synsets of nouns alone, all words with the same count."""
    return _read_synsets(Path(folder), "noun", {}, tally)


def _read_synsets(folder: Path, part: str, counts: dict[tuple[str, str], float], tally: Tally) -> Iterator[Entity]:
    for number, line in read_lines(folder / f"data.{part}", tally):
        if line.startswith(b"  "):
            continue  # the licence at the head of each file
        try:
            yield _synset(decode(line, f"data.{part}, line {number}"), KINDS[part], counts, tally)
        except (ValueError, IndexError, KeyError) as error:
            raise InputError(
                f"{folder / f'data.{part}'}, line {number}, is not a synset ({error!r}); fetch WordNet again with: "
                "wellread fetch wordnet"
            ) from error
        tally.read += 1


def _read_counts(folder: Path, tally: Tally) -> dict[tuple[str, str], float]:
    """Return (word, synset id) -> sense count + 1, in the order of senses."""
    if not (folder / "index.sense").is_file():
        tally.skip("no index.sense: all senses of a word get the same prior", str(folder))
        return {}
    counts = {}
    for number, line in read_lines(folder / "index.sense", tally):
        try:
            sense, offset, order, count = decode(line, f"index.sense, line {number}").split()
            word, _, code = sense.rpartition("%")
            kind = "nvara"[int(code[0]) - 1]
            counts[word, f"{offset}-{kind}"] = int(count) + 1 - _ORDER * (int(order) - 1)
        except (ValueError, IndexError) as error:
            raise InputError(
                f"{folder / 'index.sense'}, line {number}, is not a sense ({error}); fetch it again"
            ) from error
    return counts


def _synset(line: str, kind: str, counts: dict[tuple[str, str], float], tally: Tally) -> Entity:
    """Parse a line of a data file (wndb(5WN)): offset, file, type, words, pointers, | gloss."""
    data, _, gloss = line.partition(" | ")
    fields = data.split()
    id = f"{fields[0]}-{kind}"
    aliases: dict[str, float] = {}
    end = 4 + 2 * int(fields[3], 16)
    for word in fields[4:end:2]:
        word = word.partition("(")[0]  # an adjective's syntactic marker, "galore(ip)"
        name = word.replace("_", " ")
        if name in aliases:
            tally.skip("word repeated in its synset", f"{name} in {id}")
        aliases[name] = counts.get((word.lower(), id), 1.0)
    facts = []
    for place in range(end + 1, end + 1 + 4 * int(fields[end]), 4):
        symbol, offset, other = fields[place : place + 3]
        facts.append((RELATIONS[symbol], f"{offset}-{'a' if other == 's' else other}"))
    popularity = sum(count - 1 for count in map(round, aliases.values()))
    return Entity(id, next(iter(aliases)), gloss.strip(), kind, float(popularity), aliases, tuple(facts))


def _read_forms(path: Path, kind: str, tally: Tally) -> Iterator[Form]:
    for number, line in read_lines(path, tally):
        words = [word.replace("_", " ") for word in decode(line, f"{path.name}, line {number}").split()]
        for base in words[1:]:
            yield Form(words[0], base, kind)
