"""Chunks and their scores: as seqeval counts, which counts as the CoNLL script does."""

import random
from itertools import product

import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from wellread.errors import InputError
from wellread.evaluation.chunks import Chunk, chunks_of, score_chunks, split_tag, tags_of

LABELS = ("per", "creative-work")
TAGS = ("O", *(f"{kind}-{label}" for kind, label in product("BIES", LABELS)))


def theirs(tags):
    return tuple(Chunk(first, last + 1, label) for label, first, last in get_entities(list(tags)))


def drawn(count, seed):
    chance = random.Random(seed)
    return [[chance.choice(TAGS) for _ in range(chance.randint(1, 9))] for _ in range(count)]


def test_chunks_of_any_tags_are_those_of_seqeval():
    for tags in product(TAGS, repeat=3):
        assert chunks_of(tags) == theirs(tags), tags
    assert chunks_of(()) == ()


def test_scores_are_those_of_seqeval_for_all_and_for_each_label():
    gold, predicted = drawn(300, 0), drawn(300, 1)
    predicted = [
        [random.Random(row).choice(pair) for pair in zip(one, other[: len(one)] + one[len(other) :], strict=True)]
        for row, (one, other) in enumerate(zip(gold, predicted, strict=True))
    ]
    found = score_chunks(list(map(chunks_of, gold)), list(map(chunks_of, predicted)))
    for name, theirs_of in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert getattr(found.all, name) == pytest.approx(theirs_of(gold, predicted))
        each = theirs_of(gold, predicted, average=None)
        assert [getattr(found.labels[label], name) for label in sorted(LABELS)] == pytest.approx(list(each))
    assert 0.1 < found.all.f1 < 0.9
    assert found.to_dict()["f1_per"] == found.labels["per"].f1


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_tags_of_chunks_become_the_same_chunks(scheme):
    chunks = (Chunk(0, 2, "per"), Chunk(2, 3, "per"), Chunk(3, 4, "org"), Chunk(5, 8, "_"))
    tags = tags_of(chunks, 9, scheme=scheme)
    assert chunks_of(tags) == chunks
    assert (
        tags
        == {
            "IOB1": ["I-per", "I-per", "B-per", "I-org", "O", "I", "I", "I", "O"],
            "IOB2": ["B-per", "I-per", "B-per", "B-org", "O", "B", "I", "I", "O"],
            "BIOES": ["B-per", "E-per", "S-per", "S-org", "O", "B", "I", "E", "O"],
        }[scheme]
    )


def test_bilou_is_read_as_bioes():
    assert chunks_of(["B-x", "L-x", "U-x", "U-x", "I-x"]) == chunks_of(["B-x", "E-x", "S-x", "S-x", "I-x"])


def test_who_finds_nothing_has_no_precision_and_who_is_right_has_all():
    gold = [{Chunk(0, 1, "per")}, {Chunk(1, 3, "org")}]
    assert score_chunks(gold, [(), ()]).to_dict() == dict.fromkeys(("f1", "precision", "recall", "f1_org", "f1_per"), 0)
    assert set(score_chunks(gold, gold).to_dict().values()) == {1}
    wrong = [{Chunk(0, 1, "org")}, {Chunk(1, 2, "org"), Chunk(1, 3, "org")}]
    assert score_chunks(gold, wrong).all.precision == pytest.approx(1 / 3)
    assert score_chunks(gold, wrong).all.recall == 0.5


@pytest.mark.parametrize("tag", ["per", "B-", "Q-per", "", "BI-per"])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(InputError, match="is not a tag; expected O, or one such as B-person"):
        split_tag(tag)


def test_what_tags_cannot_tell_and_scores_that_do_not_fit_are_refused():
    for chunks in ([Chunk(0, 2, "a"), Chunk(1, 3, "a")], [Chunk(2, 2, "a")], [Chunk(2, 5, "a")]):
        with pytest.raises(InputError, match="tags cannot express such chunks"):
            tags_of(chunks, 4)
    with pytest.raises(InputError, match="1 predictions for 2 sentences"):
        score_chunks([(), ()], [()])
    with pytest.raises(InputError, match="nothing to score"):
        score_chunks([], [])
