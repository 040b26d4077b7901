"""Senses of words of real sentences in WordNet 3.0, checked by hand against its index and exception lists."""

import pytest

from wellread import assets
from wellread.kb.packaged import kb_path
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder, MatchOptions

SENTENCES = [
    # (sentence, {mention: (how many candidates, kinds, some of them by id or title in their order)})
    (
        "He ran better.",
        {
            # 41 verb senses; none of the noun's 16, for "ran" is a form of the verb alone
            "ran": (30, "v", ["01926311-v", "02075049-v"]),
            # itself, and the comparative of good (a) and well (a, r)
            "better": (30, "anrv", ["01123148-a", "00011093-r", "00230335-a"]),
        },
    ),
    (
        "The men's room was closed.",
        {
            "men's room": (1, "n", ["03746486-n"]),
            "men's": (1, "n", ["03746486-n"]),
            "men": (12, "n", ["10287213-n", "10582746-n"]),
            "room": (5, "nv", ["04105893-n"]),
            "was": (13, "v", ["02604760-v"]),
            "closed": (26, "av", ["01345109-v"]),
        },
    ),
    ("They were happy.", {"were": (13, "v", ["02604760-v", "02616386-v"]), "happy": (4, "a", ["01148283-a"])}),
    (
        "A New York-based firm took off.",
        {
            "New York": (3, "n", ["09119277-n", "09117351-n", "09118181-n"]),
            "New": (12, "ar", ["01640850-a"]),
            "York": (1, "n", ["08159924-n"]),
            "based": (5, "av", ["00636888-v"]),
            "firm": (14, "anrv", ["08059870-n"]),
            "took off": (9, "v", ["02014165-v", "00179060-v"]),
            "took": (30, "v", ["02599636-v"]),
        },
    ),
    (
        "She ate a hot_dog.",
        {
            # the goddess Ate is one of them
            "ate": (7, "nv", ["01168468-v", "01166351-v", "01179865-v", "09557289-n"]),
            "hot_dog": (4, "nv", ["01938837-v", "10187710-n", "07697537-n", "07676602-n"]),
            "hot": (21, "a", ["01247240-a"]),
            "dog": (8, "nv", ["02084071-n"]),
        },
    ),
    (
        "The geese were running out.",
        {
            "geese": (3, "n", ["01855672-n"]),
            "were": (13, "v", ["02604760-v"]),
            "running out": (8, "v", ["00561571-v"]),
            "running": (30, "anv", ["01926311-v"]),
        },
    ),
    (
        "It is a state-of-the-art machine.",
        {
            "is": (13, "v", ["02604760-v"]),
            "state-of-the-art": (2, "an", ["01876780-a", "13941924-n"]),
            "state": (11, "nv", ["08654360-n"]),
            "art": (4, "n", ["02743547-n"]),
            "machine": (8, "nv", ["03699975-n"]),
        },
    ),
    (
        "The attorneys general left.",
        {
            "attorneys general": (3, "n", ["09822830-n"]),
            "attorneys": (1, "n", ["10249950-n"]),
            "general": (10, "anv", ["01101391-a", "10123844-n"]),
            "left": (24, "anrv", ["02009433-v"]),
        },
    ),
    # axis, ax and axe (n), ax and axe (v)
    ("Axes!", {"Axes": (9, "nv", ["06008609-n", "02764044-n", "01257953-v"])}),
    (
        "His mother-in-law saw the café.",
        {
            "mother-in-law": (1, "n", ["10333317-n"]),
            "mother": (7, "nv", ["10332385-n"]),
            "in-law": (1, "n", ["10207169-n"]),
            "law": (7, "n", ["08441203-n"]),
            # see (v) and saw (n, v)
            "saw": (28, "nv", ["02129289-v"]),
            "café": (1, "n", ["02935658-n"]),
        },
    ),
    (
        "Who is the WHO? Don't look it up.",
        {
            "is": (13, "v", ["02604760-v"]),
            "WHO": (1, "n", ["08302724-n"]),
            "look": (14, "nv", ["02130524-v"]),
        },
    ),
    (
        "Looking up data.",
        {
            "Looking up": (1, "v", ["00877083-v"]),
            "Looking": (13, "anv", ["02130524-v"]),
            "data": (2, "n", ["08462320-n"]),
        },
    ),
]


@pytest.fixture(scope="module")
def wordnet():
    if not kb_path("wordnet").exists():
        pytest.skip(f"WordNet is not built in {assets.home()}; run: wellread kb build wordnet")
    with KnowledgeBase.open(kb_path("wordnet")) as kb:
        yield CandidateFinder(kb, MatchOptions("all", max_words=6))


@pytest.mark.parametrize(("sentence", "expected"), SENTENCES, ids=[sentence for sentence, _ in SENTENCES])
def test_words_may_mean_what_wordnet_says(wordnet, sentence, expected):
    found = wordnet.mentions(sentence)
    assert [mention.text for mention in found] == list(expected)
    for mention in found:
        count, kinds, first = expected[mention.text]
        ids = [candidate.entity for candidate in mention.candidates]
        assert (len(ids), "".join(sorted({id[-1] for id in ids}))) == (count, kinds), mention.text
        assert ids[: len(first)] == first
        assert sum(candidate.prior for candidate in mention.candidates) == pytest.approx(1)


def test_priors_are_shares_of_sense_counts_plus_one(wordnet):
    # index.sense: happy%3:00:00:: 37, happy%5:00:00:fortunate:00 2, …:felicitous: 0, …:willing: 0
    (mention,) = wordnet.mentions("happy")
    assert [candidate.prior for candidate in mention.candidates] == pytest.approx(
        [38 / 43, 3 / 43, 1 / 43, 1 / 43], abs=1e-5
    )
