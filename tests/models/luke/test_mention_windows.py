"""Tokenization with marks: equal to transformers' LUKE tokenizers, and windows that lose no mark."""

import random

import numpy as np
import pytest
from tokenizers import pre_tokenizers
from transformers import LukeTokenizer, MLukeTokenizer

from tests.task_models import TOKENIZER
from tests.toy_models import tokenizer
from wellread.errors import UsageError
from wellread.models.luke.mention_windows import MentionTokenizer
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.text.tokenization import Mark, TextTokenizer, with_one_type

ROWS = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3, "Beyoncé": 4, "Los Angeles": 5}
VOCABULARY = EntityVocabulary(ROWS)
TEXT = "Beyoncé lives in Los Angeles."
SPANS = [(0, 7), (17, 28)]  # the documented example


def roberta(**options):
    merges = [("Ġ", "l"), ("i", "n"), ("Ġ", "in"), ("o", "s"), ("L", "os"), ("Ġ", "Los"), ("Ġl", "i"), ("n", "g")]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [one + other for one, other in merges]
    rows = {token: number for number, token in enumerate(tokens)}
    return LukeTokenizer(vocab=rows, merges=merges, entity_vocab=ROWS, **options)


def xlm(**options):
    letters = [(letter, -3.0) for letter in "▁abcdefghijklmnopqrstuvwxyzLABSé.,"]
    tokens = [*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")), *letters, ("▁Los", -2.0), ("▁in", -2.0)]
    return MLukeTokenizer(vocab=tokens, entity_vocab=ROWS, **options)


def marks_of(spans, segment=0, text=None):
    """Return marks of spans, with their text as gold entity if the text is given."""
    golds = [() if text is None else (text[start:end],) for start, end in spans]
    return [Mark(segment, start, end, gold=gold) for (start, end), gold in zip(spans, golds, strict=True)]


def positions(one, longest=30):
    places = [list(range(first, last))[:longest] for first, last in one.mark_tokens.tolist()]
    return [[*some, *[-1] * (longest - len(some))] for some in places]


def agree(theirs, tokenized, ids=None):
    """Compare all outputs of transformers' tokenizer; entities by their marks unless `ids` are given."""
    (one,) = tokenized.windows
    first, behind = one.mark_tokens.T
    assert one.ids.tolist() == theirs["input_ids"]
    assert one.types.tolist() == theirs["token_type_ids"]
    assert positions(one) == theirs["entity_position_ids"]
    assert one.types[first].tolist() == theirs["entity_token_type_ids"]  # as providers and tasks use it
    found = VOCABULARY.rows_of(mark.gold[0] for mark in one.marks).tolist() if ids is None else ids
    assert found == theirs["entity_ids"]
    if "entity_start_positions" in theirs:
        assert first.tolist() == theirs["entity_start_positions"]
        assert (behind - 1).tolist() == theirs["entity_end_positions"]
    assert not tokenized.dropped


def ask(theirs, *texts, **options):
    return theirs(*texts, return_token_type_ids=True, **options)


@pytest.mark.parametrize("make", [roberta, xlm])
@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (TEXT, SPANS),
        (TEXT, [(17, 28), (0, 7)]),
        (TEXT, [(0, 7), (0, 13), (17, 28), (17, 20)]),
        (TEXT, [(3, 5), (8, 11), (18, 23)]),  # within words
        (TEXT, [(0, 8), (16, 28)]),  # with blanks beside
        (" a  b", [(1, 2), (4, 5)]),
        (TEXT * 9, [(0, 200)]),  # longer than what is counted
        ("Los 日本 Angeles", [(4, 6)]),  # of letters that few tokenizers know
        (TEXT, []),
    ],
)
def test_tokens_and_positions_are_those_of_transformers(make, text, spans):
    theirs = make()
    marks = marks_of(spans, text=text)
    names = [name for mark in marks for name in mark.gold]
    agree(ask(theirs, text, entity_spans=spans, entities=names), MentionTokenizer(theirs).tokenize(text, marks=marks))
    if spans:
        theirs = make(task="entity_span_classification")
        tokenized = MentionTokenizer(theirs).tokenize(text, marks=marks)
        agree(ask(theirs, text, entity_spans=spans), tokenized, [VOCABULARY.mask] * len(spans))


