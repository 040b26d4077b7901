"""Inputs of one or two segments: words are numbered through both, what is cut off is not there."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.map_data import byte_level, word_piece
from wellread.errors import InputError, UsageError
from wellread.tasks.word_spans import fits
from wellread.text import words as names
from wellread.text.segments import Segmenter
from wellread.text.sentence_windows import TextWindowTokenizer
from wellread.text.tokenization import TextTokenizer
from wellread.text.windows import WindowTokenizer

KINDS = {"word-piece": word_piece(), "byte-level": byte_level()}
TEXTS = st.text(st.sampled_from("the old é e\u0301東京👩\u200d🚀\t\r\n'-. ﬁ½ß"), max_size=20) | st.text(max_size=20)
INPUTS = st.tuples(TEXTS) | st.tuples(TEXTS, TEXTS)


def best_word(span, words):
    """The number of the word that a span overlaps most, the first of equals; -1 for none."""
    shared = [min(span[1], end) - max(span[0], start) for start, end in words]
    most = max(shared, default=0)
    return shared.index(most) if most > 0 else -1


@pytest.mark.parametrize("kind", KINDS)
@given(texts=INPUTS)
@example(texts=("the old", "the old"))
@example(texts=("", ""))
def test_every_piece_has_the_word_of_its_own_segment_that_it_overlaps_most(kind, texts):
    tokenized = Segmenter(KINDS[kind]).tokenize(*texts)
    assert tokenized.texts == texts
    assert list(tokenized.words) == [word for text in texts for word in names.words(text)]
    for word, (start, end), segment in zip(
        tokenized.words, tokenized.word_spans.tolist(), tokenized.word_segment.tolist(), strict=True
    ):
        assert texts[segment][start:end] == word
    for token in range(len(tokenized)):
        segment = int(tokenized.segment_of[token])
        if tokenized.special_mask[token]:
            assert tokenized.word_of[token] == -1
            assert tokenized.spans[token].tolist() == [0, 0]
            continue
        here = np.flatnonzero(tokenized.word_segment == segment)
        found = best_word(tokenized.spans[token].tolist(), tokenized.word_spans[here].tolist())
        assert tokenized.word_of[token] == (here[found] if found >= 0 else -1)
    assert tokenized.first_words == (0,) * len(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_types_are_those_of_the_tokenizer(kind):
    for texts in (("who is the mayor",), ("who is", "the mayor of new york")):
        tokenized, code = Segmenter(KINDS[kind]).tokenize(*texts), KINDS[kind].encode(*texts)
        assert tokenized.ids.tolist() == code.ids
        assert tokenized.types.tolist() == code.type_ids
        assert tokenized.segment_of.tolist() == [-1 if segment is None else segment for segment in code.sequence_ids]


def test_many_inputs_are_cut_like_each_alone_whatever_their_segments():
    segmenter = Segmenter(word_piece())
    inputs = [("who is",), ("old york", "new york"), ("",), ("a", "")] * 300
    each = {texts: segmenter.tokenize(*texts) for texts in inputs[:4]}
    for texts, tokenized in zip(inputs, segmenter.tokenize_many(inputs), strict=True):
        alone = each[texts]
        assert (tokenized.texts, tokenized.words, tokenized.ids.tolist()) == (
            alone.texts,
            alone.words,
            alone.ids.tolist(),
        )
    assert segmenter.tokenize_many([]) == []


def test_the_longest_segment_is_cut_first_and_its_lost_words_are_no_words():
    tokenized = Segmenter(word_piece(), longest=9).tokenize("who is", "the mayor of new york city")
    assert len(tokenized) == 9
    assert tokenized.words == ("who", "is", "the", "mayor", "of", "new")
    assert tokenized.word_of.tolist() == [-1, 0, 1, -1, 2, 3, 4, 5, -1]
    assert tokenized.first_words == (0, 0)


def test_a_word_that_is_cut_in_two_stays_a_word():
    tokenized = Segmenter(word_piece(), longest=6).tokenize("new zzzz")
    assert tokenized.words == ("new", "zzzz")
    assert tokenized.word_of.tolist() == [-1, 0, 1, 1, 1, -1]


@given(texts=INPUTS, longest=st.integers(4, 20))
@example(texts=("the old city",), longest=5)  # just fits, with [CLS] and [SEP]
@example(texts=("the old city of",), longest=5)  # one too many
@example(texts=("the old", "the new"), longest=7)
@example(texts=("the old", "the new"), longest=6)
def test_a_cut_input_is_the_tokenizers_own_truncation(texts, longest):
    own = word_piece()
    own.enable_truncation(longest, strategy="longest_first")
    tokenized, whole = (
        Segmenter(word_piece(), longest=longest).tokenize(*texts),
        Segmenter(word_piece()).tokenize(*texts),
    )
    assert tokenized.ids.tolist() == own.encode(*texts).ids
    assert len(tokenized) == min(longest, len(whole))
    for segment in range(len(texts)):
        kept = [word for word, at in zip(tokenized.words, tokenized.word_segment, strict=True) if at == segment]
        every = [word for word, at in zip(whole.words, whole.word_segment, strict=True) if at == segment]
        first = tokenized.first_words[segment]
        assert kept == every[first : first + len(kept)]
    touched = {tokenized.word_of[token] for token in range(len(tokenized))} - {-1}
    assert touched <= set(range(len(tokenized.words)))


def test_windows_share_pieces_and_cover_the_passage():
    passage = "the old mayor of new york city is near me"
    windows = Segmenter(word_piece()).tokenize_windows("who is", passage, longest=9, stride=1)
    assert [window.words for window in windows] == [
        ("who", "is", "the", "old", "mayor", "of"),
        ("who", "is", "of", "new", "york", "city"),
        ("who", "is", "city", "is", "near", "me"),
    ]
    assert [window.first_words for window in windows] == [(0, 0), (0, 3), (0, 6)]
    for window in windows:
        for (start, end), segment, word in zip(window.spans, window.segment_of, window.word_of, strict=True):
            assert segment < 0 or window.texts[segment][start:end] == window.words[word]


def test_a_short_passage_has_one_window_like_its_pair():
    segmenter = Segmenter(word_piece())
    (window,) = segmenter.tokenize_windows("who is", "the mayor")
    pair = segmenter.tokenize("who is", "the mayor")
    assert (window.ids.tolist(), window.words) == (pair.ids.tolist(), pair.words)
    assert segmenter.tokenize_windows_many([]) == []


def test_a_question_that_leaves_no_room_is_named():
    with pytest.raises(UsageError, match="4 pieces of the question 'who is the mayor'"):
        Segmenter(word_piece()).tokenize_windows("who is the mayor", "old", longest=10, stride=3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [(["a bare text"], r"give \('a bare text',\)"), ([()], "has 0"), ([("a", "b", "c")], "has 3; join")],
)
def test_what_is_no_input_is_told_so(inputs, message):
    with pytest.raises(UsageError, match=message):
        Segmenter(word_piece()).tokenize_many(inputs)


HALF = "ok \ud83d broken"


@pytest.mark.parametrize(
    "cut",
    [
        lambda segmenter: segmenter.tokenize("fine", HALF),
        lambda segmenter: segmenter.tokenize_many([("fine",), (HALF,)]),
        lambda segmenter: segmenter.tokenize_windows(HALF, "fine", longest=24, stride=4),
        lambda segmenter: segmenter.tokenize_windows("fine", HALF, longest=24, stride=4),
        lambda segmenter: segmenter.token_ids_of([HALF]),
        lambda segmenter: TextWindowTokenizer(segmenter.tokenizer, width=24, shared=4).tokenize([HALF]),
        lambda segmenter: list(WindowTokenizer(segmenter.tokenizer, width=24, shared=4).tokenize([HALF])),
        lambda segmenter: TextTokenizer(segmenter.tokenizer).tokenize(HALF),
        lambda segmenter: fits(HALF, segmenter),
    ],
)
def test_half_a_surrogate_pair_is_named_and_no_traceback_of_the_tokenizer(tokenized):
    with pytest.raises(
        InputError, match=r"the text ' ?ok \\ud83d broken' has half a surrogate pair at \d; write it anew"
    ):
        tokenized(Segmenter(word_piece(), longest=16))


def test_what_is_no_text_is_told_so():
    with pytest.raises(UsageError, match="None is no text; give a str"):
        Segmenter(word_piece()).tokenize("fine", None)


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(UsageError, match="more than 3"):
        Segmenter(word_piece(), longest=3)


def test_the_users_tokenizer_is_left_as_it_was():
    own = word_piece()
    own.enable_truncation(7)
    own.enable_padding(length=9)
    assert len(Segmenter(own).tokenize("who is the mayor of old new york")) == 10
    assert own.truncation["max_length"] == 7
    assert own.padding["length"] == 9


@pytest.mark.parametrize(("kind", "before"), [("word-piece", ""), ("byte-level", "Ġ")])
def test_words_alone_are_in_pieces_as_in_the_middle_of_a_text(kind, before):
    tokenizer = KINDS[kind]
    (ids,) = Segmenter(tokenizer).token_ids_of(["city"])
    assert "".join(map(tokenizer.id_to_token, ids)).replace("##", "") == f"{before}city"
