"""Many clients, one model: `python -m benchmarks.serving`.

Bars, for 64 clients on loopback for 60 s, with the packaged linker on the vital articles and a server with its own
defaults: no error but 429; every answer equal to the offline one; at least 0.85 × the texts a second of `link_many` on
the same texts; the 99th percentile of answers takes ≤ 10 × a request that is alone; and with the queue full, memory is
flat (≤ 1.05 × from the first third to the end).

The 60 s are rounds of ten: before each, `link_many` reads all texts once in this process, and one client alone asks an
idle server, so that a machine which is slower for a while is so for all three. The clients are this process, the server
is others; all share the machine, so that part of what a text costs here is the clients' work. They do as little as
they can: one event loop, raw sockets that are kept, requests that are bytes before the clock runs, answers that are
looked at after it. Processor times tell clients and server apart. A client that gets 429 waits as long as Retry-After
says. Times and memory of the server are those of all its processes, where memory that they share counts once; memory
is looked at between rounds, since looking (some 40 ms, in which the clients' loop stands still) would be a part of
every tenth answer's time.

To try other settings: SERVE_OPTIONS="--readers 1 --queue 24" are options of the server, SERVE_OMP_WAIT_POLICY=PASSIVE
is a variable of its environment alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.data import english
from benchmarks.report import Report, arguments
from wellread.kb.packaged import kb_path
from wellread.linking.linker import Linker

ROUND = 10.0
"""Seconds of load between two passes of `link_many`."""
FLOOD = 20.0
"""Seconds of load by clients that ignore Retry-After."""
_OWN = "SERVE_"


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    if not kb_path("vital").exists():
        print("serving: the vital knowledge base is not built; run: make assets")
        return 0
    report = Report("serving", options.quick)
    rounds, clients = (1, 16) if options.quick else (6, 64)
    source, paragraphs = english(200_000, kb_path("vital"))
    texts = [sentence for one in paragraphs for sentence in one.split(". ") if 40 < len(sentence) < 240][:512]
    report.about |= {
        "texts": f"{len(texts)} sentences of {source}",
        "clients": clients,
        "seconds": f"{rounds} × {ROUND:g}",
        "start": f"{_start(options.quick):.1f} s until it listens",
    }
    alone, seen, paces, wrong = list[float](), list[Seen](), list[Pace](), 0
    with Linker.load("vital") as linker, serving() as server:
        offline = {text: linker.link(text).to_dict() for text in texts}
        uvloop.run(load(server, texts, clients, 2.0))
        memory = [server.memory]
        for _ in range(rounds):
            paces.append(pace(linker, texts))
            alone += uvloop.run(one_by_one(server.port, texts[:: len(texts) // 40]))
            seen.append(uvloop.run(load(server, texts, clients, ROUND)))
            wrong += sum(not alike(_document(body), offline[text]) for text, body in seen[-1].answers)
            seen[-1].answers.clear()
            memory.append(server.memory)
        paces.append(pace(linker, texts))
        flood = uvloop.run(load(server, texts, clients, 3.0 if options.quick else FLOOD, patient=False))
    tell(report, alone, seen, paces, wrong)
    report.add("memory at the end, to that of the first seconds", memory[-1] / memory[0], "×", at_most=1.05)
    report.add("queue full: answers", len(flood.times))
    report.add("queue full: 429", flood.refused)
    report.add("queue full: other errors", sum(flood.errors.values()), at_most=0)
    report.add("queue full: memory at the end, to that after a third",
               flood.memory[-1] / flood.memory[len(flood.memory) // 3], "×", at_most=1.05)  # fmt: skip
    return report.show()


def tell(report: Report, alone: Sequence[float], seen: Sequence[Seen], paces: Sequence[Pace], wrong: int) -> None:
    """Rows of the rounds of load."""
    taken = sorted(seconds for one in seen for seconds in one.times)
    assert taken, "nothing was answered"
    errors = {name: sum(one.errors.get(name, 0) for one in seen) for one in seen for name in one.errors}
    around = [(before.wall + after.wall) / 2 for before, after in pairwise(paces)]
    shares = sorted(len(one.times) / one.seconds * wall for one, wall in zip(seen, around, strict=True))
    processor = statistics.mean(one.processor for one in paces)
    report.add("answers", len(taken))
    report.add("429", sum(one.refused for one in seen))
    report.add("other errors", sum(errors.values()), at_most=0)
    if errors:
        report.about["errors"] = json.dumps(errors)
    report.add("answers unlike the offline one", wrong, at_most=0)
    report.add("link_many", 1 / statistics.mean(one.wall for one in paces), "texts/s")
    report.add("served", len(taken) / sum(one.seconds for one in seen), "texts/s")
    report.add("served, to link_many: median of rounds", statistics.median(shares), "×", at_least=0.85)
    report.about["shares of rounds"] = " ".join(f"{share:.2f}" for share in shares)
    report.add("processor for a text, link_many", 1000 * processor, "ms")
    report.add("processor for a text, server", 1000 * sum(one.server for one in seen) / len(taken), "ms")
    report.add("processor for a text, clients", 1000 * sum(one.clients for one in seen) / len(taken), "ms")
    report.add("a request alone, median", 1000 * statistics.median(alone), "ms")
    report.add("median", 1000 * statistics.median(taken), "ms")
    p99 = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
    report.add("99th percentile", 1000 * p99, "ms")
    report.add("99th percentile, to one alone", p99 / statistics.median(alone), "×", at_most=10)


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two answers have the same links; scores may differ slightly, as they depend on the batch."""
    pairs = zip(one["links"], other["links"], strict=False)
    return len(one["links"]) == len(other["links"]) and all(
        [a[key] for key in ("start", "end", "entity", "kb")] == [b[key] for key in ("start", "end", "entity", "kb")]
        and abs(a["score"] - b["score"]) < 1e-3
        for a, b in pairs
    )