@pytest.mark.parametrize("make", [roberta, xlm])
@pytest.mark.parametrize("first", [SPANS, []], ids=["both", "the second alone"])
def test_pairs_are_those_of_transformers(make, first):
    theirs = make()
    second = "She sings in Los Angeles."
    pair = [(0, 3), (13, 24)]
    marks = [marks_of(first, text=TEXT), marks_of(pair, 1, text=second)]
    names = [[name for mark in some for name in mark.gold] for some in marks]
    spans = {"entity_spans": first, "entity_spans_pair": pair}
    given = ask(theirs, TEXT, second, **spans, entities=names[0], entities_pair=names[1])
    window_tokenizer = MentionTokenizer(with_one_type(theirs.backend_tokenizer))  # as `load_tokenizer` gives it
    agree(given, window_tokenizer.tokenize(TEXT, second, marks=[*marks[0], *marks[1]]))


@pytest.mark.parametrize("make", [roberta, xlm])
def test_special_tokens_around_marks_are_those_of_transformers(make):
    theirs = make(task="entity_classification")
    one, two = theirs.entity_1_token_id, theirs.entity_2_token_id
    mask, mask2 = VOCABULARY.mask, VOCABULARY.mask2
    tokenized = MentionTokenizer(theirs).tokenize(TEXT, marks=marks_of(SPANS[1:]), around=[one])
    agree(ask(theirs, TEXT, entity_spans=SPANS[1:]), tokenized, [mask])
    theirs = make(task="entity_pair_classification")
    for spans in (SPANS, SPANS[::-1], [(0, 7), (8, 13)]):
        tokenized = MentionTokenizer(theirs).tokenize(TEXT, marks=marks_of(spans), around=[one, two])
        agree(ask(theirs, TEXT, entity_spans=spans), tokenized, [mask, mask2])


@pytest.mark.parametrize(("longest", "both"), [(20, False), (26, False), (27, False), (28, True), (40, True)])
def test_a_mark_that_is_cut_off_gets_no_special_tokens(longest, both):
    text = "avon brno cork dover essen fargo genoa " * 3 + "izmir"  # 22 words of one token
    one, two = Mark(0, 0, 4), Mark(0, len(text) - 5, len(text))
    tokenized = MentionTokenizer(tokenizer(), longest=longest).tokenize(
        text, marks=[one, two], around=[90, 91], windows=False
    )
    (window,) = tokenized.windows
    assert len(window) == (28 if both else min(longest, 26))
    assert window.marks == ((one, two) if both else (one,))
    assert [id for id in window.ids.tolist() if id in (90, 91)] == ([90, 90, 91, 91] if both else [90, 90])
    assert [lost.mark for lost in tokenized.dropped] == ([] if both else [two])


def test_a_mark_keeps_its_special_tokens_in_every_window():
    text = "avon brno cork dover essen fargo genoa"
    window_tokenizer = MentionTokenizer(tokenizer(), longest=10)
    marks = [Mark(0, 0, 4), Mark(0, 33, 38)]
    first, second = window_tokenizer.tokenize(text, marks=marks, around=[90, 91]).windows
    for one, mark, token in ((first, marks[0], 90), (second, marks[1], 91)):
        ((begin, end),) = one.mark_tokens.tolist()
        assert one.marks == (mark,)
        assert [at for at, id in enumerate(one.ids.tolist()) if id in (90, 91)] == [begin, end - 1]
        assert one.ids[begin] == one.ids[end - 1] == token
    lost = MentionTokenizer(tokenizer()).tokenize("a\x00b", marks=[Mark(0, 1, 2), Mark(0, 2, 3)], around=[90, 91])
    assert [id for id in lost.windows[0].ids.tolist() if id in (90, 91)] == [91, 91]  # the first has no piece


