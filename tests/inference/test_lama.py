"""Facts from LAMA's files to scores: of runs that learned masked words, and of encoders that have a head."""

import json
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from tests.task_models import SEGMENTER, TEXTS, TOKENIZER
from tests.tasks.test_lama import byte_pairs
from wellread import config
from wellread.data.readers.lama import has_facts, read_probe
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import silence
from wellread.errors import InputError, UsageError
from wellread.inference.lama import common_words, probe_models
from wellread.inference.probe import load_prober
from wellread.models.kam.inputs import MapsConfig
from wellread.models.kam.model import KamConfig
from wellread.plots import curves as plots
from wellread.tasks.lama import Probing, probe
from wellread.tasks.lm_head import words_of
from wellread.tasks.recipe import Data, EncoderOptions, TaskRecipe
from wellread.training.schedule import Schedule
from wellread.training.task import load_task, train_task

TREX = [
    {"uuid": "1", "sub_label": "Avon", "obj_label": "Paris", "evidences": [{"masked_sentence": "Avon , [MASK]"}]},
    {"uuid": "2", "sub_label": "Brno", "obj_label": "Rome", "evidences": [{"masked_sentence": "Brno , [MASK]"}]},
    {"uuid": "3", "sub_label": "Cork", "obj_label": "old Rome", "evidences": []},
]
OWN = [
    {"relation": "near", "sub_label": "avon", "obj_label": "river", "masked_sentence": "avon is near the [MASK]"},
    {"relation": "kind", "sub_label": "paris", "obj_label": "city", "masked_sentence": "paris is a [MASK]"},
]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def lama(tmp_path):
    """A folder as LAMA's, with two of its parts."""
    write(
        tmp_path / "LAMA/data/relations.jsonl",
        [{"relation": "P36", "template": "the city of [X] is [Y] ."}, {"relation": "P0", "template": "[X] [Y]"}],
    )
    write(tmp_path / "LAMA/data/TREx/P36.jsonl", TREX)
    write(
        tmp_path / "LAMA/data/ConceptNet/test.jsonl",
        [{"sub": "me", "obj_label": "river", "masked_sentences": ["[MASK] is near me"], "uuid": "c"}],
    )
    return tmp_path / "LAMA"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The folder of an encoder that has a head for masked words."""
    folder = tmp_path_factory.mktemp("lama") / "bert"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    made = BertForMaskedLM(
        BertConfig(vocab_size=TOKENIZER.get_vocab_size(), max_position_embeddings=64, initializer_range=0.3, **sizes)
    )
    with silence():
        made.save_pretrained(folder)
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return str(folder)


def masking(folder, encoder, **changes):
    (folder / "texts.txt").write_text("\n\n".join(TEXTS[:3]))
    recipe = TaskRecipe(
        "masking",
        batch=2,
        data=Data(str(folder / "texts.txt"), develop=1),
        encoder=EncoderOptions(encoder, longest=32),
        schedule=Schedule(steps=1, learning_rate=1e-2),
    )
    return replace(recipe, **changes)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


# Files.


def test_facts_are_read_from_the_folder_from_its_parts_and_from_single_files(lama):
    data = lama / "data"
    every = list(read_probe(lama))
    assert every == list(read_probe(data))
    assert [(fact.relation, fact.sentence) for fact in every] == [
        ("P36", "the city of Avon is [MASK] ."),
        ("P36", "the city of Brno is [MASK] ."),
        ("P36", "the city of Cork is [MASK] ."),
        ("ConceptNet", "[MASK] is near me"),
    ]
    assert list(read_probe(lama, "trex")) == every[:3]
    assert list(read_probe(data / "TREx")) == list(read_probe(data / "TREx/P36.jsonl")) == every[:3]
    assert list(read_probe(data / "ConceptNet/test.jsonl")) == every[3:]
    assert all(map(has_facts, (lama, data, data / "TREx", data / "TREx/P36.jsonl")))


def test_facts_of_your_own_have_relations_of_their_own(tmp_path):
    facts = list(read_probe(write(tmp_path / "own.jsonl", OWN)))
    assert [(fact.relation, fact.object) for fact in facts] == [("near", "river"), ("kind", "city")]
    born = write(tmp_path / "place_of_birth_test.jsonl", [{"sub_label": "Cork", "obj_label": "Dover"}])
    assert [fact.sentence for fact in read_probe(born)] == ["Cork was born in [MASK] ."]


def test_texts_are_no_facts_and_what_is_not_there_is_named(tmp_path, lama):
    texts = write(tmp_path / "texts.jsonl", [{"text": "avon is near"}])
    assert not any(map(has_facts, (texts, tmp_path / "nowhere", tmp_path / "none")))
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="none has no facts; give LAMA's data folder, or a JSONL file with obj_label"):
        list(read_probe(tmp_path / "none"))
    with pytest.raises(UsageError, match="'trex' a part of LAMA's data folder; give that, or no part"):
        list(read_probe(texts, "trex"))
    with pytest.raises(InputError, match=r"has no Squad/test.jsonl"):
        list(read_probe(lama, "squad"))


# Models.


def test_words_are_those_that_all_models_have_without_capitals_if_one_knows_none():
    tokenizers = [TOKENIZER, byte_pairs()]
    words = [words_of(one) for one in tokenizers]
    assert common_words(words, tokenizers) == [{"r", "rome"}, {"R", "Rome"}]
    assert common_words(words, tokenizers, ["Rome", "Paris"]) == [{"rome"}, {"Rome"}]
    assert common_words(words[1:], tokenizers[1:], ["Rome", "rom"]) == [{"Rome"}]


def test_a_run_and_an_encoder_are_asked_the_same_facts(tmp_path, lama, bert):
    train_task(masking(tmp_path, bert), tmp_path / "run")
    run, plain = load_prober(tmp_path / "run", ExitStack()), load_prober(bert, ExitStack())
    facts = list(read_probe(lama))
    found = probe_models([run, plain], facts)
    assert (found.left_out, [score.micro.facts for score in found.scores]) == (1, [3, 3])
    assert found.scores[0].relations.keys() == {"P36", "ConceptNet"}
    assert found.scores[0] != found.scores[1]
    for prober, score in zip((run, plain), found.scores, strict=True):
        (alone,) = probe_models([prober], facts).scores
        assert alone == score == probe(prober.network, SEGMENTER, facts, found_words(prober))
    few = probe_models([run], facts, ["Rome", "river"])
    assert (few.vocabulary, few.left_out) == (2, 2)
    with pytest.raises(InputError, match="none of the 1 facts has an object that is one token for every model"):
        probe_models([run], facts[2:3])


def found_words(prober):
    return [word for word in prober.words if word.isalnum()]


def test_what_cannot_be_asked_for_words_says_what_can(tmp_path, encoder, bert):
    with pytest.raises(InputError, match=r'has no masked language model head.*task = "masking" and encoder.name = '):
        load_prober(encoder, ExitStack())
    from tests.task_data import rte_recipe

    train_task(rte_recipe(tmp_path, encoder, infusion="none", schedule=Schedule(1)), tmp_path / "rte")
    with pytest.raises(UsageError, match="rte was trained for RTE, which has no masked language model head; give"):
        load_prober(tmp_path / "rte", ExitStack())


def test_an_encoder_that_takes_knowledge_is_not_asked_without_it(tmp_path, bert):
    for kinds in ([], [KamConfig(maps=("entity",))]):
        made = infuse(BertForMaskedLM.from_pretrained(bert), kinds)
        with silence():
            made.save_pretrained(tmp_path / "infused")
        TOKENIZER.save(str(tmp_path / "infused/tokenizer.json"))
        if kinds:
            with pytest.raises(UsageError, match=r"infused takes knowledge \(kam\).*give its run, or train"):
                load_prober(tmp_path / "infused", ExitStack())
        else:
            assert load_prober(tmp_path / "infused", ExitStack()).words.keys() == words_of(TOKENIZER).keys()


def test_facts_can_be_learned_by_recipe_among_the_words_of_a_file(tmp_path, lama, bert):
    (tmp_path / "words.txt").write_text("Paris\nRome\nriver\nmayor\n")
    recipe = config.override(
        masking(tmp_path, bert, task="lama", data=Data(str(lama), develop=1)),
        [f"lama.vocabulary={tmp_path / 'words.txt'}", "schedule.steps=2"],
    )
    scores = train_task(recipe, tmp_path / "run")
    assert scores.keys() == {"precision", "macro", "mrr", "precision@10"}
    (tmp_path / "words.txt").unlink()  # the model keeps them
    model = load_task(tmp_path / "run")
    assert model.task.words.keys() == {"paris", "rome", "river", "mayor"}
    facts = model.read(lama)
    assert [fact.object for fact in facts] == ["paris", "rome", "river"]
    model.write(tmp_path / "ranks", facts, model.answers(facts))
    rows = [json.loads(line) for line in (tmp_path / "ranks").read_text().splitlines()]
    assert [(row["id"], row["relation"]) for row in rows] == [("1", "P36"), ("2", "P36"), ("c", "ConceptNet")]
    assert all(1 <= row["rank"] <= 4 for row in rows)
    assert load_prober(tmp_path / "run", ExitStack()).words.keys() == model.task.words.keys()


def test_usable_facts_are_the_same_by_their_places(lama):
    facts, task = list(read_probe(lama)), Probing(TOKENIZER)
    assert list(task.place_usable(facts).values()) == task.usable(facts)
    assert list(task.place_usable(facts)) == [0, 1, 3]


# The command.


def test_a_run_that_learned_masked_words_is_scored_on_texts_and_on_facts(wellread, tmp_path, lama, bert, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_task(masking(tmp_path, bert), tmp_path / "run")
    assert "log_chance" in wellread("evaluate", "run", "texts.txt").out
    refused = wellread("evaluate", "run", "texts.txt", "--predictions", "answers.jsonl")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: masking has no format for answers; omit --predictions\n"
    done = wellread("evaluate", "run", "LAMA")
    assert done.code == 0, done.err
    assert "asked for 3 facts in" in done.err
    assert "1 others have an object that is none of these" in done.err
    rows = [line.split("│")[1].strip() for line in done.out.splitlines() if line.startswith("│")]
    assert rows == ["all (micro)", "all (macro)", "P36", "ConceptNet"]
    both = wellread("evaluate", "lama", "run", bert, "LAMA", "--part", "trex", "--format", "json")
    info = json.loads(both.out)
    assert [one["model"] for one in info["models"]] == ["run", bert]
    assert info["models"][0]["micro"]["facts"] == info["facts"] == 2
    run = load_prober("run", ExitStack())
    alone = probe(run.network, run.segmenter, read_probe("LAMA", "trex"), found_words(run))
    assert info["models"][0]["micro"]["mrr"] == alone.micro.mrr
    table = wellread("evaluate", "lama", "run", bert, "LAMA")
    assert "precision@1" in table.out
    (tmp_path / "few.txt").write_text("rome\n")
    assert wellread("evaluate", "lama", "run", "LAMA", "--vocabulary", "few.txt").code == 0


def test_a_run_is_asked_for_its_own_part_and_for_all_of_a_file(wellread, tmp_path, lama, bert, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = masking(tmp_path, bert, task="lama", data=Data(str(lama), develop=1))
    train_task(config.override(recipe, ["lama.part=trex"]), tmp_path / "run")
    monkeypatch.setattr("wellread.inference.probe.load_task", None)  # the model is loaded already
    assert json.loads(wellread("evaluate", "run", "LAMA", "--format", "json").out)["facts"] == 2
    write(tmp_path / "own.jsonl", OWN)
    assert json.loads(wellread("evaluate", "run", "own.jsonl", "--format", "json").out)["facts"] == 2
    for data in ("own.jsonl", "LAMA"):
        done = wellread("evaluate", "run", data, "--predictions", "ranks.jsonl", "--format", "json")
        assert (done.code, json.loads(done.out)["examples"]) == (0, 2), done.err
        assert len((tmp_path / "ranks.jsonl").read_text().splitlines()) == 2
    with pytest.raises(UsageError, match=r"own\.jsonl is a file, and 'trex' a part of LAMA's data folder"):
        train_task(config.override(recipe, ["lama.part=trex", "data.train=own.jsonl"]), tmp_path / "other")


def test_knowledge_that_was_moved_is_found_where_it_is_said_to_be(wellread, tmp_path, bert, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentences = [row["masked_sentence"] for row in OWN]
    links = [{"text": text, "mentions": [[0, 4, "one"]]} for text in [*TEXTS, *sentences]]
    write(tmp_path / "links.jsonl", links)
    write(tmp_path / "own.jsonl", OWN)
    maps = MapsConfig(maps=("entity",), entities="given", given="links.jsonl")
    train_task(masking(tmp_path, bert, infusion="kam", maps=maps), tmp_path / "run")
    requested = [wellread(*words, "own.jsonl") for words in (["evaluate", "run"], ["evaluate", "lama", "run", bert])]
    assert [done.code for done in requested] == [0, 0], requested
    (tmp_path / "links.jsonl").rename(tmp_path / "moved.jsonl")
    for words in (["evaluate", "run"], ["evaluate", "lama", "run", bert]):
        lost = wellread(*words, "own.jsonl")
        assert (lost.code, "links.jsonl" in lost.err) == (3, True)
        done = wellread(*words, "own.jsonl", "--set", "maps.given=moved.jsonl")
        assert (done.code, done.out) == (0, requested.pop(0).out), done.err
    done = wellread("evaluate", "lama", bert, "own.jsonl", "--set", "maps.given=moved.jsonl")
    assert (done.code, "'maps.given=moved.jsonl' is for runs" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "own.jsonl"], 3, "'nowhere' is neither an asset nor a folder"),
        (["{bert}", "nowhere.jsonl"], 3, "cannot read nowhere.jsonl"),
        (["{bert}"], 2, "Missing argument 'MODEL...'"),
        (["{bert}", "texts.jsonl"], 3, "texts.jsonl has no facts; the first that is left out: texts.jsonl, line 1: no"),
        (["{bert}", "own.jsonl", "--vocabulary", "nowhere.txt"], 3, "cannot read nowhere.txt"),
    ],
)
def test_what_goes_wrong_names_the_fix(wellread, tmp_path, monkeypatch, bert, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own.jsonl", OWN)
    write(tmp_path / "texts.jsonl", [{"text": "avon"}])
    done = wellread("evaluate", "lama", *(argument.format(bert=bert) for argument in arguments))
    assert (done.code, done.out) == (code, "")
    assert message in done.err.splitlines()[-1]
