"""Data of the benchmarks: English text, WordNet, the shared knowledge base, and generated ones of any size.

`../shared/data` (or the folder `WELLREAD_SHARED_DATA`) is used where it is there; nothing here needs it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from wellread.kb.build import Origin, build
from wellread.kb.packaged import build_packaged, kb_path
from wellread.kb.records import Entity, Record, Tally
from wellread.kb.store import KnowledgeBase
from wellread.mentions.matcher import Matcher, names_path
from wellread.text import words as names

DATA = Path(os.environ.get("WELLREAD_SHARED_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
SHARED = DATA / "linking"
PRODUCTS = Path(__file__).parent / "products"

_SYLLABLES = [first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in ("", "n", "r", "l")]


def wordnet_kb() -> Path:
    """The KB `wordnet` in wellread's home, built if need be."""
    path = kb_path("wordnet")
    if not path.exists():
        build_packaged("wordnet", tally=Tally())
    return path


def english(size: int, kb: Path) -> tuple[str, list[str]]:
    """Where the text is from, and its paragraphs: Wikipedia for Schools, else what a KB says of its entities."""
    path = SHARED / "text_schools2007.jsonl.xz"
    if path.exists():
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            source, texts = path.name, [json.loads(line)["text"] for line in lines]
    else:
        with KnowledgeBase.open(kb) as opened:
            rows = opened.connection.execute("SELECT description FROM entities")
            source, texts = f"descriptions of {kb.name}", [row[0] for row in rows]
    random.Random(1).shuffle(texts)
    total, count = 0, 0
    while total < size and count < len(texts):
        total += len(texts[count].encode()) + 1
        count += 1
    return source, texts[:count]


def entities(count: int, seed: int = 1) -> Iterator[Entity]:
    """Entities with three names each; one of the three is shared by about four entities, as last names are."""
    chance = random.Random(seed)
    pool = ["".join(chance.choices(_SYLLABLES, k=3)).capitalize() for _ in range(max(100, count // 4))]
    pick = chance.random
    size = len(pool)
    for place in range(count):
        first, middle, last = pool[int(pick() * size)], pool[int(pick() * size)], pool[int(pick() * size)]
        title = f"{first} {last}"
        yield Entity(
            f"G{seed}-{place}",
            title,
            f"{title} is the one of {middle} that stands at place {place} of the list",
            "generated",
            float(int(1 / (pick() + 1e-4))),
            {title: 8.0, f"{first} {middle} {last}": 2.0, last: 1.0},
            (("next to", f"G{seed}-{int(pick() * count)}"),),
        )


def generated_kb(count: int, folder: Path) -> Path:
    """A KB of `entities(count)` with its compiled names; kept in the folder for the next run."""
    path = folder / f"generated-{count}.kb"
    if not _is_current(path):
        build_generated(path, count)
    return path


def build_generated(path: Path, count: int) -> None:
    """Build that KB and compile its names."""

    def records(tally: Tally) -> Iterator[Record]:
        return iter(entities(count))

    remove_kb(path)
    build(records, path, origin=Origin("generated", settings=str(count)))
    _compile(path)


def has_shared() -> bool:
    """Is the shared knowledge base here?"""
    return (SHARED / "kb.jsonl.xz").exists()


def shared_kb(folder: Path) -> Path:
    """The shared KB of 24,853 entities with its facts, kept in the folder for the next run."""
    maps = ["--map", "description=short,text", "--map", "kind=categories", "--map", "popularity=inlinks"]
    files = [SHARED / "kb.jsonl.xz", SHARED / "triples.tsv.xz"]
    return _kept_kb(folder / "shared.kb", files, ["jsonl", str(files[0]), *maps, "--facts", str(files[1])])


def hpo_kb(folder: Path) -> Path:
    """The Human Phenotype Ontology (18,386 terms) with its is-a facts, kept in the folder for the next run."""
    files = [DATA / "hpo" / "kb.jsonl.xz", DATA / "hpo" / "facts.tsv.xz"]
    return _kept_kb(folder / "hpo.kb", files, ["jsonl", str(files[0]), "--facts", str(files[1])])


def products_kb(folder: Path) -> Path:
    """The catalogue of 300 invented products, kept in the folder for the next run."""
    file = PRODUCTS / "products.csv"
    maps = ["--map", "title=name", "--map", "kind=category"]
    return _kept_kb(folder / "products.kb", [file], ["csv", str(file), *maps])


def _kept_kb(path: Path, files: Sequence[Path], arguments: Sequence[str]) -> Path:
    """Run `wellread kb build` unless the KB at the path was made from files with these contents."""
    from wellread.cli.kb_build import build as build_command

    stamp = path.with_name(f"{path.name}.sources")
    digest = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
    if not _is_current(path) or not stamp.exists() or stamp.read_text() != digest:
        remove_kb(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(sys.stderr):
            build_command.main([*arguments, "--to", str(path)], standalone_mode=False)
        stamp.write_text(digest)
    return path


def copy_kb(path: Path, to: Path) -> None:
    """Copy a KB that nobody writes, with its compiled names."""
    remove_kb(to)
    shutil.copy(path, to)
    shutil.copy(f"{path}.names", f"{to}.names")


def remove_kb(path: Path) -> None:
    """Remove a KB and all that stands beside it."""
    for file in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def _compile(path: Path) -> None:
    with KnowledgeBase.open(path) as kb:
        Matcher.of(kb)


def _is_current(path: Path) -> bool:
    """Is the KB there, made by this version of the rules for names, and its matcher compiled?"""
    if not path.exists():
        return False
    with KnowledgeBase.open(path) as kb:
        rows = kb.connection.execute("SELECT name, key FROM aliases LIMIT 1000").fetchall()
        return names_path(kb).exists() and all(names.as_signed(names.key(name)) == key for name, key in rows)
