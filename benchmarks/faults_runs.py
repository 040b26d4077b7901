"""Longer work that `faults.py` kills: index, annotate, train and serve.

Each of `index`, `annotate` and `train` is a function for the worker that is killed, and one that says in which state it
was left: whatever is there must be what an undisturbed run makes, to the last byte where it is files.
"""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import build_generated, entities
from wellread.kb.check import check
from wellread.kb.store import KnowledgeBase

_ENTITIES = 3_000
_DIM = 64


class LeftError(AssertionError):
    """Something that an undisturbed run would not have left."""


# index


class _Hashing:
    """An encoder without a model: a word is a fixed vector, a text the sum of its words'."""

    dim, fingerprint = _DIM, "benchmark of faults 1"

    def encode(self, entities: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        rows = np.stack([sum(map(_vector_of, f"{a} {b}".split()), np.zeros(_DIM, np.float32)) for a, b in entities])
        unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return unit


@cache
def _vector_of(word: str) -> NDArray[np.float32]:
    digest = hashlib.shake_256(word.encode()).digest(_DIM)
    return ((np.frombuffer(digest, np.uint8) - 127.5) / 255).astype(np.float32)


def index(path: Path) -> None:
    """Encode the entities of a KB and build their index."""
    from wellread.index.entity_index import build_index
    from wellread.index.entity_vectors import EntityVectors

    with KnowledgeBase.open(path) as kb:
        EntityVectors.build(kb, _Hashing(), chunk=100)  # many chunks: many moments to be killed at
        build_index(kb, _Hashing(), kind="exact", compression="int8")


def state_of_index(path: Path) -> str:
    """Return "nothing" or "new"; a search must find each entity by its own vector."""
    from wellread.errors import KnowledgeBaseError
    from wellread.index.entity_index import EntityIndex
    from wellread.index.folder import damaged_in

    with KnowledgeBase.open(path) as kb:
        if broken := damaged_in(Path(f"{path}.vectors")):
            raise LeftError(f"damaged: {broken}")
        try:
            found = EntityIndex.open(kb, fingerprint=_Hashing.fingerprint)
        except KnowledgeBaseError as error:
            if "there is no index" in str(error):
                return "nothing"
            raise
        some = list(entities(_ENTITIES))[::300]
        _, rows = found.search(_Hashing().encode([(one.title, one.description) for one in some]), 3)
        for one, near in zip(some, rows, strict=True):
            if one.id not in found.entities(near):
                raise LeftError(f"{one.id} is not found by its own vector")
    if left := [file.name for file in Path(f"{path}.vectors").glob("*.part")]:
        raise LeftError(f"left behind: {left}")
    return "new"


# annotate


def annotate(kb: Path, texts: Path, to: Path) -> None:
    """Link the texts of a file into a folder of parts."""
    from wellread.integrations.annotate import annotate as link_all
    from wellread.integrations.arrow_batches import Annotation

    link_all([texts], to, Annotation((str(kb),), model="prior"), workers=1, shard_bytes=4_000)


def write_texts(path: Path) -> None:
    """Write sentences about generated entities."""
    some = list(entities(_ENTITIES))
    lines = (
        f"{one.title} met {other.title}, as {one.description}." for one, other in zip(some, some[7:], strict=False)
    )
    path.write_text("\n".join(lines) + "\n", "utf-8")


def state_of_parts(to: Path, whole: Path) -> str:
    """Return "nothing", "some parts" or "new"; each part must have the bytes of an undisturbed run's."""
    there = {path.name: path.read_bytes() for path in to.glob("part-*")}
    expected = {path.name: path.read_bytes() for path in whole.glob("part-*")}
    for name, content in there.items():
        if expected.get(name) != content:
            raise LeftError(f"{name} is not what an undisturbed run writes")
    if not (to / "_SUCCESS").exists():
        return "some parts" if there else "nothing"
    if there.keys() != expected.keys():
        raise LeftError("_SUCCESS is there, and parts are missing")
    if left := [path.name for path in to.glob(".*.part")]:
        raise LeftError(f"left behind: {left}")
    return "new"


# train


def make_learner() -> Any:
    """Return something small that learns: which side of a plane a point is on."""
    import torch
    from torch import nn

    from wellread.training.loop import seed_all

    class Plane:
        score = "accuracy"

        def __init__(self) -> None:
            seed_all(7)
            self.model = nn.Sequential(nn.Linear(16, 256), nn.Dropout(0.2), nn.GELU(), nn.Linear(256, 1))
            self.points = torch.randn(256, 16)
            self.sides = (self.points.sum(1) > 0).float()

        def batches(self, epoch: int) -> list[Any]:
            return list(torch.split(torch.randperm(256), 32))

        def loss(self, batch: Any) -> dict[str, Any]:
            logits = self.model(self.points[batch]).squeeze(1)
            return {"cross": nn.functional.binary_cross_entropy_with_logits(logits, self.sides[batch])}

        def evaluate(self) -> dict[str, float]:
            right = (self.model(self.points).squeeze(1) > 0) == self.sides.bool()
            return {"accuracy": float(right.float().mean())}

    return Plane()


def train(folder: Path) -> None:
    """Train with a checkpoint at almost every step."""
    from wellread.training.loop import train as run
    from wellread.training.schedule import Schedule

    schedule = Schedule(steps=800, learning_rate=0.01, evaluate_every=40, seed=3)
    run(make_learner(), schedule, folder, save_seconds=0.0)


def state_of_run(folder: Path, whole: Path) -> str:
    """Return "begun" or "new"; weights and scores of a finished run must be those of an undisturbed one."""
    if not (folder / "scores.json").exists():
        return "begun"
    for name in ("best.safetensors", "last.safetensors", "scores.json"):
        if (folder / name).read_bytes() != (whole / name).read_bytes():
            raise LeftError(f"{name} has other bytes than after an undisturbed run")
    if left := [path.name for path in folder.rglob(".*") if path.name != ".lock"]:
        raise LeftError(f"left behind: {left}")
    return "new"


# serve


def kill_servers(folder: Path, times: int) -> tuple[Counter[str], list[str]]:
    """Kill a server while three clients change its KB: what was acknowledged must be there, and no process left."""
    path, token = folder / "served.kb", secrets.token_urlsafe()
    build_generated(path, 500)
    (folder / "token").write_text(token)
    seen: Counter[str] = Counter()
    broken: list[str] = []
    chance = random.Random(7)
    changes = 0
    for number in range(times):
        try:
            acknowledged = _serve_and_kill(folder, path, token, number, chance)
            changes += len(acknowledged)
            with KnowledgeBase.open(path) as kb:
                if wrong := check(kb):
                    raise LeftError("; ".join(wrong))
                if lost := [id for id in acknowledged if id not in kb]:
                    raise LeftError(f"{len(lost)} acknowledged changes are lost")
            seen["sound"] += 1
        except Exception as error:  # whatever the next server would meet
            broken.append(f"server {number}: {type(error).__name__}: {error}")
    seen["acknowledged changes"] = changes
    return seen, broken


def _serve_and_kill(folder: Path, path: Path, token: str, number: int, chance: random.Random) -> list[str]:
    command = [sys.executable, "-m", "wellread", "serve", "--kb", str(path), "--model", "prior", "--readers", "2"]
    log = folder / "log"
    with log.open("w") as said:
        options = ["--port", "0", "--token-file", str(folder / "token")]
        process = subprocess.Popen([*command, *options], stderr=said, stdout=said)
    try:
        port = _port(log, process)
        readers = _children(_children([process.pid]))
        acknowledged: list[str] = []
        clients = [
            threading.Thread(target=_change, args=(port, token, f"S{number}-{client}", acknowledged))
            for client in range(3)
        ]
        for client in clients:
            client.start()
        time.sleep(chance.uniform(0.05, 0.8))
    finally:
        process.kill()
        process.wait()
    for client in clients:
        client.join()
    deadline = time.monotonic() + 20
    while any(map(_runs, readers)):
        if time.monotonic() > deadline:
            raise LeftError("a reader outlives its server")
        time.sleep(0.02)
    return acknowledged


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    while True:
        for line in log.read_text().splitlines():
            if '"listening"' in line:
                return int(json.loads(line)["port"])
        if process.poll() is not None:
            raise LeftError(f"the server does not start: {log.read_text()[-300:]}")
        time.sleep(0.02)


def _change(port: int, token: str, name: str, acknowledged: list[str]) -> None:
    """Add entities one after the other until the server is gone."""
    import requests

    with requests.Session() as session:
        for number in range(100_000):
            id = f"{name}-{number}"
            try:
                answer = session.put(
                    f"http://127.0.0.1:{port}/entities/{id}",
                    json={"title": f"Newcomer {id}"},
                    headers={"authorization": f"Bearer {token}"},
                    timeout=30,
                )
            except requests.RequestException:
                return
            if answer.status_code == 201:
                acknowledged.append(id)


def _children(parents: Sequence[int]) -> list[int]:
    found = []
    for parent in parents:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += list(map(int, children.split()))
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
