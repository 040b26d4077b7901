"""Features of pairs of a string and an entity that it may name.

Most compare the string with one name of the entity; `FEATURES` names the columns. The last groups are zero where there
is no entity encoder or no context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import OSA

from wellread.mapping.name_index import NameIndex
from wellread.mapping.normal_form import initials, numbers, word_similarity

FEATURES = (
    "one",  # the same for every pair: against no match
    "same_form",
    "same_letters",
    "same_words",
    "initials",
    "one_edit",
    "edits",  # share of the letters
    "edits_short",  # the same for short names, where an edit makes another name
    "edits_sorted",  # share of the letters, words sorted
    "cosine",
    "cosine_squared",
    "given_covered",  # share of the string's words that the name has, weighted by rarity
    "name_covered",  # share of the name's words that the string has
    "both_covered",
    "edits_gap",  # edits minus those of the string's nearest name
    "covered_gap",  # both_covered minus the highest of the string's candidates
    "numbers_differ",
    "first_letter",
    "short",
    "exact",  # spelt as in the KB
    "log_prior",
    "rank",
    "title",
    "shared",  # log of the number of entities with this name
    "by_meaning",  # similarity of the entity's vector to that of the string
    "meaning_gap",  # the same minus that of the nearest entity
    "meaning_only",  # no similar name
    "by_context",  # similarity of the entity's vector to that of the string in its context
    "context_gap",
)
NAMES_ONLY = FEATURES.index("by_meaning")
"""Number of features that need names only."""
WITHOUT_CONTEXT = FEATURES.index("by_context")

GAPS = (("edits", "edits_gap", np.minimum), ("both_covered", "covered_gap", np.maximum))
"""Features that are compared with the best one of the string's candidates: column, column of the gap, best."""

Matrix = NDArray[np.float32]
_PLACE = {name: place for place, name in enumerate(FEATURES)}


@dataclass(frozen=True, slots=True)
class Given:
    """A string in normal form."""

    text: str
    words: list[str]
    form: str
    letters: str

    @classmethod
    def of(cls, text: str, words: list[str]) -> Given:
        """Return the string with its normal words."""
        return cls(text, words, " ".join(words), "".join(words))


def name_features(
    index: NameIndex, given: Sequence[Given], rows: Sequence[tuple[int, int]], cosines: NDArray[np.float32]
) -> Matrix:
    """Return the features of pairs (string, row of the index) that do not depend on the entity."""
    found = np.zeros((len(rows), len(FEATURES)), np.float32)
    if not rows:
        return found
    asked = [given[at].form for at, _ in rows]
    names = [index.forms[row] for _, row in rows]
    edits = process.cpdist(asked, names, scorer=OSA.distance).astype(np.float32)
    sorted_asked = [" ".join(sorted(given[at].words)) for at, _ in rows]
    sorted_names = [" ".join(sorted(index.words[row])) for _, row in rows]
    sorted_edits = process.cpdist(sorted_asked, sorted_names, scorer=OSA.distance).astype(np.float32)
    longest = np.array([max(len(a), len(b), 1) for a, b in zip(asked, names, strict=True)], np.float32)
    letters = np.array([len(given[at].letters) for at, _ in rows], np.float32)
    same = edits == 0
    found[:, _PLACE["one"]] = 1
    found[:, _PLACE["same_form"]] = same
    found[:, _PLACE["one_edit"]] = edits == 1
    found[:, _PLACE["edits"]] = edits / longest
    found[:, _PLACE["edits_short"]] = np.minimum(edits, 2) / np.maximum(letters, 2)
    found[:, _PLACE["edits_sorted"]] = sorted_edits / longest
    found[:, _PLACE["cosine"]] = cosines
    found[:, _PLACE["cosine_squared"]] = cosines**2
    found[:, _PLACE["short"]] = 1 / np.maximum(letters, 1)
    columns = [_PLACE[name] for name in ("same_letters", "same_words", "initials", "numbers_differ", "first_letter")]
    cover = [_PLACE[name] for name in ("given_covered", "name_covered")]
    for at, (number, row) in enumerate(rows):
        if same[at]:
            found[at, cover] = 1
            found[at, columns[4]] = 1
            continue
        one, words = given[number], index.words[row]
        known = "".join(words)
        found[at, columns] = (
            one.letters == known,
            sorted_edits[at] == 0,
            _is_initials(one, words, known),
            _numbers(one.words) != _numbers(words),
            one.letters[:1] == known[:1],
        )
        found[at, cover] = _coverage(index, one.words, words)
    found[:, _PLACE["both_covered"]] = found[:, cover[0]] * found[:, cover[1]]
    return found