def test_without_marks_an_input_equals_that_of_the_text_tokenizer():
    for texts in (("who is the mayor of avon ?",), ("who is bela", "a person, old")):
        (one,), known = MentionTokenizer(TOKENIZER).tokenize(*texts).windows, TextTokenizer(TOKENIZER).tokenize(*texts)
        for name in ("ids", "types", "spans", "segment_of", "word_of", "word_spans", "word_segment"):
            assert np.array_equal(getattr(one, name), getattr(known, name)), name
        assert (one.words, one.first_words) == (known.words, known.first_words)


def long_text(seed):
    chance = random.Random(seed)
    words = [chance.choice(["avon", "bela", "what", "mayor", "zz", "old,"]) for _ in range(chance.randrange(1, 60))]
    text, marks = "", []
    for word in words:
        start = len(text) + bool(text)
        text = f"{text} {word}" if text else word
        if chance.random() < 0.4:
            marks.append(Mark(0, start, start + len(word), gold=(str(len(marks)),)))
        elif marks and chance.random() < 0.2:
            marks.append(Mark(0, marks[-1].start, len(text), gold=(str(len(marks)),)))
    return text, marks


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("shared", [0, 3])
def test_every_mark_is_in_a_window_or_dropped(seed, shared):
    text, marks = long_text(seed)
    window_tokenizer = MentionTokenizer(tokenizer(), longest=12, most=3)
    tokenized = window_tokenizer.tokenize(text, marks=marks, shared=shared)
    seen = [mark for one in tokenized.windows for mark in one.marks]
    assert {*seen, *(lost.mark for lost in tokenized.dropped)} == set(marks)
    assert not {lost.mark for lost in tokenized.dropped} & set(seen)
    whole = MentionTokenizer(tokenizer()).tokenize(text, marks=marks).windows[0]
    for lost in tokenized.dropped:
        assert np.ptp(whole.mark_tokens[marks.index(lost.mark)]) > 10
    if not shared:
        assert len(seen) == len(set(seen))
        ids, wanted = [id for one in tokenized.windows for id in one.ids[1:-1]], whole.ids[1:-1].tolist()
        assert ids[: len(wanted)] == wanted  # what is left is read again behind it
    for one in tokenized.windows:
        assert len(one) <= 12
        assert len(one.marks) <= 3
        for mark, (first, last) in zip(one.marks, one.mark_tokens.tolist(), strict=True):
            assert (one.spans[first, 0], one.spans[last - 1, 1]) == (mark.start, mark.end)
            assert (one.segment_of[first:last] == 0).all()
        assert [text[start:end] for start, end in one.word_spans.tolist()] == list(one.words)


def test_a_mark_that_would_be_split_goes_into_the_next_window():
    text = "who is the mayor of avon and bela"
    tokenized = MentionTokenizer(tokenizer(), longest=8).tokenize(text, marks=[Mark(0, 20, 33)])
    first, second = tokenized.windows
    assert first.words == ("who", "is", "the", "mayor", "of")  # one more would fit
    assert second.words == ("avon", "and", "bela")
    assert second.mark_tokens.tolist() == [[1, 4]]
    assert second.first_words == (5,)


def test_marks_that_cannot_fit_are_returned_with_the_reason():
    text = "avon brno cork dover essen fargo genoa"
    tokenized = MentionTokenizer(tokenizer(), longest=8).tokenize(text, marks=[Mark(0, 0, len(text)), Mark(0, 5, 9)])
    assert [(lost.mark.start, lost.reason) for lost in tokenized.dropped] == [
        (0, "it has 7 tokens, but a window has capacity for 6")
    ]
    (lost,) = MentionTokenizer(tokenizer()).tokenize("a\x00b", marks=[Mark(0, 1, 2)]).dropped
    assert lost.reason == "it has no token"
    tokenized = MentionTokenizer(tokenizer(), longest=8).tokenize(
        text, marks=[Mark(0, 5, 9), Mark(0, 33, 38)], windows=False
    )
    assert [[mark.start for mark in one.marks] for one in tokenized.windows] == [[5]]
    assert [(lost.mark.start, lost.reason) for lost in tokenized.dropped] == [
        (33, "a window has no capacity for it beside the others")
    ]


