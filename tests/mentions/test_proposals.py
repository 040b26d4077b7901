"""Names and variants of names are found, each with its exact offsets and the way it was found."""

import random
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions import matcher as match
from wellread.mentions import word_variants
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.mentions.matcher import Matcher
from wellread.mentions.proposals import WAYS, ProposalFinder, ProposalOptions
from wellread.mentions.text_defined_names import stands_for

NAMES = {
    "marie": ["Marie Curie"],
    "pierre": ["Pierre Curie", "Curie"],
    "bcc": ["basal cell carcinoma"],
    "club": ["BCC"],
    "boots": ["Dr. Martens"],
    "box": ["Fritz!Box"],
    "att": ["AT&T"],
    "usa": ["U.S."],
    "nato": ["NATO"],
    "coke": ["Coca-Cola"],
    "wifi": ["Wi-Fi"],
    "phone": ["SmartPhone"],
    "siemens": ["Siemens AG"],
    "mitterrand": ["François Mitterrand"],
    "cologne": ["Köln"],
    "ms": ["Marks & Spencer"],
    "alzheimer": ["Alzheimer's disease"],
    "parkinson": ["Parkinson disease"],
    "york": ["New York"],
    "manchester": ["Manchester"],
    "university": ["University of Manchester"],
    "headphones": ["Sony WH-1000XM4"],
    "sartre": ["Jean-Paul Sartre"],
    "prizes": ["Nobel Prizes"],
    "city": ["city"],
    "vaccinate": ["vaccinate"],
    "metastasis": ["metastasis"],
    "beatles": ["The Beatles", "Beatles"],
    "victoria": ["Lake Victoria"],
    "states": ["United States"],
    "paris": ["Paris"],
    "lyon": ["Lyon"],
    "year": ["1998"],
    "c++": ["C++"],
    "tokyo": ["東京"],
    "it": ["IT"],
    "burger": ["McDonalds"],
    "band": ["Panic!"],
    "goat": ["goat"],
    "herd": ["goats"],
    "adam": ["A'dam"],
    "lane": ["Hill Lane"],
    "long": ["The Strange Case of the Very Long Name That No Encoder Would Ever Read as One Mention in a Text"],
}


@pytest.fixture(scope="module")
def kb_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("proposals") / "names.kb"
    entities = [Entity(id, names[0], aliases=dict.fromkeys(names, 1.0)) for id, names in NAMES.items()]
    build(lambda tally: iter(entities), path, origin=Origin("test"))
    return path


@pytest.fixture(scope="module")
def finder(kb_path):
    with KnowledgeBase.open(kb_path) as kb:
        yield ProposalFinder(kb)


def rows(finder, text):
    """(span, way, edits, entities) of one text."""
    found = finder.find([text])
    assert found.offsets.tolist() == [0, len(found)]
    return [
        (text[start:end], WAYS[way], edits, [candidate.entity for candidate in found.candidates(row)])
        for row, (start, end, way, edits) in enumerate(
            zip(found.starts.tolist(), found.ends.tolist(), found.ways.tolist(), found.edits.tolist(), strict=True)
        )
    ]


def one(finder, text):
    """{span: way} of one text."""
    return {span: way for span, way, _, _ in rows(finder, text)}


