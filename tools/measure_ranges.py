"""Measure the activation ranges of a linker and write them beside its weights, for inference in 8-bit integers.

    python tools/measure_ranges.py [FOLDER] [--kb vital]      # after the packaged linker was trained again
    python tools/measure_ranges.py src/wellread/weights/knowbert-wordnet-minilm --kb wordnet

The sample is spread over a whole KB: entities as the index has them, their descriptions alone, and short questions. For
a linker of word senses it is titles with descriptions (`wellread convert linker` measures them, too).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from wellread.encoders.files import find_encoder
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.config import WEIGHTS, ElqConfig
from wellread.models.elq.inference import HEADS
from wellread.models.elq.linker import window_tokenizer_of
from wellread.models.elq.load import PACKAGED
from wellread.models.folder import SETTINGS
from wellread.models.knowbert.loading import SavedLayer
from wellread.runtime.cache import digest_of_file
from wellread.runtime.ranges import FILE, measure_ranges, save_ranges
from wellread.runtime.weights import merge_adapters, read_encoder, read_trained

_ENTITIES = 168


def sample_texts(kb: KnowledgeBase) -> list[str]:
    """Return texts about some entities of a KB, of several lengths and in both cases."""
    rows = kb.connection.execute("SELECT title, description FROM entities ORDER BY id").fetchall()
    chosen = rows[:: max(1, len(rows) // _ENTITIES)]
    entities = [f"{title}: {description}" for title, description in chosen]
    questions = [f"what is {title}?".lower() for title, _ in chosen]
    longer = [f"who was {title} and where is it".lower() for title, _ in chosen]
    return [*entities, *(description for _, description in chosen), *questions, *longer]


def main() -> None:
    """Write ranges.safetensors into the folder of a linker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=PACKAGED, help="a linker's folder [the packaged one]")
    parser.add_argument("--kb", default="vital", help="a packaged KB to take the sample from [vital]")
    options = parser.parse_args()
    if (options.folder / SETTINGS).is_file():
        with open_kb(options.kb) as kb:
            SavedLayer.of(options.folder, kb.path.stem).write_ranges(kb)
        return
    config = ElqConfig.read(options.folder)
    _, adapters = read_trained(options.folder / WEIGHTS, HEADS)
    encoder = merge_adapters(read_encoder(find_encoder(config.encoder)), adapters)
    with open_kb(options.kb) as kb:
        texts = sample_texts(kb)
    windows = [windows[0].ids for windows in window_tokenizer_of(config).tokenize(texts) if windows]
    ranges = measure_ranges(encoder, windows)
    save_ranges(ranges, options.folder / FILE, weights=digest_of_file(options.folder / WEIGHTS))


if __name__ == "__main__":
    main()
