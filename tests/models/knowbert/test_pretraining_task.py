"""Text with gold links: marks, splitting, candidates, judged mentions and scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.pretraining_data import LINKED, SIZES, linked, write_names
from tests.sense_data import AGED, SHORE, keys, sense_text
from tests.task_models import SEGMENTER, TOKENIZER, tiny_encoder
from tests.toy_models import document
from wellread.document import Document, Link
from wellread.encoders.infusion.infuse import InfusedOutput, infuse
from wellread.errors import UsageError
from wellread.kb.packaged import open_kb
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.pretraining_task import GoldText, Linking, parts_of
from wellread.tasks.learner import TaskLearner
from wellread.tasks.task import EncoderWithHead
from wellread.text.tokenization import Mark, TextTokenizer


@pytest.fixture
def vectors(tmp_path):
    return write_names(tmp_path)


@pytest.fixture
def provider(vectors, tmp_path):
    with open_kb(str(tmp_path / "names.kb")) as kb:
        yield KnowBertProvider([("names", kb, vectors)])


def gold(text, *, judged="right", **names):
    line = linked(text, **names)
    links = tuple(Link(start, end, text[start:end], id) for start, end, id in line["mentions"])
    return GoldText.of_links(Document(text, links), judged)


def prepared(task, provider, examples):
    encoder = infuse(tiny_encoder(), [KnowBertConfig(kb="names", layer=0, raw=6, mode="margin", **SIZES)])
    encoder.infusions[0].take(EntityTable.of(task.rows))
    network = EncoderWithHead(encoder, task.head(encoder)).eval()
    learner = TaskLearner(task, network, SEGMENTER, examples, examples, provider=provider, batch=len(examples))
    return learner, learner.batches(0)[0]


def test_links_are_marks_by_their_characters_and_nil_has_no_gold():
    gold = GoldText.of_links(document("paris and rome in cork", ("paris", "h-paris"), ("cork", None)), "all")
    assert gold == GoldText("paris and rome in cork", (Mark(0, 0, 5, gold=("h-paris",)), Mark(0, 18, 22)), "all")


def test_senses_are_marks_with_lemma_part_of_speech_and_synsets():
    gold = GoldText.of_senses(sense_text("d.1", "the old river bank", bank=(SHORE, "none%1:00:00::"), old=AGED), keys())
    assert gold.marks == (
        Mark(0, 14, 18, "bank", "n", ("00000002-n",)),
        Mark(0, 4, 7, "old", "a", ("00000005-a",)),
    )


def test_long_texts_are_split_outside_of_marks_and_every_mark_is_kept():
    text = " ".join(f"the mayor of new rome wrote to {n} in avon" for n in range(12))
    starts = [at for at in range(len(text)) if text.startswith("new rome", at)]
    whole = GoldText(text, tuple(Mark(0, at, at + 8, gold=("c-new-rome",)) for at in starts), "near")
    parts = list(parts_of(whole, TextTokenizer(TOKENIZER, longest=16)))
    assert " ".join(part.text for part in parts) == text
    assert sum(len(part.marks) for part in parts) == 12
    assert {part.text[mark.start : mark.end] for part in parts for mark in part.marks} == {"new rome"}
    assert {part.judged for part in parts} == {"near"}
    assert all(len(SEGMENTER.tokenizer.encode(part.text)) <= 16 for part in parts)
    short = gold("in rome", rome="c-rome")
    assert list(parts_of(short, SEGMENTER)) == [short]
    blank = GoldText("avon" * 30, ())
    assert list(parts_of(blank, TextTokenizer(TOKENIZER, longest=16))) == [blank]  # there is no blank to split it at


def test_gold_is_marked_among_the_candidates_of_the_right_mention(vectors, provider):
    example = gold("paris of rome wrote to paris", paris="h-paris", rome="c-rome")
    _, batch = prepared(Linking("names", vectors), provider, [example])
    candidates = batch.knowledge["offers"]["names"]
    ids = [
        [None if row < 0 else vectors.ids.take([row])[0] for row in rows] for rows in candidates["entities"].tolist()
    ]
    right = [
        [id for id, is_right in zip(*pair, strict=True) if is_right]
        for pair in zip(ids, candidates["gold"].tolist(), strict=True)
    ]
    assert ids == [["c-paris", "h-paris"], ["c-rome", None], ["c-paris", "h-paris"]]
    assert right == [["h-paris"], ["c-rome"], []]  # the second "paris" has no gold
    assert batch.target["mentions"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("judged", "expected"),
    [("right", []), ("near", ["new rome", "rome"]), ("all", ["paris", "new rome", "rome"])],
)
def test_what_is_judged_besides_is_said_by_the_text(vectors, provider, judged, expected):
    example = gold("paris of new rome", judged=judged, **{"new rome": "c-new-rome"})
    _, batch = prepared(Linking("names", vectors), provider, [example])
    candidates = batch.knowledge["offers"]["names"]
    words = ["", "paris", "of", "new", "rome", ""]
    spans = [" ".join(words[first : last + 1]) for first, last in candidates["spans"].tolist()]
    assert [span for span, arrays in zip(spans, candidates["judged"].tolist(), strict=True) if arrays] == expected


def test_training_leaves_out_texts_without_gold_of_the_kb(vectors):
    task = Linking("names", vectors)
    examples = [gold("in rome", rome="elsewhere"), gold("in rome", rome="c-rome"), GoldText("in rome", ())]
    assert [len(some) for some in task.tokenize(SEGMENTER, examples, learning=True)] == [0, 1, 0]
    assert [len(some) for some in task.tokenize(SEGMENTER, examples, learning=False)] == [1, 1, 1]
    near = [replace(one, judged="near") for one in examples]
    assert [len(some) for some in task.tokenize(SEGMENTER, near, learning=True)] == [1, 1, 0]


def test_the_loss_is_the_layers_and_nothing_where_nothing_is_known(vectors, provider):
    learner, batch = prepared(Linking("names", vectors), provider, [gold("in rome", rome="c-rome")])
    losses = learner.loss(batch)
    scores = learner.model.read(batch)[1].outputs["links"]["names"]
    assert list(losses) == ["links names"]
    assert float(losses["links names"].detach()) == pytest.approx(max(0.0, 0.2 - float(scores[0, 0].detach())))
    unknown, batch = prepared(Linking("names", vectors), provider, [gold("in rome", judged="near", rome="elsewhere")])
    wrong = unknown.loss(batch)["links names"]
    scores = unknown.model.read(batch)[1].outputs["links"]["names"]
    assert float(wrong.detach()) == pytest.approx(max(0.0, 0.2 + float(scores[0, 0].detach())))
    candidates = batch.knowledge["offers"]["names"]
    nothing = replace(batch, knowledge={"offers": {"names": {k: v for k, v in candidates.items() if k != "judged"}}})
    loss = unknown.loss(nothing)["links names"]
    assert float(loss.detach()) == 0
    loss.backward()  # the loop does this for every loss


def test_links_are_counted_once_by_the_best_score_and_above_the_threshold(vectors, provider):
    examples = [
        gold("paris of new rome", judged="near", **{"new rome": "c-new-rome", "paris": "h-paris"}),
        gold("in cork near avon city", cork="c-cork", avon="elsewhere"),
        gold("of zzyzx", zzyzx="c-rome"),
    ]
    task = Linking("names", vectors, threshold=0.0)
    learner, _ = prepared(task, provider, examples)
    tokenized = [one for some in learner.dev_tokenized for one in some]
    arrays = provider.collate(tokenized, provider.prepare(tokenized))["offers"]["names"]
    spans = [tuple(span) for span in np.column_stack((arrays["text_of"], arrays["spans"])).tolist()]
    low = float("-inf")
    scores = {
        (0, 1, 1): [-1.0, 2.0],  # paris: the person, right
        (0, 3, 4): [0.5, low],  # new rome: right
        (0, 4, 4): [0.4, low],  # rome: would be wrong, but is in what is linked already
        (1, 2, 2): [-0.1, low],  # cork: right, but below the threshold
        (1, 4, 4): [3.0, low],  # avon: linked, and not what is meant
    }
    assert sorted(spans) == sorted(scores)

    class Said(torch.nn.Module):
        """Says these scores, whatever the text."""

        def __init__(self):
            super().__init__()
            self.infusions = learner.model.encoder.infusions

        def read(self, ids, packing, types, **knowledge):
            candidates = knowledge["offers"]["names"]
            text_of = packing.lengths.tolist()
            whose = [task_of[length] for length in text_of]
            rows = np.column_stack(
                ([whose[text] for text in candidates["text_of"].tolist()], candidates["spans"].numpy())
            )
            links = torch.tensor([scores[tuple(row)] for row in rows.tolist()])
            return InfusedOutput(
                torch.zeros(len(ids), 4), {"links": {"names": links[:, : candidates["entities"].shape[1]]}}, {}
            )

    task_of = {len(one): text for text, one in enumerate(tokenized)}
    assert len(task_of) == 3
    learner.model.encoder = Said()
    found = learner.evaluate()
    # In the KB: paris, new rome, cork, zzyzx; candidates: all but zzyzx. Linked: paris, new rome, avon.
    assert found == pytest.approx(
        {
            "f1": 2 * 2 / (3 + 4),
            "precision": 2 / 3,
            "recall": 2 / 4,
            "accuracy": 3 / 4,
            "prior": 2 / 4,
            "offered": 3 / 4,
        }
    )


def test_an_encoder_without_the_layer_or_a_batch_without_candidates_names_the_fix(vectors):
    task = Linking("names", vectors)
    with pytest.raises(UsageError, match=r"no knowledge layer of names that can link; add \[knowbert.names\]"):
        task.head(tiny_encoder())
    encoder = infuse(tiny_encoder(), [KnowBertConfig(kb="names", layer=0, raw=6, **SIZES)])
    learner = TaskLearner(
        task, EncoderWithHead(encoder, task.head(encoder)), SEGMENTER, [gold("in rome", rome="c-rome")], []
    )
    with pytest.raises(UsageError, match="the batch has no candidates of names"):
        learner.batches(0)[0]


def test_linked_lines_of_the_fixture_name_what_they_mark():
    assert all(line["text"][start:end] in id for line in LINKED for start, end, id in line["mentions"])
