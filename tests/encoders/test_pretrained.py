"""Models with their own code are refused and never imported, even with piped input."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import wellread
from tests.toy_models import write_kb
from wellread.encoders.files import load_tokenizer, width_of
from wellread.encoders.foreign_checkpoint import read_weights
from wellread.encoders.load import load_encoder
from wellread.errors import InputError

CODE = "import pathlib\npathlib.Path({mark!r}).touch()\nclass Evil:\n    pass\n"


@pytest.fixture
def hostile(tmp_path):
    """Return a folder whose configuration names a class in a Python file, and the file that this code would write."""
    folder, mark = tmp_path / "hostile", tmp_path / "ran"
    folder.mkdir()
    names = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": names}))
    (folder / "vocab.txt").write_text("a\n")
    (folder / "evil.py").write_text(CODE.format(mark=str(mark)))
    return folder, mark


def run(arguments, text, home):
    """The command with `text` on standard input; the environment lets transformers ask there."""
    return subprocess.run(
        [sys.executable, "-m", "wellread", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(home)},
        timeout=300,
    )


def imported(home):
    return list(home.rglob("evil*.py*")) if home.exists() else []


@pytest.mark.parametrize("answer", ["y", "yes", "1"])
def test_a_piped_yes_runs_no_code_of_an_encoder(hostile, tmp_path, answer):
    folder, mark = hostile
    text = f"{answer}\nParis is a city\n"
    done = run(["embed", "-", "--model", folder, "--to", tmp_path / "v.npz"], text, tmp_path / "home")
    assert not mark.exists()
    assert not imported(tmp_path / "home")
    assert done.returncode == 3
    assert "brings Python code of its own" in done.stderr
    assert "Traceback" not in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr


def test_a_piped_yes_runs_no_code_of_a_linkers_encoder(hostile, toy, tmp_path):
    folder, mark = hostile
    model = tmp_path / "linker"
    shutil.copytree(toy / "model", model)
    shutil.copytree(folder, model / "encoder", dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"encoder": "./encoder"}))
    for name in ("encoder/tokenizer.json", "tokenizer.json"):
        (model / name).unlink(missing_ok=True)
    write_kb(tmp_path / "toy.kb").close()
    arguments = ["link", "--kb", tmp_path / "toy.kb", "--model", model, "--lines"]
    done = run(arguments, "y\nis aspirin bad?\n", tmp_path / "home")
    assert not mark.exists()
    assert not imported(tmp_path / "home")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "[y/N]" not in done.stdout + done.stderr


@pytest.mark.parametrize("load", [load_encoder, load_tokenizer, width_of])
def test_each_loader_refuses_code_without_asking(hostile, monkeypatch, load):
    folder, mark = hostile
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on standard input"))
    with pytest.raises(InputError) as error:
        load(str(folder))
    assert "trust_remote_code" not in str(error.value)
    assert not mark.exists()


def test_a_damaged_pickle_of_weights_is_one_line_without_unsafe_advice(encoder, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(encoder, folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match="damaged, or a pickle of more than tensors") as error:
        load_encoder(str(folder))
    assert "weights_only" not in str(error.value)


def test_auto_classes_are_called_in_one_module_only():
    calls = {"from_pretrained", "from_config"}
    found = set()
    root = Path(wellread.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in calls:
                owner = node.func.value
                if isinstance(owner, ast.Name) and owner.id.lower().startswith("auto"):
                    found.add(file.relative_to(root).as_posix())
    assert found == {"encoders/pretrained.py"}


class _Evil:
    """Something that a pickle would call."""

    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("content", ["call", "cut", "nothing"])
def test_a_checkpoint_of_more_than_weights_is_refused_without_advice_to_allow_it(tmp_path, content):
    path = tmp_path / "weights.bin"
    if content == "call":
        torch.save({"x": _Evil()}, path)
    elif content == "cut":
        torch.save({"x": torch.zeros(1000)}, path)
        path.write_bytes(path.read_bytes()[:300])
    else:
        path.write_bytes(b"")
    with pytest.raises(InputError, match="not a file of weights") as error:
        read_weights(path)
    assert "weights_only" not in str(error.value)
    assert "download it again" in str(error.value)
