"""The link scorer and what it is given: trees, evidence and features, against plain loops."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from wellread.errors import InputError
from wellread.linking.decoding import FOUND_BY, NONE
from wellread.linking.evidence import ENCODER, Evidence, NameWeights, decide
from wellread.linking.features import _MAX_DISTANCE, FEATURES, features
from wellread.linking.kb_profile import KbProfile
from wellread.linking.link_scorer import SCORER, LinkScorer, scorer_of
from wellread.text.frequency import FLOOR
from wellread.text.words import key

PROFILE = KbProfile(*np.linspace(0.1, 1.0, len(fields(KbProfile))).tolist())
SEEDS = st.integers(0, 10**6)


def random_scorer(seed=0, trees=4, levels=3):
    chance = np.random.default_rng(seed)
    shape = (trees, 2**levels - 1)
    return LinkScorer(
        chance.integers(0, len(FEATURES), shape).astype(np.int16),
        chance.normal(size=shape).astype(np.float32),
        chance.normal(size=(trees, 2**levels)).astype(np.float32),
        float(chance.uniform(0.5, 2)),
        float(chance.normal()),
        float(chance.uniform()),
        json.dumps({"seed": seed}),
    )


# trees


def walked(scorer, row):
    """The logit of one row: one tree after the other, node by node."""
    total = 0.0
    for feature, border, leaf in zip(scorer.feature, scorer.border, scorer.leaf, strict=True):
        node = 0
        while node < len(feature):
            node = 2 * node + 1 + bool(row[feature[node]] > border[node])
        total += float(leaf[node - len(feature)])
    return total * scorer.scale + scorer.shift


@given(SEEDS, st.integers(0, 40), st.integers(1, 5), st.integers(0, 5))
@example(0, 0, 1, 1)
@example(0, 127, 3, 2)
@example(0, 128, 3, 2)
@example(0, 129, 3, 2)
@example(0, 2, 1, 0)
def test_trees_are_walked_to_their_leaves(seed, rows, trees, levels):
    scorer = random_scorer(seed, trees, levels)
    chance = np.random.default_rng(seed)
    matrix = chance.normal(size=(rows, len(FEATURES))).astype(np.float32)
    if rows and levels:
        matrix[0, scorer.feature[0, 0]] = scorer.border[0, 0]  # equal goes left
    wanted = [walked(scorer, row) for row in matrix]
    assert scorer.logits(matrix) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert scorer.probabilities(matrix) == pytest.approx(1 / (1 + np.exp(-np.array(wanted))), rel=1e-4)
    again = scorer.calibrated(2.0, -0.5, 0.3)
    assert again.logits(matrix) == pytest.approx([2 * one - 0.5 for one in wanted], rel=1e-5, abs=1e-4)
    assert again.threshold == 0.3


def test_a_row_has_the_same_score_in_any_company():
    scorer, matrix = random_scorer(), np.random.default_rng(1).normal(size=(300, len(FEATURES))).astype(np.float32)
    together = scorer.probabilities(matrix)
    assert [scorer.probabilities(matrix[[row]])[0] for row in range(300)] == together.tolist()


def test_a_scorer_is_read_as_it_was_written(tmp_path):
    scorer = random_scorer(5)
    scorer.save(tmp_path / SCORER)
    again = scorer_of(tmp_path)
    for name in ("feature", "border", "leaf"):
        assert np.array_equal(getattr(again, name), getattr(scorer, name))
        assert getattr(again, name).dtype == getattr(scorer, name).dtype
    for name in ("scale", "shift", "threshold", "about"):
        assert getattr(again, name) == getattr(scorer, name)
    assert scorer_of(tmp_path / "elsewhere") is None


def rewritten(path, arrays=None, **about):
    """Write a scorer's file again with other tensors or metadata; None leaves one out."""
    scorer = random_scorer()
    scorer.save(path)
    known = {
        "features": json.dumps(FEATURES),
        "scale": "1.0",
        "shift": "0.0",
        "threshold": "0.5",
    } | about
    tensors = load_file(path) | (arrays or {})
    save_file(
        {name: array for name, array in tensors.items() if array is not None},
        path,
        {name: value for name, value in known.items() if value is not None},
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": json.dumps(FEATURES[:-1])}, "trained with other features"),
        ({"features": json.dumps(FEATURES[::-1])}, "trained with other features"),
        ({"features": "3"}, "trained with other features"),
        ({"features": "{"}, "is not a link scorer"),
        ({"features": None}, "is not a link scorer"),
        ({"scale": "much"}, "is not a link scorer"),
        ({"scale": "nan"}, "not finite"),
        ({"threshold": "7"}, "the threshold is 7"),
        ({"arrays": {"leaf": None}}, "is not a link scorer"),
        ({"arrays": {"leaf": np.zeros((4, 7), np.float32)}}, "shapes"),
        ({"arrays": {"leaf": np.zeros(8, np.float32)}}, "shapes"),
        ({"arrays": {"leaf": np.full((4, 8), np.nan, np.float32)}}, "not finite"),
        ({"arrays": {"border": np.zeros((4, 6), np.float32)}}, "shapes"),
        ({"arrays": {"feature": np.full((4, 7), len(FEATURES), np.int16)}}, "a feature that does not exist"),
        ({"arrays": {"feature": np.full((4, 7), -1, np.int16)}}, "a feature that does not exist"),
        ({"arrays": {"feature": np.zeros((4, 7), np.float32)}}, "a feature that does not exist"),
    ],
)
def test_a_scorer_that_cannot_be_used_names_the_fix(tmp_path, changes, message):
    rewritten(tmp_path / SCORER, **changes)
    with pytest.raises(InputError, match=rf"{SCORER}.*{message}.*again"):
        scorer_of(tmp_path)


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / SCORER).write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="is not a link scorer"):
        scorer_of(tmp_path)


