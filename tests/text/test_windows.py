"""Windows of texts: every mention is begun by one window and seen whole by it; offsets are the text's own."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.toy_models import tokenizer
from wellread.errors import UsageError
from wellread.text import windows as windows_module
from wellread.text.tokenization import TextTokenizer
from wellread.text.windows import TextWindowTokenizer, WindowTokenizer, sentence_starts, sliding_windows

TOKENIZER = tokenizer()
WORDS = st.sampled_from(
    [
        "cork",
        "who",
        "is",
        "Zürich",
        "cafe\u0301",
        "東京",
        "👩‍🚀",
        "🙂",
        "don't",
        "x" * 25,
        "q" * 70,
        "ﬁn",
        "İzmir",
        "a.b",
    ]
)
BLANKS = st.sampled_from([" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", ""])
TEXTS = st.lists(st.tuples(WORDS, BLANKS), max_size=25).map(
    lambda parts: "".join(word + blank for word, blank in parts)
) | st.text(max_size=60)
SIZES = st.integers(2, 6).flatmap(
    lambda shared: st.tuples(st.just(shared), st.integers(2 * shared + 2, 2 * shared + 9))
)


def byte_level():
    """A tokenizer that counts the blank to the word behind it, as RoBERTa's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def tokenize(text, tokens=TOKENIZER, **options):
    (windows,) = WindowTokenizer(tokens, **options).tokenize([text])
    return windows


def word_spans(text, longest):
    """Return every run of whole words of at most `longest` tokens, as (start, end) in characters with its token ids."""
    code = TOKENIZER.encode(text, add_special_tokens=False)
    words = code.word_ids
    count = len(words)
    firsts = [at for at in range(count) if at == 0 or words[at] != words[at - 1]]
    lasts = {at for at in range(count) if at == count - 1 or words[at] != words[at + 1]}
    for first in firsts:
        for last in range(first, min(first + longest, count)):
            if last in lasts:
                yield first, last, code


