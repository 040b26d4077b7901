"""Mapping strings to the shared KB, against rapidfuzz and TF-IDF of 3-grams: `python -m benchmarks.mapping`.

The strings are the gold mentions of questions, queries and dialogues (SimpleQuestions, WebQSP, GERDAQ, ConEL-22), each
once: as written, with one typo, with its words in another order, and abbreviated. The noise is not that of training.
Half of them (by a hash) are the development half, on which nothing is reported; the other half is reported.

The peers get all names of the KB, folded and without punctuation; a name of several entities stands for the one that
the KB counts most often. They take the nearest name: rapidfuzz with three scorers, and cosines of TF-IDF vectors of
character 3-grams. The slower scorers of rapidfuzz, and the KB's own fuzzy search, see a sample only.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.data import SHARED, has_shared, shared_kb
from benchmarks.report import Report, arguments
from benchmarks.variants import add_typo
from wellread.kb.store import KnowledgeBase
from wellread.mapping.name_index import NameIndex
from wellread.models.elq.load import load_mapper

_FILES = ("simplequestions_train", "simplequestions_valid", "webqsp_train", "gerdaq_devel", "conel22_train")
_SEED = 20
_SAMPLE = 120
"""Strings of each kind for the slow peers."""
_BARS = {"as written": 0.85, "one typo": 0.757}
"""Best of the peers in an earlier review, which is to be exceeded."""

Gold = list[tuple[str, str]]
Answer = Callable[[Sequence[str]], list[str | None]]


def gold_strings(half: int) -> Gold:
    """The strings of one half (0: development, 1: report) with the entity that most of their mentions mean."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name in _FILES:
        with (SHARED / f"{name}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                for start, end, entity in row["mentions"]:
                    if entity is not None:
                        found[row["text"][start:end]][entity] += 1
    own = [text for text in sorted(found) if _half(text) == half]
    return [(text, found[text].most_common(1)[0][0]) for text in own]


def _half(text: str) -> int:
    return int(hashlib.sha256(text.casefold().encode()).hexdigest(), 16) % 2


def variants(gold: Gold) -> dict[str, Gold]:
    """The strings as written and changed; those that a change cannot apply to are left out of it."""
    chance = random.Random(_SEED)
    made: dict[str, Gold] = {"as written": gold, "one typo": [], "word order": [], "abbreviated": []}
    for text, entity in gold:
        long = sum(letter.isalpha() for letter in text) >= 5
        made["one typo"].append((add_typo(text, chance) if long else text, entity))
        words = text.split()
        if len(words) > 1:
            turn = chance.randrange(1, len(words))
            made["word order"].append((" ".join(words[turn:] + words[:turn]), entity))
        places = [place for place, word in enumerate(words) if len(word) > 4 and word.isalpha()]
        if len(words) > 1 and places:
            place = chance.choice(places)
            words[place] = words[place][: chance.choice((1, 3, 4))] + "."
            made["abbreviated"].append((" ".join(words), entity))
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Print accuracy and strings per second."""
    options = arguments(__doc__, given)
    report = Report("mapping", options.quick)
    if not has_shared():
        report.add("strings", "needs the shared data")
        return report.show()
    path = shared_kb(Path(options.folder))
    made = variants(gold_strings(1)[: 60 if options.quick else None])
    sample = 40 if options.quick else _SAMPLE
    with KnowledgeBase.open(path) as kb:
        begin = time.perf_counter()
        ours = {"names": load_mapper(kb, names_only=True)}
        took = time.perf_counter() - begin
        ours["names and meaning"] = load_mapper(kb)
        report.about = {
            "kb": f"{path.name}, {len(ours['names'].index.entities):,} entities, {len(ours['names'].index):,} names",
            "strings": {kind: len(gold) for kind, gold in made.items()},
            "sample for the slow peers": sample,
        }
        report.add("index of names", took, "s")
        for kind, gold in made.items():
            few = random.Random(1).sample(gold, min(sample, len(gold)))
            for name, mapper in ours.items():
                texts = [text for text, _ in gold]
                found = {one.text: one for one in mapper.map(texts, threshold=0.0)}
                right = [bool(found[text].entity == entity) for text, entity in gold]
                bar = _BARS.get(kind) if name == "names and meaning" else None
                report.add(f"{kind}: {name}", _mean(right), at_least=bar)
                taken = [ok for ok, (text, _) in zip(right, gold, strict=True) if (found[text].score or 0) >= 0.5]
                report.add(f"{kind}: {name}, precision at .5", _mean(taken))
                report.add(f"{kind}: {name}, share at .5", len(taken) / len(gold))
                report.add(f"{kind}: {name}, sample", _mean([found[text].entity == entity for text, entity in few]))
            _peers(report, kind, gold, few, ours["names"].index, kb)
        _speed(report, ours, made)
    return report.show()


def _peers(report: Report, kind: str, gold: Gold, few: Gold, index: NameIndex, kb: KnowledgeBase) -> None:
    from wellread.mapping.normal_form import normal_words

    names = index.forms
    owners = [index.entities[row[0].entity][0] for row in index.bearers]
    forms = [(" ".join(normal_words(text)), entity) for text, entity in gold]
    report.add(f"{kind}: TF-IDF 3-grams", _accuracy(forms, _tfidf(names, owners)))
    some = [(" ".join(normal_words(text)), entity) for text, entity in few]
    for name, answer in _rapidfuzz(names, owners).items():
        if name == "ratio":
            report.add(f"{kind}: rapidfuzz ({name})", _accuracy(forms, answer))
        report.add(f"{kind}: rapidfuzz ({name}), sample", _accuracy(some, answer))

    def search(texts: Sequence[str]) -> list[str | None]:
        return [next((one.id for one in kb.search(text, how="fuzzy", limit=1)), None) for text in texts]

    report.add(f"{kind}: wellread kb search --how fuzzy, sample", _accuracy(few, search))


def _tfidf(names: Sequence[str], owners: Sequence[str]) -> Answer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), dtype=np.float32)
    columns = vectorizer.fit_transform(names).T.tocsr()

    def answer(texts: Sequence[str]) -> list[str | None]:
        products = (vectorizer.transform(texts) @ columns).tocsr()
        best: list[str | None] = []
        for at in range(len(texts)):
            row = products.getrow(at)
            best.append(owners[row.indices[row.data == row.data.max()].min()] if row.nnz else None)
        return best

    return answer


def _rapidfuzz(names: Sequence[str], owners: Sequence[str]) -> dict[str, Answer]:
    from rapidfuzz import fuzz, process

    def answer_by(scorer: Callable[..., float]) -> Answer:
        return lambda texts: [owners[process.extractOne(text, names, scorer=scorer)[2]] for text in texts]

    scorers = {"WRatio": fuzz.WRatio, "ratio": fuzz.ratio, "token_sort_ratio": fuzz.token_sort_ratio}
    return {name: answer_by(scorer) for name, scorer in scorers.items()}


def _speed(report: Report, ours: dict, made: dict[str, Gold]) -> None:
    texts = [text for kind in ("as written", "one typo") for text, _ in made[kind]]
    for name, mapper in ours.items():
        begin, used = time.perf_counter(), time.process_time()
        count = sum(1 for _ in mapper.map(texts))
        report.add(f"{name}: strings per second", count / (time.perf_counter() - begin), "1/s")
        report.add(f"{name}: strings per CPU second", count / (time.process_time() - used), "1/s")


def _accuracy(gold: Gold, answer: Answer) -> float:
    found = answer([text for text, _ in gold])
    return _mean([one == entity for one, (_, entity) in zip(found, gold, strict=True)])


def _mean(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 0.0


if __name__ == "__main__":
    sys.exit(main())
