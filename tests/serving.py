"""Servers for tests: an application to ask in this process, and one that listens on a port of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.testclient import TestClient

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.server.app import create_app
from wellread.server.engine import Engine
from wellread.server.settings import Limits, Settings
from wellread.server.shelf import Shelf

TOKEN = "a-token-for-tests-only"
BEARER = {"authorization": f"Bearer {TOKEN}"}
CITIES = [
    Entity("Q90", "Paris", "capital of France", "city", 9, {"Paris": 9}, (("country", "Q142"),)),
    Entity("Q142", "France", "a country", "country", 5, {"France": 5}),
    Entity("Q167646", "Paris (mythology)", "a prince of Troy", "person", 1, {"Paris": 1}),
    Entity("a/b c?", "AC/DC", "a band", "band", 1, {"AC/DC": 2}),
]
WORDS = [Entity("w1", "capital", "a seat of government", "n"), Entity("w2", "city", "a large town", "n")]


def write_kbs(folder: Path) -> list[Path]:
    """Two knowledge bases, names and words."""
    for name, entities in (("cities", CITIES), ("words", WORDS)):
        build(lambda tally, some=entities: iter(some), folder / f"{name}.kb", origin=Origin("test"))
    return [folder / "cities.kb", folder / "words.kb"]


@contextmanager
def engine_of(kbs, models=("prior",), *, token=TOKEN, encoder="minilm", **limits) -> Iterator[Engine]:
    """An engine that a test closes, whether or not an application did."""
    settings = Settings(replace(Limits(), **limits), token, (), encoder)
    named = {Path(kb).stem: list(models) for kb in kbs}
    engine = Engine(Shelf.load(kbs, named), settings)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def asking(engine: Engine) -> Iterator[TestClient]:
    """A client of an application in this process."""
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        yield client


@contextmanager
def listening(engine: Engine) -> Iterator[str]:
    """The address of a server in a thread of its own."""
    config = uvicorn.Config(create_app(engine), port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
