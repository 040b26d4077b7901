"""Assets fetched from a small registry on 127.0.0.1 that can be slow, broken, busy or wrong; never from the network."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from wellread import assets
from wellread.assets import downloads, sources
from wellread.errors import AssetError, StorageError, UsageError

WORDS = b"".join(b"word %d\n" % number for number in range(30_000))
RULES = b'{"rule": 1}'
LICENCE = b"Do with it what you like."


@dataclass
class Registry:
    """A package index and file server whose manners a test can spoil."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """For the next answers with a file: how many bytes are sent before the line breaks."""
    busy: int = 0
    """How many requests are answered 503 first."""
    pace: float = 0.0
    """Seconds before each 16 KB of a file."""
    login: str = ""
    encoding: str = ""
    sized: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of every request for a file."""
    sent: int = 0
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one GET."""
        if self.busy:
            self.busy -= 1
            request.send_error(503)
        elif self.login and request.headers.get("Authorization") != f"Basic {b64encode(self.login.encode()).decode()}":
            request.send_error(401)
        elif request.path.startswith("/simple/"):
            self._answer_page(request)
        elif request.path in self.files:
            self._answer_file(request, self.files[request.path])
        else:
            request.send_error(404)

    def _answer_page(self, request: BaseHTTPRequestHandler) -> None:
        links = [f'<a href="{self.url}{path}">{path.rpartition("/")[2]}</a>' for path in self.files]
        page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        request.send_response(200)
        request.send_header("Content-Type", "text/html")
        request.send_header("Content-Length", str(len(page)))
        request.end_headers()
        request.wfile.write(page)

    def _answer_file(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        requested = request.headers.get("Range", "")
        self.asked.append((request.path, requested))
        begin = int(requested.removeprefix("bytes=").removesuffix("-")) if requested and self.ranges else 0
        if begin and begin >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if begin else 200)
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if self.sized:
            request.send_header("Content-Length", str(len(content) - begin))
        if self.encoding:
            request.send_header("Content-Encoding", self.encoding)
        request.end_headers()
        end = begin + self.cuts.pop(0) if self.cuts else len(content)
        for place in range(begin, min(end, len(content)), 1 << 14):
            time.sleep(self.pace)
            piece = content[place : min(place + (1 << 14), end)]
            self.sent += len(piece)  # before it is written: who asked may look as soon as it has all
            request.wfile.write(piece)
        request.close_connection = True


@pytest.fixture
def registry() -> Iterator[Registry]:
    served = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                served.answer(self)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an environment that knows of no index but the test's."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "HF_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(sources, "_pip_files", dict)
    monkeypatch.setattr(downloads, "WAITS", (0.01, 0.01, 0.01))
    return tmp_path / "home"


def wheel(**others: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        members = {
            "tiny/__init__.py": b"raise SystemExit('this code must never run')",
            "tiny/data/words.txt": WORDS,
            "tiny/data/deep/rules.json": RULES,
            "tiny/data/LICENSE": LICENCE,
        }
        for name, content in (members | others).items():
            bundle.writestr(zipfile.ZipInfo(name), content)  # without the time of day: each call gives the same bytes
    return packed.getvalue()


def sdist() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in (
            ("tiny/setup.py", b"raise SystemExit"),
            ("tiny/data/words.txt", WORDS),
            ("tiny/data/deep/rules.json", RULES),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def package(content: bytes, archive: str = "tiny-1.0-py3-none-any.whl") -> sources.Package:
    return sources.Package("tiny", archive, sha256(content), len(content), "tiny/data/")


def asset(*places: sources.Source) -> assets.Asset:
    return assets.Asset(
        name="tiny",
        version="1.0",
        licence="CC0-1.0",
        about="a tiny asset",
        notice="Made by nobody.",
        sources=places,
        files={"deep/rules.json": sha256(RULES), "words.txt": sha256(WORDS)},
        papers=("LICENSE",),
    )


@pytest.fixture
def tiny(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> assets.Asset:
    """The asset "tiny" in a wheel that the registry serves."""
    made = wheel()
    registry.files["/files/tiny-1.0-py3-none-any.whl"] = made
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"{registry.url}/simple/")
    known = asset(package(made))
    monkeypatch.setattr(assets, "ASSETS", {"tiny": known})
    return known


def in_cache(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and path.suffix != ".lock"}


WHOLE = {f"assets/tiny-1.0/{file}" for file in ("words.txt", "deep/rules.json", "LICENSE", "LICENCE", "SOURCE.json")}


def test_an_asset_arrives_with_its_licence_and_its_origin(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    folder = assets.fetch("tiny")
    assert folder == home / "assets" / "tiny-1.0"
    assert (folder / "words.txt").read_bytes() == WORDS
    licence = (folder / "LICENCE").read_text()
    assert "CC0-1.0" in licence
    assert "Made by nobody." in licence
    assert LICENCE.decode() in licence
    source = json.loads((folder / "SOURCE.json").read_text())
    assert source.pop("date").startswith("20")
    assert source == {
        "name": "tiny",
        "version": "1.0",
        "source": f"{registry.url}/files/tiny-1.0-py3-none-any.whl",
        "sha256": sha256(wheel()),
        "licence": "CC0-1.0",
    }
    assets.verify("tiny")


def test_a_packages_code_never_lands_in_the_cache(tiny: assets.Asset, home: Path) -> None:
    assets.fetch("tiny")
    assert in_cache(home) == WHOLE


def test_what_is_in_the_cache_is_not_fetched_again(tiny: assets.Asset, registry: Registry) -> None:
    assert assets.fetch("tiny") == assets.fetch("tiny") == assets.find("tiny")
    assert len(registry.asked) == 1


def test_the_licence_is_said_unless_quiet(tiny: assets.Asset, capsys: pytest.CaptureFixture[str]) -> None:
    folder = assets.fetch("tiny")
    said = capsys.readouterr()
    assert said.err == f"tiny 1.0: CC0-1.0, see {folder / 'LICENCE'}\n"
    shutil.rmtree(folder)
    assets.fetch("tiny", quiet=True)
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_an_sdist_is_read_too(registry: Registry, tiny: assets.Asset, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sdist()
    registry.files = {"/files/tiny-1.0.tar.gz": made}
    registry.encoding = "gzip"  # a common mislabelling; the bytes must stay packed
    monkeypatch.setattr(assets, "ASSETS", {"tiny": asset(package(made, "tiny-1.0.tar.gz"))})
    assert (assets.fetch("tiny") / "words.txt").read_bytes() == WORDS


def test_a_wrong_hash_is_refused_and_nothing_is_kept(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    wrong = wheel(more=b"something else")
    registry.files["/files/tiny-1.0-py3-none-any.whl"] = wrong
    known = replace(tiny, sources=(replace(package(wheel()), size=len(wrong)),))
    assets.ASSETS["tiny"] = known
    with pytest.raises(AssetError) as caught:
        assets.fetch("tiny")
    assert str(caught.value).startswith("tiny: ")
    assert f"expected sha256 {sha256(wheel())}, got {sha256(wrong)}" in str(caught.value)
    assert in_cache(home) == set()


def test_an_answer_without_end_is_cut_at_the_pinned_size(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    registry.files["/files/tiny-1.0-py3-none-any.whl"] = wheel() + bytes(5_000_000)
    with pytest.raises(AssetError, match="is not the pinned file"):
        assets.fetch("tiny")
    assert registry.sent < 3_000_000
    assert in_cache(home) == set()


def test_an_unpacked_file_that_is_not_as_pinned_is_refused(tiny: assets.Asset, home: Path) -> None:
    assets.ASSETS["tiny"] = replace(tiny, files=dict(tiny.files) | {"words.txt": "0" * 64, "absent.txt": "1" * 64})
    with pytest.raises(AssetError, match=r"words.txt from http.* expected sha256 000"):
        assets.fetch("tiny")
    assert not any("assets" in file for file in in_cache(home))


def test_a_broken_download_goes_on_where_it_stopped(tiny: assets.Asset, registry: Registry) -> None:
    registry.cuts = [100_000, 50_000]
    assets.fetch("tiny")
    assert [requested for _, requested in registry.asked] == ["", "bytes=100000-", "bytes=150000-"]
    assert registry.sent == len(wheel())


def test_a_download_goes_on_in_the_next_run(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    registry.cuts = [100_000, 0, 0, 0, 0]
    with pytest.raises(AssetError, match="broke off"):
        assets.fetch("tiny")
    assert in_cache(home) == {"downloads/tiny-1.0-py3-none-any.whl.part"}
    registry.cuts.clear()
    assets.fetch("tiny")
    assert registry.asked[-1][1] == "bytes=100000-"
    assert registry.sent == len(wheel())
    assert in_cache(home) == WHOLE


def test_a_server_that_ignores_ranges_is_read_from_the_start(tiny: assets.Asset, registry: Registry) -> None:
    registry.cuts = [100_000]
    registry.ranges = False
    assets.fetch("tiny")
    assert registry.sent == 100_000 + len(wheel())


def test_an_answer_without_a_length_that_ends_early_is_noticed(tiny: assets.Asset, registry: Registry) -> None:
    registry.cuts = [100_000]
    registry.sized = False
    assets.fetch("tiny")
    assert registry.sent == len(wheel())


@pytest.mark.parametrize("left", [b"x" * 1000, wheel()[:-1] + b"x", wheel() + b"more"])
def test_a_damaged_part_of_an_earlier_run_is_fetched_anew(
    tiny: assets.Asset, registry: Registry, home: Path, left: bytes
) -> None:
    part = home / "downloads" / "tiny-1.0-py3-none-any.whl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    assets.fetch("tiny")
    assert in_cache(home) == WHOLE
    assert registry.asked[-1][1] == ""


def test_a_whole_part_is_taken_as_it_is(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    part = home / "downloads" / "tiny-1.0-py3-none-any.whl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(wheel())
    assets.fetch("tiny")
    assert registry.sent == 0


def test_a_busy_server_is_asked_again(tiny: assets.Asset, registry: Registry) -> None:
    registry.busy = 2
    assets.fetch("tiny")
    assert len(registry.asked) == 1


def test_a_server_that_stays_busy_is_given_up(tiny: assets.Asset, registry: Registry) -> None:
    registry.busy = 100
    with pytest.raises(AssetError, match="answered 503 Service Unavailable"):
        assets.fetch("tiny")
    assert registry.busy == 100 - 1 - len(downloads.WAITS)


def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_offline_the_message_names_the_file_and_the_command(
    tiny: assets.Asset, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = f"http://127.0.0.1:{closed_port()}/simple"
    monkeypatch.setenv("PIP_INDEX_URL", index)
    with pytest.raises(AssetError) as caught:
        assets.fetch("tiny")
    assert str(caught.value) == (
        "tiny is not in the cache and no source answered; "
        f"put the file at {home / 'downloads' / 'tiny-1.0-py3-none-any.whl'} or run `wellread fetch tiny` "
        f"on a machine with access and copy its folder to {home / 'assets' / 'tiny-1.0'}. "
        f"Tried: {index}/tiny/ cannot be reached"
    )


def test_an_archive_put_by_hand_is_used(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    archive = home / "downloads" / "tiny-1.0-py3-none-any.whl"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(wheel())
    assets.fetch("tiny")
    assert registry.asked == []
    assert in_cache(home) == WHOLE


def test_a_wrong_archive_put_by_hand_is_passed_over(
    tiny: assets.Asset, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = home / "downloads" / "tiny-1.0-py3-none-any.whl"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"something else")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(AssetError, match=f"{archive} is not the pinned file"):
        assets.fetch("tiny")
    monkeypatch.delenv("PIP_NO_INDEX")
    assets.fetch("tiny")
    assert "passed over" in capsys.readouterr().err
    assert in_cache(home) == WHOLE


def test_only_pinned_members_are_read_so_that_no_path_leads_out(
    tiny: assets.Asset, registry: Registry, home: Path, tmp_path: Path
) -> None:
    evil = wheel(**{"../../evil.txt": b"x", "tiny/data/../../../evil.txt": b"x", f"{tmp_path}/evil.txt": b"x"})
    registry.files["/files/tiny-1.0-py3-none-any.whl"] = evil
    assets.ASSETS["tiny"] = replace(tiny, sources=(package(evil),))
    assets.fetch("tiny")
    assert in_cache(home) == WHOLE
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_link_in_an_sdist_is_not_followed(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        link = tarfile.TarInfo("tiny/data/words.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    registry.files = {"/files/tiny-1.0.tar.gz": packed.getvalue()}
    assets.ASSETS["tiny"] = replace(tiny, sources=(package(packed.getvalue(), "tiny-1.0.tar.gz"),))
    with pytest.raises(AssetError, match="got missing"):
        assets.fetch("tiny")


def test_the_next_index_is_asked_when_the_first_has_nothing(
    tiny: assets.Asset, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{registry.url}/nothing {registry.url}/simple")
    assets.fetch("tiny")
    assert len(registry.asked) == 1


def test_the_login_of_an_index_opens_its_files_and_is_not_written_down(
    tiny: assets.Asset, registry: Registry, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.login = "ann:secret"
    with pytest.raises(AssetError, match="answered 401"):
        assets.fetch("tiny")
    monkeypatch.setenv("PIP_INDEX_URL", registry.url.replace("http://", "http://ann:secret@") + "/simple")
    folder = assets.fetch("tiny")
    assert "secret" not in (folder / "SOURCE.json").read_text() + (folder / "LICENCE").read_text()
    registry.login = "someone:else"
    shutil.rmtree(folder)
    with pytest.raises(AssetError) as caught:
        assets.fetch("tiny")
    assert "secret" not in str(caught.value)


def find_links_folder(root: Path, content: bytes) -> str:
    root.mkdir()
    (root / "tiny-1.0-py3-none-any.whl").write_bytes(content)
    return str(root)


def find_links_page(root: Path, content: bytes) -> str:
    (root / "files").mkdir(parents=True)
    (root / "files" / "tiny-1.0-py3-none-any.whl").write_bytes(content)
    (root / "links.html").write_text('<a href="files/tiny-1.0-py3-none-any.whl">the wheel</a>')
    return (root / "links.html").as_uri()


@pytest.mark.parametrize("lay_out", [find_links_folder, find_links_page])
def test_find_links_of_pip_are_used_and_left_alone(
    tiny: assets.Asset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lay_out: Callable[[Path, bytes], str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'absent'} {lay_out(tmp_path / 'links', wheel())}")
    folder = assets.fetch("tiny")
    assert len(list((tmp_path / "links").rglob("*.whl"))) == 1
    assert "tiny-1.0-py3-none-any.whl" in json.loads((folder / "SOURCE.json").read_text())["source"]


def test_an_index_of_files_is_read(
    tiny: assets.Asset, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple = tmp_path / "mirror" / "simple" / "tiny"
    simple.mkdir(parents=True)
    (simple / "index.html").write_text(
        '<a href="../../tiny-1.0-py3-none-any.whl#sha256=0">tiny-1.0-py3-none-any.whl</a>'
    )
    (tmp_path / "mirror" / "tiny-1.0-py3-none-any.whl").write_bytes(wheel())
    monkeypatch.setenv("PIP_INDEX_URL", simple.parent.as_uri())
    assets.fetch("tiny")
    assert registry.asked == []


def test_settings_in_the_files_of_pip_are_read(
    registry: Registry, tiny: assets.Asset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://one.example/simple\n[download]\nindex-url = https://two.example/simple\n"
        "extra-index-url =\n    https://three.example/simple\n    https://four.example/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    sources._pip_files.cache_clear()
    settings = sources._pip_files()
    sources._pip_files.cache_clear()
    assert settings["index-url"] == "https://two.example/simple"
    assert settings["extra-index-url"].split() == ["https://three.example/simple", "https://four.example/simple"]


def test_an_environment_without_pip_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    sources._pip_files.cache_clear()
    settings = sources._pip_files()
    sources._pip_files.cache_clear()
    assert settings == {}


def test_a_page_that_is_no_index_is_passed_over(
    tiny: assets.Asset, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.files["/odd/tiny/"] = gzip.compress(b"not a page")
    monkeypatch.setenv("PIP_INDEX_URL", f"{registry.url}/odd")
    with pytest.raises(AssetError, match="/odd/tiny/ does not have it"):
        assets.fetch("tiny")


def test_the_hub_is_asked_file_by_file(
    tiny: assets.Asset, registry: Registry, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "/owner/model/resolve/abc"
    registry.files |= {f"{base}/words.txt": WORDS, f"{base}/deep/rules.json": RULES}
    monkeypatch.setenv("HF_ENDPOINT", registry.url)
    assets.ASSETS["tiny"] = replace(tiny, sources=(sources.Hub("owner/model", "abc"), *tiny.sources))
    registry.cuts = [len(RULES), 1000]
    folder = assets.fetch("tiny")
    assert [path for path, _ in registry.asked] == [f"{base}/deep/rules.json"] + [f"{base}/words.txt"] * 2
    assert registry.sent == len(RULES) + len(WORDS)
    assert json.loads((folder / "SOURCE.json").read_text())["source"] == registry.url + base
    assert in_cache(home) == WHOLE - {"assets/tiny-1.0/LICENSE"}


@pytest.mark.parametrize("manner", ["absent", "switched off", "out of reach", "wrong"])
def test_the_registry_stands_in_for_the_hub(
    tiny: assets.Asset, registry: Registry, home: Path, monkeypatch: pytest.MonkeyPatch, manner: str
) -> None:
    endpoint = f"http://127.0.0.1:{closed_port()}" if manner == "out of reach" else registry.url
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    if manner == "switched off":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if manner == "wrong":
        base = "/owner/model/resolve/abc"
        registry.files |= {f"{base}/deep/rules.json": RULES, f"{base}/words.txt": b"other words"}
    assets.ASSETS["tiny"] = replace(tiny, sources=(sources.Hub("owner/model", "abc"), *tiny.sources))
    folder = assets.fetch("tiny")
    assert json.loads((folder / "SOURCE.json").read_text())["sha256"] == sha256(wheel())
    assert in_cache(home) == WHOLE


@pytest.mark.parametrize("same", [True, False])
def test_a_folder_of_this_machine_is_taken_only_if_its_files_are_the_pinned_ones(
    tiny: assets.Asset, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    (tmp_path / "dict" / "deep").mkdir(parents=True)
    (tmp_path / "dict" / "deep" / "rules.json").write_bytes(RULES)
    (tmp_path / "dict" / "words.txt").write_bytes(WORDS if same else WORDS + b"newer\n")
    monkeypatch.setenv("TINYHOME", str(tmp_path))
    assets.ASSETS["tiny"] = replace(tiny, sources=(sources.Folder(("$NOWHERE/dict", "$TINYHOME/d*")), *tiny.sources))
    folder = assets.fetch("tiny")
    assert (folder / "words.txt").read_bytes() == WORDS
    assert len(registry.asked) == (0 if same else 1)


def test_verify_names_the_file_that_was_tampered_with(tiny: assets.Asset) -> None:
    folder = assets.fetch("tiny")
    (folder / "words.txt").write_bytes(WORDS + b"one more")
    (folder / "deep" / "rules.json").unlink()
    with pytest.raises(AssetError) as caught:
        assets.verify("tiny")
    assert f"words.txt: expected sha256 {sha256(WORDS)}, got {sha256(WORDS + b'one more')}" in str(caught.value)
    assert "deep/rules.json" in str(caught.value)
    assert "wellread fetch tiny" in str(caught.value)


def test_a_tampered_file_is_refused_at_its_first_use_in_a_process(
    tiny: assets.Asset, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = assets.fetch("tiny", quiet=True)
    monkeypatch.setattr(assets, "_LOOKED_AT", set())
    assert assets.find("tiny") == folder
    (file,) = [folder / file for file in tiny.files if file.endswith(".json")]
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"1", b"2"))
    for use in (assets.find, assets.fetch):
        assets._LOOKED_AT.clear()
        with pytest.raises(
            AssetError, match=r"tiny is damaged \(deep/rules\.json: expected sha256 .*wellread fetch tiny"
        ):
            use("tiny")
    file.write_bytes(whole)
    assert assets.find("tiny") == folder


def test_files_that_did_not_change_are_not_read_again(tiny: assets.Asset, monkeypatch: pytest.MonkeyPatch) -> None:
    assets.fetch("tiny", quiet=True)
    read: list[Path] = []
    digest = downloads.digest
    monkeypatch.setattr(downloads, "digest", lambda path: (read.append(path), digest(path))[1])
    for _ in range(3):
        monkeypatch.setattr(assets, "_LOOKED_AT", set())
        assets.find("tiny")
    assert len(read) == len(tiny.files)
    os.utime(assets.find("tiny") / "deep" / "rules.json", (1, 1))
    monkeypatch.setattr(assets, "_LOOKED_AT", set())
    assets.find("tiny")
    assert [path.name for path in read[len(tiny.files) :]] == ["rules.json"]


def test_find_names_the_fix(tiny: assets.Asset) -> None:
    with pytest.raises(AssetError, match=r"tiny is not in the cache \(.*tiny-1.0\); run: wellread fetch tiny"):
        assets.find("tiny")


def test_an_unknown_name_lists_the_names(tiny: assets.Asset) -> None:
    with pytest.raises(UsageError, match="there is no asset 'tinny'; choose from: tiny"):
        assets.fetch("tinny")


def test_a_folder_without_source_json_is_not_whole_and_is_replaced(tiny: assets.Asset, home: Path) -> None:
    (home / "assets" / "tiny-1.0").mkdir(parents=True)
    (home / "assets" / "tiny-1.0" / "words.txt").write_bytes(b"half")
    assert not assets.is_cached("tiny")
    assets.fetch("tiny")
    assert in_cache(home) == WHOLE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_clear_message(tiny: assets.Asset, home: Path) -> None:
    (home / "downloads").mkdir(parents=True)
    (home / "downloads" / "tiny-1.0-py3-none-any.whl.part").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"the disk is full: .*tiny-1\.0 was not written"):
        assets.fetch("tiny")


def test_a_disk_that_fills_up_while_unpacking_leaves_no_half_folder(
    tiny: assets.Asset, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfileobj", fill)
        with pytest.raises(StorageError, match="the disk is full"):
            assets.fetch("tiny")
    assert in_cache(home) == {"downloads/tiny-1.0-py3-none-any.whl"}
    assets.fetch("tiny")
    assert in_cache(home) == WHOLE


def test_a_read_only_folder_is_one_clear_message(
    tiny: assets.Asset, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StorageError, match=f"cannot write {home}.*Read-only file system; choose another folder"):
        assets.fetch("tiny")


def test_a_home_that_is_a_file_is_one_clear_message(tiny: assets.Asset, home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(StorageError, match="cannot be made: Not a directory; set WELLREAD_HOME"):
        assets.fetch("tiny")


FETCH_TINY = """
import json, os, signal, sys
import pypi_simple, requests
from wellread import assets
from wellread.assets import sources
manifest = json.loads(sys.stdin.readline())
sources._pip_files = dict
assets.ASSETS = {"tiny": assets.Asset(**{**manifest, "sources": (sources.Package(**manifest["sources"]),)})}
if len(sys.argv) > 1:
    module, _, function = sys.argv[1].partition(".")
    setattr(__import__(module), function, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
print("ready", flush=True)
sys.stdin.read()
print(assets.fetch("tiny"))
"""


def start(known: assets.Asset, *arguments: str) -> subprocess.Popen[str]:
    """Make another process ready to fetch the asset, which it does when its stdin is closed."""
    (source,) = known.sources
    manifest = json.dumps({**vars(known), "sources": vars(source)})
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH_TINY, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    print(manifest, file=process.stdin, flush=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_run_killed_at_any_moment_leaves_nothing_half(tiny: assets.Asset, registry: Registry, home: Path) -> None:
    large = wheel(filler=bytes(8_000_000))
    registry.files["/files/tiny-1.0-py3-none-any.whl"] = large
    assets.ASSETS["tiny"] = replace(tiny, sources=(package(large),))
    registry.pace = 0.005
    chance = random.Random(7)
    for _ in range(6):
        process = start(assets.ASSETS["tiny"])
        assert process.stdin
        process.stdin.close()
        process.stdin = None
        time.sleep(chance.uniform(0.05, 0.4))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not assets.is_cached("tiny")
    begun = (home / "downloads" / "tiny-1.0-py3-none-any.whl.part").stat().st_size
    registry.pace = 0
    assets.fetch("tiny")
    assets.verify("tiny")
    assert in_cache(home) == WHOLE
    assert registry.asked[-1][1] == f"bytes={begun}-"


@pytest.mark.parametrize("moment", ["os.replace", "shutil.copyfileobj", "json.dumps", "os.fsync", "os.rename"])
def test_a_run_killed_at_each_step_is_finished_by_the_next(
    tiny: assets.Asset, registry: Registry, home: Path, moment: str
) -> None:
    process = start(tiny, moment)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not assets.is_cached("tiny")
    assets.fetch("tiny")
    assets.verify("tiny")
    assert in_cache(home) == WHOLE


def test_two_processes_at_once_fetch_one_time_only(tiny: assets.Asset, registry: Registry) -> None:
    registry.pace = 0.02
    both = [start(tiny), start(tiny)]
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(lambda process: process.communicate(), both))
    assert [process.returncode for process in both] == [0, 0]
    assert ends[0][0] == ends[1][0] == f"{assets.find('tiny')}\n"
    assert len(registry.asked) == 1
    assert sum("another process is fetching it; waiting" in said for _, said in ends) == 1


def test_the_pins_are_whole() -> None:
    assert list(assets.ASSETS) == ["minilm", "wordnet", "vital", "spacy-en", "hpo"]
    assert [len(known.files) for known in assets.ASSETS.values()] == [10, 15, 2, 24, 1]
    for known in assets.ASSETS.values():
        packages = [source for source in known.sources if isinstance(source, sources.Package)]
        assert len(packages) == 1
        for pinned in (*known.files.values(), packages[0].sha256):
            assert len(bytes.fromhex(pinned)) == 32
        assert not any(file.endswith(".py") or ".." in file or file.startswith("/") for file in known.files)


def test_the_home_is_the_platforms_cache_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WELLREAD_HOME", "~/somewhere")
    assert assets.home() == Path.home() / "somewhere"
    monkeypatch.delenv("WELLREAD_HOME")
    assert assets.home().name == "wellread"


def test_importing_assets_is_light() -> None:
    heavy = ("requests", "pypi_simple", "rich", "filelock", "platformdirs")
    code = f"import sys, wellread.cli.fetch; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
