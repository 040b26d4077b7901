"""Names and cloze questions by recipe: the rows of the table, from a file to scores, predictions and answers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LukeForEntitySpanClassification

from tests.task_data import SCHEDULE, recipes
from tests.tasks.test_cloze_qa import QUESTIONS, as_record
from tests.toy_models import PEOPLE, PLACES
from wellread.data.readers.conll import Columns, read_conll
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder, silence
from wellread.encoders.packing import Packing
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.conversion import convert_luke, load
from wellread.models.luke.model import luke_of
from wellread.models.luke.recipe import LukeOptions
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.plots import curves as plots
from wellread.tasks.ner import Found, NerOptions
from wellread.tasks.recipe import Data, EncoderOptions, TaskRecipe
from wellread.tasks.registry import find_task_type, read_examples, read_parts
from wellread.training.task import build_learner, load_task, train_task

SAID = [f"{one} B-person\nwas O\nborn O\nnear O\n{two} B-place\n" for one, two in zip(PEOPLE, PLACES, strict=True)]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    for name in ("draw_curves", "draw_comparison", "save"):
        monkeypatch.setattr(plots, name, lambda *args, **options: None)


def recipe(task, train, encoder, **more):
    return TaskRecipe(task, batch=4, data=Data(str(train), develop=1), encoder=EncoderOptions(encoder, 48), **more)


def test_a_file_of_columns_leads_to_a_model_that_finds_names(encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    schedule = replace(SCHEDULE, steps=60, evaluate_every=30, learning_rate=1e-2, accumulate=1)
    made = recipe("ner", tmp_path / "train", encoder, schedule=schedule, ner=NerOptions(longest=4))
    scores = train_task(made, tmp_path / "run")
    assert next(iter(scores)) == "f1"
    model = load_task(tmp_path / "run")
    assert model.facts == {"labels": ["person", "place"], "longest": 1}
    sentences = model.read(tmp_path / "train")
    assert model.has_gold(sentences)
    answers = model.answers(sentences)
    assert model.score(sentences, answers)["f1"] > 0.4
    chosen = model.task.chosen(answers)
    model.write(tmp_path / "predictions", sentences, answers)
    assert [list(one.chunks) for one in read_conll(tmp_path / "predictions")] == chosen
    assert [one.chunks for one in read_conll(tmp_path / "predictions", Columns(tag=1))] == [
        one.chunks for one in sentences
    ]
    *names, none = model.answer([*(one.text for one in sentences), " "])
    assert none == []
    predictions = [
        [(one.text[name["start"] : name["end"]], name["label"]) for name in some]
        for one, some in zip(sentences, names, strict=True)
    ]
    words = [
        [(" ".join(map(one.word, range(*chunk[:2]))), chunk.label) for chunk in some]
        for one, some in zip(sentences, chosen, strict=True)
    ]
    assert predictions == words


@pytest.mark.parametrize(("words", "wanted"), [(3, 3), (20, 16)])
def test_spans_are_as_long_as_the_longest_training_name_by_default(words, wanted, encoder, tmp_path):
    name = "A B-thing\n" + "a I-thing\n" * (words - 1)
    (tmp_path / "train").write_text("\n".join([*SAID, name]))
    made = recipe("ner", tmp_path / "train", encoder, schedule=SCHEDULE)
    for longest, found in ((None, wanted), (5, 5)):
        learner, facts = build_learner(replace(made, ner=NerOptions(longest=longest)), None)
        assert facts["longest"] == words
        assert learner.task.longest == found
        assert max(int(np.diff(some).max()) for some in learner.batches(0)[0].target["chunks"]) <= found


def test_names_in_characters_lead_there_too_and_none_is_lost(encoder, tmp_path, capsys):
    texts = [f"{one} was born near {two}s" for one, two in zip(PEOPLE, PLACES, strict=True)]
    lines = [
        {"text": text, "mentions": [[0, len(one), "person"], [text.index(two), text.index(two) + len(two), "place"]]}
        for text, one, two in zip(texts, PEOPLE, PLACES, strict=True)
    ]
    (tmp_path / "train").write_text("".join(json.dumps(line) + "\n" for line in lines))
    schedule = replace(SCHEDULE, steps=2, evaluate_every=1)
    made = recipe("ner", tmp_path / "train", encoder, schedule=schedule)
    train_task(made, tmp_path / "run")
    assert f"{len(texts)} of {2 * len(texts)} names begin or end within a word" in capsys.readouterr().err
    model = load_task(tmp_path / "run")
    assert model.facts == {"labels": ["person"], "longest": 1}
    sentences = model.read(tmp_path / "train")
    right = [[[Found(0.0, Chunk(0, 1, "person"), 0, len(one))]] for one in PEOPLE]
    assert model.score(sentences, right) == pytest.approx(
        {"f1": 2 / 3, "precision": 1, "recall": 0.5, "f1_person": 1, "f1_place": 0}
    )
    model.write(tmp_path / "predictions.jsonl", sentences, right)
    assert [len(one.chunks) for one in model.read(tmp_path / "predictions.jsonl")] == [1] * len(texts)
    with pytest.raises(UsageError, match="write to a file named"):
        model.write(tmp_path / "predictions.conll", sentences, right)
    wide = replace(made, ner=NerOptions(borders="widen"))
    assert find_task_type("ner").metadata(wide.settings) == {"labels": ["person", "place"], "longest": 1}


def test_a_file_of_cloze_questions_leads_to_predictions(encoder, tmp_path):
    (tmp_path / "train").write_text(json.dumps(as_record(QUESTIONS)))
    scores = train_task(recipe("record", tmp_path / "train", encoder, schedule=SCHEDULE), tmp_path / "run")
    assert list(scores)[:2] == ["exact", "f1"]
    model = load_task(tmp_path / "run")
    questions = model.read(tmp_path / "train")
    assert model.has_gold(questions)
    answers = model.answers(questions)
    model.write(tmp_path / "predictions", questions, answers)
    info = json.loads((tmp_path / "predictions").read_text())
    for one in questions:
        assert info[one.id] in {one.passage[slice(*span)] for span in one.entities}


# LUKE by recipe


def luke_folder(folder, encoder, *, entities=("one", "two"), **options):
    """An encoder that has learned to take entities, with a vocabulary whose special rows lie in another order."""
    names = ("[MASK]", "[UNK]", *entities, "[PAD]", "[MASK2]")
    vocabulary = EntityVocabulary({name: row for row, name in enumerate(names)})
    config = LukeConfig(entities=len(vocabulary), dim=6, aware=False, predicts=True, **options)
    model = infuse(load_encoder(encoder), [config])
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in luke_of(model).parameters():
            weight.copy_(torch.randn_like(weight) * 0.1)
    with silence():
        model.save_pretrained(folder)
    load_tokenizer(encoder).save(str(folder / "tokenizer.json"))
    vocabulary.save(folder)
    return str(folder), luke_of(model), vocabulary


def test_what_luke_has_learned_is_kept_with_the_special_rows_alone(encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    name, old, known = luke_folder(tmp_path / "luke", encoder)
    made = recipe("ner", tmp_path / "train", name, schedule=SCHEDULE, infusion="luke")
    learner, _ = build_learner(made, None)
    luke = luke_of(learner.model.encoder)
    assert (luke.config.entities, luke.config.dim, luke.config.aware, luke.config.predicts) == (4, 6, True, False)
    rows = [known.row_of[name] for name in ("[PAD]", "[UNK]", "[MASK]", "[MASK2]")]
    assert torch.equal(luke.table.weight, old.table.weight[rows])
    assert torch.equal(luke.positions.weight, old.positions.weight)
    query = learner.model.encoder.encoder.layer[1].attention.self.query
    assert torch.equal(luke.queries[1].entity_to_word.weight, query.weight)
    assert luke.masks == (2, 3)
    (tmp_path / "luke" / "entity_vocab.json").unlink()
    with pytest.raises(UsageError, match=r"has an entity table, but no entity_vocab.json"):
        build_learner(made, None)


def test_transformers_takes_a_run_of_names_with_its_head(encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    train_task(recipe("ner", tmp_path / "train", encoder, schedule=SCHEDULE, infusion="luke"), tmp_path / "run")
    assert convert_luke(tmp_path / "run", tmp_path / "theirs") == "hf"
    with silence():
        theirs = LukeForEntitySpanClassification.from_pretrained(tmp_path / "theirs").eval()
    assert theirs.config.id2label == {0: "NIL", 1: "person", 2: "place"}
    model = load_task(tmp_path / "run")
    ((one,),) = model.task.tokenize(model.segmenter, model.read(tmp_path / "train")[:1], learning=False)
    chunks = one.chunks(model.task.longest)
    spans = torch.from_numpy(np.stack((one.edges[chunks[:, 0], 0], one.edges[chunks[:, 1] - 1, 1]), axis=1))
    ids, masks = torch.from_numpy(one.ids), torch.full((len(spans),), 2)
    entities = {"text_of": torch.zeros_like(masks), "ids": masks, "spans": spans}
    with torch.no_grad():
        read = model.network.encoder.read(ids, Packing.of([len(ids)]), entities=entities)
        wanted = model.network.head(read.states, *spans.unbind(1), read.outputs["entities"])
        found = theirs(
            ids[None],
            entity_ids=masks[None],
            entity_position_ids=spans[None, :, :1],  # each of these words is one piece
            entity_start_positions=spans[None, :, 0],
            entity_end_positions=spans[None, :, 1],
        )
    assert torch.equal(spans[:, 0], spans[:, 1])
    torch.testing.assert_close(found.logits[0], wanted, atol=1e-5, rtol=1e-5)
    again = load(tmp_path / "theirs").eval()
    assert again.config.id2label == theirs.config.id2label
    (tmp_path / "run" / "model" / "head.safetensors").unlink()
    with pytest.raises(InputError, match="has no complete head of its task"):
        convert_luke(tmp_path / "run", tmp_path / "new")


def test_a_run_whose_head_transformers_has_not_becomes_an_encoder_and_says_so(encoder, tmp_path, capsys):
    (tmp_path / "train").write_text(json.dumps(as_record(QUESTIONS)))
    train_task(recipe("record", tmp_path / "train", encoder, schedule=SCHEDULE, infusion="luke"), tmp_path / "run")
    convert_luke(tmp_path / "run" / "model", tmp_path / "theirs")
    assert "no head for record: only the encoder is written" in capsys.readouterr().err
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["architectures"] == ["LukeModel"]


@pytest.mark.parametrize("seen", [True, False])
def test_whether_words_look_at_spans_is_for_the_recipe_to_say_and_stays_with_the_run(seen, encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    name, *_ = luke_folder(tmp_path / "luke", encoder)
    luke = LukeOptions(seen=seen)
    made = recipe("ner", tmp_path / "train", name, schedule=SCHEDULE, infusion="luke", luke=luke)
    train_task(made, tmp_path / "run")
    model = load_task(tmp_path / "run")
    assert luke_of(model.network.encoder).config.seen is seen
    ids = torch.tensor([1, 2, 3, 4])
    entities = {"text_of": torch.tensor([0]), "ids": torch.tensor([2]), "spans": torch.tensor([[1, 2]])}
    with torch.no_grad():
        states = [
            model.network.encoder.read(ids, Packing.of([4]), **knowledge).states
            for knowledge in ({}, {"entities": entities})
        ]
    assert torch.allclose(*states, atol=1e-6) is not seen


@pytest.mark.parametrize("start", ["plain", "luke"])
def test_how_many_pieces_of_a_mention_count_is_for_the_recipe_to_say(start, encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    name = encoder if start == "plain" else luke_folder(tmp_path / "luke", encoder, longest=20)[0]
    for luke, longest in ((LukeOptions(), 30 if start == "plain" else 20), (LukeOptions(longest=16), 16)):
        made = recipe("ner", tmp_path / "train", name, schedule=SCHEDULE, infusion="luke", luke=luke)
        learner, _ = build_learner(made, None)
        found = luke_of(learner.model.encoder)
        assert found.config.longest == longest
        positions, _ = found.mention_positions({"spans": torch.tensor([[1, 40]])})
        assert len(positions) == longest


@pytest.mark.parametrize("start", ["plain", "luke"])
def test_a_model_that_learned_with_entities_answers_as_before_it_was_saved(start, encoder, tmp_path):
    (tmp_path / "train").write_text("\n".join(SAID))
    name = encoder if start == "plain" else luke_folder(tmp_path / "luke", encoder)[0]
    made = recipe(
        "ner", tmp_path / "train", name, schedule=SCHEDULE, infusion="luke", ner=NerOptions(longest=16, together=8)
    )
    scores = train_task(made, tmp_path / "run")
    model = load_task(tmp_path / "run")
    _, dev = read_parts(model.recipe.settings, model.facts)
    found = model.answers(dev)
    assert len(found[0]) == 2  # groups of 8 of 15 spans
    assert model.score(dev, found)["f1"] == pytest.approx(scores["f1"])


def test_squad_is_read_with_linked_entities_whose_rows_stay(encoder, tmp_path):
    squad = recipes(tmp_path, encoder)["squad"]
    texts = set()
    for one in read_examples(squad.settings, {}, squad.data.train):
        texts |= {one.context, one.question}
    with (tmp_path / "links.jsonl").open("w") as file:
        for text in texts:
            last = text.rindex(" ") + 1
            mentions = [[0, text.index(" "), "one"], [last, len(text), "new"]]
            file.write(json.dumps({"text": text, "mentions": mentions}) + "\n")
    name, old, known = luke_folder(tmp_path / "luke", encoder)
    luke = LukeOptions(given=str(tmp_path / "links.jsonl"))
    made = replace(squad, infusion="luke", encoder=EncoderOptions(name, 32), luke=luke)
    learner, _ = build_learner(made, tmp_path / "notes")
    batch = learner.batches(0)[0]
    inputs = batch.knowledge["entities"]
    assert set(inputs["ids"].tolist()) == {known.row_of["one"]}  # "new" is not in the vocabulary
    assert len(inputs["ids"]) == 2 * len(batch.inputs)
    table = luke_of(learner.model.encoder).table.weight
    assert torch.equal(table, old.table.weight)
    assert not table.requires_grad
    sum(learner.loss(batch).values()).backward()
    assert luke_of(learner.model.encoder).queries[0].word_to_entity.weight.grad.any()
    adapted, _ = build_learner(replace(made, encoder=EncoderOptions(name, 32, rank=2)), tmp_path / "notes")
    assert not luke_of(adapted.model.encoder).table.weight.requires_grad
    scores = train_task(made, tmp_path / "run")
    model = load_task(tmp_path / "run")
    _, dev = read_parts(model.recipe.settings, model.facts)
    assert model.score(dev, model.answers(dev))["f1"] == pytest.approx(scores["f1"])


def test_settings_of_luke_that_do_not_fit_are_refused(encoder, tmp_path):
    with pytest.raises(UsageError, match="give one of the two"):
        LukeOptions(kb="vital", given="links.jsonl")
    with pytest.raises(UsageError, match=r"luke\.most is 0"):
        LukeOptions(most=0)
    with pytest.raises(UsageError, match=r"luke\.longest is 0"):
        LukeOptions(longest=0)
    with pytest.raises(UsageError, match=r"ner has its own entity tokens; remove luke\.kb"):
        recipe("ner", tmp_path / "train", encoder, infusion="luke", luke=LukeOptions(kb="vital"))
    assert not recipe("ner", tmp_path / "train", encoder, luke=LukeOptions(kb="vital")).infusions
