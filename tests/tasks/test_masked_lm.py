"""Masked language modelling: masking, no knowledge of masked words, and prediction."""

import json
import lzma
import math

import numpy as np
import pytest
import torch

from tests.map_data import SEGMENTER as NAMES
from tests.map_data import GivenMarks, byte_level
from tests.task_models import SEGMENTER, TEXTS, TOKENIZER, learner, provider, teach, tiny_encoder
from wellread.correlation.counting import TableLimits, correlate
from wellread.data.corpus import Corpus
from wellread.errors import UsageError
from wellread.mentions.annotators import Marks
from wellread.models.kam.inputs import EntityMap, FunctionMap, KamProvider, PhraseMap, TermChoice
from wellread.tasks.masked_lm import Guesses, Masking, choose_tokens, hide, read_texts, window_texts
from wellread.text.tokenization import TextTokenizer

MASK = TOKENIZER.token_to_id("[MASK]")
LONG = SEGMENTER.tokenize("glipizide of avon , mayor of the old zzyzx river in brno was near me")


def drawn(task, one, times, *, learning=True):
    return [task.draw("", [one], learning=learning)[0] for _ in range(times)]


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 0.99])
def test_a_share_of_the_pieces_is_chosen_and_never_a_special_one(share):
    there = set(np.flatnonzero(~LONG.special_mask).tolist())
    seen = set()
    for seed in range(200):
        places = choose_tokens(LONG, np.random.default_rng(seed), share=share, units="pieces").tolist()
        assert len(places) == len(set(places)) == max(1, round(share * len(there)))
        assert places == sorted(places)
        seen.update(places)
    assert seen == there


def test_words_are_chosen_whole():
    sizes = set()
    for seed in range(200):
        places = choose_tokens(LONG, np.random.default_rng(seed), share=0.3, units="words")
        words = set(LONG.word_of[places].tolist())
        assert set(places.tolist()) == {at for at, word in enumerate(LONG.word_of.tolist()) if word in words}
        sizes.add(len(places))
    budget = round(0.3 * int((~LONG.special_mask).sum()))
    assert max(sizes) <= max(budget, 9)
    assert budget in sizes