@pytest.mark.parametrize(
    ("text", "span", "way", "entity"),
    [
        ("Paris is", "Paris", "exact", "paris"),
        ("in paris", "paris", "case", "paris"),
        ("PARIS!", "PARIS", "case", "paris"),
        ("in Koln", "Koln", "case", "cologne"),
        ("in Köln", "Ko\u0308ln".replace("o\u0308", "ö"), "exact", "cologne"),
        ("basal cell carcinomas", "basal cell carcinomas", "inflected", "bcc"),
        ("two cities", "cities", "inflected", "city"),
        ("a Nobel Prize", "Nobel Prize", "inflected", "prizes"),
        ("they vaccinated him", "vaccinated", "inflected", "vaccinate"),
        ("vaccinating him", "vaccinating", "inflected", "vaccinate"),
        ("many metastases", "metastases", "inflected", "metastasis"),
        ("Dr Martens", "Dr Martens", "punctuation", "boots"),
        ("Dr. Martens", "Dr. Martens", "exact", "boots"),
        ("a Fritz Box", "Fritz Box", "punctuation", "box"),
        ("a FritzBox", "FritzBox", "punctuation", "box"),
        ("a fritz-box", "fritz-box", "punctuation", "box"),
        ("AT & T", "AT & T", "exact", "att"),
        ("in the US now", "US", "punctuation", "usa"),
        ("N.A.T.O. met", "N.A.T.O.", "punctuation", "nato"),
        ("coca cola", "coca cola", "case", "coke"),
        ("cocacola", "cocacola", "punctuation", "coke"),
        ("Coca–Cola", "Coca–Cola", "punctuation", "coke"),
        ("no wifi", "wifi", "punctuation", "wifi"),
        ("a Smart-Phone", "Smart-Phone", "punctuation", "phone"),
        ("Jean–Paul Sartre", "Jean–Paul Sartre", "punctuation", "sartre"),
        ("sony wh1000xm4", "sony wh1000xm4", "punctuation", "headphones"),
        ("Sony WH 1000XM4", "Sony WH 1000XM4", "exact", "headphones"),
        ("Marks and Spencer", "Marks and Spencer", "punctuation", "ms"),
        ("Alzheimer disease", "Alzheimer disease", "punctuation", "alzheimer"),
        ("Alzheimers disease", "Alzheimers disease", "punctuation", "alzheimer"),
        ("Parkinson's disease", "Parkinson's disease", "punctuation", "parkinson"),
        ("in Pariss", "Pariss", "typo", "paris"),
        ("in Parsi", "Parsi", "typo", "paris"),
        ("in Xaris", "Xaris", "typo", "paris"),
        ("at Manchestre", "Manchestre", "typo", "manchester"),
        ("at Mancestre", "Mancestre", "typo", "manchester"),
        ("the Univercity of Manchester", "Univercity of Manchester", "typo", "university"),
        ("New Yrok", "New Yrok", "typo", "york"),
        ("newyork", "newyork", "typo", "york"),
        ("at Mc-Donalds", "Mc-Donalds", "punctuation", "burger"),
        ("at McDonald's", "McDonald's", "punctuation", "burger"),
        ("Panic at", "Panic", "punctuation", "band"),
        ("in 東京", "東京", "exact", "tokyo"),
    ],
)
def test_each_way_is_found_with_its_span(finder, text, span, way, entity):
    assert (span, way, [entity]) in [(found, how, ids) for found, how, _, ids in rows(finder, text)]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("give us a hand", "us"),  # a dotted abbreviation only in capitals
        ("the u s", "u s"),
        ("He met Marie. Curie left.", "Marie. Curie"),  # a sentence ends there
        ("1999", "1999"),  # numbers are not misspelt
        ("1,998", "1,998"),
        ("Lyno", "Lyno"),  # four letters: no edit
        ("Mnahcestr", "Mnahcestr"),  # ten letters: three edits
        ("it is", "it"),
        ("Billing", "Bill"),
        ("perish", "perish"),  # an English word is not a misspelt "Paris"
        ("C", "C"),
        ("citydwellers", "city"),
        ("in panic", "panic"),  # a common word is not the band
        ("a goat's horn", "goat's"),
        ("by a dam", "a dam"),
        ("praises", "praises"),
        ("stomped", "stomped"),
    ],
)
def test_what_is_not_a_variant_is_not_found(finder, text, span):
    assert span not in one(finder, text)


