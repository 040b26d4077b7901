"""Decoding against plain loops: which spans are kept at which threshold, and with which scores and candidates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wellread.errors import UsageError
from wellread.linking.decoding import KINDS, Calibration, Decoding, Scored, decode, without_overlaps

LOGS = st.sampled_from([-np.inf, -9.0, -4.5, -3.0, -1.0, -0.5, -0.25, -0.0]) | st.floats(-10, 0, width=32)
SPANS = st.tuples(st.integers(0, 12), st.integers(1, 4)).map(lambda pair: (pair[0], sum(pair)))
ROWS = st.lists(st.tuples(SPANS, LOGS, LOGS, st.booleans()), max_size=12)


def naive_decode(rows, kind, threshold, drop, wanted=None):
    """The paper's steps 3 and 4, one pair at a time."""
    passed = []
    for place, (span, mention, entity, _) in enumerate(rows):
        passes = {
            "joint": mention + entity > threshold,
            "top_entity_by_mention": mention > threshold,
            "thresholded_entity_by_mention": mention > threshold and entity > threshold,
        }[kind]
        if passes and (wanted is None or wanted[place]):
            passed.append((-(mention + entity), *span, place))
    kept = []
    for _, start, end, place in sorted(passed):
        others = [rows[other][0] for other in kept]
        if not drop or all(end <= other[0] or other[1] <= start for other in others):
            kept.append(place)
    return kept


def arrays(rows):
    spans = np.array([row[0] for row in rows], np.int64).reshape(-1, 2)
    return spans, np.array([row[1] for row in rows], float), np.array([row[2] for row in rows], float)


def row(start, end, log=-0.5):
    return (start, end), log, -0.25, True


EDGES = {
    "the second begins where the first ends": [row(0, 3, -0.1), row(3, 5, -0.2)],
    "the second ends where the first begins": [row(3, 5, -0.1), row(0, 3, -0.2)],
    "between two, touching both": [row(0, 3, -0.1), row(5, 8, -0.2), row(3, 5, -0.3)],
    "between two, one letter into the first": [row(0, 3, -0.1), row(5, 8, -0.2), row(2, 5, -0.3)],
    "between two, one letter into the second": [row(0, 3, -0.1), row(5, 8, -0.2), row(3, 6, -0.3)],
    "the same span twice": [row(2, 4, -0.1), row(2, 4, -0.2)],
    "inside, with the same begin": [row(2, 6, -0.1), row(2, 3, -0.2)],
    "inside, with the same end": [row(2, 6, -0.1), row(5, 6, -0.2)],
    "around": [row(2, 3, -0.1), row(0, 9, -0.2)],
    "around, with the same begin": [row(2, 3, -0.1), row(2, 9, -0.2)],
}
"""Spans at the borders of others: chance finds one that only touches every other run."""


@pytest.mark.parametrize("rows", EDGES.values(), ids=EDGES)
def test_spans_at_the_borders_of_others_are_kept_as_plain_loops_keep_them(rows):
    for some in (rows, rows[::-1]):
        assert decode(*arrays(some), threshold=-9.0) == naive_decode(some, "joint", -9.0, True)
        order = list(range(len(some)))
        assert without_overlaps(arrays(some)[0], order) == naive_without_overlaps(some, order)


def naive_without_overlaps(rows, order):
    kept = []
    for place in order:
        (start, end), *_ = rows[place]
        if all(end <= rows[other][0][0] or rows[other][0][1] <= start for other in kept):
            kept.append(place)
    return kept


@given(ROWS, st.sampled_from(KINDS), LOGS, st.booleans(), st.booleans())
@example([row(0, 3, -0.1), row(3, 5, -0.2)], "joint", -9.0, True, False)
@example([row(0, 3, -0.1), row(5, 8, -0.2), row(3, 5, -0.3)], "joint", -9.0, True, False)
@example([row(0, 3, -0.1), row(2, 5, -0.2)], "top_entity_by_mention", -9.0, True, True)
@example([row(0, 3, -0.5)], "joint", -0.75, True, False)  # the threshold itself
def test_what_is_kept_is_what_plain_loops_keep(rows, kind, threshold, drop, choosy):
    wanted = np.array([row[3] for row in rows], bool) if choosy else None
    found = decode(*arrays(rows), kind=kind, threshold=threshold, drop_overlaps=drop, wanted_mask=wanted)
    assert found == naive_decode(rows, kind, threshold, drop, wanted)


