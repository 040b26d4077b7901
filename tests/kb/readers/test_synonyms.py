"""Synonyms from WordNet: only where title and synonym have one sense, and gloss and article agree."""

import pytest

from wellread.errors import InputError
from wellread.kb.readers.synonyms import Synonyms
from wellread.kb.readers.title_names import Article

NOUNS = """  1 licence
00000001 26 n 02 myocardial_infarction 0 heart_attack 0 000 | destruction of heart tissue
00000002 07 n 02 bank 0 depository 0 000 | a financial institution
00000003 17 n 01 bank 0 000 | sloping land beside water
00000004 18 n 02 Celsius 0 Anders_Celsius 0 000 | astronomer who devised the thermometer
00000005 27 n 03 barium 0 Ba 0 atomic_number_56 0 000 | a soft silvery metallic element
00000006 05 n 02 gnu 0 wildebeest 0 000 | large African antelope
00000007 05 n 02 cat 0 true_cat 0 000 | feline mammal
00000008 05 n 01 true_cat 0 000 | any cat
"""


@pytest.fixture
def synonyms(tmp_path):
    (tmp_path / "data.noun").write_text(NOUNS)
    return Synonyms(tmp_path, ["Myocardial infarction", "Bank", "Celsius", "Barium", "Gnu", "Cat"])


def test_the_words_of_the_only_synset_are_synonyms(synonyms):
    article = Article("Myocardial infarction", "It harms the heart.", "", "")
    assert set(synonyms.of(article)) == {"myocardial infarction", "heart attack"}


@pytest.mark.parametrize(
    ("title", "lead", "why"),
    [
        ("Bank", "A bank is a financial institution.", "the title has two senses"),
        ("Gnu", "GNU is a free operating system.", "the gloss is about something else"),
        ("Celsius", "Celsius is a scale of the thermometer.", "a namesake"),
        ("Barium", "Barium is a metallic element.", "a symbol and a description"),
        ("Cat", "The cat is a feline.", "the synonym has another sense"),
        ("Dog", "The dog is a pet.", "not in WordNet"),
    ],
)
def test_what_may_mean_something_else_is_not_a_synonym(synonyms, title, lead, why):
    assert {word.lower() for word in synonyms.of(Article(title, lead, "", ""))} <= {title.lower()}, why


def test_a_folder_that_is_not_wordnet_is_refused(tmp_path):
    (tmp_path / "data.noun").write_text("not a synset\n")
    with pytest.raises(InputError, match="fetch WordNet again"):
        Synonyms(tmp_path, ["Moon"])
