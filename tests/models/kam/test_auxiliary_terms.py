"""Correlation maps and auxiliary terms against loops written from the paper."""

import random

import numpy as np
import pytest
from hypothesis import given, settings

from tests.map_data import (
    SEEDS,
    SEGMENTER,
    GivenMarks,
    Table,
    assert_provided,
    byte_level,
    cuts_of,
    inputs_of,
    spans_of,
    table_of,
    word_piece,
)
from wellread.errors import UsageError
from wellread.mentions.annotators import Marks
from wellread.models.kam.inputs import CorrelationMap, EntityMap, KamProvider, TermChoice
from wellread.text.tokenization import TextTokenizer


@settings(max_examples=25)
@given(seed=SEEDS)
def test_correlation_is_1_for_the_same_word_and_0_for_unknown_words_across_segments(seed):
    chance = random.Random(seed)
    table, inputs = table_of(chance), inputs_of(chance)

    def relevance(tokenized, i, j):
        one, other = tokenized.words[i].casefold(), tokenized.words[j].casefold()
        return table.between(one, other) if one in table.words and other in table.words else 0

    assert_provided(KamProvider([CorrelationMap(table)], SEGMENTER), cuts_of(chance, inputs), relevance)


def naive_terms(table, tokenized, tokenizer, words, tokens):
    """Return the k words not in the input with the highest mean, ties by the word; at most K tokens, whole words."""
    known = {word.casefold() for word in tokenized.words} & set(table.words)
    if not known:
        return [], []
    means = {new: sum(table.between(new, word) for word in known) / len(known) for new in set(table.words) - known}
    best = sorted((word for word in means if means[word] > 0), key=lambda word: (-means[word], word))[:words]
    terms, ids = [], []
    for word in best:
        more = tokenizer.encode(f" {word}", add_special_tokens=False).ids
        if len(ids) + len(more) > tokens:
            break
        terms.append(word)
        ids += more
    return terms, ids


@pytest.mark.parametrize("tokenizer", [word_piece(), byte_level()], ids=["word-piece", "byte-level"])
@settings(max_examples=20)
@given(seed=SEEDS)
def test_terms_follow_the_text_and_only_correlation_covers_them(tokenizer, seed):
    chance = random.Random(seed)
    table, inputs = table_of(chance), inputs_of(chance)
    words, tokens = chance.randint(1, 5), chance.randint(1, 12)
    segmenter = TextTokenizer(tokenizer, longest=chance.choice([None, 12]))
    spans = {text: spans_of(text, chance) for texts in inputs for text in texts}
    entities = EntityMap(GivenMarks(lambda text: Marks(mentions=spans[text], names=("x",) * len(spans[text]))))
    provider = KamProvider(
        [entities, CorrelationMap(table)], segmenter, terms=TermChoice(table, words=words, tokens=tokens)
    )
    tokenized = segmenter.tokenize_many(inputs)
    provided = provider.build_inputs(tokenized)
    plain = KamProvider([entities], segmenter).build_inputs(tokenized)
    expected = [naive_terms(table, one, tokenizer, words, tokens) for one in tokenized]
    assert provided.terms == [tuple(terms) for terms, _ in expected]
    assert provided.maps.shape[-1] == max(
        len(one) + len(ids) for one, (_, ids) in zip(tokenized, expected, strict=True)
    )
    for number, (one, (terms, ids)) in enumerate(zip(tokenized, expected, strict=True)):
        assert provided.term_ids[number][provided.term_mask[number]].tolist() == ids
        assert provided.term_mask[number].tolist() == [place < len(ids) for place in range(provided.term_mask.shape[1])]
        here, total = len(one), len(one) + len(ids)
        np.testing.assert_array_equal(provided.maps[number, 0, :here, :here], plain.maps[number, 0, :here, :here])
        assert not provided.maps[number, 0, here:].any()
        assert not provided.maps[number, 0, :, here:].any()
        sizes = [len(tokenizer.encode(f" {term}", add_special_tokens=False).ids) for term in terms]
        word_of = [one.words[word] if word >= 0 else None for word in one.word_of]
        word_of += [term for term, size in zip(terms, sizes, strict=True) for _ in range(size)]
        known = [word.casefold() if word and word.casefold() in table.words else None for word in word_of]
        drawn = np.array([[table.between(a, b) if a and b else 0 for b in known] for a in known], np.float32)
        np.testing.assert_allclose(
            provided.maps[number, 1, :total, :total], drawn.reshape(total, total), rtol=0, atol=1e-10
        )
        assert not provided.maps[number, 1, total:].any()
        assert not provided.maps[number, 1, :, total:].any()


