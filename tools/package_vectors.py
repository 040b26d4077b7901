"""Write the vectors of the packaged articles into the package, so that set-up does not encode them.

    python tools/package_vectors.py      # after the articles, or how entities are encoded, have changed

The articles are encoded in fp32, in a temporary folder; it takes about a minute of a core's time.
"""

from __future__ import annotations

import tempfile

from wellread.index.entity_vectors import EntityVectors
from wellread.kb.packaged import open_kb
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.entity_encoder import EntityTower
from wellread.models.elq.load import PACKAGED
from wellread.models.elq.packaged_vectors import PATH, package


def main() -> None:
    """Encode the vital articles and write articles.safetensors."""
    tower = EntityTower.load(ElqConfig.read(PACKAGED), precision="fp32")
    with tempfile.TemporaryDirectory() as folder, open_kb("vital") as kb:
        package(EntityVectors.build(kb, tower, folder), PATH)


if __name__ == "__main__":
    main()
