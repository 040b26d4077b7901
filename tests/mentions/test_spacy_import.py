"""A command imports spaCy without torch, which is there for everything else."""

import json
import subprocess
import sys

import pytest

from wellread.assets import is_cached

pytest.importorskip("spacy", reason="spaCy is not installed: pip install -e '.[spacy]'")
pytest.importorskip("torch", reason="torch is not installed: pip install -e '.[train]'")

SCRIPT = """
import json, sys
from importlib.util import find_spec
from wellread.mentions.spacy_import import leave_torch_out
from wellread.models.knowbert.pos_tags import KINDS, PosTagger

leave_torch_out()
tags = PosTagger().tag(["He leaves the old leaves."])
kinds = [KINDS[kind] for kind in tags.kinds.tolist() if kind >= 0]
print(json.dumps([kinds, "spacy" in sys.modules, "torch" in sys.modules, find_spec("torch") is not None]))
"""


@pytest.mark.skipif(not is_cached("spacy-en"), reason="spaCy's model is not there; run: make assets")
def test_spacy_tags_without_torch():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["v", "a", "n"], True, False, True]
