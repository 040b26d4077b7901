"""Downloads that resume where they broke off, and count only if the sha256 is the pinned one.

The sha256 makes the rest simple: a partial file of an earlier run (even one ended by kill -9) needs no record of its
own, and it does not matter which server or mirror sent the bytes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from wellread.errors import AssetError
from wellread.io.files import Progress

Answer = TypeVar("Answer")

TIMEOUT = (10.0, 60.0)
"""Seconds to connect to a server, and between two parts of its response."""

WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry after a temporary fault; received bytes reset the count."""

_BUSY = (429, 500, 502, 503, 504)


class NoAnswerError(AssetError):
    """A source that cannot be reached or does not have the files."""


class WrongDigestError(AssetError):
    """A source that delivers other content than was pinned."""

    def __init__(self, where: str, expected: str, got: str) -> None:
        super().__init__(
            f"{where} is not the pinned file: expected sha256 {expected}, got {got}; nothing of it is used. "
            "Try again; if it stays so, name another index in PIP_INDEX_URL"
        )


def digest(path: Path) -> str:
    """Return the file's sha256 in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differing(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Return the files that differ from their pins, each with its sha256 or "missing"."""
    found: dict[str, str] = {}
    for file, sha256 in files.items():
        try:
            got = digest(folder / file)
        except OSError:
            got = "missing"
        if got != sha256:
            found[file] = got
    return found


def open_session(cert: str = "") -> Any:
    """Open a `requests` session that trusts the certificates in the file `cert`, else the default ones."""
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = "wellread"
    session.verify = cert or True
    return session


def download(
    session: Any, url: str, path: Path, sha256: str, progress: Progress, *, size: int = 0, reached: bool = False
) -> None:
    """Download `url` to `path` by way of `path`.part.

    `size` is the maximum accepted (0: any); `reached` says that the source has responded before, so that a lost
    connection is worth a retry.
    """
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    before = progress.done_bytes
    while True:
        begun = _size(part)
        attempt = functools.partial(_append, session, url, part, size, progress, before)
        try:
            patiently(attempt, reached=reached, advance=lambda: _size(part))
        except NoAnswerError as error:
            raise NoAnswerError(f"{shown(url)} {error}") from error
        got = digest(part)
        if got == sha256:
            os.replace(part, path)
            return
        part.unlink()
        # A crash may have damaged the partial file: only a download from the start blames the source.
        if not begun:
            raise WrongDigestError(shown(url), sha256, got)


def _append(session: Any, url: str, part: Path, size: int, progress: Progress, before: int) -> None:
    """Continue where `part` ends, or start again if the server does not support ranges."""
    import requests

    have = _size(part)
    if size and have >= size:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with session.get(url, stream=True, headers=headers, timeout=TIMEOUT) as response:
        if response.status_code == 416:  # the partial file is complete
            return
        response.raise_for_status()
        resumed = response.status_code == 206
        length = response.headers.get("Content-Length", "")
        end = (have if resumed else 0) + int(length) if length.isdecimal() else size
        progress.total_bytes = max(progress.total_bytes, before + end)
        with open(part, "ab" if resumed else "wb") as file:
            # Raw: some servers send a .tar.gz as "Content-Encoding: gzip", but the sha256 is that of the packed file.
            for piece in response.raw.stream(1 << 16, decode_content=False):
                file.write(piece)
                progress.done_bytes = before + file.tell()
                if size and file.tell() > size:
                    return
            if file.tell() < end:
                raise requests.ConnectionError("the answer ended early")


def patiently(attempt: Callable[[], Answer], *, reached: bool = False, advance: Callable[[], int] = int) -> Answer:
    """Retry after temporary faults; a host that was never reached fails at once (`NoAnswerError`)."""
    import requests
    from urllib3.exceptions import HTTPError

    failures, mark = 0, advance()
    while True:
        try:
            return attempt()
        except (requests.RequestException, HTTPError) as error:
            if advance() > mark:
                failures, mark = 0, advance()
            if failures == len(WAITS) or not _is_passing(error, reached):
                raise NoAnswerError(_reason(error)) from error
        time.sleep(WAITS[failures])
        failures += 1


def _is_passing(error: Exception, reached: bool) -> bool:
    import requests
    from urllib3.exceptions import HTTPError

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code in _BUSY
    if isinstance(error, requests.exceptions.SSLError):
        return False
    if _is_out_of_reach(error):
        return reached
    return isinstance(
        error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError | HTTPError
    )


def _is_out_of_reach(error: Exception) -> bool:
    import requests
    from urllib3.exceptions import NewConnectionError, ProxyError

    cause = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, requests.ConnectTimeout) or isinstance(cause, NewConnectionError | ProxyError)


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.exceptions.SSLError):
        return "has a certificate that is not trusted (name a file with the right one in REQUESTS_CA_BUNDLE)"
    if _is_out_of_reach(error):
        return "cannot be reached"
    return f"broke off ({type(error).__name__})"


def shown(url: str) -> str:
    """Remove user name and password from an address before it is printed or stored."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
