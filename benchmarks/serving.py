"""Many clients, one model: `python -m benchmarks.serving`.

Bars, for 64 clients on loopback for 60 s, with the packaged linker on the vital articles: no error but 429; every
answer equal to the offline one; at least 0.85 × the texts a second of `link_many` on the same texts, before and after;
the 99th percentile of answers takes ≤ 10 × a request that is alone; and with the queue full, memory is flat (≤ 1.05 ×
from the first third to the end). Clients and server share the machine, so that part of what a text costs here is the
clients' work: processor time for a text is told apart from it, of the server alone and of `link_many`.

A client that gets 429 waits as long as Retry-After says. The queue holds 24 texts: more would answer all clients later.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.data import english
from benchmarks.report import Report, arguments
from wellread.kb.packaged import kb_path
from wellread.linker import Linker

QUEUE = 24


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    if not kb_path("vital").exists():
        print("serving: the vital knowledge base is not built; run: make assets")
        return 0
    report = Report("serving", options.quick)
    seconds, clients = (5, 16) if options.quick else (60, 64)
    source, paragraphs = english(200_000, kb_path("vital"))
    texts = [sentence for one in paragraphs for sentence in one.split(". ") if 40 < len(sentence) < 240][:512]
    report.about |= {"texts": f"{len(texts)} sentences of {source}", "clients": clients, "seconds": seconds}
    with Linker.load("vital") as linker, serving() as server:
        offline = {text: linker.link(text).to_dict() for text in texts}
        first = pace(linker, texts)
        alone = asyncio.run(one_by_one(server.port, texts[:60]))
        seen = asyncio.run(load(server, texts, clients, seconds))
        again = pace(linker, texts)
        wrong = sum(not alike(found, offline[text]) for text, found in seen.answers)
    assert seen.answers, "nothing was answered"
    wall, processor = statistics.mean((first[0], again[0])), statistics.mean((first[1], again[1]))
    rate = len(seen.answers) / seen.seconds
    taken = sorted(seen.times)
    report.add("answers", len(seen.answers))
    report.add("429", seen.refused)
    report.add("other errors", sum(seen.errors.values()), at_most=0)
    if seen.errors:
        report.about["errors"] = json.dumps(seen.errors)
    report.add("answers unlike the offline one", wrong, at_most=0)
    report.add("link_many", 1 / wall, "texts/s")
    report.add("served", rate, "texts/s")
    report.add("served, to link_many", rate * wall, "×", at_least=0.85)
    report.add("processor for a text, link_many", 1000 * processor, "ms")
    report.add("processor for a text, server alone", 1000 * seen.processor / len(seen.answers), "ms")
    report.add("link_many to server, processor", processor * len(seen.answers) / seen.processor, "×")
    report.add("a request alone, median", 1000 * statistics.median(alone), "ms")
    report.add("median", 1000 * statistics.median(taken), "ms")
    p99 = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
    report.add("99th percentile", 1000 * p99, "ms")
    report.add("99th percentile, to one alone", p99 / statistics.median(alone), "×", at_most=10)
    report.add("memory at the end, to that after a third", seen.memory[-1] / seen.memory[len(seen.memory) // 3], "×",
               at_most=1.05)  # fmt: skip
    return report.show()


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two answers have the same links; digits that depend on what else was read in the batch may differ."""
    pairs = zip(one["links"], other["links"], strict=False)
    return len(one["links"]) == len(other["links"]) and all(
        [a[key] for key in ("start", "end", "entity", "kb")] == [b[key] for key in ("start", "end", "entity", "kb")]
        and abs(a["score"] - b["score"]) < 1e-3
        for a, b in pairs
    )


def pace(linker: Linker, texts: Sequence[str]) -> tuple[float, float]:
    """Seconds, and processor seconds, that `link_many` takes for a text: the median of three."""
    found = []
    for _ in range(3):
        begin, worked = time.perf_counter(), time.process_time()
        for _ in linker.link_many(texts):
            pass
        found.append(((time.perf_counter() - begin) / len(texts), (time.process_time() - worked) / len(texts)))
    return statistics.median(wall for wall, _ in found), statistics.median(worked for _, worked in found)


@dataclass(slots=True)
class Server:
    """A process that serves."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def processor(self) -> float:
        """Seconds of its threads so far."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(queue: int = QUEUE) -> Iterator[Server]:
    """`wellread serve` on a port of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--kb", "vital", "--model", "elq", "--port", str(port), "--queue", str(queue)]
    command = [sys.executable, "-m", "wellread.cli", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(6000):
            if process.poll() is not None:
                raise SystemExit("serving: the server did not start; run it by hand to see why")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield Server(port, process)
    finally:
        process.terminate()
        process.wait(60)


@dataclass(slots=True)
class Seen:
    """What clients saw."""

    answers: list[tuple[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refused: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    processor: float = 0.0
    memory: list[int] = field(default_factory=list)


class Client:
    """One connection, kept; as little work as a client can do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def link(self, text: str) -> tuple[int, float, bytes]:
        """Status, Retry-After and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = orjson.dumps({"text": text})
        head = (
            f"POST /link HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + body)
        told = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        named = dict(line.split(": ", 1) for line in told.split("\r\n")[1:] if ": " in line)
        found = await reader.readexactly(int(named["content-length"]))
        return int(told[9:12]), float(named.get("retry-after", 0)), found


async def one_by_one(port: int, texts: Sequence[str]) -> list[float]:
    client, times = Client(port), []
    for text in texts:
        begin = time.perf_counter()
        await client.link(text)
        times.append(time.perf_counter() - begin)
    return times[len(times) // 4 :]


async def load(server: Server, texts: Sequence[str], clients: int, seconds: float) -> Seen:
    seen, begin, worked = Seen(), time.perf_counter(), server.processor

    async def ask(number: int) -> None:
        client, turn = Client(server.port), number
        while time.perf_counter() - begin < seconds:
            text, asked = texts[turn % len(texts)], time.perf_counter()
            try:
                status, wait, body = await client.link(text)
            except (OSError, asyncio.IncompleteReadError) as error:
                seen.errors[type(error).__name__] = seen.errors.get(type(error).__name__, 0) + 1
                client = Client(server.port)
                continue
            if status == 200:
                seen.times.append(time.perf_counter() - asked)
                seen.answers.append((text, orjson.loads(body)["documents"][0]))
                turn += clients
            elif status == 429:
                seen.refused += 1
                await asyncio.sleep(wait)
            else:
                seen.errors[str(status)] = seen.errors.get(str(status), 0) + 1

    async def watch() -> None:
        while True:
            seen.memory.append(server.memory)
            await asyncio.sleep(max(0.2, seconds / 100))

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(ask(number) for number in range(clients)))
    watching.cancel()
    seen.seconds, seen.processor = time.perf_counter() - begin, server.processor - worked
    return seen


if __name__ == "__main__":
    sys.exit(main())
