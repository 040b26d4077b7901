"""The cache of part-of-speech rules is bounded."""

import numpy as np

from wellread.models.knowbert import pos_tags


class Pipeline:
    """Part of a spaCy pipeline that `_CachedRuler` uses."""

    vocab = None

    def get_pipe(self, name):
        return None


def test_the_cache_of_words_and_tags_is_bounded(monkeypatch):
    monkeypatch.setattr(pos_tags, "_CACHE_SIZE", 100)
    rules = pos_tags._CachedRuler(Pipeline())
    monkeypatch.setattr(rules, "_run", lambda rows: [int(row[2]) % 7 for row in rows])
    for first in range(0, 1_000, 10):
        words = np.array([(1, 2, word) for word in range(first, first + 10)], np.uint64)
        assert rules.apply(words).tolist() == [word % 7 for word in range(first, first + 10)]
        assert len(rules._cache) <= 110
