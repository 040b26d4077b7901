"""Scores of linking, by hand, by a plain second implementation, and by what must always hold."""

import json
from fractions import Fraction as F  # noqa: N817  # so that the table below can be read

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wellread.document import Document, Link
from wellread.errors import InputError
from wellread.evaluation import linking
from wellread.evaluation.linking import align, compare_linking, score_linking, strangers, with_prefix

TEXT = "abcdefghijklmnopqrst"
KNOWN = {"Q1", "Q2", "Q3", "Q4"}.__contains__


def document(*places, text=TEXT, id=None):
    return Document(text, tuple(Link(start, end, text[start:end], entity) for start, end, entity in places), id)


# One right, one beside its span, one on a gold out of the KB, one NIL; a wrong entity and a false alarm; nothing.
GOLD = [
    document((0, 4, "Q1"), (5, 9, "Q2"), (10, 14, "Q9"), (15, 19, None)),
    document((0, 4, "Q1")),
    document(),
]
PREDICTED = [
    document((0, 4, "Q1"), (6, 9, "Q2"), (10, 14, "Q3"), (15, 19, None)),
    document((0, 4, "Q2"), (5, 9, "Q4")),
    document(),
]
BY_HAND = {
    # scope, match, average: linking P R F1, detection P R F1, accuracy
    ("in_kb", "exact", "micro"): (F(1, 5), F(1, 3), F(2, 8), F(2, 5), F(2, 3), F(4, 8), F(1, 2)),
    ("in_kb", "exact", "macro"): (F(4, 9), F(1, 2), F(7, 15), F(11, 18), F(5, 6), F(31, 45), F(1, 2)),
    ("in_kb", "overlap", "micro"): (F(2, 5), F(2, 3), F(4, 8), F(3, 5), F(1), F(6, 8), F(2, 3)),
    ("in_kb", "overlap", "macro"): (F(5, 9), F(2, 3), F(3, 5), F(13, 18), F(1), F(37, 45), F(1, 2)),
    ("with_nil", "exact", "micro"): (F(2, 6), F(2, 5), F(4, 11), F(4, 6), F(4, 5), F(8, 11), F(2, 4)),
    ("with_nil", "exact", "macro"): (F(1, 2), F(1, 2), F(1, 2), F(3, 4), F(11, 12), F(29, 36), F(1, 3)),
    ("with_nil", "overlap", "micro"): (F(3, 6), F(3, 5), F(6, 11), F(5, 6), F(1), F(10, 11), F(3, 5)),
    ("with_nil", "overlap", "macro"): (F(7, 12), F(7, 12), F(7, 12), F(5, 6), F(1), F(8, 9), F(3, 8)),
}
COUNTS = {  # linked, found, predicted, gold
    ("in_kb", "exact"): (1, 2, 5, 3),
    ("in_kb", "overlap"): (2, 3, 5, 3),
    ("with_nil", "exact"): (2, 4, 6, 5),
    ("with_nil", "overlap"): (3, 5, 6, 5),
}


def seven(score):
    estimates = (
        *(score.linking.precision, score.linking.recall, score.linking.f1),
        *(score.detection.precision, score.detection.recall, score.detection.f1),
        score.accuracy,
    )
    return tuple(estimate.value for estimate in estimates)


def table(scores):
    return {(one.scope, one.match, one.average): seven(one) for one in scores.scores}


@pytest.mark.parametrize(("name", "expected"), BY_HAND.items(), ids=map("-".join, BY_HAND))
def test_the_worked_example_comes_out_as_by_hand(name, expected):
    scope, match, average = name
    score = score_linking(GOLD, PREDICTED, known=KNOWN, bootstrap=0).get(scope=scope, match=match, average=average)
    assert seven(score) == pytest.approx(tuple(map(float, expected)), abs=1e-12)
    assert (score.linked, score.found, score.predicted, score.gold) == COUNTS[scope, match]


def test_without_known_every_gold_id_is_asked_for():
    score = score_linking(GOLD, PREDICTED, bootstrap=0).get(match="exact")
    assert score.gold == 4
    assert score_linking([GOLD[0]], [GOLD[0]], bootstrap=0).get(match="exact").linking.f1.value == 1


