from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.runtime.conftest import draw_windows
from wellread.io import cores
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower
from wellread.runtime.graph import write_graph
from wellread.runtime.session import EncoderSession, equal_runs
from wellread.runtime.weights import read_encoder

ENTITIES = [
    ("cork", "a city near the river cork"),
    ("mercury planet", "planet"),
    ("ada", ""),
    ("hugo", "a person who wrote , hugo"),
]


def open_encoder(folder: str, threads: int = 1) -> EncoderSession:
    weights = read_encoder(Path(folder))
    return EncoderSession(write_graph(weights), weights.words, threads=threads)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalised", [True, False])
def test_entity_vectors_are_those_of_the_tower(encoder: str, pooling: str, normalised: bool) -> None:
    tower = EntityTower.load(ElqConfig(encoder=encoder, pooling=pooling, normalised=normalised, entity_pieces=8))
    ids = [np.array(tower.tokenizer.encode(tower._input_text(*entity)).ids) for entity in ENTITIES]
    vectors = open_encoder(encoder).pooled(ids, pooling, normalise=normalised)
    np.testing.assert_allclose(vectors, tower.encode(ENTITIES), atol=1e-5)


def test_entity_vectors_of_the_packaged_encoder_are_those_of_the_tower(minilm: Path) -> None:
    tower = EntityTower.load(ElqConfig(encoder=str(minilm)))
    ids = [np.array(tower.tokenizer.encode(tower._input_text(*entity)).ids) for entity in ENTITIES]
    np.testing.assert_allclose(open_encoder(str(minilm)).pooled(ids), tower.encode(ENTITIES), atol=1e-5)


def test_windows_of_one_length_go_together_and_no_longer_than_allowed() -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 6, 200)
    runs = list(equal_runs(lengths, 12))
    assert sorted(np.concatenate(runs).tolist()) == np.flatnonzero(lengths).tolist()
    for run in runs:
        assert len(set(lengths[run].tolist())) == 1
        assert lengths[run].sum() <= 12
    assert len(runs) == sum(-(-int((lengths == n).sum()) // (12 // n)) for n in range(1, 6))
    assert [run.tolist() for run in equal_runs(np.array([9]), 4)] == [[0]]


def test_no_window_and_empty_windows_have_no_states(encoder: str) -> None:
    session = open_encoder(encoder)
    nothing = np.zeros(0, np.int64)
    assert session.states([]).shape == (0, 16)
    assert session.states([nothing]).shape == (0, 16)
    assert session.pooled([]).shape == (0, 16)
    (window,) = draw_windows(40, (5,))
    assert np.array_equal(session.states([nothing, window, nothing]), session.states([window]))
    assert not session.pooled([nothing, window])[0].any()


def test_threads_may_share_a_session(encoder: str) -> None:
    session, windows = open_encoder(encoder), draw_windows(40)
    wanted = session.states(windows)
    with ThreadPoolExecutor(4) as pool:
        for states in pool.map(lambda _: session.states(windows), range(20)):
            assert np.array_equal(states, wanted)


def test_no_more_threads_than_cores_and_no_more_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cores", lambda: 4)
    monkeypatch.setattr(cores, "_limit", None)
    for asked, threads in (("", 4), ("1", 1), ("2,1", 2), ("16", 4), ("0", 4), ("many", 4)):
        monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", asked)
        assert cores.granted_threads() == threads


def test_a_limit_lowers_the_threads_until_it_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cores", lambda: 4)
    monkeypatch.setattr(cores, "_limit", None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with cores.one_thread():
        assert cores.granted_threads() == 1
    assert cores.granted_threads() == 4


def test_products_have_one_thread_where_computations_have_one() -> None:
    threads = lambda: [library["num_threads"] for library in threadpool_info()]  # noqa: E731
    with threadpool_limits(2):
        before = threads()
        assert max(before) == 2  # BLAS of numpy at least
        with cores.one_thread():
            assert set(threads()) == {1}
        assert threads() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_opens_a_session_of_its_own(encoder: str, threads: int) -> None:
    session, windows = open_encoder(encoder, threads), draw_windows(40)
    wanted = session.states(windows)
    for _ in range(3):
        if not (pid := os.fork()):
            os._exit(0 if np.array_equal(session.states(windows), wanted) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert np.array_equal(session.states(windows), wanted)
