"""Masking of words and entities, losses and scores."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.pretraining_data import CITIES, LINES
from tests.task_models import TOKENIZER, tiny_encoder
from wellread.document import Document, Link
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import UsageError
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.linked_text import BEGINS, SPECIAL, WITHIN, LinkedWindows
from wellread.models.luke.mention_windows import MentionTokenizer
from wellread.models.luke.pretraining_task import EntityMasking, EntityMaskingLearner, choose_words
from wellread.models.luke.vocabulary import EntityVocabulary, NameCandidates
from wellread.tasks.masked_lm import word_head
from wellread.tasks.task import EncoderWithHead
from wellread.text import words as names

VOCABULARY = EntityVocabulary.of_ids(f"c-{city}" for city in CITIES)


def linked(text):
    found = sorted((text.index(city), city) for city in CITIES if city in text)
    return Document(text, tuple(Link(at, at + len(city), city, f"c-{city}") for at, city in found))


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    documents = [*map(linked, LINES), Document("the old river bank")]
    return LinkedWindows.build(documents, MentionTokenizer(TOKENIZER, longest=24), VOCABULARY, folder, digest="")


@pytest.fixture
def masking():
    return EntityMasking(TOKENIZER, VOCABULARY)


def learner(windows, masking, **options):
    settings = LukeConfig(entities=len(VOCABULARY), dim=8, predicts=True, **options)
    encoder = infuse(tiny_encoder(), [settings])
    rest, dev = windows.split(12)
    torch.manual_seed(0)
    return EntityMaskingLearner(masking, EncoderWithHead(encoder, word_head(encoder, None)), rest, dev, batch=4, seed=1)


def test_whole_words_are_chosen_up_to_their_share():
    roles = np.array([SPECIAL, BEGINS, WITHIN, BEGINS, BEGINS, WITHIN, WITHIN, WITHIN, BEGINS, SPECIAL], np.uint8)
    words = [{1, 2}, {3}, {4, 5, 6, 7}, {8}]
    seen = set()
    for seed in range(60):
        chosen = set(choose_words(roles, np.random.default_rng(seed), 0.25).tolist())
        taken = [word for word in words if word <= chosen]
        assert set().union(*taken) == chosen  # words are whole
        assert len(chosen) <= 2 or len(taken) == 1  # a word that is longer than the share only by itself
        seen |= chosen
    assert seen == set(range(1, 9))
    assert choose_words(roles[3:4], np.random.default_rng(0), 0.1).tolist() == [0]
    assert len(choose_words(np.array([SPECIAL], np.uint8), np.random.default_rng(0), 0.5)) == 0
    inside = np.array([WITHIN, WITHIN, BEGINS], np.uint8)  # a window may begin within a word
    assert {tuple(choose_words(inside, np.random.default_rng(seed), 0.1)) for seed in range(20)} == {(0, 1), (2,)}


def test_masked_tokens_become_the_mask_a_random_token_or_stay(windows, masking):
    counts = np.zeros(3)
    for place in range(len(windows)):
        for seed in range(3):
            window = windows[place]
            masked = masking.mask(window, np.random.default_rng((place, seed)))
            others = np.setdiff1d(np.arange(len(window.ids)), masked.masked_tokens)
            assert (masked.ids[others] == window.ids[others]).all()
            assert len(masked.masked_tokens) >= 1
            now, was = masked.ids[masked.masked_tokens], window.ids[masked.masked_tokens]
            counts += [(now == masking.mask_id).sum(), (now == was).sum(), 0]
            counts[2] += len(now)
    assert counts[0] / counts[2] == pytest.approx(0.8, abs=0.06)
    assert counts[1] / counts[2] == pytest.approx(0.1, abs=0.06)


def test_chosen_entities_are_always_masked_and_at_least_one_is(windows, masking):
    for place in range(len(windows)):
        window = windows[place]
        masked = masking.mask(window, np.random.default_rng(place))
        assert len(masked.masked_entities) == min(1, len(window.rows))
        assert (masked.rows[masked.masked_entities] == VOCABULARY.mask).all()
        others = np.setdiff1d(np.arange(len(window.rows)), masked.masked_entities)
        assert (masked.rows[others] == window.rows[others]).all()


def test_unknown_entities_are_never_masked(windows, masking):
    window = windows[0]
    unknown = type(window)(window.ids, window.roles, np.full(2, VOCABULARY.unk), window.spans, window.names)
    assert not len(masking.mask(unknown, np.random.default_rng(0)).masked_entities)


def test_a_batch_has_the_positions_and_labels_of_all_its_windows(windows, masking):
    some = [windows[place] for place in (0, len(windows) - 1, 5)]
    batch = masking.batch(some, learning=False)
    ids = np.concatenate([window.ids for window in some])
    assert batch.gold_ids.tolist() == ids[batch.masked_tokens].tolist()
    rows = np.concatenate([window.rows for window in some])
    assert batch.gold_rows.tolist() == rows[batch.masked_entities].tolist()
    assert (batch.entities["ids"][batch.masked_entities] == VOCABULARY.mask).all()
    counts = [len(window.rows) for window in some]
    assert 0 in counts
    assert batch.entities["text_of"].tolist() == np.repeat(np.arange(3), counts).tolist()
    again = masking.batch(some, learning=False)
    assert torch.equal(batch.masked_tokens, again.masked_tokens)
    torch.manual_seed(0)
    first, second = (masking.batch(some * 4, learning=True) for _ in range(2))
    assert not torch.equal(first.ids, second.ids)


@pytest.mark.parametrize("aware", [False, True])
def test_the_loss_equals_that_of_all_logits_at_masked_positions(windows, masking, aware):
    work = learner(windows, masking, aware=aware)
    batch = work.batches(0)[0]
    found = work.loss(batch)
    read = work.model.encoder.read(batch.ids, batch.packing, None, entities=batch.entities)
    words = work.model.head(read.states)[batch.masked_tokens]
    rows = work.luke.predict(read.outputs["entities"])[batch.masked_entities]
    assert torch.allclose(found["word"], cross_entropy(words, batch.gold_ids), atol=1e-6)
    assert torch.allclose(found["entity"], cross_entropy(rows, batch.gold_rows), atol=1e-6)
    (found["word"] + found["entity"]).backward()
    unused = {name for name, weight in work.model.named_parameters() if weight.grad is None}
    assert not unused


def two_each(windows):
    """Return candidates of the first six cities: each city and the next."""
    first = {names.key(city): [VOCABULARY.row_of[f"c-{city}"]] for city in CITIES[:6]}
    rows = [row for (row,) in first.values()]
    return NameCandidates.of_lists({key: [*row, rows[(rows.index(row[0]) + 1) % 6]] for key, row in first.items()})


def test_among_candidates_only_entities_that_are_candidates_are_masked(windows):
    masking = EntityMasking(TOKENIZER, VOCABULARY, entities=0.9, candidates=two_each(windows))
    known = {VOCABULARY.row_of[f"c-{city}"] for city in CITIES[:6]}
    hidden = set()
    for place in range(len(windows)):
        window = windows[place]
        masked = masking.mask(window, np.random.default_rng(place))
        assert len(masked.masked_entities) == sum(row in known for row in window.rows.tolist())
        hidden |= set(window.rows[masked.masked_entities].tolist())
    assert hidden == known


def test_the_loss_among_candidates_is_that_of_their_scores(windows):
    masking = EntityMasking(TOKENIZER, VOCABULARY, entities=0.9, candidates=two_each(windows))
    one = learner(windows, masking)
    batch = masking.batch([windows[place] for place in range(8)], learning=False)
    assert batch.candidates.shape == (len(batch.masked_entities), 2)
    _, states = one._read(batch)
    scores = one.luke.predict(states)
    rows = batch.candidates
    wanted = torch.stack(
        [
            cross_entropy(scores[at, rows[at]][None], (rows[at] == gold).nonzero()[0])
            for at, gold in enumerate(batch.gold_rows)
        ]
    ).mean()
    torch.testing.assert_close(one.loss(batch)["entity"], wanted, atol=1e-5, rtol=1e-5)
    one.loss(batch)["entity"].backward()
    found = one.evaluate()
    assert 1 < found["entities.perplexity"] < 4  # of two
    assert found["entities.accuracy"] >= 0.2


def test_windows_without_entities_train_words_only(windows, masking):
    work = learner(windows, masking)
    batch = masking.batch([windows[len(windows) - 1]], learning=True)
    found = work.loss(batch)
    assert found["entity"].item() == 0
    assert found["word"].item() > 0
    sum(found.values()).backward()


def test_every_epoch_has_every_window_in_an_order_of_its_own(windows, masking):
    work = learner(windows, masking)
    orders = [[tuple(group) for group in work.batches(epoch).groups] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert sorted(place for group in orders[0] for place in group) == list(range(len(work.windows)))


def test_scores_equal_those_of_a_loop_over_windows(windows, masking):
    work = learner(windows, masking)
    work.model.eval()
    scores = work.evaluate()
    assert work.evaluate() == scores
    chances, right, entity_chances, entity_right = [], [], [], []
    with torch.no_grad():
        for place in range(len(work.dev)):
            batch = masking.batch([work.dev[place]], learning=False)
            read = work.model.encoder.read(batch.ids, batch.packing, None, entities=batch.entities)
            words = work.model.head(read.states[batch.masked_tokens]).log_softmax(1)
            rows = work.luke.predict(read.outputs["entities"][batch.masked_entities]).log_softmax(1)
            chances += words[torch.arange(len(words)), batch.gold_ids].tolist()
            right += (words.argmax(1) == batch.gold_ids).tolist()
            entity_chances += rows[torch.arange(len(rows)), batch.gold_rows].tolist()
            entity_right += (rows.argmax(1) == batch.gold_rows).tolist()
    assert scores["words.perplexity"] == pytest.approx(math.exp(-np.mean(chances)), rel=1e-4)
    assert scores["words.accuracy"] == pytest.approx(np.mean(right))
    assert scores["entities.perplexity"] == pytest.approx(math.exp(-np.mean(entity_chances)), rel=1e-4)
    assert scores["entities.accuracy"] == pytest.approx(np.mean(entity_right))
    assert scores["log_chance"] == pytest.approx(np.mean(chances) + np.mean(entity_chances), rel=1e-4)


def test_baselines_predict_by_frequency(windows, masking):
    work = learner(windows, masking)
    results = work.baselines
    assert results["entities.by_name"] == 1.0  # every city has one name
    rows = work.windows.count_rows(len(VOCABULARY))
    gold = [
        row for at in range(len(work.dev)) for row in masking.batch([work.dev[at]], learning=False).gold_rows.tolist()
    ]
    assert results["entities.frequent"] == pytest.approx(np.mean([row == rows.argmax() for row in gold]))
    chances = np.log((rows + 1) / (rows.sum() + len(rows)))
    assert results["entities.frequent_perplexity"] == pytest.approx(math.exp(-chances[gold].mean()))
    assert 1 < results["words.frequent_perplexity"] < TOKENIZER.get_vocab_size()


def test_training_reduces_both_losses(windows, masking):
    work = learner(windows, masking)
    batch = work.batches(0)[0]
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-2)
    results = []
    for _ in range(40):
        losses = work.loss(batch)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        results.append({name: loss.item() for name, loss in losses.items()})
    assert results[-1]["entity"] < 0.3 * results[0]["entity"]
    assert results[-1]["word"] < 0.5 * results[0]["word"]


def test_unsuitable_parts_raise_errors(windows, masking):
    with pytest.raises(UsageError, match=r"entities is 1\.5"):
        EntityMasking(TOKENIZER, VOCABULARY, entities=1.5)
    encoder = infuse(tiny_encoder(), [LukeConfig(entities=len(VOCABULARY), dim=8)])
    with pytest.raises(UsageError, match="cannot predict them; infuse LukeConfig"):
        EntityMaskingLearner(masking, EncoderWithHead(encoder, word_head(encoder, None)), windows, windows)
    encoder = infuse(tiny_encoder(), [LukeConfig(entities=5, dim=8, predicts=True)])
    with pytest.raises(UsageError, match="has 5 rows and the vocabulary 12"):
        EntityMaskingLearner(masking, EncoderWithHead(encoder, word_head(encoder, None)), windows, windows)
