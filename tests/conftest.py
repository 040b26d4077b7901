"""Settings and fixtures of all tests: hypothesis has no deadlines, for busy machines; tiny models come from `tiny`."""

import io
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes, each with as many threads as cores, wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("wellread", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wellread")

MEMORY, ENOUGH = "/dev/shm", 4 << 30


def pytest_configure():
    """Keep temporary files in memory where there is room: tests would wait half of their time for a disk to sync."""
    if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Lines that tell of progress after some seconds would make what is printed depend on the machine."""
    from wellread.io import console

    monkeypatch.setattr(console, "_LINE_EVERY", 3600.0)


@pytest.fixture
def wellread(monkeypatch, capfdbinary):
    """Run the command line in this process, with a text on stdin; gives the exit code, stdout and stderr.

    A process of its own takes a second, and several where it needs torch: only what belongs to processes (signals,
    closed streams, what is imported at the start) is tested with them.
    """
    from wellread import cli

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["wellread", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8", "surrogateescape"))))
        code = 0
        try:
            cli.main()
        except SystemExit as leave:
            code = leave.code
        out, err = (stream.decode("utf-8", "surrogateescape") for stream in capfdbinary.readouterr())
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a tiny random encoder."""
    from tests.toy_models import write_encoder

    return write_encoder(tmp_path_factory.mktemp("tiny") / "encoder")


@pytest.fixture(scope="session")
def plain_encoder(tmp_path_factory):
    """The folder of one whose pieces know nothing of their neighbours and places."""
    from tests.toy_models import write_encoder

    return write_encoder(tmp_path_factory.mktemp("tiny") / "plain", width=32, layers=1, reach=False)


@pytest.fixture(scope="session")
def toy(tmp_path_factory, plain_encoder):
    """A folder with `toy.kb`, its index, and `model`: a linker trained for a moment on `toy_documents`.

    It was also trained that "planet" is a mention without an entity in the KB.
    """
    import torch

    from tests.toy_models import FRAMES, document, make_elq, teach, toy_documents, write_kb
    from wellread.models.elq.load import open_index
    from wellread.models.elq.training_task import LinkingLearner, make_examples, split_off

    folder = tmp_path_factory.mktemp("toy")
    with write_kb(folder / "toy.kb") as kb:
        model = make_elq(plain_encoder)
        index = open_index(kb, model.config)
        unknown = [document(frame.format("planet"), ("planet", None)) for frame in FRAMES] * 4
        documents, dev = split_off(toy_documents(300), 60)
        examples = make_examples([*documents[:-20], *unknown], model, index)
        learner = LinkingLearner(model, kb, index, examples, {"toy": dev}, batch_pieces=256, leave_out=0.05)
        torch.manual_seed(1)  # the same weights whatever was drawn before
        teach(learner, 6)
        learner.predictions()
        model.save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def browser():
    """A Chromium that is on this machine; tests that need one are left out where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; see: make test")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium to show pages in; install one (Debian: apt install chromium)")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def trained(encoder, tmp_path_factory):
    """The folder of a linker with adapters, and the linker with its adapters merged."""
    from tests.toy_models import make_elq, shake
    from wellread.encoders.load import merge_adapters

    folder = tmp_path_factory.mktemp("linker") / "model"
    model = shake(make_elq(encoder))
    model.save_pretrained(folder)
    merge_adapters(model.encoder)
    return folder, model