# evidence


@given(SEEDS, st.integers(0, 5), st.integers(0, 6), st.booleans())
@example(0, 3, 0, True)
@example(0, 3, 0, False)
@example(0, 0, 4, True)
@example(2, 4, 1, False)
def test_candidates_are_decided_as_torch_does(seed, spans, width, nil):
    chance = np.random.default_rng(seed)
    rows = np.where(
        chance.random((spans, width)) < 0.3, NONE, chance.permuted(np.tile(np.arange(width), (spans, 1)), axis=1)
    )
    priors = np.where((rows >= 0) & (chance.random(rows.shape) < 0.5), chance.random(rows.shape), 0.0)
    similarity = chance.normal(scale=20, size=rows.shape)
    weights = NameWeights(2.5, 0.7, 3.0 if nil else -np.inf)
    found, log_p, nil_log_p, best, found_priors = decide(similarity, priors, rows, weights)
    assert not np.isnan(log_p).any()
    assert not np.isnan(nil_log_p).any()
    for span in range(spans):
        there = {
            int(row): (float(similarity[span, at]), float(priors[span, at]))
            for at, row in enumerate(rows[span])
            if row >= 0
        }
        logits = {row: sim + (2.5 + 0.7 * np.log(max(p, 1e-3)) if p else 0) for row, (sim, p) in there.items()}
        wanted = torch.tensor([*logits.values(), weights.nil], dtype=torch.double).log_softmax(0)
        chances = dict(zip([*logits, None], wanted.tolist(), strict=True)) if there or nil else {None: -np.inf}
        order = [int(row) for row in found[span] if row >= 0]
        assert order == sorted(there, key=lambda row: -logits[row])
        assert log_p[span, : len(order)] == pytest.approx([chances[row] for row in order], abs=1e-9)
        assert (log_p[span, len(order) :] == -np.inf).all()
        assert nil_log_p[span] == pytest.approx(chances[None], abs=1e-9)
        assert found_priors[span, : len(order)].tolist() == [there[row][1] for row in order]
        if order:
            assert best[span] == there[order[0]][0]


def test_a_span_that_is_a_name_takes_the_best_entity_with_that_name():
    rows = np.array([[5, 6, 7], [5, 6, 7], [5, 6, NONE]])
    similarity = np.array([[9.0, 1.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, 0.0]])
    priors = np.array([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]])
    weights = NameWeights(2.5, 0.7, 3.0)
    plain = decide(similarity, priors, rows, weights)
    found, log_p, nil_log_p, best, found_priors = decide(
        similarity, priors, rows, weights, names_first_mask=np.array([True, False, True])
    )
    assert found.tolist() == [[7, 5, 6], [5, 7, 6], [5, 6, NONE]]  # the third is a name of none of its candidates
    assert best.tolist() == [2.0, 9.0, 9.0]
    assert found_priors[0].tolist() == [0.5, 0.0, 0.5]
    assert log_p[0, [1, 0, 2]].tolist() == plain[1][0].tolist()  # probabilities stay as they were
    assert nil_log_p.tolist() == plain[2].tolist()


