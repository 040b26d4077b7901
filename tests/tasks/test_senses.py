"""Word senses: files of the framework and JSONL, keys and synsets, and the task with either kind of encoder."""

import json
import lzma
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.infused_models import shake
from tests.sense_data import (
    AGED,
    MONEY,
    PAST,
    SHORE,
    TEXTS,
    WALK,
    WORK,
    Offering,
    keys,
    sense_text,
    write_vectors,
    write_wordnet,
)
from tests.task_models import SEGMENTER, TOKENIZER, teach, tiny_encoder
from wellread.data.readers.raganato import (
    gold_of,
    join_sentences,
    read_gold,
    read_senses,
    spell,
    unknown_keys,
    write_keys,
    write_lines_of_senses,
)
from wellread.data.readers.wordnet_examples import SOURCE, read_examples
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import InputError, UsageError
from wellread.evaluation.senses import answer_first, score_by_part
from wellread.kb.readers.sense_keys import SenseKeys, kind_of
from wellread.kb.store import KnowledgeBase
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.tasks.learner import TaskLearner, ask
from wellread.tasks.recipe import Data, TaskRecipe
from wellread.tasks.registry import TASKS, read_parts
from wellread.tasks.senses import SenseHead, SenseOptions, Senses
from wellread.tasks.task import EncoderWithHead
from wellread.text.tokenization import Mark, TextTokenizer

