"""Write constraints-hashed.txt: the pins of constraints.txt with the sha256 of every file that an index has of them.

    python tools/hash_constraints.py [--index URL]          # after constraints.txt was changed

Users who want each download compared with these sums install from it, see docs/security.md. It is a file of its own:
a sum in constraints.txt would make pip demand one for wellread's own folder, too, which can have none.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

ROOT = Path(__file__).resolve().parents[1]
_HEAD = """\
# The pins of constraints.txt with the sha256 of every file of each. Made with: python tools/hash_constraints.py
# pip install --require-hashes --no-deps -r constraints-hashed.txt
"""


def pins(file: Path) -> list[Requirement]:
    """Return the pinned requirements of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def hashes(client: PyPISimple, pin: Requirement) -> list[str]:
    """Return the sha256 of all files of a pinned version, sorted."""
    (wanted,) = pin.specifier
    found = set()
    for package in client.get_project_page(pin.name).packages:
        try:
            same = package.version is not None and Version(package.version) == Version(wanted.version)
        except InvalidVersion:
            continue
        if same and package.package_type in ("wheel", "sdist") and "sha256" in package.digests:
            found.add(package.digests["sha256"])
    return sorted(found)


def main() -> None:
    """Write the file, unless the index lacks a pinned version."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--index", default=PYPI_SIMPLE_ENDPOINT, help="a package index [PyPI]")
    options = parser.parse_args()
    wanted = pins(ROOT / "constraints.txt")
    with PyPISimple(options.index) as client, ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda pin: hashes(client, pin), wanted))
    missing = [str(pin) for pin, some in zip(wanted, sums, strict=True) if not some]
    if missing:
        raise SystemExit(f"the index has no file of: {', '.join(missing)}; pin versions that it has")
    lines = [
        " \\\n".join([str(pin), *(f"    --hash=sha256:{one}" for one in some)])
        for pin, some in zip(wanted, sums, strict=True)
    ]
    (ROOT / "constraints-hashed.txt").write_text(_HEAD + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