def evidence_of(spans, *, candidates=2, seed=0, **columns):
    """Evidence of (text, start, end) spans with random scores; other columns may be given."""
    chance = np.random.default_rng(seed)
    text_of, starts, ends = np.array(spans, np.int64).reshape(-1, 3).T
    count = len(text_of)
    made = Evidence(
        text_of,
        starts,
        ends,
        chance.normal(size=count),
        chance.integers(0, len(FOUND_BY), count).astype(np.uint8),
        chance.integers(0, 2, count).astype(np.uint8),
        chance.integers(0, 9, (count, candidates)),
        -chance.random((count, candidates)),
        -chance.random(count),
        chance.random(count),
        chance.random((count, candidates)),
        chance.random((count, candidates)),
        chance.integers(1, 9, count).astype(np.uint64),
        chance.integers(1, 9, count).astype(np.uint64),
        chance.integers(1, 4, count).astype(np.float64),
        chance.random(count),
    )
    return Evidence.joined([replace(made, **columns)])


def test_parts_are_joined_in_order_and_without_parts_there_is_nothing():
    nothing = Evidence.joined([])
    some = evidence_of([(0, 3, 5), (0, 0, 9), (0, 0, 4), (1, 0, 2)], candidates=3)
    other = evidence_of([(1, 5, 6), (0, 1, 2)], candidates=1)
    for part in (nothing, Evidence.joined([nothing]), Evidence.joined([nothing, nothing])):
        assert len(part) == 0
        for field in fields(Evidence):
            one, like = getattr(part, field.name), getattr(some, field.name)
            assert (one.dtype, one.ndim) == (like.dtype, like.ndim)
        assert part.candidate_mask.tolist() == []
    whole = Evidence.joined([some, nothing, other])
    places = list(zip(whole.text_of.tolist(), whole.starts.tolist(), whole.ends.tolist(), strict=True))
    assert places == [(0, 0, 9), (0, 0, 4), (0, 1, 2), (0, 3, 5), (1, 0, 2), (1, 5, 6)]
    assert whole.rows.shape == (6, 3)
    assert whole.rows[2, 1:].tolist() == [NONE, NONE]
    assert whole.candidate_mask.all()


# features


def column(matrix, name):
    return matrix[:, FEATURES.index(name)]


@pytest.mark.parametrize("texts", [[], [""], ["", "a b"], ["東京 👩‍🚀", " \n"]])
def test_no_spans_have_no_features(texts):
    for evidence in (Evidence.joined([]), evidence_of([])):
        assert features(texts, evidence, PROFILE).shape == (0, len(FEATURES))


WORDS = st.sampled_from(
    ["Cork", "ada", "U.S.", "of", "東京", "👩‍🚀", "\u0301", "\x07", "B2B", "don't", "?", "Ünal", "", "\u200b"]
)
TEXTS = st.lists(st.lists(WORDS, max_size=8).map(" ".join), min_size=1, max_size=5)


def spans_in(texts, seed):
    chance = np.random.default_rng(seed)
    spans = set()
    for text, whole in enumerate(texts):
        for _ in range(min(len(whole), 6)):
            start, end = sorted(chance.integers(0, len(whole) + 1, 2).tolist())
            if end > start:
                spans.add((text, start, end))
    return sorted(spans)


@given(TEXTS, SEEDS)
@example(["\x07", "Cork ?", "\x07"], 1)
@example(["", "Cork", ""], 0)
@example(["Cork"], 0)
def test_features_of_a_text_do_not_depend_on_its_company(texts, seed):
    evidence = evidence_of(spans_in(texts, seed), seed=seed)
    matrix = features(texts, evidence, PROFILE)
    assert matrix.dtype == np.float32
    assert np.isfinite(matrix).all()
    for number, text in enumerate(texts):
        mine = evidence.take(evidence.text_of == number)
        alone = features([text], replace(mine, text_of=np.zeros(len(mine), np.int64)), PROFILE)
        assert np.array_equal(alone, matrix[evidence.text_of == number])