def test_too_many_marks_at_one_place_take_more_windows():
    text, marks = "avon brno cork dover essen fargo genoa", [Mark(0, 5, 14, gold=(str(number),)) for number in range(5)]
    tokenized = MentionTokenizer(tokenizer(), longest=8, most=2).tokenize(text, marks=marks)
    assert [one.marks for one in tokenized.windows if one.marks] == [(*marks[:2],), (*marks[2:4],), (*marks[4:],)]
    assert all(
        one.words[slice(*(one.mark_tokens[0] - 1))] == ("brno", "cork") for one in tokenized.windows if one.marks
    )
    assert not tokenized.dropped
    tokenized = MentionTokenizer(tokenizer(), longest=8, most=2).tokenize(text, marks=marks, windows=False)
    assert [one.marks for one in tokenized.windows] == [(*marks[:2],)]
    assert [lost.mark for lost in tokenized.dropped] == marks[2:]


def test_marks_that_overlap_in_a_chain_are_all_in_a_window():
    text = "avon brno cork dover essen fargo genoa"
    marks = [Mark(0, 0, 20), Mark(0, 10, 32), Mark(0, 21, 38)]  # four words, four and three, of seven
    tokenized = MentionTokenizer(tokenizer(), longest=7).tokenize(text, marks=marks)
    assert sorted(mark.start for one in tokenized.windows for mark in one.marks) == [0, 10, 21]
    assert not tokenized.dropped
    for one in tokenized.windows:
        assert len(one) <= 7
        for mark, (first, last) in zip(one.marks, one.mark_tokens.tolist(), strict=True):
            assert (one.spans[first, 0], one.spans[last - 1, 1]) == (mark.start, mark.end)


def test_many_marks_of_a_question_do_not_displace_those_of_its_passage():
    marks = [Mark(0, 0, 3), Mark(0, 4, 6), Mark(0, 7, 11), Mark(1, 0, 4), Mark(1, 20, 24)]
    texts = ("who is avon", "rome is near the old city of brno")
    tokenized = MentionTokenizer(TOKENIZER, longest=11, most=2).tokenize(*texts, marks=marks)
    assert {mark for one in tokenized.windows for mark in one.marks} == set(marks)
    assert not tokenized.dropped
    assert all(one.words[:3] == ("who", "is", "avon") and len(one.marks) <= 2 for one in tokenized.windows)


def test_a_question_is_whole_in_every_window_of_its_passage():
    marks = [Mark(0, 0, 3), Mark(1, 0, 4), Mark(1, 20, 24)]
    tokenized = MentionTokenizer(TOKENIZER, longest=11).tokenize(
        "who is avon", "rome is near the old city of brno", marks=marks
    )
    assert len(tokenized.windows) > 1
    assert all(one.words[:3] == ("who", "is", "avon") for one in tokenized.windows)
    assert all(one.marks[0] == marks[0] for one in tokenized.windows)
    assert [mark for one in tokenized.windows for mark in one.marks[1:]] == marks[1:]
    tokenized = MentionTokenizer(TOKENIZER, longest=11).tokenize(
        "who is avon", "rome is near the old city", windows=False
    )
    assert tokenized.windows[0].words == ("who", "is", "avon", "rome", "is", "near", "the", "old")


def test_invalid_inputs_raise_errors():
    window_tokenizer = MentionTokenizer(tokenizer(), longest=8)
    with pytest.raises(UsageError, match="the mark 3:99 of text 0 is not inside it"):
        window_tokenizer.tokenize("avon", marks=[Mark(0, 3, 99)])
    with pytest.raises(UsageError, match="one or two texts"):
        window_tokenizer.tokenize_many([("avon", ())])
    with pytest.raises(UsageError, match=r"have 0 for a text beside 'avon brno"):
        MentionTokenizer(TOKENIZER, longest=8).tokenize("avon brno cork dover essen", "me")
    with pytest.raises(UsageError, match="set longest to more than 3"):
        MentionTokenizer(TOKENIZER, longest=3)
