"""Shared data of the tests of segments and maps: tokenizers, inputs, and a source and a table with given content."""

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from wellread.text.tokenization import TextTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789,.?!-:'"
WORDS = "who is the mayor of old new york city buy near me".split()


def word_piece():
    """As BERT's: some words and every letter, two kinds of special pieces."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    made = Tokenizer(models.WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def byte_level():
    """As RoBERTa's: every byte is a piece, blanks count to the word behind them, a pair has four special pieces."""
    letters = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return made


class GivenMarks:
    """Source that returns given marks for each text and counts its calls."""

    def __init__(self, marks, name="given", fingerprint="given 1"):
        self.marks, self.name, self.fingerprint, self.asked = marks, name, fingerprint, []

    def mark(self, texts):
        for text in texts:
            self.asked.append(text)
            yield self.marks(text) if callable(self.marks) else self.marks[text]


SEGMENTER = TextTokenizer(word_piece())
VOCABULARY = "who is the mayor of old new york city buy near me zz U.S. don't well-known 東京".split()
SEEDS = st.integers(0, 10**6)


def text_of(chance, most=7):
    return " ".join(chance.choice(VOCABULARY) for _ in range(chance.randint(0, most)))


def inputs_of(chance):
    texts = [text_of(chance) for _ in range(4)]
    return [tuple(chance.choice(texts) for _ in range(chance.randint(1, 2))) for _ in range(4)]


def cuts_of(chance, inputs):
    """Some inputs whole, some cut short, some in windows."""
    tokenized = SEGMENTER.tokenize_many(inputs[:2]) + TextTokenizer(
        word_piece(), longest=chance.randint(6, 14)
    ).tokenize_many(inputs)
    for texts in inputs[:2]:
        if len(texts) == 2:
            question = len(SEGMENTER.tokenize(texts[0])) - 2
            tokenized += SEGMENTER.tokenize_windows(*texts, longest=question + 3 + chance.randint(3, 6), stride=2)
    return tokenized


def over_pieces(tokenized, relevance):
    """M[i, j] = Relevance(W(i), W(j)); special pieces have no word, all maps are 0 there."""
    drawn = np.zeros((len(tokenized), len(tokenized)))
    for i in range(len(tokenized)):
        for j in range(len(tokenized)):
            if tokenized.word_of[i] >= 0 and tokenized.word_of[j] >= 0:
                drawn[i, j] = relevance(int(tokenized.word_of[i]), int(tokenized.word_of[j]))
    return drawn


def assert_provided(provider, tokenized, relevance):
    """Every text of a batch has the map of the loops, and nothing beyond its pieces."""
    (each,) = provider.maps
    provided = provider.build_inputs(tokenized)
    assert provided.maps.shape == (len(tokenized), 1, max(map(len, tokenized)), max(map(len, tokenized)))
    assert provided.maps.dtype == np.float32
    assert provided.term_ids.shape == provided.term_mask.shape == (len(tokenized), 0)
    for one, drawn in zip(tokenized, provided.maps[:, 0], strict=True):
        here = len(one)
        expected = over_pieces(one, lambda i, j, one=one: relevance(one, i, j))
        np.testing.assert_allclose(
            drawn[:here, :here], expected.astype(np.float32), rtol=0, atol=1e-10, err_msg=each.name
        )
        assert not drawn[here:].any()
        assert not drawn[:, here:].any()


def overlap(one, other):
    return min(one[1], other[1]) - max(one[0], other[0])


def spans_of(text, chance, most=4):
    """Some spans of characters, nested and crossing too."""
    spans = (sorted(chance.sample(range(len(text) + 1), 2)) for _ in range(chance.randint(0, most)) if len(text) > 1)
    return np.array([*spans], np.int32).reshape(-1, 2)


class Table:
    """Correlations in a dict, answered by loops."""

    def __init__(self, scores, words=()):
        self.scores = {frozenset(pair): score for pair, score in scores.items()}
        self.words = sorted({*words, *(word for pair in scores for word in pair)})

    def ids_of(self, words):
        return np.array(
            [self.words.index(w) if (w := word.casefold()) in self.words else -1 for word in words], np.int64
        )

    def between(self, one, other):
        return 1.0 if one == other else self.scores.get(frozenset((one, other)), 0.0)

    def relevance_of(self, rows, columns):
        return np.array(
            [self.between(self.words[i], self.words[j]) for i, j in zip(rows, columns, strict=True)], np.float32
        )

    def related(self, ids, k, leave_out):
        given = {self.words[id] for id in ids.tolist()}
        means = {
            word: sum(self.between(word, other) for other in given) / len(given)
            for word in self.words
            if word not in given and word not in leave_out
        }
        best = sorted(means, key=lambda word: (-means[word], word))[:k]
        return [(self.words.index(word), means[word]) for word in best]


def table_of(chance):
    words = [
        word.casefold() for word in ("who", "mayor", "york", "city", "S", "t", "known", "東", "pill", "drug", "zebra")
    ]
    pairs = {
        (chance.choice(words), chance.choice(words)): chance.choice([0.25, 0.5, chance.random()]) for _ in range(30)
    }
    return Table({pair: score for pair, score in pairs.items() if pair[0] != pair[1]}, words)
