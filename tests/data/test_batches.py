"""Things that are read together: in their order, none lost, no group too large."""

from hypothesis import example, given
from hypothesis import strategies as st

from wellread.data.batches import gather

SIZES = st.lists(st.integers(0, 9))


@given(sizes=SIZES, largest=st.none() | st.integers(0, 20), most=st.none() | st.integers(1, 4))
@example(sizes=[3, 4], largest=7, most=None)  # just fits
@example(sizes=[3, 5], largest=7, most=None)  # one too many
@example(sizes=[9, 1], largest=7, most=None)  # one alone is too large
@example(sizes=[1, 1, 1, 1], largest=None, most=2)
@example(sizes=[0, 0, 7, 0], largest=7, most=4)
def test_groups_are_as_large_as_they_may_be_and_no_larger(sizes, largest, most):
    things = list(enumerate(sizes))
    groups = list(gather(iter(things), largest=largest, most=most, size=lambda thing: thing[1]))
    assert [thing for group in groups for thing in group] == things
    totals = [sum(size for _, size in group) for group in groups]
    for group, total in zip(groups, totals, strict=True):
        assert group
        assert most is None or len(group) <= most
        assert largest is None or total <= largest or len(group) == 1
    for group, total, after in zip(groups, totals, groups[1:], strict=False):
        assert len(group) == most or (largest is not None and total + after[0][1] > largest)


def test_what_has_a_length_is_as_large_as_it_is_long():
    assert list(gather(["a", "bb", "cc", "dddd", "e"], largest=3)) == [["a", "bb"], ["cc"], ["dddd"], ["e"]]
