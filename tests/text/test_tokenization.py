"""Text ⇄ words ⇄ tokens: offsets are exact for every kind of tokenizer and text; inputs of one or two segments."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests import map_data
from wellread.errors import InputError, UsageError
from wellread.tasks.word_spans import fits
from wellread.text import words as names
from wellread.text.tokenization import TextTokenizer, with_one_type
from wellread.text.windows import TextWindowTokenizer, WindowTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "entity linking of café in 東京 by 👩‍🚀 astronauts",
    "don't stop",
]


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    return tokenizer


TOKENIZERS = {
    "word-piece": TextTokenizer(word_piece()),
    "byte-level": TextTokenizer(byte_level()),
    "metaspace": TextTokenizer(metaspace()),
}
TRICKY = st.text(st.sampled_from("the fox é e\u0301東京👩\u200d🚀🏽\t\r\n'-. ﬁ½한ß"), max_size=25)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.one_of(TRICKY, st.text(max_size=25)))
def test_every_token_has_the_span_of_its_characters(kind, text):
    tokenized = TOKENIZERS[kind].tokenize(text)
    for (start, end), special, word in zip(
        tokenized.spans.tolist(), tokenized.special_mask, tokenized.word_of.tolist(), strict=True
    ):
        if special:
            assert word == -1
            continue
        assert 0 <= start <= end <= len(text)
        if end - start > 1:
            assert not text[start].isspace()
            assert not text[end - 1].isspace()
        if word >= 0:
            begin, finish = tokenized.word_spans[word].tolist()
            assert begin < end
            assert start < finish
    assert [text[start:end] for start, end in tokenized.word_spans.tolist()] == names.words(text)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TRICKY)
def test_a_token_belongs_to_the_word_it_overlaps_most(kind, text):
    tokenized = TOKENIZERS[kind].tokenize(text)
    for token in np.flatnonzero(~tokenized.special_mask).tolist():
        start, end = tokenized.spans[token].tolist()
        shared = [min(end, finish) - max(start, begin) for begin, finish in tokenized.word_spans.tolist()]
        best = max(shared, default=0)
        assert tokenized.word_of[token] == (shared.index(best) if best > 0 else -1)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_span_and_its_tokens_lead_to_each_other(kind):
    text = "the lazy astronauts, linking\r\nbrown  dogs"
    tokenized = TOKENIZERS[kind].tokenize(text)
    for start, end in tokenized.word_spans.tolist():
        first, last = tokenized.covering(start, end)
        begin, finish = tokenized.span(first, last)
        assert begin <= start < end <= finish
    start, end = text.index("lazy"), text.index("astronauts") + len("astronauts")
    assert text[slice(*tokenized.span(*tokenized.covering(start, end)))] == "lazy astronauts"
    word = next(word for word, span in enumerate(tokenized.word_spans.tolist()) if text[slice(*span)] == "linking")
    tokens = tokenized.of_word(word)
    assert text[slice(*tokenized.span(int(tokens[0]), int(tokens[-1]) + 1))] == "linking"


def test_nothing_is_truncated_and_nothing_is_padded():
    text = "the quick brown fox " * 50
    tokenized = TOKENIZERS["word-piece"].tokenize(text)
    assert len(tokenized) >= 200
    assert tokenized.spans[-2].tolist() == [len(text) - 4, len(text) - 1]
    assert len(TOKENIZERS["word-piece"].tokenize("the")) == 3


def test_truncation_and_padding_of_the_users_tokenizer_stay():
    own = word_piece()
    TextTokenizer(own)
    assert own.truncation is not None
    assert own.padding is not None


def test_a_span_of_blanks_has_no_tokens():
    assert TOKENIZERS["word-piece"].tokenize("the    fox").covering(4, 6) is None


def test_an_empty_text_has_only_special_tokens():
    tokenized = TOKENIZERS["word-piece"].tokenize("")
    assert tokenized.special_mask.all()
    assert tokenized.covering(0, 1) is None


def test_many_texts_at_once_are_tokenized_like_each_alone():
    texts = ["the fox", "", "東京 don't 👩\u200d🚀"]
    for alone, together in zip(
        map(TOKENIZERS["byte-level"].tokenize, texts),
        TOKENIZERS["byte-level"].tokenize_many([(text,) for text in texts]),
        strict=True,
    ):
        assert alone.ids.tolist() == together.ids.tolist()
        assert alone.spans.tolist() == together.spans.tolist()
        assert alone.word_of.tolist() == together.word_of.tolist()


def template(sequence=False):
    made = byte_level()
    frame = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", [("<s>", 0), ("</s>", 1)])
    made.post_processor = processors.Sequence([frame, processors.ByteLevel(trim_offsets=False)]) if sequence else frame
    return made


@pytest.mark.parametrize("sequence", [False, True])
def test_types_of_a_template_may_be_made_one(sequence):
    before = template(sequence).encode("the fox", "don't")
    after = with_one_type(template(sequence)).encode("the fox", "don't")
    assert set(before.type_ids) == {0, 1}
    assert set(after.type_ids) == {0}
    assert (after.ids, after.offsets, after.sequence_ids) == (before.ids, before.offsets, before.sequence_ids)


KINDS = {"word-piece": map_data.word_piece(), "byte-level": map_data.byte_level()}
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
def test_every_token_has_the_word_of_its_own_segment_that_it_overlaps_most(kind, texts):
    tokenized = TextTokenizer(KINDS[kind]).tokenize(*texts)
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
        tokenized, code = TextTokenizer(KINDS[kind]).tokenize(*texts), KINDS[kind].encode(*texts)
        assert tokenized.ids.tolist() == code.ids
        assert tokenized.types.tolist() == code.type_ids
        assert tokenized.segment_of.tolist() == [-1 if segment is None else segment for segment in code.sequence_ids]


def test_many_inputs_are_tokenized_like_each_alone_whatever_their_segments():
    text_tokenizer = TextTokenizer(map_data.word_piece())
    inputs = [("who is",), ("old york", "new york"), ("",), ("a", "")] * 300
    each = {texts: text_tokenizer.tokenize(*texts) for texts in inputs[:4]}
    for texts, tokenized in zip(inputs, text_tokenizer.tokenize_many(inputs), strict=True):
        alone = each[texts]
        assert (tokenized.texts, tokenized.words, tokenized.ids.tolist()) == (
            alone.texts,
            alone.words,
            alone.ids.tolist(),
        )
    assert text_tokenizer.tokenize_many([]) == []


def test_the_longest_segment_is_truncated_first_and_its_lost_words_are_dropped():
    tokenized = TextTokenizer(map_data.word_piece(), longest=9).tokenize("who is", "the mayor of new york city")
    assert len(tokenized) == 9
    assert tokenized.words == ("who", "is", "the", "mayor", "of", "new")
    assert tokenized.word_of.tolist() == [-1, 0, 1, -1, 2, 3, 4, 5, -1]
    assert tokenized.first_words == (0, 0)


def test_a_word_that_is_truncated_stays_a_word():
    tokenized = TextTokenizer(map_data.word_piece(), longest=6).tokenize("new zzzz")
    assert tokenized.words == ("new", "zzzz")
    assert tokenized.word_of.tolist() == [-1, 0, 1, 1, 1, -1]


@given(texts=INPUTS, longest=st.integers(4, 20))
@example(texts=("the old city",), longest=5)  # just fits, with [CLS] and [SEP]
@example(texts=("the old city of",), longest=5)  # one too many
@example(texts=("the old", "the new"), longest=7)
@example(texts=("the old", "the new"), longest=6)
def test_a_truncated_input_is_the_tokenizers_own_truncation(texts, longest):
    own = map_data.word_piece()
    own.enable_truncation(longest, strategy="longest_first")
    tokenized, whole = (
        TextTokenizer(map_data.word_piece(), longest=longest).tokenize(*texts),
        TextTokenizer(map_data.word_piece()).tokenize(*texts),
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


def test_windows_share_tokens_and_cover_the_passage():
    passage = "the old mayor of new york city is near me"
    windows = TextTokenizer(map_data.word_piece()).tokenize_windows("who is", passage, longest=9, stride=1)
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
    text_tokenizer = TextTokenizer(map_data.word_piece())
    (window,) = text_tokenizer.tokenize_windows("who is", "the mayor")
    pair = text_tokenizer.tokenize("who is", "the mayor")
    assert (window.ids.tolist(), window.words) == (pair.ids.tolist(), pair.words)
    assert text_tokenizer.tokenize_windows_many([]) == []


def test_a_question_that_is_too_long_is_named():
    with pytest.raises(UsageError, match="4 tokens of the question 'who is the mayor'"):
        TextTokenizer(map_data.word_piece()).tokenize_windows("who is the mayor", "old", longest=10, stride=3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [(["a bare text"], r"give \('a bare text',\)"), ([()], "has 0"), ([("a", "b", "c")], "has 3; join")],
)
def test_a_wrong_input_is_refused(inputs, message):
    with pytest.raises(UsageError, match=message):
        TextTokenizer(map_data.word_piece()).tokenize_many(inputs)


HALF = "ok \ud83d broken"


@pytest.mark.parametrize(
    "tokenize",
    [
        lambda text_tokenizer: text_tokenizer.tokenize("fine", HALF),
        lambda text_tokenizer: text_tokenizer.tokenize_many([("fine",), (HALF,)]),
        lambda text_tokenizer: text_tokenizer.tokenize_windows(HALF, "fine", longest=24, stride=4),
        lambda text_tokenizer: text_tokenizer.tokenize_windows("fine", HALF, longest=24, stride=4),
        lambda text_tokenizer: text_tokenizer.token_ids_of([HALF]),
        lambda text_tokenizer: TextWindowTokenizer(text_tokenizer.tokenizer, width=24, shared=4).tokenize([HALF]),
        lambda text_tokenizer: list(WindowTokenizer(text_tokenizer.tokenizer, width=24, shared=4).tokenize([HALF])),
        lambda text_tokenizer: TextTokenizer(text_tokenizer.tokenizer).tokenize(HALF),
        lambda text_tokenizer: fits(HALF, text_tokenizer),
    ],
)
def test_half_a_surrogate_pair_is_named_and_no_traceback_of_the_tokenizer(tokenize):
    with pytest.raises(
        InputError, match=r"the text ' ?ok \\ud83d broken' has half a surrogate pair at \d; write it again"
    ):
        tokenize(TextTokenizer(map_data.word_piece(), longest=16))


def test_a_wrong_text_is_refused():
    with pytest.raises(UsageError, match="None is not a text; give a str"):
        TextTokenizer(map_data.word_piece()).tokenize("fine", None)


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(UsageError, match="more than 3"):
        TextTokenizer(map_data.word_piece(), longest=3)


def test_the_users_tokenizer_is_left_as_it_was():
    own = map_data.word_piece()
    own.enable_truncation(7)
    own.enable_padding(length=9)
    assert len(TextTokenizer(own).tokenize("who is the mayor of old new york")) == 10
    assert own.truncation["max_length"] == 7
    assert own.padding["length"] == 9


@pytest.mark.parametrize(("kind", "before"), [("word-piece", ""), ("byte-level", "Ġ")])
def test_words_alone_are_tokenized_as_in_the_middle_of_a_text(kind, before):
    tokenizer = KINDS[kind]
    (ids,) = TextTokenizer(tokenizer).token_ids_of(["city"])
    assert "".join(map(tokenizer.id_to_token, ids)).replace("##", "") == f"{before}city"