def entity_features(index: NameIndex, pairs: Matrix, rows: Sequence[tuple[str, int, int]]) -> Matrix:
    """Fill the features of pairs (string, row, place among its bearers) that depend on the entity, in place."""
    for at, (text, row, place) in enumerate(rows):
        holder = index.bearers[row][place]
        pairs[at, _PLACE["exact"]] = text in holder.spellings
        pairs[at, _PLACE["log_prior"]] = np.log(holder.prior)
        pairs[at, _PLACE["rank"]] = index.ranks[holder.entity]
        pairs[at, _PLACE["title"]] = holder.is_title
        pairs[at, _PLACE["shared"]] = np.log(len(index.bearers[row]))
    return pairs


def best_values(pairs: Matrix, groups: NDArray[np.int64], count: int) -> Matrix:
    """Return, for each of `count` strings, the best value of each feature in `GAPS` among its pairs."""
    best = np.zeros((count, len(GAPS)), np.float32)
    for at, (name, _, better) in enumerate(GAPS):
        best[:, at] = 1 if better is np.minimum else 0
        better.at(best[:, at], groups, pairs[:, _PLACE[name]])
    return best


def fill_gaps(pairs: Matrix, groups: NDArray[np.int64], best: Matrix) -> None:
    """Fill the columns of gaps, in place."""
    for at, (name, gap, _) in enumerate(GAPS):
        pairs[:, _PLACE[gap]] = pairs[:, _PLACE[name]] - best[groups, at]


def found_by(row: NDArray[np.float32], name: str, text: str) -> str:
    """Return the similarity by which a pair with these features was found."""
    value = {feature: row[place] for feature, place in _PLACE.items()}
    if value["exact"]:
        return "exact"
    if value["same_form"]:
        bare = [letter for letter in text if not letter.isspace()]
        return "case" if len(bare) == sum(not letter.isspace() for letter in name) else "punctuation"
    if value["same_letters"]:
        return "punctuation"
    if value["same_words"]:
        return "order"
    if value["initials"]:
        return "initials"
    if value["edits"] <= 0.25 or value["one_edit"]:
        return "typo"
    return "words" if value["both_covered"] > 0.15 or not value["meaning_only"] else "meaning"


def _is_initials(given: Given, words: Sequence[str], letters: str) -> bool:
    if len(given.words) == 1 and len(words) > 1:
        return given.letters == initials(list(words))
    return len(words) == 1 and len(given.words) > 1 and letters == initials(given.words)


def _numbers(words: Sequence[str]) -> list[str]:
    return sorted(number for word in words for number in numbers(word))


def _coverage(index: NameIndex, given: Sequence[str], known: Sequence[str]) -> tuple[float, float]:
    """Return the shares of either side's words that the other has, similar words in part, weighted by rarity."""
    rarity, rarest = index.rarity, index.rarest
    there, asked = set(known), set(given)
    extra, missing = [word for word in given if word not in there], [word for word in known if word not in asked]
    total = sum(rarity.get(word, rarest) for word in given)
    whole = sum(rarity[word] for word in known)
    shared = sum(rarity[word] for word in given if word in there)
    got, covered = shared, sum(rarity[word] for word in known if word in asked)
    for word in missing:
        best, most = "", 0.0
        for other in extra:
            similar = word_similarity(other, word)
            if similar > most:
                best, most = other, similar
        if most:
            extra.remove(best)
            covered += most * rarity[word]
            got += most * rarity.get(best, rarest)
    return (got / total if total else 0.0), (covered / whole if whole else 0.0)
