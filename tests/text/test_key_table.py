"""The table of keys: what is put in is found, and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wellread.text.key_table import KeyLookup, KeyTable

KEYS = st.one_of(
    st.integers(1, 2**64 - 1),
    st.integers(2**64 - 40, 2**64 - 1),  # all at home in the last slot
    st.integers(1, 40),
)


@given(st.sets(KEYS, max_size=60), st.sets(KEYS, max_size=60))
def test_every_key_leads_to_its_value_and_every_other_to_nothing(there, others):
    keys = np.array(sorted(there), np.uint64)
    np.random.default_rng(len(there)).shuffle(keys)
    values = np.arange(1, len(keys) + 1, dtype=np.uint32)
    table = KeyTable.build(keys, values)
    value_of = dict(zip(keys.tolist(), values.tolist(), strict=True))
    queries = sorted(there | others)
    found = table.find(np.array(queries, np.uint64))
    assert found.tolist() == [value_of.get(key, 0) for key in queries]
    assert list(map(KeyLookup(table).find, queries)) == found.tolist()
    assert table.keys.tolist() == sorted(there)


def test_the_key_zero_is_nothing():
    table = KeyTable.build(np.array([0, 5], np.uint64), np.array([7, 8], np.uint8))
    assert table.find(np.array([0, 5, 6], np.uint64)).tolist() == [0, 8, 0]


def test_an_empty_table_finds_nothing():
    table = KeyTable.build(np.zeros(0, np.uint64), np.zeros(0, np.uint8))
    assert table.find(np.array([1, 2**63], np.uint64)).tolist() == [0, 0]
