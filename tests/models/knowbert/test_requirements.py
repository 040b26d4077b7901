"""Saved models name the KB and vectors of their knowledge layers, and loading uses them."""

import json
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.infused_models import shake
from tests.reference_knowbert import HEADS, POS, VOCAB, WORDNET, draw_state, model_config, write_archive
from tests.sense_data import TEXTS, Hashing, write_vectors, write_wordnet
from tests.task_data import SCHEDULE, rte_recipe
from tests.toy_models import write_kb
from wellread import Linker
from wellread.data.readers.raganato import write_lines_of_senses
from wellread.document import Document
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder
from wellread.errors import KnowledgeBaseError
from wellread.index.entity_vectors import EntityVectors
from wellread.inference.embedder import load_embedder
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import CandidateConfig, KnowBertConfig
from wellread.models.knowbert.conversion import convert_knowbert, open_tables
from wellread.models.knowbert.folder import LayerRequirements
from wellread.models.knowbert.saving import shrink
from wellread.plots import curves as plots
from wellread.tasks.recipe import CandidateOptions, Data, EncoderOptions, TaskRecipe
from wellread.tasks.senses import SenseOptions
from wellread.training.task import build_learner, load_task, train_task

SYNSETS = [
    Entity("dog.n.01", "dog", "an animal", "n", 1, {"ba": 3, "ca": 1}),
    Entity("frump.n.01", "frump", "a dull one", "n", 1, {"ba": 2}),
    Entity("able.a.01", "able", "who can", "a", 1, {"ca": 2}),
    Entity("run.v.01", "run", "to move", "v", 1, {"ca": 5}),
    Entity("new.n.01", "new", "since then", "n", 1, {"da": 5}),
]
TEXT = "a ba b ca da"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


# Converted models, whose vectors come with them


