"""How fast are all names of WordNet found in English text, tokenising included, on one core?

Bars: ≥ 8 MB/s and ≥ 15 × spaCy's EntityRuler in the same run, with the same spans as a brute-force reading. Peers get
the same names and text; they know no word forms, and their tokens are not quite ours, so their counts differ a little.
Then proposals: spans with candidates, found in all ways, with typos (bar: ≥ 4 MB/s) and without, for WordNet and for
the shared KB where it is there.
Megabytes are 10**6 bytes of UTF-8; seconds are those of the one core, so that what else the machine does counts less.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.brute import assert_same_spans
from benchmarks.data import english, has_shared, shared_kb, wordnet_kb
from benchmarks.report import Report, arguments, interleaved
from wellread.errors import WellreadError
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder, MatchOptions
from wellread.mentions.matcher import Matcher, Matches
from wellread.mentions.proposals import WAYS, ProposalFinder, ProposalOptions
from wellread.text.key_table import FormTable

Found = list[tuple[int, int, str]]
Peer = Callable[[str], Found]

_TOKEN = re.compile(r"\w+|[^\w\s]")


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(__doc__, given)
    report = Report("matching", options.quick)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        path = wordnet_kb()
    except WellreadError as error:
        print(f"matching: no WordNet here ({error})")
        return 0
    source, paragraphs = english(100_000 if options.quick else 2_000_000, path)
    text = "\n".join(paragraphs)
    with KnowledgeBase.open(path) as kb:
        matcher = Matcher.of(kb)
        aliases = [row[0] for row in kb.connection.execute("SELECT DISTINCT name FROM aliases ORDER BY name")]
        checked = assert_same_spans(kb, matcher, _without_forms(matcher), text[: 20_000 if options.quick else 150_000])
    report.about = {
        "text": f"{_megabytes(text):.2f} MB of {source}, {len(paragraphs):,} paragraphs",
        "names": f"{len(aliases):,} distinct",
        "checked": f"{checked:,} matches, the same as by brute force",
    }
    ours = _ours(matcher, text, paragraphs)
    peers, missing = _peers(aliases[::40] if options.quick else aliases)
    part = "\n".join(paragraphs[: max(1, len(paragraphs) // 10)])  # the slow ones read a tenth
    texts = {name: part if name in _SLOW else text for name in peers}
    counts = {name: len(peer(texts[name])) / _megabytes(texts[name]) for name, peer in peers.items()}  # and warmed up
    contenders = {**ours, **{name: lambda p=peer, t=texts[name]: p(t) for name, peer in peers.items()}}
    for work in ours.values():
        work()
    seconds = interleaved(contenders, 2 if options.quick else 7, clock=time.process_time)
    speeds = {name: _megabytes(texts.get(name, text)) / took for name, took in seconds.items()}
    for name in ours:
        report.add(name, speeds[name], "MB/s", at_least=None if "paragraph" in name else 8)
    for name in peers:
        report.add(f"{name} ({counts[name]:,.0f} matches/MB)", speeds[name], "MB/s")
    for name, why in missing.items():
        report.add(name, why)
    for name in peers:
        bar = 15 if name == _RULER else None
        report.add(f"longest with forms, as tuples / {name}", speeds[_AS_TUPLES] / speeds[name], "×", at_least=bar)
    _propose(report, path, paragraphs, quick=options.quick)
    if has_shared() and not options.quick:
        with tempfile.TemporaryDirectory() as folder:
            _propose(report, shared_kb(Path(folder)), paragraphs, quick=False)
    return report.show()


def _propose(report: Report, path: Path, paragraphs: list[str], *, quick: bool) -> None:
    """Add the speeds of finding proposals, typos on and off by turns, beside names as they are."""
    with KnowledgeBase.open(path) as kb:
        finders = {
            "names as they are": CandidateFinder(kb, MatchOptions(overlaps="all")),
            "proposals, no typos": ProposalFinder(kb, ProposalOptions(typos=False)),
            "proposals, unknown words met before": ProposalFinder(kb),
            "proposals": ProposalFinder(kb),
        }
        found = finders["proposals"].find(paragraphs)  # and warmed up
        work: dict[str, Callable[[], object]] = {
            name: lambda f=finder: f.find(paragraphs) for name, finder in finders.items()
        }
        work["proposals"] = lambda: _find_anew(finders["proposals"], paragraphs)
        for one in work.values():
            one()
        seconds = interleaved(work, 2 if quick else 7, clock=time.process_time)
    size = sum(len(paragraph.encode()) for paragraph in paragraphs) / 1e6
    for name, took in seconds.items():
        bar = 4 if name == "proposals" and not quick else None
        report.add(f"{path.name}: {name}, with candidates", size / took, "MB/s", at_least=bar)
    counts = np.bincount(found.ways, minlength=len(WAYS)) / size
    for way, count in zip(WAYS, counts.tolist(), strict=True):
        report.add(f"{path.name}: {way}", count, "spans/MB")


def _find_anew(finder: ProposalFinder, paragraphs: list[str]) -> None:
    """Find without what the finder remembers of unknown words: a repeated text must not make typos free."""
    finder._last_walker = None
    finder.find(paragraphs)


def _megabytes(text: str) -> float:
    return len(text.encode()) / 1e6


def _without_forms(matcher: Matcher) -> Matcher:
    no_keys = np.zeros(0, np.uint64)
    return Matcher(replace(matcher.names, forms=FormTable.build(no_keys, no_keys, np.zeros(0, np.uint8))))


# wellread

_AS_TUPLES = "longest, word forms, as (start, end, name) tuples"


def _ours(matcher: Matcher, text: str, paragraphs: list[str]) -> dict[str, Callable[[], object]]:
    plain = _without_forms(matcher)
    return {
        "longest, word forms": lambda: matcher.find(text),
        _AS_TUPLES: lambda: _tuples(matcher.find(text), text),
        "longest": lambda: plain.find(text),
        "longest, as (start, end, name) tuples": lambda: _tuples(plain.find(text), text),
        "all, word forms": lambda: matcher.find(text, overlaps="all"),
        "all": lambda: plain.find(text, overlaps="all"),
        "longest, word forms, paragraph by paragraph": lambda: [matcher.find(one) for one in paragraphs],
    }


def _tuples(found: Matches, text: str) -> Found:
    return [(start, end, text[start:end]) for start, end in found.spans()]


# peers

_RULER = "spaCy EntityRuler"
_SLOW = (_RULER, "flashtext")


def _peers(aliases: list[str]) -> tuple[dict[str, Peer], dict[str, str]]:
    """Those that are installed, with the names loaded; and why the others are not here."""
    makers: dict[str, Callable[[list[str]], Peer]] = {
        _RULER: _entity_ruler,
        "flashtext": _flashtext,
        "Python token trie": _token_trie,
        "ahocorasick_rs over tokens": _aho_corasick,
    }
    peers, missing = {}, {}
    for name, make in makers.items():
        begin = time.perf_counter()
        try:
            peers[name] = make(aliases)
        except ImportError:
            missing[name] = "not installed"
        print(f"  {name}: ready in {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return peers, missing


def _entity_ruler(aliases: list[str]) -> Peer:
    import spacy

    pipeline = spacy.blank("en")
    pipeline.max_length = 1 << 30
    ruler = pipeline.add_pipe("entity_ruler", config={"phrase_matcher_attr": "LOWER"})
    ruler.add_patterns([{"label": "NAME", "pattern": alias} for alias in aliases])
    return lambda text: [(entity.start_char, entity.end_char, entity.text) for entity in pipeline(text).ents]


def _flashtext(aliases: list[str]) -> Peer:
    from flashtext import KeywordProcessor

    processor = KeywordProcessor(case_sensitive=False)
    for alias in aliases:
        processor.add_keyword(alias)
    return lambda text: [(start, end, name) for name, start, end in processor.extract_keywords(text, span_info=True)]


def _token_trie(aliases: list[str]) -> Peer:
    """Return a simple matcher: a trie of lower-case tokens in dicts, longest name at each position."""
    root: dict[str, dict] = {}
    for alias in aliases:
        node = root
        for token in _TOKEN.findall(alias.lower()):
            node = node.setdefault(token, {})
        node[""] = {}

    def find(text: str) -> Found:
        spans = [match.span() for match in _TOKEN.finditer(text)]
        tokens = [text[start:end].lower() for start, end in spans]
        found, place, count = [], 0, len(tokens)
        while place < count:
            node, at, best = root.get(tokens[place]), place + 1, 0
            while node is not None:
                if "" in node:
                    best = at
                if at == count:
                    break
                node, at = node.get(tokens[at]), at + 1
            if best:
                start, end = spans[place][0], spans[best - 1][1]
                found.append((start, end, text[start:end]))
            place = best or place + 1
        return found

    return find


def _aho_corasick(aliases: list[str]) -> Peer:
    """Each token between two blanks of its own, so that neighbours share nothing; offsets are taken back at the end."""
    from ahocorasick_rs import AhoCorasick, MatchKind

    patterns = list(dict.fromkeys(" " + "  ".join(_TOKEN.findall(alias.lower())) + " " for alias in aliases))
    automaton = AhoCorasick(patterns, matchkind=MatchKind.LeftmostLongest)

    def find(text: str) -> Found:
        spans = [match.span() for match in _TOKEN.finditer(text)]
        tokens = [text[start:end].lower() for start, end in spans]
        places = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)) + 2)
        matches = automaton.find_matches_as_indexes(" " + "  ".join(tokens) + " ")
        firsts = np.searchsorted(places, [first for _, first, _ in matches], side="right").tolist()
        lasts = np.searchsorted(places, [last for _, _, last in matches]).tolist()
        borders = [(spans[first][0], spans[last][1]) for first, last in zip(firsts, lasts, strict=True)]
        return [(start, end, text[start:end]) for start, end in borders]

    return find


if __name__ == "__main__":
    sys.exit(main())
