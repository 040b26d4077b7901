"""Entity vocabulary: sources, files, growing and initial vectors."""

import json

import numpy as np
import pytest
from transformers import LukeTokenizer

from tests.toy_models import document, write_kb
from wellread.errors import InputError, UsageError
from wellread.kb.records import Entity
from wellread.models.luke.vocabulary import SPECIAL, EntityVocabulary, project


@pytest.fixture
def kb(tmp_path):
    entities = [
        Entity("a", "Avon", "", "city", 1, {"Avon": 3}),
        Entity("b", "Brno", "", "city", 9, {"Brno": 2, "Brünn": 5}),
        Entity("c", "Cork", "", "city", 5, {"Cork": 3}),
    ]
    with write_kb(tmp_path / "cities.kb", entities) as made:
        yield made


class Vectors:
    def __init__(self, **vectors):
        self.ids = list(vectors)
        self.rows = np.array(list(vectors.values()), np.float16)

    def rows_of(self, ids):
        return np.array([self.ids.index(id) if id in self.ids else -1 for id in ids], np.int64)


def test_entities_of_a_kb_are_ordered_by_link_counts(kb):
    assert EntityVocabulary.of_kb(kb).names == (*SPECIAL, "b", "c", "a")
    assert EntityVocabulary.of_kb(kb, 2).names == (*SPECIAL, "b", "c")


def test_entities_of_a_corpus_are_ordered_by_link_counts():
    texts = [document("avon and bela", ("avon", "p"), ("bela", "q")), document("avon", ("avon", "p"))]
    texts += [document("avon and bela", ("avon", "r"), ("bela", None))]
    assert EntityVocabulary.of_documents(texts).names == (*SPECIAL, "p", "q", "r")
    assert EntityVocabulary.of_documents(texts[::-1]).names == (*SPECIAL, "p", "q", "r")
    assert EntityVocabulary.of_documents(texts, least=2).names == (*SPECIAL, "p")
    assert EntityVocabulary.of_documents(texts, most=2).names == (*SPECIAL, "p", "q")


def test_missing_entities_are_unk_or_dropped():
    vocabulary = EntityVocabulary.of_ids(["p", "q", "p"])
    assert len(vocabulary) == 6
    assert vocabulary.rows_of(["q", "z", None, "p"]).tolist() == [5, 1, 1, 4]
    assert vocabulary.rows_of(["q", "z", None], unknown="drop").tolist() == [5, -1, -1]
    assert "q" in vocabulary
    assert "z" not in vocabulary


def test_a_lite_vocabulary_has_only_special_rows_in_any_order():
    assert len(EntityVocabulary.of_ids(())) == 4
    lite = EntityVocabulary({"[MASK]": 0, "[UNK]": 1, "[PAD]": 2})
    assert (lite.pad, lite.unk, lite.mask, lite.mask2, len(lite)) == (2, 1, 0, 0, 3)
    assert lite.special_mask.all()


def test_a_saved_vocabulary_is_readable_by_transformers(tmp_path):
    vocabulary = EntityVocabulary.of_ids(["Q64", "wp:Åland"])
    vocabulary.save(tmp_path / "model")
    assert EntityVocabulary.load(tmp_path / "model") == vocabulary
    assert EntityVocabulary.load(tmp_path / "model/entity_vocab.json").fingerprint == vocabulary.fingerprint
    tokens = {token: number for number, token in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))}
    theirs = LukeTokenizer(vocab=tokens, merges=[], entity_vocab_file=str(tmp_path / "model/entity_vocab.json"))
    assert theirs.entity_vocab["wp:Åland"] == 5
    assert theirs.entity_mask_token_id == vocabulary.mask


