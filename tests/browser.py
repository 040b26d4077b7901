"""The page for tests in a browser: a server with two layers, a fresh page of it, and what its marks show."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.servers import TOKEN, listening
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.server.engine import Engine
from wellread.server.registry import LinkerRegistry
from wellread.server.settings import Settings

EVIL = "<img src=x onerror=\"window.hit='title'\"><script>window.hit=1</script>"
TEXT = "who is the mayor of cork ? was dora born near the river in a city"


@contextmanager
def page_server(folder: Path, toy: Path, encoder: Path) -> Iterator[str]:
    """A server with a linker that reads, names alone, and a second layer of words."""
    shutil.copy(toy / "toy.kb", folder)
    shutil.copytree(toy / "toy.kb.vectors", folder / "toy.kb.vectors")
    words = [
        Entity("w1", "river", "a stream of water", "n", 1, {}, (("near", "w2"),)),
        Entity("w2", "city", "a large town", "n"),
        Entity("w3", EVIL, EVIL, EVIL, 1, {"evil": 2, EVIL: 1}, ((EVIL, "w1"),)),
        Entity("w4", "old river", "a dry bed", "n"),
        Entity("w5", "river city planet", "a dream", "n"),
        Entity("w6", "old river, the band", "three people", "n", 1, {"old river": 1}),
    ]
    build(lambda tally: iter(words), folder / "words.kb", origin=Origin("test"))
    models = {"toy": [str(toy / "model"), "prior"], "words": ["prior"]}
    registry = LinkerRegistry.load([folder / "toy.kb", folder / "words.kb"], models)
    with listening(Engine(registry, Settings(token=TOKEN, encoders={"tiny": encoder}))) as address:
        yield address


@contextmanager
def fresh_page(browser: Any, address: str) -> Iterator[Any]:
    """A fresh page; what it complains of, or a script from outside that it runs, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=True)
    context.set_default_timeout(60_000)
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.complaints = complaints
    visit(page, f"{address}/")
    yield page
    hit = page.evaluate("window.hit")
    context.close()
    assert (complaints, hit) == ([], None)


def visit(page, address):
    page.goto(address)
    page.wait_for_selector("html[data-ready]")


def link(page, text=TEXT):
    page.fill("#text", text)
    page.click("#go")
    page.wait_for_selector("#result mark")


def shown(page, pane=0):
    """(text, kb entity) of the marks of a pane, as the page has them."""
    got = page.evaluate(
        """(pane) => [...document.querySelectorAll(".pane")[pane].querySelectorAll("mark[tabindex]")]
        .flatMap((mark) => mark.links.map((link) => [link.start, link.end, link.kb, link.entity]))""",
        pane,
    )
    return sorted(map(tuple, got), key=str)


def served(address, text=TEXT, **requested):
    answer = requests.post(f"{address}/link", json={"text": text, **requested}, timeout=60).json()
    links = answer["documents"][0]["links"]
    return sorted(((one["start"], one["end"], one["kb"], one["entity"]) for one in links), key=str)
