"""Training of the link scorer: labels of spans, and trees that give what scikit-learn's give."""

import numpy as np
import pytest

from tests.models.elq.test_linker_scorer import backend, here  # noqa: F401
from tests.toy_models import document
from wellread.linking.features import FEATURES
from wellread.training.link_scorer import (
    NAMED,
    OPEN,
    RIGHT,
    WRONG,
    Spans,
    _exported,
    _rounded_down,
    collect,
    fit_known_mentions,
)

ensemble = pytest.importorskip("sklearn.ensemble")


def test_exported_trees_score_as_those_they_were_made_of():
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(4000, len(FEATURES))).astype(np.float32)
    neighbours = np.array([1 + 2**-23, 1 + 2**-22], np.float32)  # their middle has no float32, and rounds up
    rows[:, 0] = neighbours[chance.integers(0, 2, len(rows))]
    rows[:, 1] = chance.integers(0, 2, len(rows))
    right = rows[:, 0] > neighbours[0]
    labels = (chance.random(len(rows)) < np.where(right, 0.9, 0.1)) ^ (rows[:, 2] * rows[:, 1] > 1)
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=20, max_depth=3, max_leaf_nodes=None, min_samples_leaf=5, early_stopping=False
    ).fit(rows, labels)
    scorer = _exported(model, 3)
    assert scorer.logits(rows) == pytest.approx(model.decision_function(rows), abs=1e-5)


@pytest.mark.parametrize("border", [0.0, -0.0, 1.0, 0.1, -0.1, 1e-50, -1e-50, 3.3e38, 1 + 2**-24, 1 + 3 * 2**-24])
def test_a_border_parts_the_same_numbers_when_rounded(border):
    rounded = _rounded_down(border)
    with np.errstate(over="ignore"):
        near = [np.float32(border), *(np.nextafter(np.float32(border), np.float32(to)) for to in (-np.inf, np.inf))]
    assert [one > rounded for one in near] == [float(one) > border for one in near]


def labels_of(backend, documents, **options):  # noqa: F811
    """Labels of the spans of one-word mentions: {word: label}."""
    spans = collect(backend(), documents, **{"complete": True, "entities": True} | options)
    words = [
        documents[number].text[start:end]
        for number, start, end in zip(spans.document_of, spans.starts, spans.ends, strict=True)
    ]
    return dict(zip(words, spans.labels.tolist(), strict=True)), spans


def test_a_span_is_right_where_its_best_candidate_is_the_gold_entity(backend):  # noqa: F811
    labels, spans = labels_of(backend, [document("is cork near dover ?", ("cork", "p2"), ("dover", "oldcork"))])
    assert labels["cork"] == RIGHT
    assert labels["dover"] == WRONG
    assert spans.mention_mask.sum() == 2
    assert spans.gold == 2


def test_spans_without_gold_are_wrong_only_where_the_annotation_is_complete(backend):  # noqa: F811
    documents = [document("is cork near dover ?", ("cork", "p2"))]
    assert labels_of(backend, documents)[0]["dover"] == WRONG
    assert labels_of(backend, documents, complete=False)[0]["dover"] == OPEN


def test_annotated_names_without_entities_are_named(backend):  # noqa: F811
    documents = [document("is cork near dover ?", ("cork", None))]
    assert labels_of(backend, documents)[0]["cork"] == WRONG  # NIL: not in the KB
    assert labels_of(backend, documents, entities=False)[0]["cork"] == NAMED


def test_named_spans_are_as_likely_right_as_known_mentions_like_them():
    chance = np.random.default_rng(0)

    def spans(count, labels):
        rows = np.zeros((count, len(FEATURES)), np.float32)
        rows[:, FEATURES.index("prior")] = np.arange(count) % 2
        number = np.arange(count)
        return Spans(rows, labels(rows).astype(np.int8), number, number, number + 1, np.ones(count, bool), count)

    def right(rows):
        return chance.random(len(rows)) < np.where(rows[:, FEATURES.index("prior")] > 0, 0.8, 0.1)

    known = spans(4000, right)
    named = spans(4, lambda rows: np.full(len(rows), NAMED))
    found = fit_known_mentions([known], [1.0]).probabilities(named.rows)
    assert found == pytest.approx([0.1, 0.8, 0.1, 0.8], abs=0.05)
