"""Shared data of the tests of word senses: a WordNet of three words, its knowledge base with vectors, and texts."""

from __future__ import annotations

import numpy as np

from tests.toy_models import write_kb
from wellread.data.readers.raganato import SenseMark, SenseText
from wellread.evaluation.senses import SenseInstance
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.kb.records import Entity
from wellread.tasks.word_spans import tokens_of_words

SHORE, MONEY = "bank%1:17:01::", "bank%1:14:00::"
WALK, WORK = "run%2:38:00::", "run%2:35:01::"
AGED, PAST = "old%3:00:02::", "old%5:00:00:past:00"
SENSES = (
    (SHORE, "00000002-n", 2),
    (MONEY, "00000001-n", 1),
    ("depository%1:14:00::", "00000001-n", 1),
    (WALK, "00000003-v", 1),
    (WORK, "00000004-v", 2),
    (AGED, "00000005-a", 1),
    (PAST, "00000006-a", 2),
)
COUNTS = {SHORE: 2.0, MONEY: 5.0, WALK: 4.0, WORK: 3.0, AGED: 9.0, PAST: 1.0}
ENTITIES = [
    Entity(synset, key.partition("%")[0], f"gloss of {synset}", synset[-1], 1, {key.partition("%")[0]: COUNTS[key]})
    for key, synset, _ in SENSES
    if key in COUNTS
]


def write_wordnet(folder):
    """As much of a WNDB folder as names senses."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{key} {synset[:-2]} {number} {10 - number}\n" for key, synset, number in SENSES)
    (folder / "index.sense").write_text("".join(lines))
    return folder


def keys():
    return SenseKeys(SENSES)


class Hashing:
    """Vectors that tell entities apart and say nothing else."""

    dim, fingerprint = 6, "hashing 1"

    def encode(self, entities):
        return np.stack([np.random.default_rng(sum(map(ord, text))).normal(size=6) for _, text in entities])


def write_vectors(folder, encoder=None):
    """The knowledge base of these senses as a file, and its vectors."""
    kb = write_kb(folder / "senses.kb", ENTITIES)
    vectors = EntityVectors.build(kb, encoder or Hashing())
    kb.close()
    return vectors


def sense_text(id, text, source="toy", **gold):
    """A text with some of its words asked about: sense_text("d.1", "the bank", bank=SHORE)."""
    marks = []
    for number, (word, keys) in enumerate(gold.items()):
        given = (keys,) if isinstance(keys, str) else keys
        kind = {"bank": "n", "run": "v", "old": "a"}.get(word, "n")
        start = text.index(word)
        marks.append(
            SenseMark(start, start + len(word), SenseInstance(f"{id}.t{number:03d}", word, kind, given, source))
        )
    return SenseText(id, text, tuple(marks), source)


TEXTS = [
    sense_text("d.1", "the old river near the bank", bank=SHORE, old=AGED),
    sense_text("d.2", "who is the mayor of the new bank", bank=MONEY),
    sense_text("d.3", "run near the river bank", run=WALK, bank=SHORE),
    sense_text("d.4", "buy the bank", bank=MONEY),
    sense_text("e.1", "the mayor of old paris", old=PAST),
    sense_text("e.2", "who is to run the city", run=WORK),
]


class Offering:
    """Knowledge provider with the candidates of all marks, and before each text one mention that is not a mark."""

    def __init__(self, vectors, kb="wordnet"):
        self.vectors, self.kb = vectors, kb

    def prepare(self, inputs, *, cache=None):
        return None

    def collate(self, tokenized, notes=None, *, draw=None):
        rows = []
        for text, one in enumerate(tokenized):
            rows.append((text, 1, 1, ["00000003-v"], [1.0], [0]))
            for mark in one.marks:
                tokens = tokens_of_words(one, mark)
                offered = [each for each in ENTITIES if mark.lemma in each.aliases and each.kind == mark.kind]
                if tokens is None or not offered:
                    continue
                counts = [each.aliases[mark.lemma] for each in offered]
                gold = [each.id in mark.gold for each in offered]
                rows.append((text, *tokens, [each.id for each in offered], np.array(counts) / sum(counts), gold))
        width = max(len(row[3]) for row in rows)

        def filled(place, fill, dtype):
            made = np.full((len(rows), width), fill, dtype)
            for line, row in zip(made, rows, strict=True):
                line[: len(row[3])] = row[place]
            return made

        rows = [(*row[:3], self.vectors.rows_of(row[3]), *row[4:]) for row in rows]
        made = {
            "text_of": np.array([row[0] for row in rows]),
            "spans": np.array([row[1:3] for row in rows]),
            "entities": filled(3, -1, np.int64),
            "priors": filled(4, 0, np.float32),
            "gold": filled(5, 0, np.int64),
        }
        return {"offers": {self.kb: made}}
