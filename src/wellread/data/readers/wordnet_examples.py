"""WordNet's examples as texts with senses: quoted sentences at the end of a gloss that use a word of its synset.

    09213565-n  sloping land …; "they pulled the canoe up on the bank"   ->   bank: bank%1:17:01::

The word is found in any of its forms ("took place"); where several words of the synset fit, the longest is taken.
Examples that use none of them are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from wellread import assets
from wellread.data.readers.raganato import SenseMark, SenseText
from wellread.evaluation.senses import SenseInstance
from wellread.kb.readers.sense_keys import SenseKeys, as_lemma
from wellread.kb.readers.wordnet import read_wordnet
from wellread.kb.records import Entity, Form, Tally
from wellread.text.inflection import word_forms

SOURCE = "wordnet.examples"
"""Data set of the instances of examples; no file name equals it, since names end at their first dot."""
_QUOTED = re.compile(r'"([^"]+)"')
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*\.?|\S")
_FEWEST = 2
"""Minimum words of an example."""

Bases = dict[tuple[str, str], set[str]]
"""(form, kind) -> words that it is a form of."""


def read_examples(folder: str | Path | None = None) -> Iterator[SenseText]:
    """Yield the examples of a WNDB folder, or of the `wordnet` asset, in the order of synsets."""
    where = Path(folder) if folder is not None else assets.fetch("wordnet")
    keys, records = SenseKeys.read(where), list(read_wordnet(where, Tally()))
    entities = [record for record in records if isinstance(record, Entity)]
    forms = [record for record in records if isinstance(record, Form)]
    words = {(word.lower(), one.kind) for one in entities for name in one.aliases for word in name.split()}
    bases: Bases = {}
    for form in word_forms(words, forms):
        bases.setdefault((form.form, form.kind), set()).add(form.word)
    for entity in entities:
        for number, text in enumerate(_QUOTED.findall(entity.description)):
            mark = _find(text.strip(), entity, bases)
            if mark is None:
                continue
            start, end, name = mark
            key = keys.key(name, entity.id)
            if key is not None:
                id = f"{entity.id}.{number}"
                instance = SenseInstance(f"{id}.t000", as_lemma(name), entity.kind, (key,), SOURCE)
                yield SenseText(id, text.strip(), (SenseMark(start, end, instance),), SOURCE)


def _find(text: str, entity: Entity, bases: Bases) -> tuple[int, int, str] | None:
    """Return (start, end, name) of the first use of a name of an entity in an example."""
    spans = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    words = [text[start:end].lower() for start, end in spans]
    if len(words) < _FEWEST:
        return None
    for name in sorted(entity.aliases, key=lambda name: -len(name.split())):
        asked = name.lower().split()
        for place in range(len(words) - len(asked) + 1):
            if all(map(_fits, words[place:], asked, [bases] * len(asked), entity.kind * len(asked))):
                end = spans[place + len(asked) - 1][1]
                ends = text[end - 1] == "." and not name.endswith(".")  # the sentence, not an abbreviation
                return spans[place][0], end - ends, name
    return None


def _fits(written: str, word: str, bases: Bases, kind: str) -> bool:
    return any(
        form == word or word in bases.get((form, kind), ()) for form in dict.fromkeys((written, written.rstrip(".")))
    )