def test_a_gold_link_is_matched_once_and_a_prediction_matches_once():
    gold, twice = document((0, 4, "Q1")), document((0, 2, "Q1"), (2, 4, "Q1"))
    assert score_linking([gold], [twice], bootstrap=0).get().linking.precision.value == 0.5
    assert score_linking([twice], [gold], bootstrap=0).get().linking.recall.value == 0.5


def test_an_exact_pair_is_taken_before_a_looser_one():
    gold = document((0, 5, "Q1"), (6, 10, "Q1"))
    predicted = document((0, 10, "Q1"), (0, 5, "Q1"))
    assert score_linking([gold], [predicted], bootstrap=0).get().linking.f1.value == 1


def test_touching_spans_do_not_overlap():
    score = score_linking([document((0, 4, "Q1"))], [document((4, 8, "Q1"))], bootstrap=0).get()
    assert score.detection.f1.value == score.linking.f1.value == 0


def test_several_links_on_one_span_are_matched_by_their_entities():
    gold, predicted = document((0, 4, "Q1"), (0, 4, "Q2")), document((0, 4, "Q2"), (0, 4, "Q3"))
    score = score_linking([gold], [predicted], bootstrap=0).get(match="exact")
    assert (score.linked, score.found, score.accuracy.value) == (1, 2, 0.5)


@pytest.mark.parametrize("gold", [document(), document((0, 4, "Q1"))])
def test_when_one_side_is_empty_all_is_zero(gold):
    other = document((0, 4, "Q1")) if not gold.links else document()
    assert seven(score_linking([gold], [other], bootstrap=0).get()) == (0,) * 7


# a plain second implementation

PLACES = st.lists(
    st.tuples(st.integers(0, 11), st.integers(1, 5), st.sampled_from([None, "Q1", "Q2", "Q9"])).map(
        lambda place: (place[0], min(place[0] + place[1], 12), place[2])
    ),
    max_size=4,
)
PAIRS = st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=4).map(
    lambda pairs: tuple([document(*places, text="x" * 12) for places in side] for side in zip(*pairs, strict=True))
)


def naive_pairs(gold, predicted, match, entities):
    def quality(g, p):
        shared = set(range(*g[:2])) & set(range(*p[:2]))
        return F(len(shared), max(g[1], p[1]) - min(g[0], p[0]))

    gold, predicted, pairs = list(gold), list(predicted), []
    while True:
        possible = [
            (-quality(g, p), g[:2], p[:2], g[2] != p[2], g, p)
            for g in gold
            for p in predicted
            if quality(g, p) > 0 and (match == "overlap" or g[:2] == p[:2]) and (not entities or g[2] == p[2])
        ]
        if not possible:
            return pairs
        *_, g, p = min(possible, key=lambda pair: pair[:4])
        gold.remove(g)
        predicted.remove(p)
        pairs.append((g, p))


def naive_measures(correct, predicted, gold):
    if not predicted and not gold:
        return [F(1)] * 3
    if not predicted or not gold:
        return [F(0)] * 3
    return [F(correct, predicted), F(correct, gold), F(2 * correct, predicted + gold)]


def naive_scores(gold, predicted, scope, match, average):
    rows = []
    for one, other in zip(gold, predicted, strict=True):
        gold_links = [(k.start, k.end, k.entity if k.entity and KNOWN(k.entity) else None) for k in one.links]
        guesses = [(k.start, k.end, k.entity) for k in other.links]
        # of several links on one span that are equally wrong, NIL is taken last
        gold_links, guesses = (
            sorted(side, key=lambda k: (k[:2], k[2] is None, k[2] or "")) for side in (gold_links, guesses)
        )
        if scope == "in_kb":
            gold_links, guesses = ([k for k in side if k[2] is not None] for side in (gold_links, guesses))
        found = naive_pairs(gold_links, guesses, match, entities=False)
        right = sum(g[2] == p[2] for g, p in found)
        linked = len(naive_pairs(gold_links, guesses, match, entities=True))
        rows.append((linked, len(found), right, len(guesses), len(gold_links)))
    if average == "micro":
        rows = [tuple(map(sum, zip(*rows, strict=True)))]
    each = [naive_measures(k, n, m) + naive_measures(f, n, m) for k, f, _, n, m in rows]
    accuracies = [F(right, found) for _, found, right, _, _ in rows if found] or [F(0)]
    means = [sum(column) / len(each) for column in zip(*each, strict=True)]
    return tuple(map(float, [*means, sum(accuracies) / len(accuracies)]))


