"""Texts of any length in stretches: every piece is owned once, wherever a text is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toy_models import tokenizer
from wellread.errors import UsageError
from wellread.text.segments import Segmenter
from wellread.text.sentence_windows import TextWindowTokenizer, sentence_starts

TEXT = "Who is the mayor of Cork? Ada was born near the river. The old city of Essen, in Jena."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. We left.", ["It rained. ", "We left."]),
        ('He said "no." Then he left!', ['He said "no." ', "Then he left!"]),
        ("Mr. Smith met J. Doe at 3.5 p.m. today.", ["Mr. Smith met J. Doe at 3.5 p.m. today."]),
        ("a heading\n\nand a line", ["a heading\n\n", "and a line"]),
        ("what? nothing", ["what? nothing"]),
        ("", [""]),
    ],
)
def test_sentences_end_where_people_end_them(text, sentences):
    starts = sentence_starts(text)
    assert [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)] == sentences


@given(
    st.lists(st.sampled_from([*"abcd", "mayor", "Cork", ". ", "! ", "\n\n", "  ", "é"]), max_size=60),
    st.integers(0, 3),
    st.integers(10, 40),
)
def test_every_piece_is_owned_once(parts, sentences, width):
    text = " ".join(parts)
    window_tokenizer = TextWindowTokenizer(tokenizer(), width=width, shared=4, sentences=sentences)
    (found,) = window_tokenizer.tokenize([text])
    whole = Segmenter(tokenizer()).tokenize(text)
    tokens = [id for one in found for id in one.input.ids[one.first : one.last].tolist()]
    spans = [tuple(span) for one in found for span in one.input.spans[one.first : one.last].tolist()]
    real = ~whole.special_mask
    assert tokens == whole.ids[real].tolist()
    assert spans == [tuple(span) for span in whole.spans[real].tolist()]
    assert all(len(one) <= width for one in found)


def test_a_text_that_fits_is_cut_as_a_segment_is():
    ((one,),) = TextWindowTokenizer(tokenizer(), width=128).tokenize([TEXT])
    expected = Segmenter(tokenizer()).tokenize(TEXT)
    for name in ("texts", "words", "first_words", "marks"):
        assert getattr(one.input, name) == getattr(expected, name)
    for name in ("ids", "types", "spans", "segment_of", "word_of", "word_spans", "word_segment"):
        np.testing.assert_array_equal(getattr(one.input, name), getattr(expected, name))


def test_sentences_are_read_together_as_far_as_they_fit():
    def texts(**options):
        (found,) = TextWindowTokenizer(tokenizer(), shared=4, **options).tokenize([TEXT])
        return [TEXT[one.input.spans[one.first, 0] : one.input.spans[one.last - 1, 1]] for one in found]

    first, second, third = (
        "Who is the mayor of Cork?",
        "Ada was born near the river.",
        "The old city of Essen, in Jena.",
    )
    assert texts(width=128, sentences=1) == [first, second, third]
    assert texts(width=128, sentences=2) == [f"{first} {second}", third]
    assert texts(width=128, sentences=9) == [TEXT]
    assert texts(width=12, sentences=9) == [first, second, third]


def test_windows_tell_their_words_by_their_numbers_in_the_text():
    (found,) = TextWindowTokenizer(tokenizer(), width=12, shared=4).tokenize([TEXT])
    assert len(found) > 2
    for one in found:
        begin = one.input.first_words[0]
        assert one.input.words == Segmenter(tokenizer()).tokenize(TEXT).words[begin : begin + len(one.input.words)]


def test_stretches_that_share_too_much_are_refused():
    with pytest.raises(UsageError, match="at least 50"):
        TextWindowTokenizer(tokenizer(), width=40, shared=24)
