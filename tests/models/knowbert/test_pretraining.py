"""Pretraining of KnowBERT: its stages, what each of them moves, what comes out and how it goes on."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from tests.pretraining_data import SIZES, with_senses, write_recipe
from tests.task_models import TOKENIZER
from tests.weights import moved, weights
from wellread import config
from wellread.encoders.load import silence
from wellread.errors import InputError, UsageError
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.pretraining import Pretraining, PretrainingRecipe, pretrain
from wellread.models.knowbert.pretraining_task import WordsData
from wellread.models.knowbert.recipe import load_entity_tables, open_candidate_kb
from wellread.plots import curves as plots
from wellread.tasks.masked_lm import hide
from wellread.tasks.recipe import Data, TaskRecipe
from wellread.tasks.task import make_batch
from wellread.training.loop import seed_all, train
from wellread.training.run import read_log
from wellread.training.schedule import Schedule
from wellread.training.task import build_network, find_task_type


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recipe, and the run of it that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("draw_curves", "save"):
            patch.setattr(plots, name, lambda *args, **options: None)
        recipe = write_recipe(folder)
        scores = pretrain(recipe, folder / "run")
    return recipe, folder / "run", scores


def test_the_first_stage_moves_the_linker_alone_and_then_sets_the_way_back(recipe, tmp_path):
    work = Pretraining(recipe, None)
    before = weights(work.network)
    (layer,) = work.new_layers()
    work.train_linker(layer, tmp_path / "run", recipe.linker)
    linker = {f"encoder.infusions.0.linker.{name}" for name, _ in layer.linker.named_parameters()}
    back = {"encoder.infusions.0.back.weight", "encoder.infusions.0.back.bias"}
    assert moved(work.network, before) - back <= linker
    assert len(moved(work.network, before) & linker) > 10
    inverse = torch.linalg.pinv(layer.linker.narrow.weight.double())
    assert torch.allclose(layer.back.weight.double(), inverse, atol=1e-5)
    assert torch.allclose(layer.back.bias.double(), -inverse @ layer.linker.narrow.bias.double(), atol=1e-5)
    saved = load_file(tmp_path / "run/linker-names/best.safetensors")
    assert set(saved) == linker


def test_the_second_stage_moves_all_weights_by_their_rates(recipe, tmp_path, monkeypatch):
    recipe = replace(recipe, linker=None, schedule=replace(recipe.schedule, warmup=0.0, steps=1, weight_decay=0.0))
    work = Pretraining(recipe, None)
    schedule = work.schedule()
    assert schedule.rates == {
        "encoder.embeddings": 2e-5,
        "encoder.encoder.layer.0.": 2e-5,
        "encoder.encoder.layer.1.": 5e-5,
    }
    work.free()
    assert all(weight.requires_grad for weight in work.network.parameters())
    before = weights(work.network)
    train(work.mixture(), schedule, tmp_path / "run")
    after = weights(work.network)
    for name, rate in {
        "encoder.embeddings.LayerNorm.bias": 2e-5,
        "encoder.encoder.layer.0.output.LayerNorm.bias": 2e-5,
        "encoder.encoder.layer.1.output.LayerNorm.bias": 5e-5,
        "encoder.infusions.0.norm.bias": 1e-3,
        "head.dense.bias": 1e-3,
    }.items():  # the first step of Adam is as long as the rate
        assert (after[name] - before[name]).abs().max().item() == pytest.approx(rate, rel=1e-2), name


def test_batches_are_of_one_task_each_and_in_their_proportions(recipe):
    mixture = Pretraining(replace(recipe, shares={"words": 0.6, "names": 0.4}), None).mixture()
    batches = [mixture.batches(epoch) for epoch in range(3)]
    names = [batch.part for some in batches for batch in some[:]]
    for many in range(1, len(names)):
        assert abs(names[:many].count("words") - 0.6 * many) < 1
    assert names[:5].count("names") == 2
    texts = [batch.batch.examples for some in batches for batch in some[:] if batch.part == "words"]
    assert all(isinstance(text, str) for some in texts for text in some)
    words = mixture.parts["words"]
    first = [text for some in texts[: len(words.batches(0))] for text in some]
    assert sorted(first) == sorted(words.examples)  # each once before any twice
    assert sorted(first) != sorted(text for some in texts[1 : len(words.batches(0)) + 1] for text in some)


def test_every_batch_has_every_loss_and_only_its_own_is_not_zero(recipe):
    mixture = Pretraining(recipe, None).mixture()
    seen = set()
    for batch in mixture.batches(0)[:10]:
        losses = mixture.loss(batch)
        assert list(losses) == ["word", "links names"]
        own = {"words": "word", "names": "links names"}[batch.part]
        assert [name for name, loss in losses.items() if loss.detach() != 0] == [own]
        seen.add(own)
    assert len(seen) == 2


def fates(work, batch):
    """Return for each mention of a batch: is it masked, and are its candidates MASK, unchanged or of another name."""
    candidates = batch.knowledge["offers"]["names"]
    kb, vectors = open_candidate_kb(work.task, "names")
    kb.close()
    found = []
    for text, (first, last), (entity, *_) in zip(
        *(candidates[name].tolist() for name in ("text_of", "spans", "entities")), strict=True
    ):
        one = batch.inputs[text]
        assert first == last  # the names of cities are one token each
        name = TOKENIZER.id_to_token(
            dict(zip(one.places.tolist(), one.gold.tolist(), strict=True)).get(first, one.ids[first])
        )
        itself = int(vectors.rows_of([f"c-{name}"])[0])
        found.append((first in one.places, {-2: "mask", itself: "itself"}.get(entity, "another")))
    return found


def test_candidates_of_masked_words_are_drawn_in_training_and_mask_in_evaluation(recipe, monkeypatch):
    work = Pretraining(recipe, None)
    words, counts = work.parts["words"], Counter()
    for seed in range(10):
        for place in range(len(words.batches(0))):
            seed_all(seed, place)
            counts.update(fates(work, words.batches(0)[place]))
    seed_all(9, place)
    assert fates(work, words.batches(0)[place]) == fates(work, seeded(words, 9, place))
    hidden = {what: counts[True, what] for what in ("mask", "itself", "another")}
    assert hidden["mask"] / sum(hidden.values()) == pytest.approx(0.8, abs=0.1)
    assert min(hidden["itself"], hidden["another"]) > 0.04 * sum(hidden.values())
    assert [what for is_hidden, what in counts if not is_hidden] == ["itself"]
    scored, read = Counter(), work.network.read
    monkeypatch.setattr(work.network, "read", lambda batch: (scored.update(fates(work, batch)), read(batch))[1])
    work.network.eval()
    words.evaluate()
    assert scored.keys() == {(True, "mask"), (False, "itself")}


def seeded(learner, *seeds):
    seed_all(*seeds)
    return learner.batches(0)[seeds[-1]]


def test_a_masked_mention_does_not_reach_the_layer(recipe):
    """Texts that differ only in a masked name have the same inputs and outputs."""
    work = Pretraining(recipe, None)
    network = work.network.eval()
    pair = [f"the mayor of {name} was born in cork" for name in ("avon", "brno")]
    tokenized = work.segmenter.tokenize_many([(text,) for text in pair])
    (at,) = (tokenized[0].ids != tokenized[1].ids).nonzero()[0].tolist()
    mask = work.masking.mask_id

    def read(one, place):
        ids = one.ids.copy()
        ids[place] = mask
        hidden = hide(one, ids, np.array([place]))
        provided = work.provider.collate([hidden], work.provider.prepare([hidden]))
        tensors = {
            key: {kb: {n: torch.from_numpy(v) for n, v in arrays.items()} for kb, arrays in value.items()}
            for key, value in provided.items()
        }
        batch = make_batch([None], [[hidden]], tensors)
        with torch.no_grad():
            states, batch, _ = network.read(batch)
        return tensors["offers"]["names"], states, batch.outputs["links"]["names"]

    (candidates, states, links), (others, other_states, other_links) = (read(one, at) for one in tokenized)
    assert candidates["entities"].tolist()[0][0] == -2
    assert all(torch.equal(candidates[name], others[name]) for name in candidates)
    assert torch.equal(states, other_states)
    assert torch.equal(links, other_links)
    shown, shown_states, _ = read(tokenized[0], at - 1)
    other_shown, other_shown_states, _ = read(tokenized[1], at - 1)
    assert not torch.equal(shown["entities"], other_shown["entities"])  # unmasked, its candidates are visible
    assert not torch.equal(shown_states, other_shown_states)


@pytest.mark.parametrize(("where", "step"), [("linker", 2), ("both", 4)])
def test_a_run_that_breaks_off_in_any_stage_ends_with_the_same_bits(whole, tmp_path, where, step):
    recipe, run, scores = whole
    seen = []

    def stop(line):
        seen.append(line["step"])
        stages = sum(after <= before for before, after in zip([0, *seen], seen, strict=False))
        if line["step"] == step and stages == (where == "both"):
            raise KeyError("killed")

    with pytest.raises(KeyError):
        pretrain(recipe, tmp_path / "run", on_report=stop, save_seconds=0.0, notes=run / "notes")
    assert pretrain(recipe, tmp_path / "run", save_seconds=0.0, notes=run / "notes") == scores
    for name in ("best.safetensors", "linker-names/best.safetensors", "model/model.safetensors"):
        one, other = load_file(run / name), load_file(tmp_path / "run" / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    assert [line["losses"] for line in read_log(run)] == [line["losses"] for line in read_log(tmp_path / "run")]


def test_scores_are_of_words_and_links_and_the_best_is_that_of_the_recipe(whole):
    recipe, run, scores = whole
    assert {"words.perplexity", "words.accuracy", "words.log_chance", "names.f1", "names.prior"} <= scores.keys()
    saved = json.loads((run / "scores.json").read_bytes())
    assert saved["score"] == recipe.best == "words.log_chance"
    evaluated = [line["dev"] for line in read_log(run) if "dev" in line]
    assert len(evaluated) == 2
    assert max(one["words.log_chance"] for one in evaluated) == scores["words.log_chance"]


def test_the_output_is_a_masked_language_model_of_transformers(whole):
    recipe, run, _ = whole
    with silence():
        model = AutoModelForMaskedLM.from_pretrained(run / "model")
    work = Pretraining(replace(recipe, encoder=replace(recipe.encoder, name=str(run / "model"))), None)
    assert work.has_head
    assert work.schedule().rates["head"] == recipe.lower
    load_entity_tables(work.task, model.base_model)
    batch = work.parts["words"].batches(0)[0]
    network = work.network.eval()
    with torch.no_grad():
        expected = network.head(network.states(batch))
        found = model.eval()(
            input_ids=batch.ids[None],
            token_type_ids=batch.types[None],
            packing=batch.packing,
            offers=batch.knowledge["offers"],
        )
    assert torch.allclose(found.logits[0], expected, atol=1e-5)
    best = load_file(run / "best.safetensors")
    assert torch.equal(model.base_model.infusions[0].back.weight, best["encoder.infusions.0.back.weight"])
    saved = json.loads((run / "model/knowledge.json").read_bytes())["vectors"]
    assert saved.keys() == {"names"}
    assert (saved["names"]["dim"], saved["names"]["entities"], saved["names"]["fingerprint"]) == (6, 12, "hashing 1")
    assert saved["names"]["file"].startswith("vectors-")


def test_the_recipe_of_a_task_keeps_trained_layers(whole):
    recipe, run, _ = whole
    trained = load_file(run / "best.safetensors")
    task = TaskRecipe(
        "masking",
        "knowbert",
        data=Data(develop=1),
        encoder=replace(recipe.encoder, name=str(run / "model")),
        offers=recipe.offers,
        knowbert={"names": replace(recipe.knowbert["names"], dropout=0.0)},
    )
    build = find_task_type("masking").build
    network = build_network(task, build(task.settings, {}, Pretraining(recipe, None).tokenizer))
    for name, weight in network.encoder.infusions[0].state_dict().items():
        assert torch.equal(weight, trained[f"encoder.infusions.0.{name}"]), name
    assert network.encoder.infusions[0].config.dropout == 0.0
    other = replace(task, knowbert={"names": replace(recipe.knowbert["names"], layer=1)})
    with pytest.raises(
        UsageError, match=r"a layer of names trained with layer = 0, but .* layer = 1; set the same in \[knowb"
    ):
        build_network(other, build(task.settings, {}, Pretraining(recipe, None).tokenizer))
    plain = build_network(replace(task, infusion="none"), build(task.settings, {}, Pretraining(recipe, None).tokenizer))
    assert len(plain.encoder.infusions) == 0


def test_a_second_knowledge_base_is_added_and_the_first_stays(whole, tmp_path):
    recipe, run, _ = whole
    both = with_senses(replace(recipe, encoder=replace(recipe.encoder, name=str(run / "model"))), tmp_path)
    work = Pretraining(both, None)
    assert [layer.config.kb for layer in work.layers] == ["names", "senses"]
    assert [layer.config.kb for layer in work.new_layers()] == ["senses"]
    assert both.proportions == {"words": 0.8, "names": 0.1, "senses": 0.1}
    before = weights(work.network)
    trained = load_file(run / "best.safetensors")
    assert all(torch.equal(before[name], trained[name]) for name in trained)  # the encoder, its head and its layer
    (layer,) = work.new_layers()
    work.train_linker(layer, tmp_path / "run", both.linker)
    assert {name.partition("infusions.")[2][:1] for name in moved(work.network, before)} == {"1"}
    scores = pretrain(both, tmp_path / "run")
    assert {"names.f1", "senses.f1", "senses.prior", "words.accuracy"} <= scores.keys()
    assert list(json.loads((tmp_path / "run/model/knowledge.json").read_bytes())["vectors"]) == ["names", "senses"]


def test_words_alone_and_links_alone_can_be_trained(recipe, tmp_path):
    links = replace(recipe, words=WordsData(), linker=None, schedule=Schedule(steps=1, learning_rate=1e-3))
    assert pretrain(links, tmp_path / "links").keys() >= {"names.f1", "names.accuracy"}
    words = replace(recipe, links=(), schedule=links.schedule)
    assert set(pretrain(words, tmp_path / "words")) == {"words.accuracy", "words.log_chance", "words.perplexity"}
    assert not (tmp_path / "words/linker-names").exists()


def test_a_recipe_is_written_and_read_as_it_was(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(config.to_toml(recipe))
    assert config.read(PretrainingRecipe, tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": WordsData(), "links": ()}, r"nothing to train on; give \[words\]"),
        ({"words": WordsData(("x",))}, r"\[words\] has nothing to validate on"),
        ({"shares": {"words": 1.0}}, "shares are of words, but there is data of words, names"),
        ({"score": "words.perplexity"}, "better if higher, such as words.log_chance"),
        ({"score": "wordnet.f1"}, "score is 'wordnet.f1'; expected"),
        ({"knowbert": {"words": KnowBertConfig(layer=0, **SIZES)}}, "no knowledge base can be called 'words'"),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(recipe, changes, message):
    with pytest.raises(UsageError, match=message):
        replace(recipe, **changes)


def test_a_recipe_without_the_layer_that_it_needs_names_the_fix(recipe, tmp_path):
    with pytest.raises(UsageError, match=r"no knowledge layer; add \[knowbert.NAME\] with layer = N"):
        Pretraining(replace(recipe, knowbert={}), None)
    other = {"senses": KnowBertConfig(layer=1, **SIZES)}
    with_both = with_senses(recipe, tmp_path)
    with pytest.raises(UsageError, match=r"text linked to names, but no layer of it; add \[knowbert.names\]"):
        Pretraining(replace(with_both, knowbert=other), None)
    few = replace(recipe, words=replace(recipe.words, develop=1000))
    with pytest.raises(InputError, match="no text left to train on; lower develop"):
        Pretraining(few, None).parts  # noqa: B018