@given(TEXTS, SIZES)
@example("cork " * 30, (4, 10))
@example("x" * 50 + " cork", (2, 6))
def test_every_span_of_whole_words_is_begun_by_one_window_that_holds_it(text, sizes):
    shared, width = sizes
    windows = tokenize(text, width=width, shared=shared)
    for first, last, code in word_spans(text, shared // 2):
        start, end = code.offsets[first][0], code.offsets[last][1]
        if end <= start:
            continue
        owners = []
        for window in windows:
            for place in np.flatnonzero(window.begins_mask).tolist():
                ids = window.ids[place : place + last - first + 1].tolist()
                if tuple(window.spans[place]) == code.offsets[first] and ids == code.ids[first : last + 1]:
                    behind = place + last - first
                    assert window.ends_mask[behind]
                    assert (window.spans[place, 0], window.spans[behind, 1]) == (start, end)
                    owners.append(window)
        assert len(owners) == 1


@given(TEXTS, SIZES)
@example("cork " * 8, (4, 10))  # just fits, with [CLS] and [SEP]
@example("cork " * 9, (4, 10))  # one too many
@example("cork " * 12, (4, 10))  # two windows, both full
@example("cork " * 13, (4, 10))
@example("", (2, 6))
def test_windows_laid_together_are_the_text_s_tokens(text, sizes):
    shared, width = sizes
    windows = tokenize(text, width=width, shared=shared, whole_words=False)
    code = TOKENIZER.encode(text, add_special_tokens=False)
    owned = [
        (int(window.ids[place]), tuple(window.spans[place].tolist()))
        for window in windows
        for place in np.flatnonzero(window.begins_mask)
    ]
    there = [(id, span) for id, span in zip(code.ids, code.offsets, strict=True) if span[1] > span[0]]
    assert owned == there
    for window in windows:
        assert len(window) <= width
        assert (window.ids[0], window.ids[-1]) == (TOKENIZER.token_to_id("[CLS]"), TOKENIZER.token_to_id("[SEP]"))
        assert window.special_mask[[0, -1]].all()
        assert not (window.begins_mask | window.ends_mask)[window.special_mask].any()


@given(TEXTS, st.integers(1, 6).flatmap(lambda longest: st.tuples(st.just(longest), st.integers(longest + 3, 20))))
@example("cork who is in " * 9, (6, 9))
def test_small_windows_hold_every_span_that_they_begin(text, sizes):
    longest, width = sizes
    behind = longest - 1
    windows = tokenize(text, width=width, shared=behind + (width - 2 - behind) // 2, behind=behind)
    begun = []
    for window in windows:
        assert len(window) <= width
        begun += [tuple(window.spans[place].tolist()) for place in np.flatnonzero(window.begins_mask)]
    for first, last, code in word_spans(text, longest):
        if code.offsets[first][1] > code.offsets[first][0]:
            assert begun.count(code.offsets[first]) == 1
            (owner,) = (w for w in windows if (w.begins_mask & (w.spans == code.offsets[first]).all(1)).any())
            assert (owner.spans == code.offsets[last]).all(1).any()


@given(TEXTS)
def test_offsets_are_those_of_the_original_text(text):
    for tokens in (TOKENIZER, byte_level()):
        ends = [0]
        for window in tokenize(text, tokens):
            real = window.spans[~window.special_mask]
            assert ((real >= 0) & (real <= len(text))).all()
            assert (np.diff(real[:, 0]) >= 0).all()
            ends += real[:, 1].tolist()
        assert max(ends) <= len(text)


def test_accents_emoji_and_other_scripts_keep_their_places():
    text = "Zürich\t東京\n👩‍🚀 cafe\u0301 Cork"
    (window,) = tokenize(text)
    word = {}
    for name in ("Zürich", "東", "京", "Cork"):
        span = window.covering(text.index(name), text.index(name) + len(name))
        assert span is not None
        first, last = span
        word[name] = text[window.spans[first, 0] : window.spans[last, 1]]
        assert window.begins_mask[first]
        assert window.ends_mask[last]
    assert word == {name: name for name in word}


def test_a_blank_before_a_word_is_not_part_of_it():
    text = "in New York"
    (window,) = tokenize(text, byte_level())
    first, last = window.covering(3, 11)
    assert (window.spans[first, 0], window.spans[last, 1]) == (3, 11)
    starts = window.spans[np.flatnonzero(window.begins_mask), 0].tolist()
    assert starts == [0, 3, 7]


def test_a_blank_alone_neither_begins_nor_ends_a_mention():
    text = "in\n\n  New York"
    (window,) = tokenize(text, byte_level())
    for place in np.flatnonzero(window.begins_mask | window.ends_mask):
        start, end = window.spans[place].tolist()
        assert text[start:end].strip()


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000", "\u200b"])
def test_a_text_without_tokens_has_no_windows(text):
    assert tokenize(text) == []


def test_texts_keep_their_numbers():
    windows = list(WindowTokenizer(TOKENIZER).tokenize(["cork", "", "in cork"]))
    assert [[window.text for window in some] for some in windows] == [[0], [], [2]]
    assert list(WindowTokenizer(TOKENIZER).tokenize([])) == []


def test_a_text_of_just_the_width_is_one_window():
    for count, number in ((8, 1), (9, 2)):
        windows = tokenize("cork " * count, width=10, shared=4)
        assert len(windows) == number
        assert sum(window.begins_mask.sum() for window in windows) == count


def test_a_long_text_takes_as_many_windows_as_steps():
    windows = tokenize("cork " * 1000, width=12, shared=4)
    assert len(windows) == 1 + -(-(1000 - 10) // 6)


def test_a_word_longer_than_a_window_is_begun_once():
    windows = tokenize("who " + "x" * 50 + " cork", width=10, shared=4)
    begun = [tuple(window.spans[place]) for window in windows for place in np.flatnonzero(window.begins_mask)]
    assert begun == [(0, 3), (4, 5), (55, 59)]


def test_a_span_is_found_by_the_tokens_it_touches():
    (window,) = tokenize("in Zürich now")
    first, last = window.covering(3, 9)
    assert (window.spans[first, 0], window.spans[last, 1]) == (3, 9)
    assert window.covering(2, 3) is None
    assert window.covering(4, 5)[0] > first


def test_the_user_s_tokenizer_is_left_as_it_was():
    mine = tokenizer()
    mine.enable_truncation(4)
    mine.enable_padding(length=8)
    (window,) = tokenize("cork " * 20, mine)
    assert len(window) == 22
    assert mine.truncation["max_length"] == 4
    assert mine.padding["length"] == 8


@pytest.mark.parametrize(
    ("width", "shared", "message"), [(9, 4, "a width of at least 10"), (192, 1, "share 2 or more")]
)
def test_windows_of_impossible_sizes_name_the_fix(width, shared, message):
    with pytest.raises(UsageError, match=message):
        WindowTokenizer(TOKENIZER, width=width, shared=shared)


def test_the_drawing_in_the_docstring_is_true():
    lines = [line for line in windows_module.__doc__.splitlines() if line.startswith(("    tokens", "    window"))]
    columns = {found.start(): int(found[0]) for found in re.finditer(r"\d", lines[0])}
    drawn = [(columns[line.index("└")], columns[line.index("┘")]) for line in lines[1:]]
    owned = [tuple(map(int, pair)) for pair in re.findall(r"(\d)-(\d)", windows_module.__doc__)]
    width, shared = map(int, re.search(r"width (\d+), overlap (\d+)", windows_module.__doc__).groups())
    bare = tokenizer()
    bare.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    text = " ".join("a" for _ in columns)
    windows = tokenize(text, bare, width=width, shared=shared)
    assert [(window.spans[0, 0] // 2, window.spans[-1, 0] // 2) for window in windows] == drawn
    begun = [window.spans[window.begins_mask, 0] // 2 for window in windows]
    assert [(some[0], some[-1]) for some in begun] == owned


@given(st.integers(1, 60), st.integers(0, 6), st.integers(1, 12), st.integers(0, 5), st.integers(0, 6))
@example(10, 2, 4, 0, 1)
def test_sliding_windows_own_every_item_once(count, overlap, more, start, after):
    width, after = overlap + more, min(after, overlap)
    windows = list(sliding_windows(start + count, width, overlap=overlap, after=after, start=start))
    assert [item for _, _, low, high in windows for item in range(low, high)] == list(range(start, start + count))
    for first, last, low, high in windows:
        assert first <= low <= high <= last <= first + width
    for (_, last, _, high), (first, _, low, _) in pairwise(windows):
        assert (last - first, last - high, low) == (overlap, after, high)


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
def test_every_token_is_owned_once(parts, sentences, width):
    text = " ".join(parts)
    window_tokenizer = TextWindowTokenizer(tokenizer(), width=width, shared=4, sentences=sentences)
    (found,) = window_tokenizer.tokenize([text])
    whole = TextTokenizer(tokenizer()).tokenize(text)
    tokens = [id for one in found for id in one.input.ids[one.first : one.last].tolist()]
    spans = [tuple(span) for one in found for span in one.input.spans[one.first : one.last].tolist()]
    real = ~whole.special_mask
    assert tokens == whole.ids[real].tolist()
    assert spans == [tuple(span) for span in whole.spans[real].tolist()]
    assert all(len(one) <= width for one in found)


def test_a_text_that_fits_is_tokenized_as_one_input():
    ((one,),) = TextWindowTokenizer(tokenizer(), width=128).tokenize([TEXT])
    expected = TextTokenizer(tokenizer()).tokenize(TEXT)
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


def test_windows_number_their_words_as_the_text_does():
    (found,) = TextWindowTokenizer(tokenizer(), width=12, shared=4).tokenize([TEXT])
    assert len(found) > 2
    for one in found:
        begin = one.input.first_words[0]
        assert one.input.words == TextTokenizer(tokenizer()).tokenize(TEXT).words[begin : begin + len(one.input.words)]


def test_sentence_windows_that_share_too_much_are_refused():
    with pytest.raises(UsageError, match="at least 50"):
        TextWindowTokenizer(tokenizer(), width=40, shared=24)
