"""Large requests in parts, one after the other, so that others get their turn between two of them.

A request whose client has left or was told that it took too long is not worked on any more: its next part is never
submitted. The first part finds room or not for the whole request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from wellread.server.batching import Worker

TEXTS, CHARACTERS = 16, 16_000
"""Of a part: at most a second or so of a model's time, and enough texts to be quick."""
_TRIES = 3
"""Times that parts of an older revision are read again before all is read at once."""

Given = Callable[[Sequence[str]], Any]
"""Makes what is submitted for some of the texts."""


def in_parts(texts: Sequence[str]) -> list[Sequence[str]]:
    """Return runs of texts, each within the bounds of a part or of one text alone."""
    parts: list[Sequence[str]] = []
    begin = characters = 0
    for place, text in enumerate(texts):
        if place > begin and (place - begin == TEXTS or characters + len(text) > CHARACTERS):
            parts.append(texts[begin:place])
            begin, characters = place, 0
        characters += len(text)
    return [*parts, texts[begin:]]


async def submit_parts(
    worker: Worker,
    kinds: Sequence[Hashable],
    parts: Sequence[Sequence[str]],
    given: Given,
    *,
    revision: Callable[[Any], Any] = lambda made: None,
    patient: bool = False,
) -> list[list[Any]]:
    """Return what was made of each part, a result for each kind; all results of a kind are of one `revision`."""

    async def read(part: Sequence[str], *, admitted: bool) -> list[Any]:
        size, characters = len(part), sum(map(len, part))
        asked = worker.submit_all(
            kinds, given(part), size=size, characters=characters, patient=patient, admitted=admitted
        )
        return await asyncio.gather(*asked)

    texts = [text for part in parts for text in part]
    left = len(kinds) * (len(texts) - len(parts[0]))
    first = asyncio.ensure_future(read(parts[0], admitted=False))
    await asyncio.sleep(0)  # it is submitted, or refused
    if first.done():
        first.result()
    worker.hold(left)
    try:
        made = [await first]
        for part in parts[1:]:
            worker.hold(-len(kinds) * len(part))
            left -= len(kinds) * len(part)
            made.append(await read(part, admitted=True))
    finally:
        first.cancel()
        worker.hold(-left)
    latest = [revision(one) for one in made[-1]]
    for _ in range(_TRIES):
        old = [place for place, some in enumerate(made) if [revision(one) for one in some] != latest]
        if not old:
            return made
        for place in old:
            made[place] = await read(parts[place], admitted=True)
            latest = [revision(one) for one in made[place]]
    return [await read(texts, admitted=True)]
