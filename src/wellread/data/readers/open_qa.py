"""Questions with retrieved passages, some of which contain the answer: Quasar-T and SearchQA.

Three layouts are read:

- `openqa`, that of Lin et al. (2018), in which both datasets are mostly used: `train.txt` has a line
  `{"question": …, "answers": […]}` for each question, and the same line of `train.json` is the list of its passages,
  `[{"question": …, "document": …}, …]`. Texts are strings or lists of words.
- `quasar`, that of Quasar-T (Dhingra et al. 2017): `{"uid", "question", "answer"}` in a file of questions,
  `{"uid", "contexts": [[score, text], …]}` in a file of contexts, in any order.
- `searchqa`, that of SearchQA (Dunn et al. 2017): `{"question", "answer", "search_results": [{"snippet"}, …]}`, a file
  of such lines, or a folder with a file for each question, as it was released.

Test files have no answers. A broken line is an `InputError` that names file and line; with a list as `skipped`, it gets
the message and the question is left out.

Passages with an answer are not labelled: those that contain one count as such (distant supervision). Answers and
predictions are compared as in SQuAD 1.1 (`evaluation.answers.score_open_answers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from wellread.data.tables import JsonDraft, read_json_drafts, read_json_folder
from wellread.errors import InputError
from wellread.evaluation.answers import normalise
from wellread.io.files import make_or_skip, path_name

_D = TypeVar("_D")
_T = TypeVar("_T")

_WORD = re.compile(r"\w+|[^\w\s!-~]")
"""A word, or a sign that answer normalisation keeps: all but ASCII's."""
_ARTICLE = re.compile(r"\s*(?:a|an|the)\s+", re.IGNORECASE)
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
"""Brackets and quotes as the tokenizer of the OpenQA files writes them."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question, its answers, and passages in the order of retrieval (perhaps with repetitions)."""

    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[str, ...]


def read_openqa(
    questions: str | Path, passages: str | Path, *, skipped: list[str] | None = None
) -> Iterator[OpenQuestion]:
    """Yield the questions of a `.txt` with the passages in the same line of the `.json`, both plain or compressed."""

    def make(line: tuple[int, JsonDraft, JsonDraft]) -> OpenQuestion:
        number, first, second = line
        (where, data), (there, documents) = first(), second()
        question, answers = _text(data, "question", where), _answers(data, where)
        if not isinstance(documents, list):
            raise InputError(f'{there}: expected a list of {{"question", "document"}}; are the two files swapped?')
        if documents and not _same(question, other := _text(documents[0], "question", there)):
            raise InputError(
                f"{where} has the question {question!r}, but {there} has passages for {other!r}; use the same order"
            )
        texts = (_text(document, "document", there) for document in documents)
        return OpenQuestion(str(number), question, answers, _not_blank(texts))

    return _each(_side_by_side(questions, passages), make, skipped)


def read_quasar(
    questions: str | Path, contexts: str | Path, *, skipped: list[str] | None = None
) -> Iterator[OpenQuestion]:
    """Yield the questions of Quasar-T with their contexts, best first as in the file; both plain or compressed."""

    def make_contexts(draft: JsonDraft) -> tuple[str, tuple[str, ...]]:
        where, data = draft()
        pairs = data.get("contexts") if isinstance(data, dict) else None
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str) for pair in pairs
        ):
            raise InputError(f'{where}: expected "contexts", a list of [score, text]')
        return _text(data, "uid", where), _not_blank(pair[1] for pair in pairs)

    found = dict(_each(read_json_drafts(contexts), make_contexts, skipped))

    def make(draft: JsonDraft) -> OpenQuestion:
        where, data = draft()
        uid = _text(data, "uid", where)
        if uid not in found:
            raise InputError(f"{where}: {path_name(contexts)} has no contexts for {uid!r}; take those of the same part")
        return OpenQuestion(uid, _text(data, "question", where), _answers(data, where), found[uid])

    yield from _each(read_json_drafts(questions), make, skipped)


def read_searchqa(path: str | Path, *, skipped: list[str] | None = None) -> Iterator[OpenQuestion]:
    """Yield the questions of SearchQA, one object per line, or per file of a folder; empty snippets are left out."""
    is_folder = Path(path).is_dir()

    def make(draft: JsonDraft) -> OpenQuestion:
        where, data = draft()
        question, results = _text(data, "question", where), data.get("search_results")
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            raise InputError(f'{where}: expected "search_results", a list of objects with a "snippet"')
        snippets = (_text(result, "snippet", where) for result in results if result.get("snippet"))
        name = str(data.get("id") or (Path(where).name.partition(".")[0] if is_folder else where.rpartition(" ")[2]))
        return OpenQuestion(name, question, _answers(data, where), _not_blank(snippets))

    return _each(read_json_folder(path) if is_folder else read_json_drafts(path), make, skipped)


