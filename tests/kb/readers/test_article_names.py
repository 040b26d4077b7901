"""Names that a title and a lead give: one case for each rule, and what must not be taken for a name."""

import pytest

from wellread.kb.readers.lead_names import is_plausible, lead_names
from wellread.kb.readers.title_names import Article, Source, title_names


def from_title(title, short="", topic="", lead=""):
    return {name for name, _ in title_names(Article(title, lead, short, topic))} - {title}


def from_lead(title, lead, topic=""):
    return {name for name, _ in lead_names(Article(title, lead, "", topic))} - {title}


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Mercury (planet)", {"Mercury"}),
        ("Apple Inc.", {"Apple"}),
        ("Ford Motor Company", {"Ford"}),
        ("Austin, Texas", {"Austin"}),
        ("Hand, foot, and mouth disease", set()),
        ("The Good, the Bad and the Ugly", {"Good, the Bad and the Ugly"}),
        ("The Washington Post", {"Washington Post"}),
        ("Saint Petersburg", {"St. Petersburg", "St Petersburg"}),
        ("Mount Everest", {"Everest", "Mt. Everest", "Mt Everest"}),
        ("Niger River", {"Niger", "the Niger", "River Niger"}),
        ("University of Oxford", {"Oxford University", "Oxford"}),
        ("1755 Lisbon earthquake", {"Lisbon earthquake"}),
        ("2008 financial crisis", set()),
        ("Arab–Israeli conflict", {"Arab-Israeli conflict"}),
        ("HIV/AIDS", {"HIV", "AIDS"}),
    ],
)
def test_names_of_things_and_places_from_titles(title, names):
    assert from_title(title) == names


def test_names_of_wars_and_works_from_titles():
    assert {"WWII", "WW2", "Second World War", "World War Two"} <= from_title("World War II")
    assert from_title("Republic (Plato)", topic="Arts") == {"Republic", "Plato's Republic"}
    assert "Beethoven's Ninth Symphony" in from_title("Symphony No. 9 (Beethoven)", topic="Arts")


@pytest.mark.parametrize(
    ("title", "short", "names"),
    [
        ("Albert Einstein", "German physicist", {"Einstein"}),
        ("Ludwig van Beethoven", "German composer", {"Beethoven", "van Beethoven"}),
        (
            "Johann Sebastian Bach",
            "German composer",
            {"Bach", "Johann Bach", "J. S. Bach", "J.S. Bach"},
        ),
        ("Gabriel García Márquez", "Colombian writer", {"Márquez"}),
        ("B. B. King", "American musician", {"King"}),
        ("Martin Luther King Jr.", "American minister", None),
        ("Mao Zedong", "Chinese leader", {"Mao", "Zedong"}),
        ("Alexander I of Russia", "Emperor", {"Alexander I"}),
        ("Charles V, Holy Roman Emperor", "Emperor", {"Charles V"}),
        ("Pope John Paul II", "Pope", {"John Paul II"}),
        ("Elizabeth II", "Queen", set()),
        ("Hildegard of Bingen", "German abbess", set()),
    ],
)
def test_names_of_persons_from_titles(title, short, names):
    found = from_title(title, short, topic="People")
    assert found == names if names is not None else {"Martin Luther King", "King", "Martin King"} <= found


def test_a_band_and_a_war_are_not_persons():
    assert not Article("Queen (band)", "Queen are a band.", "British rock band", "People").is_person
    assert not Article("World War II", "It was a war.", "Global conflict (1939–1945)", "Uncategorized").is_person
    assert Article("Leo Tolstoy", "He was a writer.", "Russian writer (1828–1910)", "Uncategorized").is_person
    assert Article("Moses", "Moses was a prophet. He led his people.", "Prophet", "Uncategorized").is_person


@pytest.mark.parametrize(
    ("title", "lead", "names"),
    [
        (
            "United States",
            "The United States of America (USA), also known as the United States (U.S.) or America, is a country.",
            {"United States of America", "USA", "U.S.", "US", "America"},
        ),
        (
            "Democratic Republic of the Congo",
            "The Democratic Republic of the Congo (DRC), also known as the DR Congo, Congo-Kinshasa, or simply the "
            "Congo, and formerly named Zaire, is a country.",
            {"DRC", "DR Congo", "Congo-Kinshasa", "Congo", "Zaire"},
        ),
        ("Mercury", "Mercury is a chemical element. It is commonly known as quicksilver.", {"quicksilver"}),
        (
            "Lewis Carroll",
            "Charles Dodgson, better known by his pen name Lewis Carroll, was an author.",
            {"Charles Dodgson"},
        ),
        ("Aluminium", "Aluminium or aluminum is a chemical element.", {"aluminum"}),
        ("Ice hockey", "Ice hockey, known simply as hockey in North America, is a sport.", {"hockey"}),
        ("Color", "Color (or colour in Commonwealth English) is a perception.", {"colour"}),
        ("Plane", "In mathematics, a plane is a flat surface.", {"plane"}),
        (
            "Bertolt Brecht",
            "Eugen Brecht, known as Bertolt Brecht and Bert Brecht, was a poet.",
            {"Eugen Brecht", "Bert Brecht"},
        ),
        ("Odesa", "Odesa, also spelled Odessa, is a city.", {"Odessa"}),
        ("Turkey", "Turkey, officially the Republic of Türkiye, is a country.", {"Republic of Türkiye"}),
        ("Myrtaceae", "Myrtaceae, the myrtle family, is a family of plants.", set()),
        ("Commutative property", "In mathematics, a binary operation is commutative if order does not matter.", set()),
        ("Apology", "The Apology of Socrates, written by Plato, is a dialogue.", {"Apology of Socrates"}),
        ("Oppenheimer", "Oppenheimer was a physicist. He is often called the father of the bomb.", set()),
        ("Discourse", "The Discourse is a treatise. It is best known as the source of a quotation.", set()),
    ],
)
def test_names_that_leads_state(title, lead, names):
    assert from_lead(title, lead) == names


def test_titles_and_orders_are_not_a_part_of_a_persons_name():
    lead = "Sir Robert Peel PC was a statesman. Joseph II was an emperor."
    assert from_lead("Robert Peel", lead, topic="People") == {"Sir Robert Peel"}
    assert from_lead("Joseph", "Joseph II was an emperor.", topic="People") == {"Joseph II"}


def test_the_subject_is_surer_than_a_listed_name():
    found = dict(lead_names(Article("New York City", "New York, often called New York City, is a city.", "", "")))
    assert found["New York"] == Source.SUBJECT > found["New York City"] == Source.LEAD


@pytest.mark.parametrize(
    "text", ["one of the", "the", "source of a quotation", "x" * 60, "12", "a b c d e f g", "name of"]
)
def test_phrases_are_not_plausible_names(text):
    assert not is_plausible(text)