@given(TEXTS, SEEDS)
@example(["Cork ada of " * 4], 3)
def test_overlaps_are_those_of_plain_loops(texts, seed):
    evidence = evidence_of(spans_in(texts, seed), seed=seed)
    matrix = features(texts, evidence, PROFILE)
    named = evidence.ways != ENCODER
    for one in range(len(evidence)):
        others = [
            other
            for other in range(len(evidence))
            if other != one
            and evidence.text_of[one] == evidence.text_of[other]
            and evidence.starts[one] < evidence.ends[other]
            and evidence.starts[other] < evidence.ends[one]
        ]
        assert len(evidence) <= _MAX_DISTANCE * 3
        high = max([-15.0, *(evidence.mention_logits[other] for other in others)])
        assert column(matrix, "overlap_logit")[one] == pytest.approx(
            np.clip(evidence.mention_logits[one] - high, -15, 15), abs=1e-5
        )
        spans = [(evidence.starts[other], evidence.ends[other]) for other in others if named[other] and named[one]]
        start, end = evidence.starts[one], evidence.ends[one]
        inside = [begin <= start and end <= stop for begin, stop in spans]
        holds = [start <= begin and stop <= end for begin, stop in spans]
        assert column(matrix, "in_longer_name")[one] == any(inside)
        assert column(matrix, "has_shorter_name")[one] == any(holds)
        crosses = [not a and not b for a, b in zip(inside, holds, strict=True)]
        assert column(matrix, "crosses_name")[one] == any(crosses)


def test_features_say_what_stands_there():
    text = "NASA met Ada Lovelace. ada lovelace met 3M?"
    spans = [(0, 0, 4), (0, 9, 21), (0, 13, 21), (0, 23, 35), (0, 40, 42)]
    matrix = features([text], evidence_of(spans), PROFILE)
    assert column(matrix, "upper").tolist() == [1, 0, 0, 0, 0]
    assert column(matrix, "capital").tolist() == [1, 1, 1, 0, 0]
    assert column(matrix, "capital_words")[:4].tolist() == [1, 1, 1, 0]
    assert column(matrix, "words")[:4].tolist() == [1, 2, 1, 2]
    assert column(matrix, "digits")[4] == 0.5
    assert column(matrix, "sentence_start").tolist() == [1, 0, 0, 1, 0]
    assert column(matrix, "capital_before").tolist() == [0, 0, 1, 0, 0]
    assert column(matrix, "same_name")[[1, 3]] == pytest.approx(np.log1p([2, 2]))
    assert column(matrix, "same_name")[[0, 2]] == pytest.approx(np.log1p([1, 1]))
    assert column(matrix, "text_question").tolist() == [1] * 5
    assert column(matrix, "kb_log_entities") == pytest.approx([PROFILE.log_entities] * 5)


def test_titles_are_compared_with_spans_by_their_keys():
    spans = [(0, 0, 7), (0, 12, 21)]
    keys = [[key("MERCURY"), key("Mercury (planet)")], [key("Mercury"), key("nothing")]]
    titles = {"title_keys": np.array(keys[0], np.uint64), "bare_keys": np.array(keys[1], np.uint64)}
    matrix = features(["Mercury met ada ábbot"], evidence_of(spans, **titles), PROFILE)
    assert column(matrix, "is_title").tolist() == [1, 0]
    assert column(matrix, "is_bare_title").tolist() == [1, 0]
    assert column(matrix, "has_disambiguation").tolist() == [0, 1]


def test_popularity_is_a_rank_in_the_kb():
    profile = replace(PROFILE, popularities=(0.0, 0.0, 1.0, 5.0))
    assert profile.rank(np.array([0.0, 1.0, 9.0])).tolist() == [0.25, 0.625, 1.0]
    assert replace(PROFILE, popularities=()).rank(np.array([3.0])).tolist() == [0.5]


def test_a_span_without_words_takes_nothing_from_its_neighbours():
    for texts in (["a \x07 Cork"], ["a \x07"]):
        matrix = features(texts, evidence_of([(0, 2, 3)]), PROFILE)
        assert column(matrix, "rarest") == column(matrix, "mean_frequency") == FLOOR
        assert column(matrix, "capital_words") == column(matrix, "lower_share") == 0
