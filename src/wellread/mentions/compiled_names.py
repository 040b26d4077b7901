"""Names of a knowledge base compiled to tables of keys, and the file they are mapped from.

The file (`io.arrays`) has the uid and revision of its KB. It is derived data: if deleted, it is made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wellread.errors import KnowledgeBaseError, StorageError
from wellread.io.arrays import open_arrays, save_arrays
from wellread.io.files import MappedFile
from wellread.kb.schema import connect, damaged, sqlite_errors
from wellread.kb.store import KnowledgeBase
from wellread.mentions.name_variants import VariantBuilder, Variants
from wellread.text.inflection import word_forms
from wellread.text.key_table import FormTable, KeyTable, differ
from wellread.text.words import CASES, Case, Keys, keys, prefix_keys, word_hash, words

NAME, INNER, KINDS_AT = 1, 2, 2
"""Flags of a trie node: end of a name, prefix of a longer one, or both; from bit `KINDS_AT` on, kinds of the name."""

LOOSE_NAME, LOOSE_INNER = 64, 128
"""The same flags for names without their punctuation (`mentions.name_variants`)."""

ALL_KINDS = 255
KIND_BITS = {"n": 1, "v": 2, "a": 4, "r": 8}
"""Parts of speech that have word forms; other kinds of entities have none."""

_FORMAT = "wellread names 5"
_CHUNK = 100_000


@dataclass(frozen=True, slots=True)
class CompiledNames:
    """Names as nodes of a trie over words, their spellings, and the forms of their words.

    `spelled` maps the key of a name under a stricter policy to its folded key.
    """

    uid: str
    revision: int
    max_words: int
    nodes: KeyTable
    spelled: dict[str, KeyTable]
    forms: FormTable
    variants: Variants
    mapped: MappedFile | None = None
    """File that the tables are mapped from, if any."""

    def joined_with(self, added: CompiledNames, changed: Keys) -> CompiledNames:
        """Return both as one; `changed` keys are taken from `added` only. Stale inner nodes stay, which is harmless."""
        there, new = self.nodes.slots != 0, added.nodes.slots != 0
        old, flags = self.nodes.slots[there], self.nodes.values[there].astype(np.uint8)
        flags[np.isin(old, changed)] &= np.uint8(INNER | LOOSE_NAME | LOOSE_INNER)
        nodes = _node_table(np.append(old, added.nodes.slots[new]), np.append(flags, added.nodes.values[new]))
        spelled = {case: _joined_spellings(self.spelled[case], added.spelled[case], changed) for case in self.spelled}
        (forms, words, kinds), (more, of, their) = self.forms.columns(), added.forms.columns()
        joined = FormTable.build(np.append(forms, more), np.append(words, of), np.append(kinds, their))
        max_words = max(self.max_words, added.max_words)
        variants = self.variants.joined_with(added.variants, changed)
        return CompiledNames(self.uid, added.revision, max_words, nodes, spelled, joined, variants)


def compile_names(kb: KnowledgeBase, aliases: Iterable[tuple[str, str]] | None = None) -> CompiledNames:
    """Compile the (name, kind) pairs of a KB, or the given ones."""
    data = kb.metadata
    whole = aliases is None
    pairs = iter(_all_aliases(kb) if aliases is None else aliases)
    ends: list[Keys] = []
    kinds: list[NDArray[np.uint8]] = []
    inner: list[Keys] = []
    spelled: dict[Case, list[Keys]] = {case: [] for case in CASES if case != "folded"}
    inflected: set[tuple[str, str]] = set()
    variants = VariantBuilder()
    longest = 0
    while chunk := list(islice(pairs, _CHUNK)):
        bits: dict[str, int] = {}
        for name, kind in chunk:
            bits[name] = bits.get(name, 0) | KIND_BITS.get(kind, 0)
        texts = list(bits)
        found, going_on = prefix_keys(texts)
        ends.append(found)
        kinds.append(np.fromiter(bits.values(), np.uint8, len(bits)))
        inner += going_on
        longest = max(longest, len(going_on))
        variants.add(texts, found)
        for case, parts in spelled.items():
            parts.append(keys(texts, case))
        if data.get("inflection") == "wordnet":
            inflected.update((word.lower(), kind) for name, kind in chunk for word in words(name))
    loose, loose_inner = variants.ends, variants.inner
    variant_tables = variants.finish()  # before the large tables, as it needs memory too
    folded = np.concatenate(ends) if ends else np.zeros(0, np.uint64)
    named = (np.concatenate(kinds) << KINDS_AT | NAME) if kinds else np.zeros(0, np.uint8)
    prefixes = np.unique(np.concatenate(inner)) if inner else np.zeros(0, np.uint64)
    loose_prefixes = np.unique(np.concatenate(loose_inner)) if loose_inner else prefixes[:0]
    groups = ((prefixes, INNER), (loose, LOOSE_NAME), (loose_prefixes, LOOSE_INNER))
    nodes = _node_table(
        np.concatenate((folded, *(group for group, _ in groups))),
        np.concatenate((named, *(np.full(len(group), flag, np.uint8) for group, flag in groups))),
    )
    tables: dict[str, KeyTable] = {case: _spellings(parts, folded) for case, parts in spelled.items()}
    forms = _form_table(kb, inflected)
    revision = int(data["revision"]) if whole else -1
    return CompiledNames(data["uid"], revision, longest, nodes, tables, forms, variant_tables)


def _all_aliases(kb: KnowledgeBase) -> Iterator[tuple[str, str]]:
    with sqlite_errors(kb.path), closing(connect(kb.path, writable=False, mapped=False)) as connection:
        if connection.execute("SELECT value FROM metadata WHERE key = 'uid'").fetchone() != (kb.metadata["uid"],):
            raise KnowledgeBaseError(f"{kb.path} was replaced by another file while it was open; open it again")
        for name, kind in connection.execute(
            "SELECT a.name, e.kind FROM aliases a JOIN entities e ON e.num = a.entity"
        ):
            if not (isinstance(name, str) and isinstance(kind, str)):
                raise damaged(kb.path, f"the alias {name!r} is not text")
            yield name, kind


def _form_table(kb: KnowledgeBase, inflected: set[tuple[str, str]]) -> FormTable:
    pairs = list(word_forms(inflected, kb.forms())) if inflected else []
    return FormTable.build(
        np.array([word_hash(form.form) for form in pairs], np.uint64),
        np.array([word_hash(form.word) for form in pairs], np.uint64),
        np.array([KIND_BITS.get(form.kind, ALL_KINDS) for form in pairs], np.uint8),
    )


def _spellings(parts: list[Keys], folded: Keys) -> KeyTable:
    distinct, first = np.unique(np.concatenate(parts) if parts else folded, return_index=True)
    return KeyTable.build(distinct, folded[first])


def _joined_spellings(old: KeyTable, new: KeyTable, changed: Keys) -> KeyTable:
    there = (old.slots != 0) & ~np.isin(old.values, changed)
    return _spellings(
        [old.slots[there], new.keys], np.append(old.values[there], new.values[new.slots != 0]).astype(np.uint64)
    )


def _node_table(nodes: Keys, flags: NDArray[np.uint8]) -> KeyTable:
    """Build a table of nodes; repeated nodes become one with the flags of all."""
    order = np.argsort(nodes, kind="stable")
    nodes = nodes[order]
    heads = np.flatnonzero(differ(nodes))
    return KeyTable.build(nodes[heads], np.bitwise_or.reduceat(flags[order], heads) if len(heads) else flags)


def save(names: CompiledNames, path: Path) -> None:
    """Write the tables; if the folder cannot be written, they stay in memory only."""
    arrays = {
        "nodes": names.nodes.slots,
        "flags": names.nodes.values,
        "form_slots": names.forms.table.slots,
        "form_rows": names.forms.table.values,
        "form_words": names.forms.words,
        "form_kinds": names.forms.kinds,
        "form_last": names.forms.last,
        **{f"{case}_slots": table.slots for case, table in names.spelled.items()},
        **{f"{case}_folded": table.values for case, table in names.spelled.items()},
        **names.variants.arrays(),
    }
    metadata = {"format": _FORMAT, "uid": names.uid, "revision": str(names.revision), "max_words": str(names.max_words)}
    with contextlib.suppress(StorageError):  # a shared, read-only KB: the next process compiles its own
        save_arrays(path, arrays, metadata)


def load(path: Path, *, uid: str) -> CompiledNames | None:
    """Map the tables of the KB `uid`; None if there is no file, or it is damaged, of another KB, or another format."""
    try:
        mapped = open_arrays(path)
        about, arrays = mapped.metadata, mapped.arrays
        if (about["format"], about["uid"]) != (_FORMAT, uid):
            return None
    except (OSError, ValueError, KeyError):
        return None
    return CompiledNames(
        uid,
        int(about["revision"]),
        int(about["max_words"]),
        KeyTable(arrays["nodes"], arrays["flags"]),
        {case: KeyTable(arrays[f"{case}_slots"], arrays[f"{case}_folded"]) for case in CASES if case != "folded"},
        FormTable(
            KeyTable(arrays["form_slots"], arrays["form_rows"]),
            arrays["form_words"],
            arrays["form_kinds"],
            arrays["form_last"],
        ),
        Variants.of_arrays(arrays),
        mapped.file,
    )
