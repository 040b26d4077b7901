"""The files in deploy/, Dockerfile and compose.yaml: what they run exists, and they keep to their own rules.

No image is built here; hadolint (`make check`) reads the Dockerfile too.
"""

import configparser
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.project.test_docs_commands import fault_of
from wellread import __version__
from wellread.server.settings import Limits

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed; run: pip install -e '.[docs]'")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").exists(), reason="needs the repository")


def instructions():
    """(instruction, arguments) of the Dockerfile, with continued lines joined."""
    lines = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip() and not line.startswith("#")]


def service():
    (found,) = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"].values()
    return found


def unit():
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(ROOT / "deploy" / "wellread.service", "utf-8")
    return parser


def test_the_image_is_pinned_small_and_without_root():
    stages = [arguments for name, arguments in instructions() if name == "FROM"]
    assert all(re.match(r"python:3\.\d+-slim-\w+( AS \w+)?$", stage) for stage in stages)
    users = [arguments for name, arguments in instructions() if name == "USER"]
    assert users == ["10001:10001"]  # as a number, so that orchestrators can tell that it is not root
    after = [name for name, _ in instructions()]
    assert after.index("USER") < after.index("CMD")
    last = after[len(after) - after[::-1].index("FROM") :]
    assert {"VOLUME", "HEALTHCHECK", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"} <= set(last)
    assert "ADD" not in after


def test_what_the_image_copies_is_there_and_is_sent_to_the_builder():
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[0] == "*"
    for name, arguments in instructions():
        if name == "COPY" and "--from" not in arguments:
            *sources, _ = [word for word in arguments.split() if not word.startswith("--")]
            for source in sources:
                path = source.removeprefix("./")
                assert (ROOT / path).exists(), path
                assert path in sent, path


def test_the_health_check_asks_an_address_of_the_server():
    (check,) = (arguments for name, arguments in instructions() if name == "HEALTHCHECK")
    assert "http://127.0.0.1:8000/health" in check
    code = re.search(r'CMD \["python", "-c", "(.*)"\]', check)[1]
    compile(code, "health check", "exec")
    assert ("EXPOSE", "8000") in instructions()


def test_compose_keeps_the_knowledge_bases_and_the_token_outside_the_container():
    found = service()
    assert found["image"] == f"wellread:{__version__}"
    assert found["volumes"] == ["wellread:/var/lib/wellread"]
    assert ("VOLUME", "/var/lib/wellread") in instructions()
    assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
    assert all(port.startswith("127.0.0.1:") for port in found["ports"])
    assert int(found["stop_grace_period"].rstrip("s")) > Limits().grace
    assert fault_of(["serve", *found["command"]]) is None
    assert "deploy/token" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_the_unit_runs_commands_that_exist():
    section = unit()["Service"]
    for name in ("ExecStartPre", "ExecStart"):
        _, *words = shlex.split(section[name])
        assert fault_of(words) is None
    assert int(section["TimeoutStopSec"]) > Limits().grace
    assert section["User"] == "wellread"
    assert section["NoNewPrivileges"] == section["PrivateTmp"] == "yes"


def test_the_proxy_streams_without_gathering():
    text = (ROOT / "deploy" / "nginx.conf").read_text("utf-8")
    stream = text[text.index("location = /link/stream") :].split("}")[0]
    assert all(f"{name} off;" in stream for name in ("proxy_request_buffering", "proxy_buffering"))
    assert text.count("{") == text.count("}")
    assert text.count("proxy_set_header Host $host;") == text.count("proxy_pass")


def test_the_container_builds_packaged_kbs_and_serves(tmp_path):
    fake = tmp_path / "wellread"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$@" >> "$LOG"\necho >> "$LOG"\n')
    fake.chmod(0o755)
    log = tmp_path / "log"
    given = ["--kb", "vital", "--kb", "/data/my own.kb", "--token-file", "/run/secrets/token"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "WELLREAD_HOSTS": "kb.example.org"}
    subprocess.run(["sh", str(ROOT / "deploy" / "start.sh"), *given], env=environment, check=True, timeout=30)
    built, served = (line.rstrip("|").split("|") for line in log.read_text().splitlines())
    assert built == ["kb", "build", "vital", "--if-missing"]
    assert served[:6] == ["serve", "--host", "0.0.0.0", "--port", "8000", "--kb"]
    assert served[5:11] == given
    assert served[11:] == ["--allow-host", "127.0.0.1", "--allow-host", "localhost", "--allow-host", "kb.example.org"]
    assert fault_of(served) is None
