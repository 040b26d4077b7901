"""UMLS Metathesaurus in Rich Release Format: a folder with MRCONSO.RRF, and MRDEF, MRSTY and MRREL if they are there.

A concept (CUI) is an entity: its preferred name in the language is the title, its first definition the description,
its first semantic type the kind. A name counts once for each atom that has it; popularity is the number of source
vocabularies. Codes of the vocabularies ("SNOMEDCT_US:22298006") are cross-references. A row of MRREL is a fact in the
direction of the release: the second concept has the relation (RELA, else REL) to the first; of a parent and child, or
broader and narrower, only the latter is kept, since facts are found from both ends.

The files are read side by side, in the order of CUIs that a release has, with one concept in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from wellread.errors import InputError, UsageError
from wellread.io.files import decode, read_lines
from wellread.kb.records import XREF, Entity, Fact, OtherId, Record, Tally

LANGUAGES = dict(
    pair.split("=")
    for pair in """ar=ARA cs=CZE da=DAN de=GER el=GRE en=ENG es=SPA et=EST eu=BAQ fi=FIN fr=FRE he=HEB hr=SCR hu=HUN
    it=ITA ja=JPN ko=KOR lv=LAV nl=DUT no=NOR pl=POL pt=POR ru=RUS sv=SWE tr=TUR uk=UKR zh=CHI""".split()
)
"""Language code -> code in MRCONSO's column LAT."""

_CONSO = "CUI LAT TS LUI STT SUI ISPREF AUI SAUI SCUI SDUI SAB TTY CODE STR SRL SUPPRESS CVF"
_DEF = "CUI AUI ATUI SATUI SAB DEF SUPPRESS CVF"
_STY = "CUI TUI STN STY ATUI CVF"
_REL = "CUI1 AUI1 STYPE1 REL CUI2 AUI2 STYPE2 RELA RUI SRUI SAB SL RG DIR SUPPRESS CVF"
_SUFFIXES = ("", ".gz", ".bz2", ".xz", ".zst")
_INVERSE = ("PAR", "RB")
"""Relations whose inverse is in the file too."""
_SAME = ("SY", "RL")
"""Relations between names of one concept."""
_NO_CODE = "NOCODE"

Row = dict[str, str]


class _Filter(NamedTuple):
    """Rows to take: of some vocabularies, and not suppressed."""

    sources: Collection[str]
    suppressed: bool

    def takes(self, row: Row) -> bool:
        return (not self.sources or row["SAB"] in self.sources) and (self.suppressed or row["SUPPRESS"] in ("N", ""))


def read_umls(
    folder: str | Path,
    tally: Tally,
    *,
    language: str = "en",
    sources: Collection[str] = (),
    suppressed: bool = False,
) -> Iterator[Record]:
    """Yield the concepts with a name in the language, then the facts between them.

    `sources` takes names, definitions and relations of these vocabularies only (SAB, e.g. "SNOMEDCT_US"); with
    `suppressed`, also names that are marked as suppressible or obsolete.
    """
    files = {name: _find(Path(folder), name) for name in ("MRCONSO", "MRDEF", "MRSTY", "MRREL")}
    if files["MRCONSO"] is None:
        raise InputError(f"{folder} has no MRCONSO.RRF; give the folder META of a UMLS release or subset")
    code = LANGUAGES.get(language.lower(), language.upper())
    wanted = _Filter(frozenset(sources), suppressed)
    definitions = _Groups(_rows(files["MRDEF"], _DEF, tally))
    types = _Groups(_rows(files["MRSTY"], _STY, tally))
    concepts = 0
    for cui, atoms in _by_concept(_rows(files["MRCONSO"], _CONSO, tally)):
        own = _names(atoms, code, wanted, tally)
        if not own:
            continue
        concepts += 1
        tally.read += 1
        yield _concept(cui, own, [row for row in definitions.at(cui) if wanted.takes(row)], types.at(cui))
        for code_of in sorted({f"{atom['SAB']}:{atom['CODE']}" for atom in own if atom["CODE"] != _NO_CODE}):
            yield OtherId(code_of, cui, XREF)
    if not concepts:
        known = f"of {', '.join(sorted(sources))} " if sources else ""
        raise InputError(
            f"{files['MRCONSO']} has no name {known}in {language} (LAT {code}); check --language and --sab"
        )
    for row in _rows(files["MRREL"], _REL, tally):
        if reason := _no_fact(row, wanted):
            tally.skip(reason)
        else:
            yield Fact(row["CUI2"], row["RELA"] or row["REL"], row["CUI1"])


