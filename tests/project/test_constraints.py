"""The two lists of pins: the same versions, and in the second a sum for each."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAIN, HASHED = ROOT / "constraints.txt", ROOT / "constraints-hashed.txt"


@pytest.mark.skipif(not PLAIN.exists(), reason="needs the repository")
def test_every_pin_has_a_sum_and_no_other_version():
    plain = [line for line in PLAIN.read_text().splitlines() if line and not line.startswith("#")]
    entries = re.sub(r"^#.*\n", "", HASHED.read_text(), flags=re.MULTILINE).replace(" \\\n", " ").splitlines()
    hashed = {}
    for entry in entries:
        pin, *sums = entry.split()
        assert sums
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in sums)
        hashed[pin] = sums
    assert list(hashed) == plain, "run: python tools/hash_constraints.py"