def test_the_authors_lists_are_read(tmp_path):
    (tmp_path / "entity_vocab.tsv").write_text("[PAD]\t0\n[UNK]\t0\n[MASK]\t0\nJapan\t9\nUnited States\t8\n")
    assert EntityVocabulary.load(tmp_path).row_of["United States"] == 4
    (tmp_path / "entity_vocab.tsv").unlink()
    lines = [{"id": n, "entities": [[name, "en"]]} for n, name in enumerate(("[PAD]", "[UNK]", "[MASK]"))]
    lines += [{"id": 3, "entities": [["Japan", "en"], ["日本", "ja"]], "count": 9}]
    (tmp_path / "entity_vocab.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    many = EntityVocabulary.load(tmp_path)
    assert (many.row_of["ja:日本"], many.row_of["en:Japan"], len(many)) == (3, 3, 4)
    assert many.names == ("[PAD]", "[UNK]", "[MASK]", "en:Japan")


def test_a_vocabulary_in_tokenizer_settings_is_found(tmp_path):
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"entity_vocab": {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "Avon": 3}}')
    assert EntityVocabulary.load(tmp_path).row_of["Avon"] == 3
    EntityVocabulary.of_ids(["Bath"]).save(tmp_path)
    assert "Bath" in EntityVocabulary.load(tmp_path)  # a file says it before
    (tmp_path / "entity_vocab.json").unlink()
    settings.write_text('{"tokenizer_class": "LukeTokenizer"}')
    assert EntityVocabulary.find(tmp_path) is None
    settings.write_text('{"entity_vocab": [1]}')
    with pytest.raises(InputError, match=r"tokenizer_config\.json is not an entity vocabulary"):
        EntityVocabulary.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1]", "expected a JSON object"), ("{", "cannot be read"), ('{"a": 0}', r"has no \[PAD\]")],
)
def test_an_invalid_file_raises_an_error_that_names_the_fix(tmp_path, content, message):
    with pytest.raises(InputError, match=r"has no entity_vocab\.json"):
        EntityVocabulary.load(tmp_path)
    (tmp_path / "entity_vocab.json").write_text(content)
    with pytest.raises(InputError, match=message):
        EntityVocabulary.load(tmp_path)


def test_grow_keeps_every_row():
    vocabulary = EntityVocabulary.of_ids(["p", "q"])
    grown = vocabulary.grow(["r", "p", "s", "r"])
    assert grown.names == (*SPECIAL, "p", "q", "r", "s")
    assert vocabulary.names == (*SPECIAL, "p", "q")


def test_rows_of_a_checkpoint_get_the_ids_of_a_kb_by_titles(kb):
    titles = EntityVocabulary.of_ids(["Cork", "Rome", "Avon"])
    named = titles.named_by(kb)
    assert named.rows_of(["c", "a", "b", "Rome"]).tolist() == [4, 6, 1, 5]
    assert len(named) == len(titles)


def test_titles_of_many_languages_are_those_of_the_kbs_own(kb):
    titles = EntityVocabulary.of_ids(["de:Cork", "en:Cork", "en:Rome"])
    assert titles.named_by(kb).rows_of(["c", "a"], unknown="drop").tolist() == [5, -1]


def test_initial_embeddings_keep_the_neighbours_of_vectors():
    chance = np.random.default_rng(0)
    axes = np.linalg.qr(chance.normal(size=(8, 8)))[0][:, :3]
    vectors = chance.normal(size=(40, 3)) @ (np.diag([3, 2, 1]) @ axes.T) + 5.0
    vocabulary = EntityVocabulary.of_ids(["unseen", *(f"e{n}" for n in range(40))])
    rows, at = vocabulary.start_rows(Vectors(**{f"e{n}": vector for n, vector in enumerate(vectors)}), 3)
    assert at.tolist() == list(range(5, 45))
    assert rows.shape == (40, 3)
    assert rows.std() == pytest.approx(0.02, rel=1e-4)
    centred = vectors.astype(np.float16).astype(float) - vectors.astype(np.float16).astype(float).mean(0)
    products, kept = centred @ centred.T, rows.astype(float) @ rows.T.astype(float)
    assert np.corrcoef(products.ravel(), kept.ravel())[0, 1] > 0.9999
    wide, _ = vocabulary.start_rows(Vectors(**{f"e{n}": vector for n, vector in enumerate(vectors)}), 12)
    assert wide.shape == (40, 12)
    assert not wide[:, 8:].any()
    with pytest.raises(UsageError, match="no entity of the vocabulary has a vector"):
        vocabulary.start_rows(Vectors(z=[1.0, 2.0]), 2)


def test_the_axes_that_vary_most_come_first():
    vectors = np.random.default_rng(1).normal(size=(500, 6)) * [1, 9, 1, 4, 1, 1]
    found = project(vectors, np.arange(500), 2)
    assert abs(np.corrcoef(found[:, 0], vectors[:, 1])[0, 1]) > 0.99
    assert abs(np.corrcoef(found[:, 1], vectors[:, 3])[0, 1]) > 0.99
