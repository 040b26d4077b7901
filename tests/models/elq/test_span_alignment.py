"""Proposed spans as tokens of windows, against plain loops."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import toy_models as tiny
from tests.map_data import byte_level
from wellread.mentions.proposals import Proposals
from wellread.models.elq.span_alignment import tokens_of, windows_of
from wellread.text.windows import WindowTokenizer

WINDOW_TOKENIZERS = {
    "word pieces": WindowTokenizer(tiny.tokenizer(), width=12, shared=4),
    "bytes": WindowTokenizer(byte_level(), width=14, shared=6, behind=3),
    "bytes, parts of words": WindowTokenizer(byte_level(), width=12, shared=4, whole_words=False),
}
PARTS = st.sampled_from(
    ["cork ", "ada", "東京", "👩‍🚀", " ", "\n\n", "é", "\u0301", "\u00ad", "mayor of ", "U.S. ", "x" * 30]
)
TEXTS = st.lists(st.lists(PARTS, max_size=12).map("".join), min_size=1, max_size=4)


def proposals_of(spans_of):
    """Spans of each text, in their order."""
    counts = [len(spans) for spans in spans_of]
    starts, ends = np.array([span for spans in spans_of for span in spans], np.int64).reshape(-1, 2).T
    small, offsets = np.zeros(len(starts), np.uint8), np.append(0, np.cumsum(counts)).astype(np.int64)
    return Proposals(offsets, starts, ends, small, small, starts, None)


def windows_in(window_tokenizer, texts):
    return [
        window
        for windows in WINDOW_TOKENIZERS[window_tokenizer].tokenize(texts)
        for window in windows
        if not window.special_mask.all()
    ]


def all_spans(text):
    """Every span of a short text; of a long one those of some lengths."""
    lengths = (1, 2, 5, 17, len(text))
    return sorted(
        {(start, min(len(text), start + length)) for start in range(len(text)) for length in lengths},
        key=lambda span: (span[0], -span[1]),
    )


@pytest.mark.parametrize("window_tokenizer", WINDOW_TOKENIZERS)
@given(TEXTS)
@example([""])
@example(["  \n"])
@example(["", "cork", "", " ada"])
@example(["  cork ada"])
@example(["👩‍🚀" * 6, "x"])
@example(["x" * 60])
@example(["東京" * 20])
@example(["cork " * 30, "ada " * 30])
def test_a_span_belongs_to_the_window_that_may_begin_it(window_tokenizer, texts):
    windows = windows_in(window_tokenizer, texts)
    spans_of = [all_spans(text) for text in texts]
    found = iter(windows_of(windows, proposals_of(spans_of)).tolist())
    for text, spans in enumerate(spans_of):
        mine = [number for number, window in enumerate(windows) if window.text == text]
        begun = {
            int(windows[number].spans[token, 0]): number
            for number in reversed(mine)
            for token in np.flatnonzero(windows[number].begins_mask).tolist()[::-1]
        }
        for start, _ in spans:
            place = next(found)
            if not mine:
                assert place == -1
                continue
            assert place in mine
            if start in begun:
                assert place == begun[start]
            if any(windows[number].covering(start, start + 1) for number in mine):
                assert windows[place].covering(start, start + 1) is not None
    assert next(found, None) is None


@pytest.mark.parametrize("window_tokenizer", WINDOW_TOKENIZERS)
@given(TEXTS)
@example(["", "  cork ada 👩‍🚀", "x" * 60])
@example(["\u00ad\u0301x", "\u0301cork"])
@example(["東京" * 20 + "👩‍🚀" * 4])
def test_tokens_are_those_that_a_span_touches(window_tokenizer, texts):
    windows = windows_in(window_tokenizer, texts)
    spans_in_windows = [
        (number, span) for number, window in enumerate(windows) for span in all_spans(texts[window.text])
    ]
    if not spans_in_windows:
        return
    window_of = np.array([number for number, _ in spans_in_windows])
    starts, ends = np.array([span for _, span in spans_in_windows]).T
    first, last = tokens_of(windows, window_of, starts, ends)
    bases = np.cumsum([0, *(len(window) for window in windows)])
    for (number, span), one, other in zip(spans_in_windows, first.tolist(), last.tolist(), strict=True):
        touched = windows[number].covering(*span)
        one, other = one - bases[number], other - bases[number]
        if touched is not None:
            assert (one, other) == touched
        real = np.flatnonzero(~windows[number].special_mask)
        assert real[0] <= one <= other <= real[-1]


def test_a_name_beyond_its_window_ends_with_it():
    text = "cork " * 20
    windows = windows_in("word pieces", [text])
    assert len(windows) > 1
    first, last = tokens_of(windows, np.array([0]), np.array([5]), np.array([len(text) - 1]))
    assert (first.tolist(), last.tolist()) == ([2], [len(windows[0]) - 2])


def test_no_windows_own_nothing():
    assert windows_of([], proposals_of([[(0, 1)], []])).tolist() == [-1]
    assert windows_of([], proposals_of([])).tolist() == []