@pytest.mark.parametrize(
    ("name", "text", "edits"),
    [
        ("abcde", "abcdx", 1),
        ("abcd", "abcx", None),  # 4 letters
        ("abcdefgh", "abcdefxh", 1),
        ("abcdefgh", "abcdexxh", None),  # 8 letters, two edits
        ("abcdefghi", "abcdexxhi", 2),  # 9 letters, two edits
        ("abcdefghi", "abxdexxhi", None),
        ("abcdefghi", "xbcdefgh", 2),
        ("abcde", "bacde", 1),
        ("abcde", "abcdef", 1),
        ("abcde", "abce", 1),
        ("abcd efgh", "abcx efgx", None),  # 8 letters in two words
        ("abcd efghi", "abcx efghx", 2),
    ],
)
def test_edits_are_bounded_by_the_letters_of_the_name(tmp_path, name, text, edits):
    build(lambda tally: iter([Entity("a", name)]), tmp_path / "one.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "one.kb") as kb:
        found = rows(ProposalFinder(kb), text)
    assert found == ([] if edits is None else [(text, "typo", edits, ["a"])])


def test_possessives_leave_the_name(finder):
    assert one(finder, "the Beatles' song, Paris's streets, Köln’s dome") == {
        "the Beatles": "case",
        "Beatles": "exact",
        "Paris": "exact",
        "Köln": "exact",
    }


def test_names_with_diacritics_end_where_they_end(finder):
    text = "François Mitterrand vint à Köln où Mitterrand resta."
    assert [row[:2] for row in rows(finder, text)] == [
        ("François Mitterrand", "exact"),
        ("Köln", "exact"),
        ("Mitterrand", "short name"),
    ]


def test_an_abbreviation_stands_for_its_long_form_from_its_definition_on(finder):
    text = "BCC won. Basal cell carcinoma (BCC) is common; BCCs grow. A BCC-like BCCX."
    found = [(span, way, ids) for span, way, _, ids in rows(finder, text)]
    assert found == [
        ("BCC", "exact", ["club"]),
        ("Basal cell carcinoma", "case", ["bcc"]),
        ("BCC", "abbreviation", ["bcc"]),
        ("BCCs", "abbreviation", ["bcc"]),
        ("BCC", "abbreviation", ["bcc"]),
    ]


def test_an_abbreviation_may_come_before_its_long_form(finder):
    found = rows(finder, "UoM (University of Manchester) grew. UoM teaches.")
    assert [(span, ids) for span, way, _, ids in found if way == "abbreviation"] == [("UoM", ["university"])] * 2


def test_brackets_that_define_nothing_are_left_alone(finder):
    assert "abbreviation" not in one(finder, "Marie Curie (Paris) and New York (XYZ), XYZ (see) (1998)").values()


def test_a_definition_counts_for_its_own_text_only(finder):
    found = finder.find(["Basal cell carcinoma (XCC), (BCC)", "BCC"])
    assert [WAYS[way] for way in found.ways[found.offsets[1] :]] == ["exact"]


@pytest.mark.parametrize(
    ("short", "long", "same"),
    [
        ("BCC", "basal cell carcinoma", True),
        ("BCC", "the basal cell carcinoma", True),
        ("BCC", "cell carcinoma", False),
        ("HMM", "hidden Markov model", True),
        ("mRNA", "messenger ribonucleic acid", True),
        ("AB", "ab", False),
        ("WHO", "World Health Organization", True),
        ("XYZ", "New York", False),
    ],
)
def test_letters_of_a_short_form_are_in_the_long_form(short, long, same):
    assert stands_for(short, long) is same


def test_a_last_name_after_the_full_name_means_the_same(finder):
    found = rows(finder, "Curie came. Marie Curie spoke. Then Curie left, said Madame Curie.")
    assert [(span, way, ids) for span, way, _, ids in found] == [
        ("Curie", "exact", ["pierre"]),
        ("Marie Curie", "exact", ["marie"]),
        ("Curie", "exact", ["pierre"]),
        ("Curie", "short name", ["marie", "pierre"]),
        ("Curie", "short name", ["marie", "pierre"]),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Marie Curie and Eve Curie",  # another full name
        "Marie Curie at the Curie Institute",  # a part of another name
        "Marie Curie said curie",  # not capital
        "Lake Victoria and the lake. Lake!",  # the first word of a name that is not an organisation's
        "United States of States",  # a common word
        "the University of Manchester, Manchester",  # not a last name
        "the Curie of Marie Curie",  # before it
    ],
)
def test_what_is_not_a_short_name(finder, text):
    assert "short name" not in one(finder, text).values()