SHARED = Path(__file__).parents[3] / "shared/data/senses"
XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="toy">
<text id="d000">
<sentence id="d000.s000">
<wf lemma="he" pos="PRON">He</wf>
<instance id="d000.s000.t000" lemma="run" pos="VERB">ran</instance>
<wf lemma="to" pos="PRT">to</wf>
<wf lemma="``" pos=".">``</wf>
<instance id="d000.s000.t001" lemma="river_bank" pos="NOUN">river_banks</instance>
<wf lemma="''" pos=".">''</wf>
<wf lemma="." pos=".">.</wf>
</sentence>
<sentence id="d000.s001"><wf lemma="no" pos="DET">No</wf><wf lemma="!" pos=".">!</wf></sentence>
</text>
<text id="d001">
<sentence id="d001.s000"><instance id="d001.s000.t000" lemma="old" pos="ADJ">older</instance></sentence>
</text>
</corpus>
"""
GOLD = f"d000.s000.t000 {WALK}\nd000.s000.t001 {SHORE} {MONEY}\nd001.s000.t000 {PAST}\n"
LINE = {
    "id": "br-a01.1",
    "tokens": ["The", "river_bank", "is", "n't", "old", "."],
    "senses": [[1, "bank", "NN", [SHORE], False], [4, "old", "JJ", [AGED, PAST], "mine"]],
}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    return write_vectors(tmp_path_factory.mktemp("senses"))


@pytest.fixture
def task(vectors):
    return Senses(keys(), vectors, SenseOptions(dim=8, heads=2, inner=8, prior_width=4, dropout=0.0))


def write(folder, xml=XML, gold=GOLD):
    path = folder / "toy.data.xml"
    path.write_text(xml)
    if gold is not None:
        (folder / "toy.gold.key.txt").write_text(gold)
    return path


# the files


def test_the_framework_s_xml_gives_texts_with_marks_and_gold(tmp_path):
    first, second, third = read_senses(write(tmp_path))
    assert (first.id, first.text) == ("d000.s000", 'He ran to "river banks".')
    assert [first.text[mark.start : mark.end] for mark in first.marks] == ["ran", "river banks"]
    ran, bank = (mark.instance for mark in first.marks)
    assert (ran.id, ran.lemma, ran.kind, ran.gold, ran.source) == ("d000.s000.t000", "run", "v", (WALK,), "toy")
    assert (bank.lemma, bank.kind, bank.gold) == ("river_bank", "n", (SHORE, MONEY))
    assert (second.text, second.marks) == ("No!", ())
    assert third.marks[0].instance.kind == "a"


def test_xml_and_its_keys_may_be_compressed(tmp_path):
    path = write(tmp_path)
    plain = list(read_senses(path))
    for file in (path, gold_of(path)):
        file.with_name(f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes()))
        file.unlink()
    assert list(read_senses(f"{path}.xz")) == plain


def test_ids_of_a_file_of_several_data_sets_name_theirs(tmp_path):
    xml, gold = (text.replace("d00", "senseval2.d00") for text in (XML, GOLD))
    texts = list(read_senses(write(tmp_path, xml, gold)))
    assert {mark.instance.source for text in texts for mark in text.marks} == {"senseval2"}


@pytest.mark.parametrize(
    ("xml", "gold", "message"),
    [
        (XML[:-12], GOLD, "is broken XML"),
        (XML.replace("corpus", "corpse"), GOLD, "expected <corpus>, got <corpse>"),
        (XML.replace(' lemma="run"', ""), GOLD, "'d000.s000': an instance lacks its id, lemma, pos or word"),
        (XML.replace('"run" pos="VERB"', '"run" pos="XX"'), GOLD, "part of speech is 'XX'"),
        (XML, None, "the gold keys .*toy.gold.key.txt are not there"),
        (XML, GOLD.replace("d000.s000.t000", "d009.s000.t000"), "'d000.s000.t000' has no gold key"),
        (XML, GOLD + "d009\n", "line 4: expected the id"),
        (XML, GOLD + GOLD, "line 4: 'd000.s000.t000' has keys already"),
        (XML, GOLD.replace(WALK, "bn:00046516n"), "'bn:00046516n' is not a sense key"),
    ],
    ids=["cut", "root", "lemma", "tag", "no gold", "one without", "no key", "twice", "no sense key"],
)
def test_what_is_broken_says_where(tmp_path, xml, gold, message):
    with pytest.raises(InputError, match=message):
        list(read_senses(write(tmp_path, xml, gold)))


def test_entities_of_xml_are_not_followed(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    trick = f'<!DOCTYPE corpus [<!ENTITY x SYSTEM "file://{secret}">]>\n<corpus'
    path = write(tmp_path, XML.replace("<corpus", trick).replace(">He<", ">He &x;<"))
    assert "hidden" not in next(iter(read_senses(path))).text


def test_instances_that_cannot_be_used_are_counted_where_asked(tmp_path):
    skipped = []
    texts = list(read_senses(write(tmp_path, gold=GOLD.replace("d001", "d002")), skipped=skipped))
    assert [len(text.marks) for text in texts] == [2, 0, 0]
    assert len(skipped) == 1
    assert "'d001.s000.t000' has no gold key" in skipped[0]


def test_gold_may_be_secret_and_of_another_data_set_it_is_refused(tmp_path):
    path = write(tmp_path, gold=None)
    texts = list(read_senses(path, secret=True))
    assert [text.has_gold for text in texts] == [False, True, False]
    other = tmp_path / "other.txt"
    other.write_text(f"x.t1 {WALK}\n")
    with pytest.raises(InputError, match="are they of one data set"):
        list(read_senses(path, other, skipped=[]))


def test_jsonl_gives_the_same_kind_of_texts(tmp_path):
    path = tmp_path / "brown.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    (text,) = read_senses(path)
    assert text.text == "The river bank isn't old."
    assert [text.text[mark.start : mark.end] for mark in text.marks] == ["river bank", "old"]
    assert [mark.instance.id for mark in text.marks] == ["br-a01.1.t000", "mine"]
    assert text.marks[1].instance.gold == (AGED, PAST)
    with pytest.raises(InputError, match="is not XML"):
        read_senses(path, path)


def test_texts_of_your_own_come_back_as_they_were_written(tmp_path):
    texts = [text for text in TEXTS if text.marks]
    write_lines_of_senses(tmp_path / "toy.jsonl", texts)
    assert list(read_senses(tmp_path / "toy.jsonl")) == texts
    write_lines_of_senses(tmp_path / "other.jsonl", texts)
    assert list(read_senses(tmp_path / "other.jsonl")) == texts  # of the data set that their lines name
    wrong = {"id": "x.1", "text": "old", "senses": [[0, 4, "old", "ADJ", [AGED]]]}
    (tmp_path / "wrong.jsonl").write_text(json.dumps(wrong))
    with pytest.raises(InputError, match=r"is not \[start, end, .* in a text of 3 characters"):
        list(read_senses(tmp_path / "wrong.jsonl"))


def test_a_definition_begins_with_its_word_and_does_not_ask_for_it(tmp_path):
    senses = [[1, "bank", "NN", [SHORE], False], [3, "old", "JJ", [AGED], False]]
    line = {
        "id": "wngt.1",
        "tokens": ["the", "bank", "of", "old", "rivers"],
        "senses": senses,
        "keys": ["river_bank%1:17:01::", SHORE],
    }
    (tmp_path / "wngt.jsonl").write_text(json.dumps(line))
    [text] = read_senses(tmp_path / "wngt.jsonl")
    assert text.text == "river bank: the bank of old rivers"
    assert [(text.text[mark.start : mark.end], mark.instance.gold) for mark in text.marks] == [("old", (AGED,))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": "bank"},
        {"senses": [[9, "bank", "NN", [SHORE]]]},
        {"senses": [[1, "bank", "NN", []]]},
        {"id": 3},
        {"senses": [[-1, "bank", "NN", [SHORE]]]},
        {"senses": [[1, "bank", "DT", [SHORE]]]},
        {"senses": [[1]]},
        {"senses": [[1, "bank", "NN", ["bank"]]]},
        {"senses": [[1, None, "NN", [SHORE]]]},
        {"source": 3},
        {"keys": "bank"},
    ],
    ids=["tokens", "place", "no key", "id", "negative", "tag", "short", "key", "lemma", "source", "keys"],
)
def test_a_broken_line_is_named_or_left_out(tmp_path, wrong):
    path = tmp_path / "brown.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | wrong) + "\n")
    with pytest.raises(InputError, match="line 2"):
        list(read_senses(path))
    skipped = []
    assert len(list(read_senses(path, skipped=skipped))) == len(skipped) == 1


def test_words_are_spelled_as_people_write():
    cases = {
        "Is n't it ( so ) ?": "Isn't it (so)?",
        "`` No , '' he said .": '"No," he said.',
        "`` all `` of it": '"all" of it',
        "the dog 's $ 5 -LRB- or 6 % -RRB-": "the dog's $5 (or 6%)",
        "` so ' it ended ''": "'so' it ended\"",
        "took_place -- here": "took place -- here",
    }
    for words, text in cases.items():
        found, spans = spell(words.split())
        assert found == text
        assert (len(spans), spans[-1][1]) == (len(words.split()), len(text))


def test_sentences_of_one_document_are_joined(tmp_path):
    path = write(tmp_path)
    texts = list(join_sentences(read_senses(path), 2))
    assert [text.text for text in texts] == ['He ran to "river banks". No!', "older"]
    joined = list(join_sentences([sense_text("a.1", "old bank", old=AGED), sense_text("a.2", "a bank", bank=SHORE)], 5))
    assert [joined[0].text[mark.start : mark.end] for mark in joined[0].marks] == ["old", "bank"]
    assert joined[0].marks[1].start == 11


def test_answers_are_written_as_the_official_scorer_takes_them(tmp_path):
    write_keys(tmp_path / "answers.txt", {"d000.s000.t000": (WALK,), "d000.s000.t001": (SHORE, MONEY)})
    assert (tmp_path / "answers.txt").read_text() == "".join(GOLD.splitlines(keepends=True)[:2])
    assert read_gold(tmp_path / "answers.txt") == {"d000.s000.t000": (WALK,), "d000.s000.t001": (SHORE, MONEY)}


# keys


def test_keys_name_synsets_in_the_order_of_senses(tmp_path):
    found = SenseKeys.read(write_wordnet(tmp_path / "dict"))
    assert len(found) == 7
    assert found.senses("Bank", "n") == (MONEY, SHORE)
    assert (found.senses("bank"), found.senses("bank", "v")) == ((MONEY, SHORE), ())
    assert (found.first("old", "a"), found.first("young", "a")) == (AGED, None)
    assert found.synsets([SHORE, "no%1:00:00::", SHORE, MONEY]) == ("00000002-n", "00000001-n")
    assert (kind_of(PAST), SHORE in found) == ("a", True)


def test_a_synset_has_a_key_for_each_of_its_words():
    found = keys()
    assert found.key("bank", "00000001-n") == MONEY
    assert found.key("depository", "00000001-n") == "depository%1:14:00::"
    assert found.key("De-Pository", "00000001-n") in (MONEY, "depository%1:14:00::")
    assert found.key("bank", "99999999-n") is None


def test_a_folder_without_the_index_and_a_broken_one_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no index\.sense"):
        SenseKeys.read(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/index.sense").write_text("bank%1:17:01:: 0001 one 5\n")
    with pytest.raises(InputError, match="line 1, is not a sense"):
        SenseKeys.read(tmp_path / "broken")


def test_gold_keys_that_wordnet_has_not_are_found():
    text = sense_text("a.1", "old bank", old=AGED, bank=("bank%1:99:00::", SHORE))
    assert unknown_keys([text], keys()) == ["bank%1:99:00::"]


# WordNet's own examples


def test_examples_of_glosses_mark_the_word_they_use_in_any_form(tmp_path):
    folder = write_wordnet(tmp_path / "dict")
    data = {
        "noun": '00000001 00 n 02 bank 0 depository 0 000 | money; "two banks." ; "he went"; "bank"\n',
        "verb": '00000004 00 v 01 run 0 000 | work; "she ran the old bank"; "the running of it"\n',
        "adj": '00000005 00 a 01 old 0 000 | aged; "an Older man"; "of old-age"\n',
        "adv": "",
    }
    for part, text in data.items():
        (folder / f"data.{part}").write_text(text)
        (folder / f"{part}.exc").write_text("ran run\n" if part == "verb" else "")
    found = {text.text: (text.text[m.start : m.end], m.instance) for text in read_examples(folder) for m in text.marks}
    words = {text: word for text, (word, _) in found.items()}
    assert words == {
        "two banks.": "banks",
        "she ran the old bank": "ran",
        "an Older man": "Older",
    }
    instance = found["she ran the old bank"][1]
    assert (instance.id, instance.lemma, instance.kind, instance.gold) == ("00000004-v.0.t000", "run", "v", (WORK,))


# the task


def test_marks_carry_lemma_kind_and_the_synsets_of_gold(task):
    (one,) = task.tokenize(SEGMENTER, TEXTS[:1], learning=True)[0]
    assert one.marks[0] == Mark(0, 23, 27, "bank", "n", ("00000002-n",))
    assert [instance.id for instance in one.instances] == ["d.1.t000", "d.1.t001"]


def test_a_text_that_fits_is_read_whole_whatever_sign_it_ends_with(task):
    text = sense_text("d.9", "run near the river bank\u200b", run=WALK)
    [[one]] = task.tokenize(TextTokenizer(TOKENIZER, longest=16), [text], learning=False)
    assert one.texts == (text.text,)


def test_texts_whose_ids_name_no_document_are_alone():
    texts = [replace(text, id=f"r{number}") for number, text in enumerate(TEXTS)]
    assert [text.id for text in join_sentences(texts, 3)] == [text.id for text in texts]
    rest, dev = TASKS["senses"].split(texts, 2)
    assert (len(rest), len(dev)) == (len(TEXTS) - 2, 2)


def test_a_text_that_is_too_long_is_read_in_halves(task):
    long = sense_text(
        "x.1", "the old river of the city " * 5 + "near the bank and who is to run it", old=AGED, run=WALK
    )
    parts = task.tokenize(TextTokenizer(TOKENIZER, longest=16), [long], learning=False)[0]
    assert len(parts) > 1
    words = [one.texts[0][mark.start : mark.end] for one in parts for mark in one.marks]
    assert words == ["old", "run"]
    assert all(len(one) <= 16 and one.spans[:, 1].max() == len(one.texts[0].rstrip()) for one in parts)


def test_a_word_that_cannot_be_halved_is_cut_and_takes_its_first_sense(task, vectors):
    text = sense_text("x.1", "x" * 90 + "bank", bank=SHORE)
    network = EncoderWithHead(encoder := tiny_encoder(), task.head(encoder))
    answers = ask(task, network.eval(), TextTokenizer(TOKENIZER, longest=16), [text], provider=Offering(vectors))
    assert answers == [[{}]]
    assert task.chosen([text], answers) == {"x.1.t000": (MONEY,)}


def test_what_has_nothing_to_learn_from_is_left_out_of_learning(task):
    unknown = sense_text("a.1", "old bank", bank="bank%1:99:00::")
    silent = sense_text("a.2", "old bank")
    assert task.tokenize(SEGMENTER, [unknown, silent], learning=True) == [[], []]
    assert [len(some) for some in task.tokenize(SEGMENTER, [unknown, silent], learning=False)] == [1, 0]


def learner(task, vectors, encoder):
    torch.manual_seed(0)
    network = EncoderWithHead(encoder, task.head(encoder))
    for part in (network.head, encoder.infusions):
        shake(part, 0.3)  # it starts near zero, as large models should
    return TaskLearner(task, network, SEGMENTER, TEXTS, TEXTS, provider=Offering(vectors), batch=6)


def test_a_plain_encoder_learns_senses_by_a_head_of_its_own(task, vectors):
    made = learner(task, vectors, tiny_encoder())
    assert isinstance(made.model.head, SenseHead)
    teach(made, 20, rate=2e-2)
    scores = made.evaluate()
    assert (scores["f1"], scores["answered"]) == (1.0, 1.0)
    assert scores["first_sense"] == pytest.approx(4 / 8)
    assert set(scores) == {"f1", "f1_noun", "f1_verb", "f1_adjective", "first_sense", "answered"}


def test_examples_stay_examples_in_files_and_no_file_becomes_one_by_its_name(task, vectors, tmp_path):
    own = [replace(mark, instance=replace(mark.instance, source=SOURCE)) for mark in TEXTS[3].marks]
    write_lines_of_senses(tmp_path / "train_wordnet.jsonl", [replace(TEXTS[3], marks=tuple(own), source=SOURCE)])
    line = {"id": "mine.1", "text": "buy the bank", "senses": [[8, 12, "bank", "NOUN", [MONEY]]]}
    for name in ("wordnet.jsonl", f"{SOURCE}.jsonl"):
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    network = EncoderWithHead(encoder := tiny_encoder(), task.head(encoder))
    equal = {}
    for path in sorted(tmp_path.glob("*.jsonl")):
        texts = list(read_senses(path))
        made = TaskLearner(task, network, SEGMENTER, texts, texts, provider=Offering(vectors), batch=1)
        [batch] = made.batches(0)
        priors = batch.target["offers"]["priors"][batch.target["mentions"]]
        equal[path.name] = priors.tolist() == [[0.5, 0.5]]
    assert equal == {"train_wordnet.jsonl": True, "wordnet.jsonl": False, f"{SOURCE}.jsonl": False}


@pytest.mark.parametrize("knows", [True, False], ids=["layer", "head"])
def test_candidates_of_examples_have_equal_priors_while_they_are_learned(task, vectors, knows):
    own = [replace(mark, instance=replace(mark.instance, source=SOURCE)) for mark in TEXTS[3].marks]
    texts = [TEXTS[0], replace(TEXTS[3], marks=tuple(own))]
    encoder = knowing(vectors) if knows else tiny_encoder()
    network = EncoderWithHead(encoder, task.head(encoder))
    made = TaskLearner(task, network, SEGMENTER, texts, texts, provider=Offering(vectors), batch=2)
    [batch] = made.batches(0)
    plain = Offering(vectors).collate(batch.inputs)["offers"]["wordnet"]["priors"]
    priors, mentions = batch.target["offers"]["priors"], batch.target["mentions"]
    of_example = torch.tensor([instance.source == SOURCE for one in batch.inputs for instance in one.instances])
    there = batch.target["offers"]["entities"][mentions] >= 0
    equal = there / there.sum(1, keepdim=True)
    assert torch.equal(priors[mentions][of_example], equal[of_example].to(priors.dtype))
    assert torch.equal(priors[mentions][~of_example], torch.as_tensor(plain)[mentions][~of_example])
    assert not torch.equal(priors, torch.as_tensor(plain))
    if knows:
        assert torch.equal(batch.knowledge["offers"]["wordnet"]["priors"], priors)


def test_a_share_of_words_may_be_learned_with_equal_priors(task, vectors):
    encoder = tiny_encoder()
    plain = Senses(task.keys, task.vectors, replace(task.options, by="head"))
    level = Senses(task.keys, task.vectors, replace(task.options, by="head", level=0.5))
    priors = []
    for one in (plain, level):
        torch.manual_seed(0)
        network = EncoderWithHead(encoder, one.head(encoder))
        made = TaskLearner(one, network, SEGMENTER, TEXTS, TEXTS, provider=Offering(vectors), batch=len(TEXTS))
        [batch] = made.batches(0)
        priors.append(batch.target["offers"]["priors"][batch.target["mentions"].clamp(min=0)])
    several = (priors[0] > 0).sum(1) > 1
    changed = (priors[0] != priors[1]).any(1)
    there = priors[0] > 0
    equal = there / there.sum(1, keepdim=True)
    assert 0 < changed.sum() < several.sum()
    torch.testing.assert_close(priors[1][changed], equal[changed].to(priors[1].dtype))
    with pytest.raises(UsageError, match="level is 1"):
        SenseOptions(level=1.0)


def knowing(vectors, **options):
    encoder = tiny_encoder()
    sizes = {"dim": 8, "heads": 2, "inner": 8, "prior_width": 4, "dropout": 0.0, "raw": 6}
    encoder = infuse(encoder, [KnowBertConfig(kb="wordnet", layer=0, **sizes | options)])
    encoder.infusions[0].take(EntityTable.of(vectors))
    return encoder


def test_an_encoder_that_links_answers_and_learns_by_its_links(task, vectors):
    made = learner(task, vectors, knowing(vectors))
    assert not list(made.model.head.parameters())
    losses = made.loss(next(iter(made.batches(0))))
    assert list(losses) == ["links wordnet"]
    assert losses["links wordnet"] > 0
    teach(made, 20, rate=2e-2)
    assert made.evaluate()["f1"] == 1.0


def test_an_encoder_that_links_may_be_asked_by_a_head_too(task, vectors):
    task.options = replace(task.options, by="head")
    made = learner(task, vectors, knowing(vectors))
    assert isinstance(made.model.head, SenseHead)
    losses = made.loss(next(iter(made.batches(0))))
    assert min(losses.values()) > 0
    task.options = replace(task.options, by="links")
    with pytest.raises(UsageError, match="no knowledge layer of wordnet"):
        task.head(tiny_encoder())


def test_the_head_learns_in_all_its_parts_and_only_what_is_asked_has_a_say(task, vectors):
    made = learner(task, vectors, tiny_encoder())
    batch = next(iter(made.batches(0)))
    sum(made.loss(batch).values()).backward()
    silent = [name for name, weight in made.model.head.named_parameters() if weight.grad is None]
    assert silent == []
    still = [name for name, part in made.model.head.named_parameters() if not part.grad.any()]
    assert set(still) <= {"linker.entities.mask", "linker.pooling.score.bias", "linker.scorer.narrow.bias"} | {
        name for name in still if ".key.bias" in name
    }
    gold = batch.target["offers"]["gold"]
    before = made.loss(batch)["senses"]
    mention_rows = batch.target["mentions"]
    others = torch.ones(len(gold), dtype=torch.bool).index_fill(0, mention_rows[mention_rows >= 0], False)
    gold[others] = 1 - gold[others]
    assert torch.equal(made.loss(batch)["senses"], before)


def test_without_gold_among_the_candidates_nothing_is_learned(task, vectors):
    made = learner(task, vectors, tiny_encoder())
    batch = next(iter(made.batches(0)))
    batch.target["offers"]["gold"].zero_()
    loss = made.loss(batch)["senses"]
    assert loss == 0
    loss.backward()


def test_answers_are_candidates_even_where_their_scores_are_low(task, vectors):
    network = EncoderWithHead(encoder := tiny_encoder(), task.head(encoder)).eval()
    answers = ask(task, network, SEGMENTER, TEXTS, provider=Offering(vectors))
    for text, some in zip(TEXTS, answers, strict=True):
        for mark in text.marks:
            assert some[0][mark.instance.id] in keys().senses(mark.instance.lemma, mark.instance.kind)


def test_the_candidate_provider_has_a_mention_with_the_right_sense_for_every_mark(task, vectors):
    encoder = tiny_encoder()
    with closing(KnowledgeBase.open(vectors.kb)) as kb:
        provider = KnowBertProvider([("wordnet", kb, vectors)])
        network = EncoderWithHead(encoder, task.head(encoder))
        batch = TaskLearner(task, network, SEGMENTER, TEXTS, TEXTS, provider=provider, batch=6).batches(0)[0]
    candidates, mention_rows = batch.target["offers"], batch.target["mentions"]
    assert len(mention_rows) == 8
    assert mention_rows.min() >= 0
    assert candidates["gold"][mention_rows].sum(1).tolist() == [1] * 8
    right = candidates["entities"][mention_rows][candidates["gold"][mention_rows].bool()].tolist()
    marks = [mark for one in batch.inputs for mark in one.marks]
    assert vectors.ids.take(right) == [mark.gold[0] for mark in marks]


def test_a_provider_without_candidates_is_reported(task, vectors):
    network = EncoderWithHead(encoder := tiny_encoder(), task.head(encoder)).eval()
    with pytest.raises(UsageError, match="the batch has no candidates of wordnet"):
        ask(task, network, SEGMENTER, TEXTS, provider=Offering(vectors, "vital"))
    with pytest.raises(UsageError, match="the batch has no candidates"):
        ask(task, network, SEGMENTER, TEXTS)


@pytest.mark.parametrize("wrong", [{"together": 0}, {"dim": 10, "heads": 4}, {"dropout": 1.0}])
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SenseOptions(**wrong)


# the row of the table of tasks


def test_the_row_reads_patterns_splits_documents_and_writes_keys(tmp_path, task, monkeypatch):
    write(tmp_path)
    (tmp_path / "more.jsonl").write_text(json.dumps(LINE) + "\n")
    kind, recipe = TASKS["senses"], TaskRecipe("senses")
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    texts = list(kind.read(recipe.settings, {}, str(tmp_path / "*[ml]"), []))
    assert sorted(text.id for text in texts) == ["br-a01.1", "d000.s000", "d000.s001", "d001.s000"]
    with pytest.raises(InputError, match="no file matches"):
        list(kind.read(recipe.settings, {}, str(tmp_path / "none*.xml"), []))
    rest, dev = kind.split(texts, 1)
    documents = [{text.id.rpartition(".")[0] for text in part} for part in (rest, dev)]
    assert min(map(len, documents)) > 0
    assert not documents[0] & documents[1]
    kind.write(tmp_path / "answers.txt", task, TEXTS[3:4], [[{"d.4.t000": SHORE}]])
    assert (tmp_path / "answers.txt").read_text() == f"d.4.t000 {SHORE}\n"


def test_wordnets_own_examples_are_learned_from_where_the_recipe_says_so(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(SenseKeys, "read", classmethod(lambda cls, folder=None: keys()))
    seen = []
    monkeypatch.setattr(
        "wellread.tasks.senses.wordnet_examples.read_examples", lambda folder: seen.append(folder) or TEXTS[:2]
    )
    data = Data(train="*.xml", root=str(tmp_path), develop=1, most=1)
    recipe = TaskRecipe("senses", data=data, senses=SenseOptions(wordnet="here"))
    rest, dev = read_parts(recipe.settings, {})
    more, same_dev = read_parts(replace(recipe, senses=replace(recipe.senses, examples=True)).settings, {})
    assert (more, same_dev) == ([*rest, *TEXTS[:2]], dev)
    assert (len(rest), seen) == (1, ["here"])


# the real files


@pytest.mark.skipif(not SHARED.exists(), reason="the data of ../shared/data/senses is not here")
def test_the_development_set_of_the_framework_reads_the_same_in_both_forms():
    both = [list(read_senses(SHARED / name)) for name in ("raganato/semeval2007.data.xml", "semeval2007.jsonl")]
    assert [len(texts) for texts in both] == [135, 135]
    assert both[0] == both[1]
    assert sum(len(text.marks) for text in both[0]) == 455


@pytest.mark.skipif(not SHARED.exists(), reason="the data of ../shared/data/senses is not here")
def test_the_first_sense_baseline_is_the_published_one():
    from wellread import assets

    if not assets.is_cached("wordnet"):
        pytest.skip("WordNet is not fetched")
    texts = read_senses(SHARED / "semeval2007.jsonl")
    instances = [mark.instance for text in texts for mark in text.marks]
    scores = score_by_part(instances, answer_first(instances, SenseKeys.read().first))
    assert round(100 * scores["all"].f1, 1) == 55.2
    assert {name: part.count for name, part in scores.items()} == {"all": 455, "noun": 159, "verb": 296}
