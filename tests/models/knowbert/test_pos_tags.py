"""What is remembered of words and tags is bounded."""

import numpy as np

from wellread.models.knowbert import pos_tags as tagging


class Pipeline:
    """As much of a spaCy pipeline as `_Rules` asks for."""

    vocab = None

    def get_pipe(self, name):
        return None


def test_words_and_tags_are_forgotten_beyond_a_bound(monkeypatch):
    monkeypatch.setattr(tagging, "_MOST_KNOWN", 100)
    rules = tagging._Rules(Pipeline())
    monkeypatch.setattr(rules, "_ask", lambda rows: [int(row[2]) % 7 for row in rows])
    for first in range(0, 1_000, 10):
        words = np.array([(1, 2, word) for word in range(first, first + 10)], np.uint64)
        assert rules.apply(words).tolist() == [word % 7 for word in range(first, first + 10)]
        assert len(rules._known) <= 110