@given(pairs=PAIRS)
@example(
    pairs=(
        [document((0, 3, None), (1, 3, "Q2"), text="x" * 12)],
        [document((2, 4, None), (2, 4, "Q1"), text="x" * 12)],
    )
)
@example(  # a prediction that begins where the gold one ends, and one that reaches into it by a letter
    pairs=(
        [document((0, 3, "Q1"), (6, 9, "Q2"), text="x" * 12)],
        [document((3, 6, "Q1"), (8, 11, "Q2"), text="x" * 12)],
    )
)
def test_a_plain_second_implementation_agrees(pairs):
    scores = table(score_linking(*pairs, known=KNOWN, bootstrap=0))
    assert len(scores) == 8
    for name, values in scores.items():
        assert values == pytest.approx(naive_scores(*pairs, *name), abs=1e-12), name


# what must always hold


@given(pairs=PAIRS)
def test_perfect_predictions_score_one(pairs):
    gold = [document(*{(k.start, k.end, k.entity) for k in one.links}, text=one.text) for one in pairs[0]]
    for name, values in table(score_linking(gold, gold, bootstrap=20)).items():
        assert values[:6] == (1,) * 6, name


@given(pairs=PAIRS, random=st.randoms())
def test_the_order_of_documents_and_links_does_not_matter(pairs, random):
    order = list(zip(*pairs, strict=True))
    random.shuffle(order)
    shuffled = [[document(*reversed(places(one)), text=one.text) for one in side] for side in zip(*order, strict=True)]
    assert score_linking(*shuffled, known=KNOWN, bootstrap=20) == score_linking(*pairs, known=KNOWN, bootstrap=20)


def places(one):
    return [(link.start, link.end, link.entity) for link in one.links]


@given(pairs=PAIRS)
def test_f1_lies_between_precision_and_recall_and_overlap_is_never_stricter(pairs):
    scores = table(score_linking(*pairs, known=KNOWN, bootstrap=0))
    for (scope, match, average), (p, r, f1, *_) in scores.items():
        if average == "micro":
            assert min(p, r) <= f1 <= max(p, r)
        assert f1 <= (p + r) / 2 + 1e-12
        if match == "overlap":
            assert f1 >= scores[scope, "exact", average][2] - 1e-12


@given(pairs=PAIRS)
def test_detection_does_not_look_at_entities(pairs):
    blind = [document(*((k.start, k.end, "Q1") for k in one.links), text=one.text) for one in pairs[1]]
    before, after = (table(score_linking(pairs[0], side, bootstrap=0)) for side in (pairs[1], blind))
    for match in ("exact", "overlap"):
        assert before["with_nil", match, "micro"][3:6] == after["with_nil", match, "micro"][3:6]


# intervals


def half_right(number):
    gold = [document((0, 4, "Q1"))] * number
    return gold, [document((0, 4, "Q1" if place % 2 else "Q2")) for place in range(number)]


def test_the_interval_is_that_of_a_mean_over_documents():
    f1 = score_linking(*half_right(400), bootstrap=4000).get(average="macro").linking.f1
    assert f1.value == 0.5
    assert (f1.low, f1.high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.006)


def test_one_document_has_no_spread():
    f1 = score_linking(GOLD[:1], PREDICTED[:1], known=KNOWN).get().linking.f1
    assert f1.low == f1.value == f1.high


def test_the_seed_fixes_the_interval_and_the_chunks_do_not_change_it(monkeypatch):
    once = score_linking(GOLD, PREDICTED, seed=3)
    monkeypatch.setattr(linking, "_CHUNK", 7)
    assert score_linking(GOLD, PREDICTED, seed=3) == once
    assert score_linking(*half_right(50), seed=1) != score_linking(*half_right(50), seed=2)


def test_an_interval_is_written_behind_its_score():
    assert str(linking.Estimate(0.4, 0.1, 0.96)) == "0.400 (.100–.960)"
    assert str(linking.Estimate(1.0, 1.0, 1.0)) == "1.000 (1.000–1.000)"
    assert str(linking.Estimate(10 / 3)) == "3.333"


