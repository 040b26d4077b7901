"""What a server allows: sizes, numbers and times, each with a default that suits one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask for, and how much may wait."""

    body: int = 2 << 20
    """Bytes of a request."""
    text: int = 100_000
    """Characters of one text."""
    texts: int = 64
    """Texts of one request."""
    characters: int = 400_000
    """Characters of all texts of one request."""
    queue: int | None = None
    """Texts that wait or are being read; who comes then is asked to come again. Without it 16 for each reader.

    Streams may have half of it waiting: they would fill it whenever there is room, and nobody else would find any.

    Where each client has one text, each reader has 16 of them at a time: enough to be quick, and few enough that
    whoever is taken is answered within some ten times what a text alone takes.
    """
    together: int = 48
    """Texts read in one go: some, so that the model is quick; not all, so that it works while others are answered."""
    together_characters: int = 32_000
    readers: int | None = None
    """Processes that link, each on one core; where processes cannot be forked, threads that share the cores.

    Without it one for each core, where linkers allow it. One alone is a thread of the server, with all cores.
    """
    seconds: float = 30.0
    """How long a request may take: to arrive, and then to be answered."""
    streams: int = 8
    """Streams at the same time."""
    ahead: int = 64
    """Texts of a stream that are read before the first of them is answered."""
    grace: int = 30
    """Seconds that a server which is told to stop takes to finish what it took."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is run."""

    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    """Whoever knows it may change knowledge bases; without one nobody may."""
    hosts: tuple[str, ...] = ()
    """Names that the server may be called by; none: any. Keeps other sites' names from leading to this machine."""
    encoders: Mapping[str, str] = field(default_factory=lambda: {"minilm": "minilm"})
    """What `/embed` and `/explain` read with: what clients call an encoder, and where it is; the usual one first."""
