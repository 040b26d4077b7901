"""Does a linker that reads fuzzed texts for a long time stay level in memory, and are its links where it says?

Bar: over 1,000,000 texts (`prior`) and 20,000 texts (`elq`) on the vital articles, the memory after the first fifth
varies by at most 5 %; no exception; every link has `text[start:end] == link.text`. Each linker runs in a process of
its own; its memory is what it has allocated, without mapped files, whose pages are private or shared depending on what
other processes map. Texts are sentences of the KB with random changes (case, code points of any script, blanks,
repeated parts, controls), so that all caches by character, word, span and name are filled.

    python -m benchmarks.soak --texts 1000000 --elq-texts 20000
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report import Report, arguments
from benchmarks.workers import anonymous_bytes, run

_TEXTS, _ELQ_TEXTS = 1_000_000, 20_000
_POINTS = 40
"""Times at which memory is measured."""
_BATCH = 64
_SETTLED = 0.2
"""Share of the texts after which memory has to be level."""
_VARIES = 5.0
"""Per cent by which it may vary from then on."""


def main(given: Sequence[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--texts", type=int, default=_TEXTS)
    own.add_argument("--elq-texts", type=int, default=_ELQ_TEXTS)
    chosen, rest = own.parse_known_args(given)
    options = arguments(__doc__, rest)
    report = Report("soak", options.quick)
    counts = {"prior": 2_000 if options.quick else chosen.texts, "elq": 128 if options.quick else chosen.elq_texts}
    wrong = 0
    for model, count in counts.items():
        if not count:
            continue
        result = run("soak", model, count)
        curve = result["curve"]
        level = curve[int(len(curve) * _SETTLED) :]
        varies = 100 * (max(level) - min(level)) / min(level)
        report.add(f"{model}: texts", count)
        report.add(f"{model}: links", result["links"])
        report.add(f"{model}: exceptions and wrong offsets", len(result["wrong"]), at_most=0)
        report.add(f"{model}: memory at the first text", curve[0] / 1e6, "MB")
        report.add(f"{model}: memory after a fifth", level[0] / 1e6, "MB")
        report.add(f"{model}: memory at the end", curve[-1] / 1e6, "MB")
        report.add(f"{model}: memory varies after a fifth", varies, "%", at_most=_VARIES)
        report.add(f"{model}: texts a second", count / result["seconds"])
        report.about[f"{model}, memory in MB"] = " ".join(f"{point / 1e6:.0f}" for point in curve)
        report.about[f"{model}, sha256 of the links"] = result["sha256"][:16]
        for what in result["wrong"][:5]:
            report.add(f"{model}: {what}", "wrong")
        wrong += len(result["wrong"])
    report.show()
    return 1 if wrong else 0


def fuzzed(sentences: Sequence[str], count: int, seed: int = 1) -> Iterator[str]:
    """Yield texts made of the sentences, changed at random; the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        text = chance.choice(sentences)
        for _ in range(chance.randrange(4)):
            text = _changed(text, chance)
        yield text


def _changed(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    kind = chance.randrange(8)
    if kind == 0:
        return text.upper() if chance.random() < 0.5 else text.swapcase()
    if kind == 1:
        return text[:at] + "".join(_letter(chance) for _ in range(chance.randrange(1, 12))) + text[at:]
    if kind == 2:
        return text[:at] + chance.choice(" \t\n\r\u00a0\u200b\u2028_-") * chance.randrange(1, 5) + text[at:]
    if kind == 3:
        return text[at:] + " " + text[:at]
    if kind == 4:
        return text[:at] + chr(chance.randrange(0x300, 0x370)) + text[at:]
    if kind == 5:
        return text[:at] + chr(chance.randrange(32)) + text[at:]
    if kind == 6:
        letters = list(text)
        for _ in range(min(3, len(letters))):
            place = chance.randrange(len(letters))
            letters[place] = letters[place].swapcase()
        return "".join(letters)
    return (text[:at] + " ") * chance.randrange(1, 4)


def _letter(chance: random.Random) -> str:
    """Return a character of any plane, no surrogate."""
    code = chance.randrange(0x110000 - 0x800)
    return chr(code + 0x800 if code >= 0xD800 else code)


def soak(model: str, count: int) -> dict[str, Any]:
    """Link fuzzed texts in this process; return the memory curve, a digest of the links, and all that was wrong."""
    from wellread.linking.linker import Linker

    linker = Linker.load("vital", "prior" if model == "prior" else "auto")
    rows = linker.kb.connection.execute("SELECT title, description FROM entities ORDER BY num LIMIT 10000")
    sentences = [f"{title} is {about[:160]}" for title, about in rows]
    digest, links, wrong = hashlib.sha256(), 0, []
    curve: list[int] = []
    done, due, begin = 0, 0.0, time.perf_counter()
    batch: list[str] = []
    for number, text in enumerate(fuzzed(sentences, count), 1):
        batch.append(text)
        if len(batch) < _BATCH and number < count:
            continue
        try:
            for document in linker.link_many(batch):
                for link in document.links:
                    links += 1
                    digest.update(f"{link.start} {link.end} {link.entity}\n".encode())
                    if document.text[link.start : link.end] != link.text:
                        wrong.append(f"offsets of {link.text!r} in {document.text!r}")
        except Exception as error:  # reported with the text that caused it
            wrong.append(f"{type(error).__name__}: {error} in one of {batch!r}"[:500])
        done += len(batch)
        batch.clear()
        if done >= due:
            curve.append(anonymous_bytes())
            due += count / _POINTS
            print(f"soak: {model}: {done} texts, {curve[-1] / 1e6:.0f} MB", file=sys.stderr, flush=True)
    curve.append(anonymous_bytes())
    seconds = time.perf_counter() - begin
    return {"curve": curve, "links": links, "wrong": wrong, "sha256": digest.hexdigest(), "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
