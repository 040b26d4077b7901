"""Gold documents of which only a part was annotated."""

import pytest

from wellread.document import Document, Link
from wellread.errors import InputError
from wellread.evaluation.linking import compare_linking, score_linking
from wellread.evaluation.partial_annotation import keep_judged

TEXT = "abcdefghijklmnopqrst"


def document(*places, **meta):
    return Document(TEXT, tuple(Link(start, end, TEXT[start:end], entity) for start, end, entity in places), meta=meta)


def spans(links):
    return [(link.start, link.end) for link in links]


def counts(gold, predicted):
    score = score_linking([gold], [predicted], bootstrap=0).get(match="overlap")
    return score.linked, score.predicted, score.gold


def test_a_prediction_on_an_optional_span_is_neither_right_nor_wrong():
    gold = document((0, 4, "Q1"), optional=[[6, 9]])
    assert counts(gold, document((0, 4, "Q1"), (6, 9, "Q2"))) == (1, 1, 1)
    assert counts(gold, document((0, 4, "Q1"), (8, 12, "Q2"))) == (1, 1, 1)
    assert counts(gold, document((0, 4, "Q1"), (9, 12, "Q2"))) == (1, 2, 1)  # beside it, not on it


@pytest.mark.parametrize("entity", ["Q1", None])
def test_a_prediction_that_overlaps_a_gold_link_is_judged_even_on_an_optional_span(entity):
    gold = document((0, 4, entity), optional=[[2, 9]])
    assert counts(gold, document((3, 9, "Q2"))) == (0, 1, int(entity is not None))


def test_only_links_in_the_annotated_parts_are_judged():
    gold = document((0, 4, "Q1"), (12, 14, "Q3"), evaluate=[[0, 10]])
    assert counts(gold, document((0, 4, "Q1"), (6, 8, "Q2"), (11, 14, "Q3"))) == (1, 2, 1)
    assert counts(gold, document((9, 12, "Q2"))) == (0, 1, 1)  # one character inside is enough


def test_nothing_is_judged_where_nothing_was_annotated():
    assert counts(document((0, 4, "Q1"), evaluate=[]), document((0, 4, "Q2"))) == (0, 0, 0)


def test_an_optional_span_next_to_gold_outside_the_annotated_parts_stays_optional():
    gold = document((10, 14, "Q1"), evaluate=[[0, 8]], optional=[[6, 12]])
    assert counts(gold, document((7, 12, "Q2"))) == (0, 0, 0)


def test_documents_without_such_keys_are_returned_as_they_are():
    gold, predicted = document((0, 4, "Q1"), other=[[0, 1]]), document((5, 9, "Q2"))
    assert keep_judged(gold, predicted) == (gold, predicted)


def test_the_kept_links_keep_their_order_and_the_documents_the_rest():
    gold = document((0, 4, "Q1"), (5, 9, "Q2"), optional=[[10, 12]], id="x")
    kept, guesses = keep_judged(gold, document((0, 4, "Q1"), (10, 12, "Q3"), (15, 18, "Q4")))
    assert (spans(kept.links), spans(guesses.links)) == ([(0, 4), (5, 9)], [(0, 4), (15, 18)])
    assert (kept.meta, kept.text) == (gold.meta, TEXT)


def test_comparisons_of_two_linkers_do_not_count_optional_predictions_either():
    gold = document((0, 4, "Q1"), optional=[[6, 9]])
    sure, eager = document((0, 4, "Q1")), document((0, 4, "Q1"), (6, 9, "Q2"))
    assert compare_linking([gold], [sure], [eager], bootstrap=0).value == 0


@pytest.mark.parametrize("broken", [3, [[1]], [[0, 99]], [["a", "b"]], [[4, 2]], [[True, 2]]])
def test_spans_that_are_not_in_the_text_are_refused_with_the_key_to_mend(broken):
    with pytest.raises(InputError, match=r"'optional' is .*expected a list of \[start, end\]"):
        keep_judged(document((0, 4, "Q1"), optional=broken), document())
