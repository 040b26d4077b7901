"""Definitions that are encoded with a batch of marked words: which are chosen, and what is learned from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.infused_models import shake
from tests.sense_data import ENTITIES, TEXTS, Offering, keys, sense_text, write_vectors
from tests.task_models import SEGMENTER, TOKENIZER, teach, tiny_encoder
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import UsageError
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.definitions import DefinitionEncoder, Definitions
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.tasks.learner import TaskLearner
from wellread.tasks.sense_definitions import DefinitionDraw
from wellread.tasks.senses import SenseOptions, Senses
from wellread.tasks.task import EncoderWithHead

WIDTH = 16


class Blank:
    """Vectors of the encoder's width that tell nothing apart."""

    dim, fingerprint = WIDTH, "blank"

    def encode(self, entities):
        return np.ones((len(entities), WIDTH), np.float32)


@pytest.fixture
def vectors(tmp_path):
    return write_vectors(tmp_path, Blank())


def definitions_of(vectors):
    with KnowledgeBase.open(vectors.kb) as kb:
        return Definitions.of(kb, vectors.ids.take(range(len(vectors))), TOKENIZER)


def learner(vectors, tokens=1000, texts=TEXTS, batch=6, **options):
    task = Senses(keys(), vectors, SenseOptions(definitions=tokens, **options), definitions_of(vectors))
    sizes = {"dim": 8, "heads": 2, "inner": 8, "prior_width": 4, "dropout": 0.0, "raw": WIDTH, "reads": 2}
    encoder = infuse(tiny_encoder(), [KnowBertConfig(kb="wordnet", layer=1, **sizes)])
    encoder.infusions[0].take(EntityTable.of(vectors))
    shake(encoder.infusions, 0.3)
    network = EncoderWithHead(encoder, task.head(encoder))
    return TaskLearner(task, network, SEGMENTER, texts, texts, provider=Offering(vectors), batch=batch)


def test_sense_texts_are_tokenized_in_the_order_of_vectors(vectors):
    made = definitions_of(vectors)
    rows = vectors.rows_of([one.id for one in ENTITIES])
    texts = [TOKENIZER.decode(code.tolist()) for code in made.take(rows)]
    expected = [TOKENIZER.decode(TOKENIZER.encode(f"{one.title}: {one.description}").ids) for one in ENTITIES]
    assert texts == expected
    assert made.lengths.tolist() == [len(code) for code in made.take(range(len(made.lengths)))]


def test_definitions_follow_the_texts_of_a_batch_and_take_part_in_the_loss(vectors):
    made = learner(vectors)
    batch = made.batches(0)[0]
    rows = batch.knowledge["offers"]["wordnet"]["definitions"]
    lengths = definitions_of(vectors).lengths[rows]
    assert len(rows) == len(ENTITIES)
    assert batch.packing.lengths[len(batch.inputs) :].tolist() == lengths.tolist()
    assert len(batch.ids) == len(batch.types) == int(batch.packing.lengths.sum())
    made.model.zero_grad()
    sum(made.loss(batch).values()).backward()
    embeddings = made.model.encoder.embeddings.word_embeddings.weight.grad
    gloss = TOKENIZER.token_to_id("0")  # a number of a synset, which is in no text but its definition
    assert embeddings[gloss].any()


def test_vectors_in_a_batch_are_those_that_the_definition_encoder_makes(vectors):
    made = learner(vectors)
    batch = made.batches(0)[0]
    made.model.eval()
    with torch.no_grad():
        made.loss(batch)
    rows = batch.knowledge["offers"]["wordnet"]["definitions"].numpy()
    [layer] = made.model.encoder.infusions
    kept = layer.linker.entities.table.vectors[rows]
    encoder = made.model.encoder
    of_id = {one.id: (one.title, one.description) for one in ENTITIES}
    asked = [of_id[id] for id in vectors.ids.take(rows)]
    with encoder.without():
        expected = DefinitionEncoder(encoder, TOKENIZER, layer.config, "").encode(asked)
    np.testing.assert_allclose(kept, expected, atol=2e-3)
    assert not np.allclose(vectors.rows, vectors.rows[0] * 2)  # the file is as it was


def test_words_get_all_their_definitions_or_none_and_those_longest_not_seen_come_first(vectors):
    made = definitions_of(vectors)
    bank, run = (vectors.rows_of(ids) for ids in (["00000001-n", "00000002-n"], ["00000003-v", "00000004-v"]))
    one_word = int(max(made.lengths[rows].sum() for rows in (bank, run)))
    drawn = []
    learned = learner(vectors, one_word, [TEXTS[2]], batch=1)
    for epoch in range(4):
        candidates = learned.batches(epoch)[0].knowledge["offers"]["wordnet"]
        drawn.append(tuple(candidates["definitions"].tolist()))
        gold = candidates["gold"].sum(1).tolist()
        # The word that was never encoded has no loss; the mention that is no mark has never a gold.
        assert gold == ([0, *sorted(gold[1:])] if epoch else gold)
        assert sum(gold) == (1 if epoch == 0 else 2)
    assert set(drawn) == {tuple(sorted(bank)), tuple(sorted(run))}
    assert drawn[0] != drawn[1] == drawn[3]


def test_vectors_that_the_encoder_made_itself_count_as_encoded(vectors):
    made = learner(vectors, 1, [TEXTS[2]], batch=1)
    assert made.batches(0)[0].knowledge["offers"]["wordnet"]["gold"].sum() == 0  # no definition fits in one token
    made.task._definitions = DefinitionDraw(definitions_of(vectors), 1, encoded=True)
    assert made.batches(0)[0].knowledge["offers"]["wordnet"]["gold"].sum() == 2


def test_a_word_with_one_sense_needs_no_definition(vectors):
    draw = DefinitionDraw(definitions_of(vectors), 100)
    assert draw._choose(np.array([[1, -1], [3, -1]])).tolist() == []
    assert draw._choose(np.array([[1, -1], [3, 2]])).tolist() == [2, 3]


def test_senses_are_learned_from_definitions_where_the_vectors_tell_nothing(vectors):
    made = learner(vectors)
    teach(made, 40, rate=1e-2)
    assert made.evaluate()["f1"] == 1.0


def test_texts_with_few_ambiguous_words_may_be_left_out(vectors):
    made = learner(vectors, least=2)
    assert [one.id for one in made.examples] == ["d.1", "d.3"]
    assert len(made.dev_tokenized) == len(TEXTS)
    unknown = replace(made.task.options, least=3)
    task = Senses(keys(), vectors, unknown, definitions_of(vectors))
    assert task.tokenize(SEGMENTER, [sense_text("a.1", "old bank")], learning=True) == [[]]


def test_a_head_does_not_learn_from_definitions(vectors):
    task = Senses(keys(), vectors, SenseOptions(definitions=9, by="head"), definitions_of(vectors))
    with pytest.raises(UsageError, match=r"leave senses\.definitions out"):
        task.head(tiny_encoder())
    with pytest.raises(UsageError, match="definitions is -1"):
        SenseOptions(definitions=-1)
