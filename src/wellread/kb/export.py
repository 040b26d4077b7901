"""Whole knowledge bases as records: merging several into one, and export as JSONL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import orjson

from wellread.errors import UsageError
from wellread.kb.build import Origin, build
from wellread.kb.readers.tables import OWN_METADATA
from wellread.kb.records import Record, Tally
from wellread.kb.store import KnowledgeBase


def merge(sources: Iterable[str | Path], to: str | Path, *, tally: Tally | None = None) -> Tally:
    """Merge knowledge bases at `to`; entities with the same id become one, with the first title and description."""
    paths = [Path(path) for path in sources]
    if not paths:
        raise UsageError("there is nothing to merge; give at least one knowledge base")

    def records(tally: Tally) -> Iterator[Record]:
        for path in paths:
            yield from read_kb(path, tally)

    described = []
    for path in paths:
        with KnowledgeBase.open(path) as kb:
            described.append(kb.metadata)
    origin = Origin(
        source="merge of " + ", ".join(path.name for path in paths),
        licence="; ".join(dict.fromkeys(data.get("licence", "") for data in described if data.get("licence"))),
        language=described[0].get("language", "en"),
        settings=" ".join(f"{data['uid']}@{data['revision']}" for data in described),
        extra=next(({"inflection": data["inflection"]} for data in described if data.get("inflection")), {}),
    )
    return build(records, to, origin=origin, on_repeat="merge", tally=tally)


def read_kb(path: Path, tally: Tally) -> Iterator[Record]:
    """Yield the entities, irregular forms and other ids of a KB as records."""
    with KnowledgeBase.open(path) as kb:
        tally.total_bytes += path.stat().st_size
        before, share = tally.done_bytes, path.stat().st_size / max(len(kb), 1)
        for count, entity in enumerate(kb.entities(), 1):
            tally.read += 1
            tally.done_bytes = before + int(share * count)
            yield entity
        yield from kb.forms()
        yield from kb.other_ids()


def write_jsonl(kb: KnowledgeBase, file: IO[bytes]) -> int:
    """Write metadata, forms, entities and other ids of a KB for `read_jsonl`; return the number of entities."""
    about = {key: value for key, value in kb.metadata.items() if key not in OWN_METADATA}
    file.write(orjson.dumps({"kb": about}) + b"\n")
    for form in kb.forms():
        file.write(orjson.dumps({"form": form.form, "word": form.word, "kind": form.kind}) + b"\n")
    count = 0
    for count, entity in enumerate(kb.entities(), 1):  # noqa: B007  # counted, not used
        file.write(orjson.dumps(entity) + b"\n")
    for other in kb.other_ids():
        file.write(orjson.dumps({"other_id": other.id, "entity": other.entity, "kind": other.kind}) + b"\n")
    return count
