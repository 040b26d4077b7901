"""The packaged table of word frequencies, and tables of one's own."""

import numpy as np
import pytest

from wellread.text.frequency import FLOOR, PATH, FrequencyTable, frequency, is_common, lower_share
from wellread.text.words import word_hash


def hashes(*words):
    return np.array([word_hash(word) for word in words], np.uint64)


def test_frequent_words_are_more_frequent():
    the, river, carcinoma, unknown = frequency(hashes("the", "river", "carcinoma", "qwzxv"))
    assert the > river > carcinoma > unknown == FLOOR
    assert the == pytest.approx(4.8, abs=0.3)  # about one word in sixteen


def test_names_are_not_common_however_frequent():
    assert is_common(["water", "receive", "Bank"]).all()
    assert not is_common(["paris", "york", "qwzxv"]).any()
    assert (lower_share(hashes("paris", "london")) < 0.1).all()


def test_the_packaged_table_is_small():
    assert PATH.stat().st_size < 400_000


def test_a_table_comes_back_from_its_file(tmp_path):
    words = hashes("a", "b", "c")
    table = FrequencyTable.build(words, np.array([50000.0, 10.0, 0.05]), np.array([1.0, 0.5, 0.0]))
    table.save(tmp_path / "words.safetensors")
    again = FrequencyTable.load(tmp_path / "words.safetensors")
    assert len(again) == len(table) == 3
    for one in (table, again):
        logs, shares = one.find(np.append(words, hashes("d")))
        assert logs == pytest.approx([4.7, 1.0, FLOOR, FLOOR], abs=0.05)
        assert shares == pytest.approx([1, 0.5, 0, 0], abs=0.01)