@pytest.fixture
def converted(tmp_path, monkeypatch):
    """The authors' KnowBERT of WordNet, whose entities have nine kinds; and a WordNet that has three."""
    monkeypatch.setattr("wellread.assets.home", lambda: tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n", "utf-8")
    write_archive(tmp_path / "theirs", draw_state(["wordnet"]), model_config({"wordnet": 1}))
    convert_knowbert(tmp_path / "theirs", tmp_path / "model", vocab=tmp_path / "vocab.txt", heads=HEADS)
    (tmp_path / "kb").mkdir()
    with write_kb(tmp_path / "kb" / "wordnet.kb", SYNSETS) as kb:
        EntityVectors.build(kb, Hashing())  # of another width, and not the model's
    return tmp_path / "model"


def table_of(encoder):
    return encoder.infusions[0].linker.entities.table


def test_a_converted_model_links_by_its_own_vectors_and_kinds(converted, capsys):
    with Linker.load("wordnet", converted, precision="fp32", tags="none") as linker:
        found = [(link.text, link.entity) for link in linker.link(TEXT).links]
        table = linker.backend.layers.entities
    assert [text for text, _ in found] == ["ba", "ca"]
    assert {entity for _, entity in found} <= {entity.id for entity in SYNSETS}
    own = open_tables(converted)["wordnet"]
    assert np.array_equal(table.rows, own.vectors)
    (row,) = EntityVectors.open(converted / "vectors" / "wordnet").rows_of(["run.v.01"])
    assert int(table.kinds[row]) == int(own.kinds[row]) == POS[WORDNET.index("run.v.01")]
    assert "1 so far (new.n.01)" in capsys.readouterr().err


def test_layers_below_have_their_own_vectors_too(tmp_path, converted):
    write_archive(tmp_path / "both", draw_state(), model_config({"wordnet": 2, "wiki": 1}))
    convert_knowbert(tmp_path / "both", tmp_path / "two", vocab=tmp_path / "vocab.txt", heads=HEADS)
    with write_kb(tmp_path / "kb" / "wiki.kb", [Entity("Place_3", "a place", "somewhere", "", 1, {"ba": 1})]):
        pass  # it has no vectors
    with Linker.load("wordnet", tmp_path / "two", tags="none") as linker:
        assert [link.text for link in linker.link(TEXT).links] == ["ba", "ca"]
        tables = {part.config.kb: part.linker.entities.table for part in linker.backend.layers.encoder.infusions}
    for name, table in open_tables(tmp_path / "two").items():
        assert np.array_equal(tables[name].vectors, table.vectors)


def test_a_converted_model_embeds_by_its_own_vectors(converted):
    with ExitStack() as stack:
        embedder = load_embedder(str(converted), stack)
        (rows,) = embedder.embed([Document("a ba b")], of="words")
        plain = load_embedder(str(converted), stack)
        for part in plain.encoder.encoder.infusions:
            part.requires_grad_(False)
            part.back.weight.zero_()
            part.back.bias.zero_()
        (others,) = plain.embed([Document("a ba b")], of="words")
    assert np.abs(rows.vectors - others.vectors).max() > 1e-3


def test_the_recipe_of_a_task_takes_the_vectors_of_its_converted_encoder_and_says_so(converted, tmp_path):
    rte = rte_recipe(tmp_path, str(converted))
    layer = replace(load_encoder(str(converted)).infusions[0].config, dropout=0.0)
    rte = replace(
        rte, infusion="knowbert", knowbert={"wordnet": layer}, encoder=EncoderOptions(str(converted), longest=12)
    )
    train_task(rte, tmp_path / "run")
    needs = LayerRequirements.of(tmp_path / "run" / "model", "wordnet")
    assert needs.vectors == str(converted.resolve() / "vectors" / "wordnet")
    table = table_of(load_task(tmp_path / "run").network.encoder)
    assert np.array_equal(table.vectors, open_tables(converted)["wordnet"].vectors)
    named = replace(rte, offers={"wordnet": CandidateOptions(vectors=needs.vectors)})
    learner, _ = build_learner(named, None)
    assert np.array_equal(table_of(learner.model.encoder).kinds, open_tables(converted)["wordnet"].kinds)


def test_a_converted_model_becomes_a_small_linker(converted, tmp_path):
    with KnowledgeBase.open(tmp_path / "kb" / "wordnet.kb") as kb:
        shrink(converted, kb, tmp_path / "small")
    expected, found = [], []
    for model, links in ((converted, expected), (tmp_path / "small", found)):
        with Linker.load("wordnet", model, precision="fp32", tags="none") as linker:
            links += [(link.text, link.entity) for link in linker.link(TEXT).links]
    assert found == expected != []


def test_vectors_that_were_converted_for_other_ids_are_refused(converted, tmp_path):
    with write_kb(tmp_path / "other.kb", [Entity("02084071-n", "dog", "an animal", "n", 1, {"ba": 1})]):
        pass
    with pytest.raises(KnowledgeBaseError, match=r"no vector of any entity of .*other\.kb, .*--synsets"):
        Linker.load(tmp_path / "other.kb", converted)


# Models that were trained with vectors somewhere


class Other(Hashing):
    """As wide as others, and nothing like them."""

    fingerprint = "hashing 2"

    def encode(self, entities):
        return -super().encode(entities)


LAYER = KnowBertConfig(kb="senses", layer=0, raw=6, dim=8, heads=2, inner=12, prior_width=5)


@pytest.fixture
def pretrained(tmp_path, encoder):
    """An encoder with a layer, whose vectors are not beside its knowledge base."""
    write_vectors(tmp_path)
    with KnowledgeBase.open(tmp_path / "senses.kb") as kb:
        vectors = EntityVectors.build(kb, Other(), tmp_path / "elsewhere")
    model = infuse(load_encoder(encoder), [LAYER]).eval()
    torch.manual_seed(3)
    shake(model.infusions[0], 0.6)
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(encoder).save(str(tmp_path / "model" / "tokenizer.json"))
    options = {
        "kb": str(tmp_path / "senses.kb"),
        "vectors": str(tmp_path / "elsewhere"),
        "reading": {"candidates": 1},
    }
    manifest = {"recipe": {"offers": {"senses": options}}, "vectors": {"senses": {"fingerprint": vectors.fingerprint}}}
    (tmp_path / "model" / "knowledge.json").write_text(json.dumps(manifest))
    return tmp_path / "model"


def test_what_a_pretrained_model_needs_is_read(pretrained, tmp_path):
    needs = LayerRequirements.of(pretrained, "senses")
    assert (needs.kb, needs.vectors) == (str(tmp_path / "senses.kb"), str(tmp_path / "elsewhere"))
    assert (needs.fingerprint, needs.reading) == ("hashing 2", CandidateConfig(candidates=1))
    assert LayerRequirements.of(pretrained, "moon") == LayerRequirements("moon", None, None, CandidateConfig())


def test_a_pretrained_model_embeds_with_what_it_was_pretrained_with(pretrained):
    with ExitStack() as stack:
        embedder = load_embedder(str(pretrained), stack)
        assert table_of(embedder.encoder.encoder).folder == pretrained.parent / "elsewhere"
        ((window,),) = embedder.window_tokenizer.tokenize(["the old bank"])
        candidates = embedder.encoder.provider.find_candidates([window.input])["senses"]
    assert candidates.entities.shape == (2, 1)  # one candidate each, as in its recipe


def test_vectors_of_another_encoder_are_refused_however_wide_they_are(pretrained, tmp_path):
    with KnowledgeBase.open(tmp_path / "senses.kb") as kb:
        EntityVectors.build(kb, Hashing(), tmp_path / "elsewhere")
    message = r"fingerprint hashing 1\) than .* trained with \(hashing 2\); make"
    with pytest.raises(KnowledgeBaseError, match=message):
        Linker.load(tmp_path / "senses.kb", pretrained)
    with ExitStack() as stack, pytest.raises(KnowledgeBaseError, match=message):
        load_embedder(str(pretrained), stack)


@pytest.mark.parametrize("infusion", ["none", "knowbert"])
def test_a_task_is_not_loaded_with_vectors_of_another_encoder(tmp_path, encoder, infusion):
    write_vectors(tmp_path)
    write_lines_of_senses(tmp_path / "senses.jsonl", TEXTS)
    sizes = {"dim": 8, "heads": 2, "inner": 12, "prior_width": 4}
    recipe = TaskRecipe(
        "senses",
        infusion,
        data=Data(str(tmp_path / "senses.jsonl"), dev=str(tmp_path / "senses.jsonl")),
        encoder=EncoderOptions(str(encoder), longest=32),
        offers={"wordnet": CandidateOptions(kb=str(tmp_path / "senses.kb"))},
        knowbert={"wordnet": KnowBertConfig(layer=0, **sizes)},
        senses=SenseOptions(wordnet=str(write_wordnet(tmp_path / "wndb")), **sizes),
        schedule=SCHEDULE,
    )
    train_task(recipe, tmp_path / "run")
    load_task(tmp_path / "run")
    further = replace(recipe, infusion="knowbert", encoder=EncoderOptions(str(tmp_path / "run" / "model"), longest=32))
    with KnowledgeBase.open(tmp_path / "senses.kb") as kb:
        EntityVectors.build(kb, Other())
    with pytest.raises(KnowledgeBaseError, match="hashing 2"):
        load_task(tmp_path / "run")
    if infusion == "knowbert":
        with pytest.raises(KnowledgeBaseError, match="hashing 2"):
            build_learner(further, None)
    else:  # a new layer may have any
        build_learner(further, None)
