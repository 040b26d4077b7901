"""Servers for tests: an application to ask in this process, and one that listens on a port of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.testclient import TestClient

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.server.app import create_app
from wellread.server.engine import Engine
from wellread.server.registry import LinkerRegistry
from wellread.server.run import Server, bind_sockets
from wellread.server.settings import Limits, Settings

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
def engine_of(kbs, models=("prior",), *, token=TOKEN, encoder="minilm", more=None, **limits) -> Iterator[Engine]:
    """An engine that a test closes, whether or not an application did."""
    settings = Settings(replace(Limits(), **limits), token, (), {"usual": encoder, **(more or {})})
    named = {Path(kb).stem: list(models) for kb in kbs}
    engine = Engine(LinkerRegistry.load(kbs, named), settings)
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
    server = Server(engine, lambda port: None)
    with bind_sockets("127.0.0.1", 0, patience=engine.settings.limits.seconds) as sockets:
        thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


@dataclass
class Serving:
    """A server in a process of its own."""

    process: subprocess.Popen
    log: Path
    address: str = ""

    def lines(self) -> list[dict]:
        """Return the logged records."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """Tell it to, and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def serving(kb: Path, log: Path, *options: str) -> Iterator[Serving]:
    """`wellread serve`, as soon as it says where it listens."""
    command = [sys.executable, "-m", "wellread.cli", "serve", "--kb", str(kb), "--model", "prior", "--port", "0"]
    with log.open("w") as said:
        process = subprocess.Popen([*command, *options], stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
    made = Serving(process, log)
    try:
        while '"listening"' not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        made.address = f"http://127.0.0.1:{made.lines()[0]['port']}"
        yield made
    finally:
        process.kill()
        process.wait(60)