def test_an_organisation_is_called_by_its_first_word(finder):
    assert one(finder, "Siemens AG grew. Siemens fell.")["Siemens"] == "short name"


def test_short_names_keep_to_their_text(finder):
    found = finder.find(["Siemens AG grew.", "Siemens fell."])
    assert found.offsets.tolist() == [0, 1, 1]


def test_priors_of_short_names_sum_to_one(finder):
    found = finder.find(["Marie Curie met Pierre Curie. Curie spoke."])
    candidates = found.candidates(len(found) - 1)
    assert [candidate.entity for candidate in candidates] == ["pierre", "marie"]
    assert sum(candidate.prior for candidate in candidates) == pytest.approx(1)


def test_spans_are_in_order_the_longer_first_and_each_once(finder):
    text = "The Beatles at the University of Manchester, Manchester"
    found = finder.find([text])
    spans = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert spans == sorted(set(spans), key=lambda span: (span[0], -span[1]))
    assert [text[start:end] for start, end in spans] == [
        *("The Beatles", "Beatles", "University of Manchester", "Manchester", "Manchester"),
    ]


def test_names_of_any_length_are_found(finder):
    name = NAMES["long"][0]
    assert one(finder, f"Read {name.upper()}!") == {name.upper(): "case"}
    assert one(finder, f"Read {name.replace('Strange', 'Strnage')}!") == {name.replace("Strange", "Strnage"): "typo"}


@pytest.mark.parametrize("text", ["", " ", "\n\n", "😀😀", "()", "(.)", "'", "-", "&", "\u200d", "東京東京", "\uffff"])
def test_odd_texts_do_no_harm(finder, text):
    found = finder.find([text, "Paris", text])
    ours = range(int(found.offsets[1]), int(found.offsets[2]))
    assert [(int(found.starts[row]), int(found.ends[row])) for row in ours] == [(0, 5)]
    assert len(finder.find([])) == 0


def test_offsets_are_characters_also_behind_emoji_and_combining_marks(finder):
    assert [row[:2] for row in rows(finder, "😀👍🏽 e\u0301 東京, Fritz Box 😀 Manchestre")] == [
        ("東京", "exact"),
        ("Fritz Box", "punctuation"),
        ("Manchestre", "typo"),
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("aPri.s'é-&() 東😀\nCuUS") | st.characters(), max_size=40), max_size=5))
def test_texts_found_together_are_found_as_alone(finder, texts):
    together = finder.find(texts)
    for number, text in enumerate(texts):
        alone = finder.find([text])
        here = slice(int(together.offsets[number]), int(together.offsets[number + 1]))
        for column in ("starts", "ends", "ways", "edits", "numbers"):
            assert getattr(together, column)[here].tolist() == getattr(alone, column).tolist(), column


def test_word_forms_of_short_texts_are_those_of_long_ones(kb_path, monkeypatch):
    texts = ["Cities and city, the CITIES.", "two-city universities", "a city café's cafés", "a manchester man, wifis"]
    with KnowledgeBase.open(kb_path) as kb:
        finder = ProposalFinder(kb)
        short = [rows(finder, text) for text in [*texts, *texts]]
        monkeypatch.setattr(word_variants, "_FEW_WORDS", -1)
        assert short == [rows(finder, text) for text in texts] * 2
    assert any(row[1] == "inflected" for found in short for row in found)


def test_a_long_text_is_found_as_its_parts(finder, monkeypatch):
    part = "Manchestre, Dr Martens and the University of Manchester; wifi in two cities. N.A.T.O. met. "
    whole = finder.find([part * 40])
    monkeypatch.setattr(match, "_BLOCK", 100)
    again = finder.find([part * 40])
    for column in ("starts", "ends", "ways", "edits", "numbers"):
        assert getattr(whole, column).tolist() == getattr(again, column).tolist(), column
    assert len(whole) == 40 * len(finder.find([part]))