def test_no_bootstrap_no_interval():
    f1 = score_linking(GOLD, PREDICTED, bootstrap=0).get().linking.f1
    assert (f1.low, f1.high) == (None, None)
    assert str(f1) == "0.444"


# tables, JSON, pairing


def test_rows_fit_their_columns_and_the_dict_is_json():
    scores = score_linking(GOLD, PREDICTED, known=KNOWN, bootstrap=10)
    rows = scores.rows()
    assert len(rows) == 4
    assert {len(row) for row in rows} == {len(scores.columns)}
    assert [row[:2] for row in rows[1:3]] == [("in KB", "overlap"), ("with NIL", "exact")]
    assert rows[0][2] == 3
    assert rows[0][3].startswith("0.200 (.")
    assert rows[0][6:] == (pytest.approx(7 / 15), 0.5, 0.5)
    data = json.loads(json.dumps(scores.to_dict()))
    assert data["documents"] == 3
    assert data["scores"][2]["linking"]["f1"]["value"] == 0.5


def test_documents_are_aligned_by_id_where_ids_tell_them_apart():
    gold = [document(id="a"), document(id="b")]
    predicted = [document(id="c"), document((0, 1, "Q1"), id="b"), document(id="a")]
    assert [one.id for one in align(gold, predicted)] == ["a", "b"]


def test_documents_without_ids_are_aligned_by_place():
    predicted = [document(), document((0, 1, "Q1"))]
    assert align([document(id="a"), document(id="a")], predicted) == predicted


def test_a_missing_prediction_is_named():
    with pytest.raises(InputError, match="no prediction for id 'b'"):
        align([document(id="a"), document(id="b")], [document(id="a")])


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([document()], [], "0 predicted documents for 1"),
        ([], [], "no documents"),
        ([document(id="x")], [document(text="other")], r"document 1 \(x\).*'other'"),
    ],
)
def test_what_cannot_be_scored_is_an_input_error(gold, predicted, message):
    with pytest.raises(InputError, match=message):
        score_linking(gold, predicted)


# two linkers on the same documents


def test_a_difference_is_that_of_two_scores_and_zero_to_oneself():
    ours = score_linking(GOLD, PREDICTED, known=KNOWN).get().linking.f1.value
    found = compare_linking(GOLD, PREDICTED, [document()] * 3, known=KNOWN)
    assert found.value == pytest.approx(ours)  # who links nothing has an F1 of 0 here
    same = compare_linking(GOLD, PREDICTED, PREDICTED, known=KNOWN)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert compare_linking(GOLD, PREDICTED, GOLD, bootstrap=0).low is None


def test_a_paired_interval_is_narrower_than_what_is_hard_for_both_would_make_it():
    gold, half = half_right(400)
    better = [gold[place] if place < 20 else one for place, one in enumerate(half)]
    found = compare_linking(gold, better, half)
    apart = score_linking(gold, half).get().linking.f1
    assert found.low > 0 or found.value == 0
    assert found.high - found.low < (apart.high - apart.low) / 2


def test_ids_get_the_prefix_that_the_knowledge_base_has():
    (link, nil) = with_prefix("wp:", document((0, 4, "Q1"), (5, 9, None))).links
    assert (link.entity, nil.entity) == ("wp:Q1", None)


def test_gold_that_the_knowledge_base_hardly_knows_is_reported():
    assert strangers(GOLD, KNOWN, "my.kb") is None
    assert strangers([document((0, 4, "a"))], KNOWN, "my.kb").startswith("none of the 1 gold entities is in my.kb")
    with pytest.raises(InputError, match="1 gold documents, 1 and 0 predicted ones; give the same number of each"):
        compare_linking(GOLD[:1], PREDICTED[:1], [])


@pytest.mark.parametrize(("fold", "linked"), [(False, 1), (True, 2)])
def test_ids_are_compared_without_case_where_asked(fold, linked):
    gold = document((0, 4, "Q1"), (5, 9, "Q2"), (10, 14, None))
    predicted = document((0, 4, "q1"), (5, 9, "Q2"), (10, 14, None))
    scores = score_linking([gold], [predicted], known=KNOWN, bootstrap=0, fold_ids=fold)
    assert scores.get(match="exact").linked == linked
    assert scores.get(match="exact", scope="with_nil").linked == linked + 1