def test_of_what_is_chosen_most_is_masked_some_replaced_and_some_stays():
    torch.manual_seed(0)
    task = Masking(TOKENIZER, share=0.9)
    made = drawn(task, LONG, 400)
    kinds = {"masked": 0, "stays": 0, "replaced": 0}
    for one in made:
        now = one.ids[one.places]
        kinds["masked"] += int((now == MASK).sum())
        kinds["stays"] += int((now == one.gold).sum())
        kinds["replaced"] += int(((now != MASK) & (now != one.gold)).sum())
        others = np.setdiff1d(np.arange(len(LONG)), one.places)
        assert (one.ids[others] == LONG.ids[others]).all()
        assert (one.gold == LONG.ids[one.places]).all()
    total = sum(kinds.values())
    assert kinds["masked"] / total == pytest.approx(0.8, abs=0.02)
    assert kinds["stays"] / total == pytest.approx(0.1, abs=0.02)
    special = {TOKENIZER.token_to_id(name) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")}
    assert not special & set(task.ordinary.tolist())


def test_what_is_hidden_is_drawn_anew_to_learn_and_is_a_function_of_the_text_to_be_scored():
    task = Masking(TOKENIZER)
    torch.manual_seed(0)
    first = [one.ids.tolist() for one in drawn(task, LONG, 8)]
    torch.manual_seed(0)
    assert [one.ids.tolist() for one in drawn(task, LONG, 8)] == first
    assert len(set(map(tuple, first))) > 4
    scored = drawn(task, LONG, 8, learning=False)
    assert len({tuple(one.ids.tolist()) for one in scored}) == 1


def test_knowledge_says_nothing_of_what_is_hidden():
    torch.manual_seed(0)
    every = FunctionMap(
        lambda tokenized: np.ones((len(tokenized.words), len(tokenized.words)))
    )  # what tells even of unknown words
    provided = KamProvider([*provider().maps, every], SEGMENTER)
    for one in drawn(Masking(TOKENIZER, share=0.4, units="words"), LONG, 5):
        masked, untold = np.moveaxis(provided.build_inputs([one, LONG]).maps, 1, -1)
        left = np.setdiff1d(np.arange(len(LONG)), one.places)
        assert not masked[one.places].any()
        assert not masked[:, one.places].any()
        assert (masked[np.ix_(left, left)] == untold[np.ix_(left, left)]).all()
        hidden = {LONG.words[word] for word in LONG.word_of[one.places]}
        assert hidden - {LONG.words[word] for word in LONG.word_of[left] if word >= 0} <= hidden - set(one.words)
        assert len(one.words) == len(LONG.words)


def test_auxiliary_terms_are_those_of_the_words_that_are_left(tmp_path):
    (tmp_path / "lines.txt").write_text("avon sells pills\nbrno sells shoes\navon has pills\nbrno has shoes\n" * 2)
    table = correlate(
        Corpus.of_files([tmp_path / "lines.txt"]), tmp_path / "lines.pmi", limits=TableLimits(min_count=2, min_pair=2)
    )
    provided = KamProvider([], SEGMENTER, terms=TermChoice(table, tokens=16, words=1))
    one = SEGMENTER.tokenize("brno")
    assert provided.build_inputs([one]).terms == [("shoes",)]
    (masked,) = Masking(TOKENIZER).draw("brno", [one], learning=False)
    assert provided.build_inputs([masked]).terms == [()]


def test_the_loss_is_that_of_loops_at_hidden_places_only():
    made = learner(Masking(TOKENIZER, share=0.3), TEXTS, batch=4)
    made.model.double()
    torch.manual_seed(0)
    (batch,) = made.batches(0)
    head, states = made.model.head, made.model.states(batch)
    total, count, begin = 0.0, 0, 0
    for one in batch.inputs:
        for place, gold in zip(one.places.tolist(), one.gold.tolist(), strict=True):
            hidden = head.norm(torch.nn.functional.gelu(head.dense(states[begin + place])))
            scores = made.model.encoder.embeddings.word_embeddings.weight @ hidden + head.bias
            total += float((scores.logsumexp(0) - scores[gold]).detach())
            count += 1
        begin += len(one)
    assert count > 4
    assert float(made.loss(batch)["word"].detach()) == pytest.approx(total / count, abs=1e-10)
    assert batch.ids.tolist() == [id for one in batch.inputs for id in one.ids.tolist()]


def test_scores_are_over_all_hidden_pieces():
    found = Masking(TOKENIZER).scores(TEXTS[:2], [[Guesses(3, 1, -6.0)], [Guesses(1, 1, -0.5)]])
    assert found == pytest.approx({"accuracy": 0.5, "log_chance": -6.5 / 4, "perplexity": math.exp(6.5 / 4)})
    assert math.isnan(Masking(TOKENIZER).scores([""], [[Guesses(0, 0, 0.0)]])["accuracy"])


def test_the_head_has_no_weights_of_the_encoder_but_teaches_them():
    encoder = tiny_encoder()
    head = Masking(TOKENIZER).head(encoder)
    assert set(head.state_dict()) == {"dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias"}
    head(torch.randn(2, 16)).sum().backward()
    assert encoder.embeddings.word_embeddings.weight.grad.any()


def test_a_share_that_is_none_is_refused():
    with pytest.raises(UsageError, match="share is 15"):
        Masking(TOKENIZER, share=15)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, byte_level()], ids=["word pieces", "bytes"])
def test_long_texts_are_cut_at_words_and_nothing_is_lost(tokenizer):
    segmenter = TextTokenizer(tokenizer, longest=24)
    text = "  the mayor of avon , was born\tin brno near the old river . " * 4
    parts = list(window_texts([text, " ", "", "me"], segmenter))
    assert parts[-1] == "me"
    assert "".join("".join(parts[:-1]).split()) == "".join(text.split())
    assert len(parts) > 3
    assert all(len(TextTokenizer(tokenizer).tokenize(part)) <= 24 for part in parts)
    assert all(word in text.split() for part in parts[:-1] for word in part.split())
    assert list(window_texts(["  " + text], TextTokenizer(tokenizer))) == [text.strip()]


def test_a_word_that_is_longer_than_a_window_is_cut():
    parts = list(window_texts(["z" * 50], TextTokenizer(TOKENIZER, longest=12)))
    assert "".join(parts) == "z" * 50
    assert len(parts) == 5


