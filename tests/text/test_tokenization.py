"""Text ⇄ words ⇄ pieces: offsets are exact for every kind of tokenizer and every kind of text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from wellread.text import words as names
from wellread.text.tokenization import TextTokenizer, with_one_type

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


CUTTERS = {
    "word-piece": TextTokenizer(word_piece()),
    "byte-level": TextTokenizer(byte_level()),
    "metaspace": TextTokenizer(metaspace()),
}
TRICKY = st.text(st.sampled_from("the fox é e\u0301東京👩\u200d🚀🏽\t\r\n'-. ﬁ½한ß"), max_size=25)


@pytest.mark.parametrize("kind", CUTTERS)
@given(text=st.one_of(TRICKY, st.text(max_size=25)))
def test_every_piece_has_the_span_of_its_characters(kind, text):
    tokenized = CUTTERS[kind].tokenize(text)
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


@pytest.mark.parametrize("kind", CUTTERS)
@given(text=TRICKY)
def test_a_piece_belongs_to_the_word_it_overlaps_most(kind, text):
    tokenized = CUTTERS[kind].tokenize(text)
    for token in np.flatnonzero(~tokenized.special_mask).tolist():
        start, end = tokenized.spans[token].tolist()
        shared = [min(end, finish) - max(start, begin) for begin, finish in tokenized.word_spans.tolist()]
        best = max(shared, default=0)
        assert tokenized.word_of[token] == (shared.index(best) if best > 0 else -1)


@pytest.mark.parametrize("kind", CUTTERS)
def test_a_span_and_its_pieces_lead_to_each_other(kind):
    text = "the lazy astronauts, linking\r\nbrown  dogs"
    tokenized = CUTTERS[kind].tokenize(text)
    for start, end in tokenized.word_spans.tolist():
        first, last = tokenized.covering(start, end)
        begin, finish = tokenized.span(first, last)
        assert begin <= start < end <= finish
    start, end = text.index("lazy"), text.index("astronauts") + len("astronauts")
    assert text[slice(*tokenized.span(*tokenized.covering(start, end)))] == "lazy astronauts"
    word = next(word for word, span in enumerate(tokenized.word_spans.tolist()) if text[slice(*span)] == "linking")
    tokens = tokenized.of_word(word)
    assert text[slice(*tokenized.span(int(tokens[0]), int(tokens[-1]) + 1))] == "linking"


def test_nothing_is_cut_off_and_nothing_is_padded():
    text = "the quick brown fox " * 50
    tokenized = CUTTERS["word-piece"].tokenize(text)
    assert len(tokenized) >= 200
    assert tokenized.spans[-2].tolist() == [len(text) - 4, len(text) - 1]
    assert len(CUTTERS["word-piece"].tokenize("the")) == 3


def test_the_users_tokenizer_is_left_as_it_was():
    own = word_piece()
    TextTokenizer(own)
    assert own.truncation is not None
    assert own.padding is not None


def test_a_span_of_blanks_has_no_pieces():
    assert CUTTERS["word-piece"].tokenize("the    fox").covering(4, 6) is None


def test_an_empty_text_has_only_special_pieces():
    tokenized = CUTTERS["word-piece"].tokenize("")
    assert tokenized.special_mask.all()
    assert tokenized.covering(0, 1) is None


def test_many_texts_at_once_are_cut_like_each_alone():
    texts = ["the fox", "", "東京 don't 👩\u200d🚀"]
    for alone, together in zip(
        map(CUTTERS["byte-level"].tokenized, texts), CUTTERS["byte-level"].tokenize_many(texts), strict=True
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