@pytest.mark.parametrize("which", ["inflected", "punctuation", "abbreviations", "short_names", "typos"])
def test_every_way_can_be_switched_off(kb_path, which):
    text = "Basal cell carcinoma (BCC), two cities, Dr Martens, Siemens AG, Siemens, Manchestre, BCC"
    ways = {"inflected", "punctuation", "abbreviation", "short name", "typo"}
    with KnowledgeBase.open(kb_path) as kb:
        found = set(one(ProposalFinder(kb, ProposalOptions(**{which: False})), text).values())
    off = {"abbreviations": "abbreviation", "short_names": "short name", "typos": "typo"}.get(which, which)
    assert ways - found == {off}


def test_without_variants_the_spans_are_those_of_the_candidate_finder(kb_path):
    text = "The Beatles at the University of Manchester, in Paris' Köln; Coca cola, AT&T and IT. " * 3
    with KnowledgeBase.open(kb_path) as kb:
        bare = ProposalOptions(inflected=False, punctuation=False, abbreviations=False, short_names=False, typos=False)
        ours = ProposalFinder(kb, bare).find([text])
        theirs = CandidateFinder(kb, MatchOptions(overlaps="all")).find([text])
    assert ours.starts.tolist() == theirs.starts.tolist()
    assert ours.ends.tolist() == theirs.ends.tolist()


def test_word_forms_of_wordnet_stay_as_they_are(senses_kb):
    text = "the axes ran out; geese were happiest"
    ours = ProposalFinder(senses_kb).find([text])
    theirs = CandidateFinder(senses_kb, MatchOptions(overlaps="all")).find([text])
    assert ours.starts.tolist() == theirs.starts.tolist()
    for row, number in enumerate(theirs.numbers.tolist()):
        assert ours.candidates(row) == theirs.lists.lists[number]
    assert {WAYS[way] for way in ours.ways} == {"inflected"}


def test_names_added_after_compiling_have_their_variants(kb_path, tmp_path):
    path = tmp_path / "copy.kb"
    build(lambda tally: iter([Entity("a", "Paris")]), path, origin=Origin("test"))
    with KnowledgeBase.open(path, writable=True) as kb:
        finder = ProposalFinder(kb)
        text = "Dr Who, wifi, Birminghan, two lorries and Prais"
        assert one(finder, text) == {"Prais": "typo"}
        with kb.change() as change:
            for name in ("Dr. Who", "Wi-Fi", "Birmingham", "lorry"):
                change.add(Entity(name, name))
        expected = {
            "Dr Who": "punctuation",
            "wifi": "punctuation",
            "Birminghan": "typo",
            "lorries": "inflected",
            "Prais": "typo",
        }
        assert one(finder, text) == expected
        assert one(ProposalFinder(kb), text) == expected
        joined = Matcher(finder.matcher.joined())
        match.save(joined.names, match.names_path(kb))
        assert one(ProposalFinder(kb), text) == expected
        with kb.change() as change:
            change.remove("Wi-Fi")
            change.remove("a")
            change.remove("Dr. Who")
        assert one(finder, text) == {"Birminghan": "typo", "lorries": "inflected"}
        assert one(ProposalFinder(kb), text) == {"Birminghan": "typo", "lorries": "inflected"}


def test_found_variants_survive_random_text(finder):
    chance = random.Random(1)
    names = [name for names in NAMES.values() for name in names]
    for _ in range(50):
        parts = []
        for _ in range(30):
            parts.append(chance.choice(names) if chance.random() < 0.3 else _noise(chance))
        text = " ".join(parts)
        found = finder.find([text])
        assert (found.starts < found.ends).all()
        assert (found.ends <= len(text)).all()
        assert (np.diff(found.starts) >= 0).all()
        exact = {text[start:end] for start, end in zip(found.starts, found.ends, strict=True)}
        assert {part for part in parts if part in names} <= exact


def _noise(chance):
    return "".join(chance.choices(string.ascii_letters + ".'-&", k=chance.randrange(1, 12)))