def answer_finder(answers: Iterable[str]) -> Callable[[str], list[tuple[int, int]]]:
    """Return a function that finds the answers in a passage: spans of characters in order, each an exact match.

    Words are compared in lower case and a leading article does not count, so each span is right by `exact_match`:
    answers "The U.S." and "Riga", passage "riga (not in the U.S.)" -> [(0, 4), (17, 20)].
    """
    wanted: dict[str, list[list[str]]] = {}
    golds = set()
    for answer in answers:
        article = _ARTICLE.match(answer)
        words = _WORD.findall(answer[article.end() if article else 0 :].lower())
        if words and (gold := normalise(answer)):
            golds.add(gold)
            if words not in wanted.setdefault(words[0], []):
                wanted[words[0]].append(words)

    def find(passage: str) -> list[tuple[int, int]]:
        # Most passages contain no answer, which is quickly seen; lower-casing other scripts depends on neighbours.
        if passage.isascii():
            lowered = passage.lower()
            if not any(first in lowered for first in wanted):
                return []
        places = list(_WORD.finditer(passage))
        words = [place[0].lower() for place in places]
        spans = {
            (places[at].start(), places[at + len(answer) - 1].end())
            for at, word in enumerate(words)
            for answer in wanted.get(word, ())
            if words[at : at + len(answer)] == answer
        }
        return sorted((start, end) for start, end in spans if normalise(passage[start:end]) in golds)

    return find


def holds_answer(question: OpenQuestion) -> list[bool]:
    """Return whether each passage contains an answer."""
    find = answer_finder(question.answers)
    return [bool(find(passage)) for passage in question.passages]


def ranked_hits(questions: Sequence[OpenQuestion], orders: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Return whether each passage contains the answer, in a given order, for `evaluation.ranking.recall_at`."""
    if len(questions) != len(orders):
        raise InputError(f"{len(orders)} orders of passages for {len(questions)} questions; give one for each")
    hits = []
    for question, order in zip(questions, orders, strict=True):
        held = holds_answer(question)
        if len(set(order)) != len(order) or not set(order) <= set(range(len(held))):
            raise InputError(f"the order {list(order)} is none of {len(held)} passages; give each place once at most")
        hits.append([held[place] for place in order])
    return hits


def _text(data: Any, key: str, where: str) -> str:
    """Return a text given as a string or a list of words."""
    value = data.get(key) if isinstance(data, dict) else None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        words: list[str] = value
        return " ".join(_BRACKETS.get(word, word) for word in words)
    raise InputError(f'{where}: expected "{key}" as a text or a list of words, got {json.dumps(value)[:60]}')


def _answers(data: Any, where: str) -> tuple[str, ...]:
    """Return the answers; none if they are secret."""
    given = data.get("answers", data.get("answer")) if isinstance(data, dict) else None
    answers = [given] if isinstance(given, str) else given or []
    if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
        raise InputError(f'{where}: "answers" is {json.dumps(given)[:60]}, expected a text, or a list of texts')
    return tuple(dict.fromkeys(filter(None, (each.strip() for each in answers))))


def _side_by_side(questions: str | Path, passages: str | Path) -> Iterator[tuple[int, JsonDraft, JsonDraft]]:
    """Yield the lines of two files, numbered; they must have the same number of lines."""
    pairs = zip_longest(read_json_drafts(questions), read_json_drafts(passages))
    for number, (first, second) in enumerate(pairs, 1):
        if first is None or second is None:
            shorter = questions if first is None else passages
            raise InputError(
                f"{path_name(shorter)} ends before its line {number}; questions and passages correspond by line: copy "
                "it again"
            )
        yield number, first, second


def _each(drafts: Iterable[_D], make: Callable[[_D], _T], skipped: list[str] | None) -> Iterator[_T]:
    """Yield the results of `make`; errors are raised, or reported to `skipped` if given."""
    for draft in drafts:
        yield from make_or_skip(partial(make, draft), skipped)


def _not_blank(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text.strip())


def _same(question: str, other: str) -> bool:
    """Return whether two texts are one question: the tokenizer changed signs and some spellings, but not most words."""
    first, second = (set(_WORD.findall(text.lower())) for text in (question, other))
    return 2 * len(first & second) >= min(len(first), len(second))