def test_a_table_that_was_counted_says_the_same_as_its_numbers(tmp_path):
    from wellread.correlation.counting import TableLimits, correlate
    from wellread.data.corpus import Corpus

    chance = random.Random(5)
    groups = ("mayor city york new".split(), "who is near me".split(), "the of old".split())
    lines = [" ".join(chance.sample(chance.choice(groups) * 2 + groups[2], 4)) for _ in range(200)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    table = correlate(
        Corpus.of_files([tmp_path / "corpus.txt"]), tmp_path / "my.pmi", limits=TableLimits(2, 1), workers=1
    )
    tokenized = SEGMENTER.tokenize_many([("Who is the mayor zz",), ("new york", "near the City"), ("zz",)])
    provider = KamProvider([CorrelationMap(table)], SEGMENTER, terms=TermChoice(table, words=3))
    provided = provider.build_inputs(tokenized, provider.prepare(tokenized, cache=tmp_path / "kept"))
    for one, drawn, terms in zip(tokenized, provided.maps[:, 0], provided.terms, strict=True):
        ids = table.ids_of([*one.words, *terms])
        known = np.unique(table.ids_of(one.words))
        scores = table.relevance(ids, ids)
        tokens = np.append(one.word_of, len(one.words) + np.arange(len(terms)))  # each term is one piece here
        expected = np.where((tokens >= 0)[:, None] & (tokens >= 0), scores[tokens[:, None], tokens], 0)
        np.testing.assert_array_equal(drawn[: len(tokens), : len(tokens)], expected)
        best = table.related(known, 3)
        assert terms == tuple(table.words[id] for id, _ in best)
    assert provided.maps[:, 0].max() == 1
    assert ((provided.maps > 0) & (provided.maps < 1)).any()
    assert [len(terms) for terms in provided.terms] == [3, 3, 0]


def test_the_first_term_that_does_not_fit_ends_the_list():
    table = Table({("york", "mayor"): 0.9, ("york", "zebra"): 0.8, ("york", "city"): 0.7})
    tokenized = [SEGMENTER.tokenize("york")]
    for tokens, terms in ((7, ("mayor", "zebra", "city")), (6, ("mayor", "zebra")), (5, ("mayor",)), (1, ("mayor",))):
        provided = KamProvider([], SEGMENTER, terms=TermChoice(table, tokens=tokens)).build_inputs(tokenized)
        assert provided.terms == [terms]
        assert provided.maps.shape == (1, 0, 3 + int(provided.term_mask.sum()), 3 + int(provided.term_mask.sum()))


def test_words_that_are_left_out_are_no_terms():
    table = Table({("york", "the"): 0.9, ("york", "mayor"): 0.8, ("york", "city"): 0.7})
    provider = KamProvider([], SEGMENTER, terms=TermChoice(table, words=1, leave_out={"the"}))
    assert provider.build_inputs([SEGMENTER.tokenize("york")]).terms == [("mayor",)]


def test_terms_of_a_truncated_text_ignore_its_removed_words():
    table = Table({("who", "old"): 0.9, ("city", "new"): 0.9})
    provider = KamProvider([], TextTokenizer(word_piece(), longest=4), terms=TermChoice(table))
    tokenized = provider.segmenter.tokenize_many([("who is the city",)])
    assert provider.build_inputs(tokenized).terms == [("old",)]
    assert provider.build_inputs(tokenized, provider.prepare(tokenized)).terms == [("old",)]


def test_terms_without_tokens_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        TermChoice(Table({}), tokens=0)
