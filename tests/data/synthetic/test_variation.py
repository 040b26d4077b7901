"""Varied text for training keeps its links and unsure spans where they belong."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wellread.data.synthetic.variation import Variation, misspell, vary
from wellread.document import Document, Link
from wellread.errors import UsageError

ALIASES = {"a": ["Alpha", "A", "the first letter"], "b": ["  ", "Bé"], "c": []}
CHANCES = st.sampled_from([0.0, 0.3, 1.0])
VARIATIONS = st.builds(Variation, lower=CHANCES, alias=CHANCES, typo=CHANCES)


@st.composite
def documents(draw):
    text = draw(st.text("abc DÉİß東👩", max_size=40))
    spans = st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(sorted).filter(lambda s: s[0] < s[1])
    links = draw(st.lists(spans, max_size=5)) if text else []
    unsure = draw(st.lists(spans, max_size=5)) if text else []
    entities = st.sampled_from([None, "a", "b", "c"])
    made = [Link(start, end, text[start:end], draw(entities)) for start, end in sorted(map(tuple, links))]
    return Document(text, tuple(made), "id", {"unsure": [list(span) for span in unsure], "more": 1})


def names(entity):
    return ALIASES[entity]


NESTED = Document(
    "the Bank of England said",
    (Link(4, 19, "Bank of England", "a"), Link(12, 19, "England", "b")),
    meta={"unsure": [[0, 8], [4, 8], [20, 24]]},
)


@given(documents(), VARIATIONS, st.integers(0, 10**6))
@example(Document(""), Variation(1.0, 1.0, 1.0), 0)
@example(NESTED, Variation(1.0, 1.0, 1.0), 0)
def test_links_are_where_their_text_is(document, variation, seed):
    varied = vary(document, variation, Random(seed), names)
    assert [link.entity for link in varied.links] == [link.entity for link in document.links]
    assert all(varied.text[link.start : link.end] == link.text for link in varied.links)
    assert (varied.id, varied.meta.get("more")) == (document.id, document.meta.get("more"))
    before = {(one.start, one.end) for one in document.links}
    if not variation:
        assert varied == document
    if not variation.alias and not variation.typo:
        assert {(one.start, one.end) for one in varied.links} == before
        assert varied.meta == document.meta


@given(documents(), VARIATIONS, st.integers(0, 10**6))
@example(NESTED, Variation(0.0, 1.0, 0.0), 0)
@example(
    Document("a bb c", (Link(2, 4, "bb", "a"),), meta={"unsure": [[0, 4], [3, 6], [4, 6]]}), Variation(alias=1.0), 0
)
def test_unsure_spans_move_with_the_text(document, variation, seed):
    varied = vary(document, variation, Random(seed), names)
    pairs = list(zip(document.links, varied.links, strict=True))
    changed = [(one, other) for one, other in pairs if one.end - one.start != other.end - other.start]
    changed += [(one, other) for one, other in pairs if one.text.lower() != other.text.lower()]
    wanted = []
    for start, end in document.meta.get("unsure", ()):
        if any(one.start < place < one.end for one, _ in changed for place in (start, end)):
            continue
        outside = _outside(document.text[start:end], start, [one for one, _ in changed])
        wanted.append("".join(outside).lower())
    moved = [
        "".join(_outside(varied.text[start:end], start, [other for _, other in changed])).lower()
        for start, end in varied.meta.get("unsure", ())
    ]
    # Replacing a name with one that differs in nothing but length-preserving ways is not seen from here.
    if all(one.text == other.text or (one, other) in changed for one, other in pairs):
        assert moved == wanted


def _outside(text, start, links):
    """The letters of a part of a text that are in none of the links."""
    for place, letter in enumerate(text, start):
        if not any(link.start <= place < link.end for link in links):
            yield letter


def test_each_change_is_made():
    document = Document("I like Rome and Sarajevo", (Link(7, 11, "Rome", "a"), Link(16, 24, "Sarajevo", None)))
    lower = vary(document, Variation(lower=1.0), Random(0), names)
    assert (lower.text, [link.text for link in lower.links]) == ("i like rome and sarajevo", ["rome", "sarajevo"])
    seen = {vary(document, Variation(alias=1.0), Random(seed), names).text for seed in range(20)}
    assert seen == {f"I like {name} and Sarajevo" for name in ALIASES["a"]}
    typos = {vary(document, Variation(typo=1.0), Random(seed), names).text for seed in range(20)}
    assert len(typos) > 10
    assert all(text.startswith("I like Rome and ") for text in typos)  # too short to be misspelt


def test_overlapping_links_stay_as_they_are():
    varied = vary(NESTED, Variation(alias=1.0, typo=1.0), Random(0), names)
    assert (varied.text, varied.links, varied.meta) == (NESTED.text, NESTED.links, NESTED.meta)


@given(st.text(max_size=20), st.integers(0, 10**6))
@example("abcd", 0)
@example("abcde", 0)
@example("1234567", 0)
def test_a_typo_is_one_change(name, seed):
    wrong = misspell(name, Random(seed))
    letters = sum(letter.isalpha() for letter in name)
    if letters < 5:
        assert wrong == name
    assert abs(len(wrong) - len(name)) <= 1
    same = next((at for at, (a, b) in enumerate(zip(name, wrong, strict=False)) if a != b), min(len(name), len(wrong)))
    assert (
        wrong[same + 2 :] in (name[same + 1 :], name[same + 2 :], name[same + 3 :]) or wrong[same:] == name[same + 1 :]
    )


@pytest.mark.parametrize("options", [{"lower": -0.1}, {"alias": 1.1}, {"typo": 7}])
def test_chances_are_probabilities(options):
    with pytest.raises(UsageError, match=rf"variation.{next(iter(options))} is .*; give a probability from 0 to 1"):
        Variation(**options)