def _find(folder: Path, name: str) -> Path | None:
    """Return the file of a table, plain or compressed, in a folder or its META."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the folder META of a UMLS release, which has MRCONSO.RRF")
    places = (place / f"{name}.RRF{suffix}" for place in (folder, folder / "META") for suffix in _SUFFIXES)
    return next((place for place in places if place.is_file()), None)


def _rows(path: Path | None, columns: str, tally: Tally) -> Iterator[Row]:
    """Yield the rows of a table by the names of their columns; every field ends with "|"."""
    names = columns.split()
    for number, line in read_lines(path, tally) if path is not None else ():
        if not line:
            continue
        fields = decode(line, f"{path}, line {number}").split("|")
        if len(fields) not in (len(names), len(names) + 1):
            raise InputError(
                f"{path}, line {number}: {len(fields) - 1} fields, expected {len(names)} ({columns.replace(' ', '|')}|)"
            )
        yield dict(zip(names, fields, strict=False))


def _by_concept(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each concept; CUIs must be in order."""
    last = ""
    for cui, group in groupby(rows, key=lambda row: row["CUI"]):
        if cui <= last:
            raise InputError(
                f"the UMLS tables are not in the order of CUIs ({cui} after {last}); sort them: LC_ALL=C sort"
            )
        last = cui
        yield cui, list(group)


class _Groups:
    """Rows by concept of a table in the order of CUIs, asked for in that order."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._groups = _by_concept(rows)
        self._next = next(self._groups, None)

    def at(self, cui: str) -> list[Row]:
        while self._next is not None and self._next[0] < cui:
            self._next = next(self._groups, None)
        return self._next[1] if self._next is not None and self._next[0] == cui else []


def _names(atoms: list[Row], code: str, wanted: _Filter, tally: Tally) -> list[Row]:
    """Return the atoms that are taken, the preferred one first."""
    spoken = [atom for atom in atoms if atom["LAT"] == code and atom["STR"].strip()]
    found = [atom for atom in spoken if wanted.takes(atom)]
    for reason, count in (
        ("name in another language", len(atoms) - len(spoken)),
        ("suppressed name, or of another source", len(spoken) - len(found)),
    ):
        if count:
            tally.skip(reason, count=count)
    best: Callable[[Row], Any] = lambda atom: (atom["TS"] != "P", atom["STT"] != "PF", atom["ISPREF"] != "Y")  # noqa: E731
    return sorted(found, key=best)


def _concept(cui: str, atoms: list[Row], definitions: list[Row], types: list[Row]) -> Entity:
    names = Counter(" ".join(atom["STR"].split()) for atom in atoms)
    title = " ".join(atoms[0]["STR"].split())
    names[title] += 1
    return Entity(
        id=cui,
        title=title,
        description=" ".join(definitions[0]["DEF"].split()) if definitions else "",
        kind=types[0]["STY"] if types else "",
        popularity=float(len({atom["SAB"] for atom in atoms})),
        aliases={name: float(count) for name, count in names.items()},
    )


def _no_fact(row: Row, wanted: _Filter) -> str:
    """Return why a row of MRREL is not a fact, or ""."""
    if not wanted.takes(row):
        return "suppressed relation, or of another source"
    if row["CUI1"] == row["CUI2"] or row["REL"] in _SAME:
        return "relation of a concept to itself or its synonym"
    if row["REL"] in _INVERSE:
        return "inverse of another relation"
    return ""