@given(ROWS, LOGS, LOGS)
def test_a_higher_threshold_keeps_the_first_of_what_a_lower_one_keeps(rows, one, other):
    low, high = sorted((one, other))
    many, few = (decode(*arrays(rows), threshold=threshold) for threshold in (low, high))
    assert few == many[: len(few)]


def test_nothing_in_nothing_out():
    assert decode(*arrays([])) == []
    assert decode(*arrays([((0, 4), -5.0, 0.0, True)])) == []


def test_of_equals_the_first_wins_then_the_shorter():
    rows = [((4, 9), -1.0, -1.0, True), ((0, 6), -1.0, -1.0, True), ((0, 3), -1.0, -1.0, True)]
    assert decode(*arrays(rows)) == [2, 0]
    assert decode(*arrays(rows), drop_overlaps=False) == [2, 1, 0]


def test_spans_that_only_touch_do_not_overlap():
    assert decode(*arrays([((0, 3), -0.1, 0.0, True), ((3, 5), -0.2, 0.0, True)])) == [0, 1]


def test_the_threshold_itself_does_not_pass():
    assert decode(*arrays([((0, 1), -2.0, -1.0, True)]), threshold=-3.0) == []


# calibration


@given(st.floats(0.05, 8), st.floats(-5, 5), st.lists(st.floats(-12, -1e-3), min_size=2, max_size=8))
def test_scores_and_log_p_undo_each_other_and_rise_together(scale, shift, logs):
    calibration = Calibration(scale, shift)
    logs = np.sort(np.array(logs))
    scores = calibration.scores(logs)
    assert (np.diff(scores) >= 0).all()
    assert ((scores >= 0) & (scores <= 1)).all()
    for log_p, score in zip(logs, scores, strict=True):
        if 1e-9 < score < 1 - 1e-9:
            assert calibration.log_p(score) == pytest.approx(log_p, rel=1e-4, abs=1e-6)


@given(st.floats(-50, -1e-6))
def test_a_scale_of_one_and_no_shift_leave_the_paper_s_probability(log_p):
    assert Calibration().scores(np.array([log_p]))[0] == pytest.approx(math.exp(log_p), rel=1e-9)
    assert Calibration().log_p(math.exp(log_p)) == pytest.approx(log_p, rel=1e-6, abs=1e-9)


def test_scores_follow_the_formula():
    for p in (0.01, 0.3, 0.9):
        logit = math.log(p / (1 - p))
        want = 1 / (1 + math.exp(-(2.5 * logit - 0.7)))
        assert Calibration(2.5, -0.7).scores(np.array([math.log(p)]))[0] == pytest.approx(want, rel=1e-12)


def test_the_ends_of_the_scale_are_finite_scores_and_open_thresholds():
    scores = Calibration(3.0, 1.0).scores(np.array([-np.inf, -800.0, 0.0]))
    assert np.isfinite(scores).all()
    assert scores[0] < 1e-100
    assert scores[-1] > 1 - 1e-6
    assert (Calibration().log_p(0.0), Calibration().log_p(1.0)) == (-np.inf, 0.0)


# documents

TITLES = {0: ("e0", "Zero"), 1: ("e1", "One"), 2: ("e2", "Two")}
TEXT = "alpha beta gamma delta"


def scored(rows, calibration=None, decoding=None):
    """`rows`: (span, log p of the mention, {row: (log p of the entity, prior)})."""
    width = max((len(row[2]) for row in rows), default=0)
    shape = len(rows), width
    ids, logs, priors = np.full(shape, -2), np.full(shape, -np.inf), np.zeros(shape)
    for place, (_, _, entities) in enumerate(rows):
        best = sorted(entities.items(), key=lambda item: -item[1][0])
        for column, (entity, (log_p, prior)) in enumerate(best):
            ids[place, column], logs[place, column], priors[place, column] = entity, log_p, prior
    return Scored(
        TEXT,
        np.array([row[0] for row in rows], np.int64).reshape(-1, 2),
        np.array([row[1] for row in rows], float),
        ids,
        logs,
        priors,
        calibration or Calibration(),
        decoding or Decoding(),
        lambda requested: [TITLES[row] for row in requested],
        "kb",
        (("model", "elq"),),
    )


ROWS_OF_TEXT = [
    ((6, 10), math.log(0.9), {0: (math.log(0.8), 0.7), 1: (math.log(0.2), 0.0)}),
    ((0, 10), math.log(0.8), {1: (math.log(0.75), 0.5), -1: (math.log(0.25), 0.0)}),
    ((11, 16), math.log(0.7), {-1: (math.log(0.9), 0.0), 2: (math.log(0.1), 0.1)}),
    ((17, 22), math.log(0.05), {2: (math.log(0.9), 1.0)}),
]


