"""Limits and settings of a server; the defaults suit one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request, of the queue, and of batches."""

    body: int = 2 << 20
    """Maximum bytes of a request body."""
    text: int = 100_000
    """Maximum characters of one text."""
    texts: int = 64
    """Maximum texts of one request."""
    characters: int = 400_000
    """Maximum characters of all texts of one request."""
    queue: int | None = None
    """Maximum texts that wait or run; further requests get 429. None: 16 per worker.

    Streams may use half of it; otherwise they would keep it full. With one text per client, 16 per worker give
    efficient batches, and a response within about ten times the time of a text alone.
    """
    together: int = 48
    """Maximum texts of a batch: enough to be efficient, few enough that responses overlap with computation."""
    together_characters: int = 32_000
    readers: int | None = None
    """Worker processes, each on one core; threads that share the cores where processes cannot be forked.

    None: one per core if the linkers are thread-safe. A single worker is a thread of the server and uses all cores.
    """
    seconds: float = 30.0
    """Timeout for receiving a request, and again for answering it."""
    streams: int = 8
    """Maximum concurrent streams."""
    ahead: int = 64
    """Maximum unanswered texts of one stream."""
    grace: int = 30
    """Seconds to finish accepted requests after SIGINT or SIGTERM."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a server."""

    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    """Bearer token required to change KBs; None makes them read-only."""
    hosts: tuple[str, ...] = ()
    """Accepted Host headers; empty accepts any. Protects against DNS rebinding."""
    encoders: Mapping[str, str] = field(default_factory=lambda: {"minilm": "minilm"})
    """Encoders of `/embed` and `/explain`: name -> asset, folder or run; the first is the default."""
    origins: tuple[str, ...] = ()
    """Origins of pages that may use the reconciliation service, such as OpenRefine's: http://127.0.0.1:3333."""
    corrections: Path | None = None
    """Folder of the corrections; None keeps those of each KB beside it."""