def test_texts_are_read_from_folders_of_files_of_many_kinds(tmp_path):
    (tmp_path / "one.txt").write_text("the mayor\nof avon\n\nwas born\n")
    with lzma.open(tmp_path / "two.jsonl.xz", "wt") as file:
        file.write(json.dumps({"text": "in brno"}) + "\n" + json.dumps({"text": ""}) + "\n")
    segmenter = TextTokenizer(TOKENIZER, longest=16)
    assert sorted(read_texts([tmp_path], segmenter)) == ["in brno", "the mayor\nof avon", "was born"]
    assert sorted(read_texts([tmp_path / "one.txt"], segmenter, unit="line")) == ["of avon", "the mayor", "was born"]


@pytest.mark.parametrize("knowing", [False, True])
def test_a_text_grows_more_familiar(knowing):
    made = learner(Masking(TOKENIZER, share=0.3), TEXTS[:1], knowing=knowing)
    before = made.evaluate()["perplexity"]
    teach(made, 25, rate=1e-2)
    assert made.evaluate()["perplexity"] < before / 4


def test_mentions_and_phrases_of_a_hidden_word_bind_no_other_word():
    text = "is new york city near old new york"  # two mentions that are phrases, too: new york city, old new york
    spans = np.array([[3, 16], [22, 34]], np.int32)
    leaves = np.array([[0, 2], [3, 6], [7, 11], [12, 16], [17, 21], [22, 25], [26, 29], [30, 34]], np.int32)
    heads = np.zeros((len(leaves), 1), np.int32)
    source = GivenMarks({text: Marks(mentions=spans, names=("a", "b"), leaves=leaves, heads=heads, chunks=spans)})
    provided = KamProvider([EntityMap(source), PhraseMap(source)], NAMES)
    one = NAMES.tokenize(text)
    york = np.flatnonzero(one.word_of == 2)
    masked = hide(one, one.ids, york[:1])  # one piece of it, as with units = "pieces"
    hidden, plain = np.moveaxis(provided.build_inputs([masked, one]).maps, 2, -1)
    first, second = (np.isin(one.word_of, words) for words in ([1, 2, 3], [5, 6, 7]))
    assert not hidden[:, first].any()
    assert not hidden[:, :, first].any()
    assert plain[:, first][:, :, first].all()
    for each in (hidden, plain):
        assert each[:, second][:, :, second].all()


@pytest.mark.parametrize("question", [(), ("buy-me",)], ids=["alone", "behind a question"])
def test_names_and_phrases_whose_hyphen_is_hidden_bind_no_words(question):
    text = "is new-york near old-city near-me"  # hyphens are of no word
    spans = np.array([[3, 11], [17, 25]], np.int32)
    leaves = np.array([[0, 2], [3, 11], [12, 16], [17, 25], [26, 33]], np.int32)
    heads = np.zeros((len(leaves), 1), np.int32)
    marks = {text: Marks(mentions=spans, names=("a", "b"), leaves=leaves, heads=heads, chunks=spans)}
    source = GivenMarks(marks | {each_text: Marks(leaves=leaves[:1], heads=heads[:1]) for each_text in question})
    provided = KamProvider([EntityMap(source), PhraseMap(source)], NAMES)
    one = NAMES.tokenize(*question, text)
    begin, hyphens = one.words.index("is"), np.flatnonzero((one.segment_of >= 0) & (one.word_of < 0))
    first, second = (np.isin(one.word_of, np.array(words) + begin) for words in ([1, 2], [4, 5]))
    assert len(hyphens) == 3 + len(question)
    for hyphen in hyphens:
        maps = provided.build_inputs([hide(one, one.ids, np.array([hyphen])), one]).maps[0]
        kept = hyphen != hyphens[len(question)]
        assert maps[:, first][:, :, first].all() == maps[:, first].any() == maps[:, :, first].any() == kept
        assert maps[:, second][:, :, second].all() == (hyphen != hyphens[len(question) + 1])


def test_a_hidden_sign_in_a_text_without_words_parts_nothing():
    source = GivenMarks({"_": Marks(leaves=np.array([[0, 1]], np.int32), heads=np.zeros((1, 1), np.int32))})
    one = NAMES.tokenize("_")
    masked = hide(one, one.ids, np.array([1]))
    assert masked.hidden == (1,)
    assert not one.words
    assert not KamProvider([EntityMap(source), PhraseMap(source)], NAMES).build_inputs([masked]).maps.any()