def test_links_tell_both_scores_and_their_candidates_best_first():
    beta, gamma = scored(ROWS_OF_TEXT).document().links
    assert (beta.start, beta.end, beta.text, beta.entity, beta.title) == (6, 10, "beta", "e0", "Zero")
    assert (beta.score, beta.mention_score) == (pytest.approx(0.72), pytest.approx(0.9))
    assert [(c.entity, c.title, c.prior) for c in beta.candidates] == [("e0", "Zero", 0.7), ("e1", "One", 0.0)]
    assert [c.score for c in beta.candidates] == pytest.approx([0.8, 0.2])
    assert beta.kb == "kb"
    assert (gamma.entity, gamma.title, gamma.score) == (None, None, pytest.approx(0.63))
    assert [(c.entity, c.score) for c in gamma.candidates] == [("e2", pytest.approx(0.1))]


def test_mentions_of_what_is_not_known_can_be_left_out():
    assert [link.text for link in scored(ROWS_OF_TEXT).document(nil=False).links] == ["beta"]
    assert [link.text for link in scored(ROWS_OF_TEXT, decoding=Decoding(nil=False)).document().links] == ["beta"]


def test_a_nil_that_is_left_out_does_not_stand_in_the_way_of_a_link():
    rows = [((0, 5), math.log(0.9), {-1: (0.0, 0.0)}), ((0, 10), math.log(0.8), {1: (0.0, 1.0)})]
    assert [link.text for link in scored(rows).document().links] == ["alpha"]
    assert [link.text for link in scored(rows).document(nil=False).links] == ["alpha beta"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 0.61, 0.72, 0.9, 1.0])
@pytest.mark.parametrize("overlaps", ["auto", "drop", "keep"])
def test_another_threshold_is_decoding_anew(kind, threshold, overlaps):
    calibration = Calibration(1.7, 0.3)
    anew = Decoding(kind, threshold, overlaps)
    later = scored(ROWS_OF_TEXT, calibration).document(threshold=threshold, kind=kind, overlaps=overlaps)
    assert later == scored(ROWS_OF_TEXT, calibration, anew).document()
    log = calibration.log_p(threshold) if kind == "joint" else math.log(threshold) if threshold else -math.inf
    rows = [(span, mention, max(one for one, _ in of.values()), True) for span, mention, of in ROWS_OF_TEXT]
    drop = overlaps == "drop" or (overlaps == "auto" and kind != "top_entity_by_mention")
    kept = naive_decode(rows, kind, log, drop)
    assert [(link.start, link.end) for link in later.links] == sorted(rows[place][0] for place in kept)


def test_overlaps_are_kept_where_the_authors_keep_them():
    spans = {
        kind: [(link.start, link.end) for link in scored(ROWS_OF_TEXT).document(kind=kind, threshold=0.6).links]
        for kind in KINDS
    }
    assert spans == {
        "joint": [(6, 10), (11, 16)],
        "top_entity_by_mention": [(0, 10), (6, 10), (11, 16)],
        "thresholded_entity_by_mention": [(6, 10), (11, 16)],
    }


def test_a_text_without_spans_has_no_links():
    for kind in KINDS:
        assert scored([]).document(kind=kind, threshold=0.0, nil=False).links == ()
    assert scored([]).document().meta == {"model": "elq"}


def test_the_number_of_candidates_is_limited():
    (link, *_) = scored(ROWS_OF_TEXT, decoding=Decoding(candidates=1)).document().links
    assert [candidate.entity for candidate in link.candidates] == ["e0"]
    for one, other in zip(
        scored(ROWS_OF_TEXT, decoding=Decoding(candidates=0)).document().links,
        scored(ROWS_OF_TEXT).document().links,
        strict=True,
    ):
        assert one == replace(other, candidates=())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "best"}, "choose joint, top_entity_by_mention, thresholded_entity_by_mention"),
        ({"overlaps": "some"}, "choose auto, drop or keep"),
        ({"threshold": 1.5}, "from 0 .* to 1"),
        ({"threshold": -4.5}, "from 0 .* to 1"),
        ({"threshold": math.nan}, "from 0 .* to 1"),
    ],
)
def test_what_cannot_be_decoded_names_the_fix(options, message):
    with pytest.raises(UsageError, match=message):
        Decoding(**options)
    with pytest.raises(UsageError, match=message):
        scored(ROWS_OF_TEXT).document(**options)
