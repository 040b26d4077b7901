"""The base of the installation links by itself: without any package of the extras, as `make base` tries for real."""

import json
import subprocess
import sys

import pytest

from tests.infused_models import shake
from tests.sense_data import ENTITIES, Hashing
from tests.toy_models import ENTITIES as TOWNS
from tests.toy_models import tokenizer, write_kb
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder
from wellread.errors import install_extra
from wellread.index.entity_vectors import EntityVectors
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.saving import shrink

SCRIPT = """
import json, sys
from wellread.io.extras import EXTRAS

hidden = {package for packages in EXTRAS.values() for package in packages}

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
from wellread import Entity, Linker
from wellread.cli import main

def run(*arguments):
    sys.argv = ["wellread", *arguments]
    try:
        main()
    except SystemExit as leave:
        return leave.code or 0
    return 0

found = {}
with Linker.load("towns.kb", "linker", sources="names") as linker:
    linker.kb.add(Entity("new", "Cobh", "harbour town", "place", 1, {"cobh": 1}))
    found["added"] = [link.entity for link in next(linker.link_given(["in Cobh"], [[(3, 7)]], nil="never")).links]
with Linker.load("senses.kb", "senses", tags="none") as linker:
    found["senses"] = [link.text for link in linker.link("the old bank").links]
with open("things.jsonl", "w") as file:
    file.write(json.dumps({"id": "a", "title": "Alpha valve", "description": "a valve"}))
found["build"] = run("kb", "build", "jsonl", "things.jsonl", "--to", "things.kb")
found["index"] = run("index", "build", "--kb", "things.kb", "--model", "linker")
found["link"] = run("link", "--kb", "things.kb", "--model", "linker", "--format", "json", "the alpha valve")
found["word senses"] = run("link", "--kb", "senses.kb", "--model", "senses", "the old bank")
found["train"] = run("train", "recipe.toml")
found["explain"] = run("explain", "a text")
found["annotate"] = run("annotate", "--kb", "things.kb", "--to", "out", "things.jsonl")
found["imported"] = sorted(name for name in hidden if name in sys.modules)
print(json.dumps(found))
"""


@pytest.fixture
def home(tmp_path, encoder, trained):
    """A folder with two KBs, and a linker of each: ELQ and word senses."""
    write_kb(tmp_path / "towns.kb", TOWNS).close()
    (tmp_path / "linker").symlink_to(trained[0])
    model = infuse(load_encoder(encoder), [KnowBertConfig(kb="senses", layer=0, raw=6, dim=8, heads=2, inner=8)])
    shake(model.infusions[0], 2.0)
    model.save_pretrained(tmp_path / "model")
    tokenizer().save(str(tmp_path / "model" / "tokenizer.json"))
    with write_kb(tmp_path / "senses.kb", ENTITIES) as kb:
        EntityVectors.build(kb, Hashing())
        shrink(tmp_path / "model", kb, tmp_path / "senses", base=encoder)
    (tmp_path / "recipe.toml").write_text('task = "RTE"\n')
    return tmp_path


def test_the_base_links_and_says_what_else_needs(home):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=home, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    errors = done.stderr.splitlines()
    assert found.pop("added") == ["new"]
    assert found.pop("senses") == ["old", "bank"]
    assert found.pop("imported") == []
    assert found == {
        "build": 0,
        "index": 0,
        "link": 0,
        "word senses": 0,
        "train": 7,
        "explain": 7,
        "annotate": 7,
    }
    assert [line for line in errors if line.startswith("error: ")] == [
        f"error: {purpose} needs the extra {extra}: {package} is not installed; {install_extra(extra)}"
        for purpose, extra, package in (
            ("training", "train", "torch"),
            ("inference beyond linking", "train", "torch"),
            ("this command", "counting", "pyarrow"),
        )
    ]