def _document(body: bytes) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(body)["documents"][0]
    return document


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds, and processor seconds, that `link_many` takes for a text."""

    wall: float
    processor: float


def pace(linker: Linker, texts: Sequence[str]) -> Pace:
    begin, worked = time.perf_counter(), time.process_time()
    for _ in linker.link_many(texts):
        pass
    return Pace((time.perf_counter() - begin) / len(texts), (time.process_time() - worked) / len(texts))


@dataclass(slots=True)
class Server:
    """A process that serves, and those that it has made."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def processor(self) -> float:
        """Seconds of their threads so far."""
        stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._family())
        return sum(int(parts[11]) + int(parts[12]) for parts in stats) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> int:
        """Resident bytes; what n of them share counts as an n-th of it for each."""
        rolled = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self._family())
        return sum(int(one.partition("\nPss:")[2].split()[0]) << 10 for one in rolled)

    def _family(self) -> list[int]:
        found = [self.process.pid]
        for pid in found:  # grows as it goes
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found


@contextmanager
def serving() -> Iterator[Server]:
    """`wellread serve` on a port of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "wellread.cli", "serve", "--kb", "vital", "--model", "elq", "--port", str(port)]
    own = {name.removeprefix(_OWN): value for name, value in os.environ.items() if name.startswith(_OWN)}
    command += shlex.split(own.pop("OPTIONS", ""))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **own})
    try:
        for _ in range(6000):
            if process.poll() is not None:
                raise SystemExit("serving: the server did not start; run it by hand to see why")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield Server(port, process)
    finally:
        process.terminate()
        process.wait(60)


def _start(quick: bool) -> float:
    """Seconds from the command to the first connection; the better of two, since the first reads files from disk."""
    found = []
    for _ in range(1 if quick else 2):
        begin = time.perf_counter()
        with serving():
            found.append(time.perf_counter() - begin)
    return min(found)


@dataclass(slots=True)
class Seen:
    """Answers and errors that clients received."""

    answers: list[tuple[str, bytes]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refused: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    server: float = 0.0
    clients: float = 0.0
    memory: list[int] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        """Count an error."""
        self.errors[what] = self.errors.get(what, 0) + 1


class Client(asyncio.Protocol):
    """One connection, kept; as little work as a client can do."""

    def __init__(self) -> None:
        self._received, self._lost = bytearray(), False
        self._answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, port: int) -> Client:
        """A client that is connected."""
        _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return made

    def connection_made(self, transport: Any) -> None:
        """Implement asyncio's protocol, as do the next two methods."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: D102
        self._lost = True
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError())

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._received += data
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        size = int(_field(bytes(self._received[:end]), b"content-length") or 0)
        if len(self._received) >= end + size:
            answer = bytes(self._received)
            self._received.clear()
            self._answer.set_result((answer[:end], answer[end:]))

    async def ask(self, request: bytes) -> tuple[int, float, bytes]:
        """Status, Retry-After and body."""
        if self._lost:
            raise ConnectionResetError
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        head, body = await self._answer
        return int(head[9:12]), float(_field(head, b"retry-after") or 0), body

    def close(self) -> None:
        """Leave."""
        self._transport.abort()


def request(text: str) -> bytes:
    """Return the HTTP request to link a text."""
    body = orjson.dumps({"text": text})
    head = b"POST /link HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _field(head: bytes, name: bytes) -> bytes:
    start = head.find(b"\r\n" + name + b": ")
    return b"" if start < 0 else head[start + len(name) + 4 : head.index(b"\r\n", start + 2)]


async def one_by_one(port: int, texts: Sequence[str]) -> list[float]:
    """Seconds of each request of a client that is alone; the first are for warming up."""
    client, times = await Client.open(port), []
    for text in texts:
        begin = time.perf_counter()
        await client.ask(request(text))
        times.append(time.perf_counter() - begin)
    client.close()
    return times[len(times) // 4 :]


async def load(server: Server, texts: Sequence[str], clients: int, seconds: float, *, patient: bool = True) -> Seen:
    """Clients that ask again as soon as they are answered; those who are not patient do so at once when refused too.

    Where they are not, memory is looked at meanwhile.
    """
    requests = [request(text) for text in texts]
    seen, begin, worked, mine = Seen(), time.perf_counter(), server.processor, time.process_time()

    async def ask(number: int) -> None:
        client, turn = await Client.open(server.port), number
        while time.perf_counter() - begin < seconds:
            place, asked = turn % len(texts), time.perf_counter()
            try:
                status, wait, body = await client.ask(requests[place])
            except OSError as error:
                seen.wrong(type(error).__name__)
                client = await Client.open(server.port)
                continue
            if status == 200:
                seen.times.append(time.perf_counter() - asked)
                if patient:
                    seen.answers.append((texts[place], body))
                turn += clients
            elif status == 429:
                seen.refused += 1
                await asyncio.sleep(wait if patient else 0.005)
            else:
                seen.wrong(str(status))
        client.close()

    async def watch() -> None:
        while True:
            seen.memory.append(server.memory)
            await asyncio.sleep(seconds / 10)

    watching = None if patient else asyncio.create_task(watch())
    await asyncio.gather(*(ask(number) for number in range(clients)))
    if watching is not None:
        watching.cancel()
    seen.seconds, seen.server = time.perf_counter() - begin, server.processor - worked
    seen.clients = time.process_time() - mine
    return seen


if __name__ == "__main__":
    sys.exit(main())
