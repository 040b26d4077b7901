"""Counting words and pairs, and the table of correlations: against loops in plain Python."""

import gzip
import json
import lzma
import math
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from tests.kb.conftest import build_kb
from wellread.correlation import counting, engines, events, pairs, pmi
from wellread.correlation.counting import CountProgress, TableLimits, add_corpus, correlate
from wellread.correlation.engines import DuckEngine, parse_memory
from wellread.correlation.events import count_shard, counted_words
from wellread.correlation.table import Correlation
from wellread.data import corpus as corpora
from wellread.data.corpus import Corpus
from wellread.errors import InputError, UsageError
from wellread.io.arrays import map_arrays, save_arrays
from wellread.kb.records import Entity
from wellread.text.words import split, words

ALL = TableLimits(min_count=2, min_pair=2, neighbours=0)


def made_up(documents, seed=1, vocabulary=60):
    chance = random.Random(seed)
    named = [f"w{rank}" for rank in range(vocabulary)]
    weights = [1 / (rank + 1) for rank in range(vocabulary)]
    return [" ".join(chance.choices(named, weights, k=chance.randint(1, 20))) for _ in range(documents)]


def brute(events, limits):
    """(words in how many events, pairs with PMI > 0 in how many and their PMI), found by loops."""
    there = [set(event) for event in events if event]
    counts = Counter(word for event in there for word in event)
    counts = {word: count for word, count in counts.items() if count >= limits.min_count}
    together = Counter(pair for event in there for pair in combinations(sorted(event & counts.keys()), 2))
    total, found = len(there), {}
    for (left, right), count in together.items():
        value = math.log(count / total) - math.log(counts[left] / total) - math.log(counts[right] / total)
        if count >= limits.min_pair and count * total > counts[left] * counts[right]:
            found[left, right] = (count, value)
    return counts, found


def read_table(table):
    found = {}
    for left, word in enumerate(table.words):
        for one in table.neighbours(word):
            found[tuple(sorted((word, one.word)))] = (one.together, one.relevance)
            assert table.counts[left] == table.counts[table.ids_of([word])[0]]
    return dict(zip(table.words, table.counts.tolist(), strict=True)), found


def check(table, events, limits):
    counts, expected = brute(events, limits)
    words_there, found = read_table(table)
    assert words_there == counts
    assert found.keys() == expected.keys()
    assert expected
    z = max(value for _, value in expected.values())
    total = sum(1 for event in events if event)
    assert table.events == total
    assert table.about["z"] == pytest.approx(1.0 if limits.measure == "npmi" else z, abs=1e-10)
    for pair, (together, value) in expected.items():
        scale = -math.log(together / total) if limits.measure == "npmi" else z
        assert found[pair][0] == together
        assert found[pair][1] == pytest.approx(value / scale, rel=1e-6)


@pytest.fixture
def texts(tmp_path):
    documents = made_up(400)
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(documents))
    return path, [document.split() for document in documents]


@pytest.mark.parametrize("measure", ["pmi", "npmi"])
@pytest.mark.parametrize(("min_count", "min_pair"), [(1, 1), (5, 3), (30, 12)])
def test_a_table_agrees_with_plain_loops(texts, tmp_path, measure, min_count, min_pair):
    path, events = texts
    limits = TableLimits(min_count=min_count, min_pair=min_pair, measure=measure, neighbours=0)
    check(correlate(Corpus.of_files([path]), tmp_path / "t.pmi", limits=limits), events, limits)


def test_pmi_agrees_with_loops_to_ten_digits(texts, tmp_path):
    path, events = texts
    table = correlate(Corpus.of_files([path]), tmp_path / "t.pmi", limits=ALL)
    _, expected = brute(events, ALL)
    figures = pmi.Counted(list(table.words), table.counts, table.events)
    left, right = (table.ids_of([pair[side] for pair in expected]) for side in (0, 1))
    together = np.array([count for count, _ in expected.values()])
    assert np.abs(figures.pmi(left, right, together) - [value for _, value in expected.values()]).max() < 1e-10


@pytest.mark.parametrize(("window", "step"), [(4, 0), (5, 1), (3, 3), (50, 7)])
def test_windows_are_events_of_their_own(texts, tmp_path, window, step):
    path, documents = texts
    stride = step or window // 2
    events = []
    for document in documents:
        start = 0
        while document:
            events.append(document[start : start + window])
            if start + window >= len(document):
                break
            start += stride
    table = correlate(Corpus.of_files([path], window=window, step=step), tmp_path / "t.pmi", limits=ALL)
    check(table, events, ALL)


def cut_small(monkeypatch, worth=1.2):
    """Panels, blocks, parts and tasks of a few words each; some panels, then words that are sorted."""
    for name, value in (
        ("_PANEL", 7),
        ("_PART_EVENTS", 50),
        ("_TASK_ROWS", 5),
        ("_WORTH_A_PANEL", worth),
        ("_SHARE", 1 << 30),
        ("_BLOCK_VISITS", 3000),
        ("_TASK_VISITS", 500),
    ):
        monkeypatch.setattr(pairs, name, value)


@pytest.mark.parametrize("worth", [0.0, 1.2, 1e9], ids=["panels", "both", "sorted"])
def test_small_blocks_chunks_and_ranges_give_the_same_table(texts, tmp_path, monkeypatch, worth):
    path, events = texts
    whole = correlate(Corpus.of_files([path]), tmp_path / "whole.pmi", limits=ALL)
    cut_small(monkeypatch, worth)
    monkeypatch.setattr(counting, "BYTES_AN_ID", (512 << 20) // 2 // 800)
    monkeypatch.setattr(pmi, "_BYTES_AN_ENTRY", (512 << 20) // 2 // 100)
    monkeypatch.setattr(pmi, "_HASHED", 9)
    made = Counter()
    for home, name in (
        (counting, "arrange"),
        (pairs, "_frequent_pairs"),
        (pairs, "_rare_pairs"),
        (pmi._Filler, "_final"),
    ):
        monkeypatch.setattr(home, name, counted(made, name, getattr(home, name)))
    corpus = Corpus.of_files([path], shard_bytes=2000)
    cut = correlate(corpus, tmp_path / "cut.pmi", limits=ALL, memory="512MB", workers=1)
    assert made["arrange"] > 2
    assert (made["_frequent_pairs"] > 5) == (worth < 2)
    assert (made["_rare_pairs"] > 1) == (worth > 0)
    assert made["_final"] > 2
    check(cut, events, ALL)
    assert table_bytes(whole) == table_bytes(cut)


def counted(calls, name, function):
    def work(*arguments, **options):
        calls[name] += 1
        return function(*arguments, **options)

    return work


def table_bytes(table):
    return (table.folder / table.about["file"]).read_bytes()


def test_several_workers_of_pairs_are_summed_by_sql(texts, tmp_path, monkeypatch):
    path, _ = texts
    whole = correlate(Corpus.of_files([path]), tmp_path / "whole.pmi", limits=ALL)
    cut_small(monkeypatch)
    corpus = Corpus.of_files([path], shard_bytes=2000)
    with DuckEngine(memory=1 << 30, workers=1, spill=tmp_path / "spill") as engine:
        engine.groups = 3
        summed = correlate(corpus, tmp_path / "summed.pmi", limits=ALL, engine=engine)
    assert table_bytes(whole) == table_bytes(summed)


def test_shards_are_counted_by_processes_side_by_side(texts, tmp_path):
    path, _ = texts
    whole = correlate(Corpus.of_files([path]), tmp_path / "whole.pmi", limits=ALL, workers=1)
    progress = CountProgress()
    corpus = Corpus.of_files([path], shard_bytes=6000)
    cut = correlate(corpus, tmp_path / "cut.pmi", limits=ALL, workers=2, progress=progress)
    assert progress.shards == len(corpus.shards) > 1
    assert progress.done_bytes == progress.total_bytes == path.stat().st_size
    assert table_bytes(whole) == table_bytes(cut)


def test_adding_equals_counting_all_at_once(tmp_path):
    documents = made_up(300)
    for name, some in (("a", documents[:170]), ("b", documents[170:]), ("all", documents)):
        (tmp_path / f"{name}.txt").write_text("\n".join(some))
    limits = TableLimits(min_count=8, min_pair=4)
    all_at_once = correlate(Corpus.of_files([tmp_path / "all.txt"]), tmp_path / "all.pmi", limits=limits)
    correlate(Corpus.of_files([tmp_path / "a.txt"]), tmp_path / "t.pmi", limits=limits)
    added = add_corpus(Corpus.of_files([tmp_path / "b.txt"]), tmp_path / "t.pmi")
    assert table_bytes(added) == table_bytes(all_at_once)
    assert [one["sources"] for one in added.about["corpora"]] == [[str(tmp_path / "a.txt")], [str(tmp_path / "b.txt")]]
    with pytest.raises(UsageError, match=r"has counted .*b\.txt already; give new text"):
        add_corpus(Corpus.of_files([tmp_path / "b.txt"]), tmp_path / "t.pmi")
    with pytest.raises(UsageError, match="counts documents, this would count windows of 4 words every 2"):
        add_corpus(Corpus.of_files([tmp_path / "all.txt"], window=4), tmp_path / "t.pmi")


def test_other_limits_read_no_text_again(texts, tmp_path):
    path, events = texts
    corpus = Corpus.of_files([path])
    correlate(corpus, tmp_path / "t.pmi", limits=ALL)
    progress = CountProgress()
    limits = TableLimits(min_count=9, min_pair=5)
    check(correlate(corpus, tmp_path / "t.pmi", limits=limits, progress=progress), events, limits)
    assert (progress.shards, progress.kept) == (0, 1)
    assert len(list((tmp_path / "t.pmi").glob("table-*"))) == 1
    before = Correlation.load(tmp_path / "t.pmi").about["file"]
    assert correlate(corpus, tmp_path / "t.pmi", limits=limits).about["file"] == before


class _KilledError(BaseException):
    pass


@pytest.mark.parametrize("moment", ["shard", "pairs", "sums", "table"])
def test_a_count_that_was_killed_goes_on(texts, tmp_path, monkeypatch, moment):
    path, _ = texts
    cut_small(monkeypatch)
    if moment == "sums":
        monkeypatch.setattr(DuckEngine, "groups", 2)
    corpus = Corpus.of_files([path], shard_bytes=4000)
    whole = correlate(corpus, tmp_path / "whole.pmi", limits=ALL, workers=1)
    calls = Counter()

    def dies(function, after):
        def work(*arguments, **options):
            calls[moment] += 1
            if calls[moment] > after:
                raise _KilledError
            return function(*arguments, **options)

        return work

    with monkeypatch.context() as broken:
        if moment == "shard":
            broken.setattr(engines, "count_shard", dies(count_shard, 2))
        elif moment == "pairs":
            broken.setattr(counting, "save_pairs", dies(counting.save_pairs, 2))
        elif moment == "sums":
            broken.setattr(counting, "keep_positive", dies(counting.keep_positive, 1))
        else:
            broken.setattr(counting, "build_table", dies(counting.build_table, 0))
        with pytest.raises(_KilledError):
            correlate(corpus, tmp_path / "t.pmi", limits=ALL, workers=1)
    with pytest.raises(InputError, match="is not finished; run the same wellread correlate again"):
        Correlation.load(tmp_path / "t.pmi")
    work = {file: file.stat().st_mtime_ns for file in (tmp_path / "t.pmi").glob("work-*/kept-*")}
    progress = CountProgress()
    table = correlate(corpus, tmp_path / "t.pmi", limits=ALL, workers=1, progress=progress)
    assert progress.kept == (2 if moment == "shard" else len(corpus.shards))
    assert bool(work) == (moment in ("pairs", "sums", "table"))
    assert table_bytes(table) == table_bytes(whole)
    assert not list((tmp_path / "t.pmi").glob("work-*"))


def test_a_killed_process_leaves_complete_shards(texts, tmp_path):
    path, _ = texts
    corpus = Corpus.of_files([path], shard_bytes=2000)
    folder = tmp_path / "t.pmi" / "counted" / corpus.fingerprint
    folder.mkdir(parents=True)
    (folder / "corpus.json").write_text(corpus.to_json())
    command = [sys.executable, "-m", "wellread.correlation.events", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdin.write(b"0\n1\n2\n3\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == b"done\n"
        worker.kill()
    progress = CountProgress()
    table = correlate(corpus, tmp_path / "t.pmi", limits=ALL, workers=1, progress=progress)
    assert 1 <= progress.kept <= 4
    assert table_bytes(table) == table_bytes(correlate(corpus, tmp_path / "w.pmi", limits=ALL, workers=1))


def test_every_document_is_read_once(tmp_path):
    documents = made_up(200)
    plain = "\n".join(documents)
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "a.txt").write_text(plain)
    (folder / "deep" / "b.txt.gz").write_bytes(gzip.compress(plain.encode()))
    (folder / "deep" / "c.jsonl.xz").write_bytes(
        lzma.compress("\n".join(json.dumps({"text": text}) for text in documents).encode())
    )
    (folder / "d.jsonl").write_text("\n".join(json.dumps({"text": text, "n": 1}) for text in documents) + "\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden" / "no.txt").write_text("no")
    import pyarrow as pa

    with pa.CompressedOutputStream(str(folder / "e.txt.zst"), "zstd") as file:
        file.write(plain.encode())
    corpus = Corpus.of_files([folder], shard_bytes=1500)
    assert len(corpus.shards) > 10
    read = Counter(text for shard in range(len(corpus.shards)) for text in corpus.documents(shard) if text)
    assert read == Counter(documents * 5)
    assert Corpus.from_json(corpus.to_json()) == corpus
    assert Corpus.of_files([folder], shard_bytes=1500).fingerprint == corpus.fingerprint
    (folder / "a.txt").write_text(plain + "\nmore")
    assert Corpus.of_files([folder], shard_bytes=1500).fingerprint != corpus.fingerprint


@pytest.mark.parametrize("killed", [False, True])
def test_an_archive_is_counted_block_by_block(tmp_path, monkeypatch, killed):
    documents = made_up(400)
    (tmp_path / "plain.txt").write_text("\n".join(documents))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(documents).encode()))
    plain = correlate(Corpus.of_files([tmp_path / "plain.txt"]), tmp_path / "plain.pmi", limits=ALL, workers=1)
    monkeypatch.setattr(corpora, "SHARD_BYTES", 500)
    monkeypatch.setattr(corpora, "BLOCK_BYTES", 2000)
    archive = Corpus.of_files([tmp_path / "a.txt.gz"])
    assert len(archive.shards) == 1
    counted_blocks = []
    count_block = events._count_block

    def count(texts, corpus, files):
        if killed and len(counted_blocks) == 3:
            counted_blocks.clear()
            raise _KilledError
        counted_blocks.append(files[0].name)
        count_block(texts, corpus, files)

    monkeypatch.setattr(events, "_count_block", count)
    if killed:
        with pytest.raises(_KilledError):
            correlate(archive, tmp_path / "t.pmi", limits=ALL, workers=1)
        killed = False
    table = correlate(archive, tmp_path / "t.pmi", limits=ALL, workers=1)
    assert table_bytes(table) == table_bytes(plain)
    blocks = len(list((tmp_path / "t.pmi").glob("counted/*/words-*"))) - 1
    assert table.about["corpora"][0]["blocks"] == {"0": blocks}
    assert blocks > 5
    begin = 3 if len(counted_blocks) < blocks else 0
    assert counted_blocks == [f"words-000000-{block:06d}.parquet" for block in range(begin, blocks)] + [
        "words-000000.parquet"
    ]
    next((tmp_path / "t.pmi").glob("counted/*/events-000000-000002*")).unlink()
    with pytest.raises(InputError, match="is missing, so counts cannot be summed"):
        correlate(archive, tmp_path / "t.pmi", workers=1)


def test_a_document_is_a_line_a_paragraph_or_a_file(tmp_path):
    paragraphs = [f"one {n}\ntwo {n}" for n in range(50)]
    plain = "\n\n".join(paragraphs)
    (tmp_path / "a.txt").write_text(plain)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(plain.encode()))

    def documents(unit):
        corpus = Corpus.of_files([tmp_path / "a.txt", tmp_path / "b.txt.gz"], unit=unit, shard_bytes=100)
        return [text for shard in range(len(corpus.shards)) for text in corpus.documents(shard) if text.strip()]

    assert documents("file") == [plain] * 2
    assert [text.strip("\n") for text in documents("paragraph")] == paragraphs * 2
    assert documents("line") == [line for line in plain.split("\n") if line] * 2


def test_fields_of_jsonl_are_joined(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"title": "River", "body": "flows"}\n\n{"title": "Bank", "body": null}\n{"body": "x"}\n')
    assert list(Corpus.of_files([path], fields=("title", "body")).documents(0)) == ["River\nflows", "Bank", "x"]


def test_descriptions_of_a_kb_can_be_counted(tmp_path):
    kb = tmp_path / "x.kb"
    build_kb(kb, [Entity(f"Q{n}", f"thing {n}", "a river flows" if n % 2 else "a bank lends") for n in range(40)])
    table = correlate(Corpus.of_kb(kb), tmp_path / "kb.pmi")
    assert [one.word for one in table.neighbours("river")] == ["flows"]
    assert table.ids_of(["thing"]).tolist() == [-1]
    titled = correlate(Corpus.of_kb(kb, titles=True), tmp_path / "titled.pmi")
    assert titled.counts[titled.ids_of(["thing"])[0]] == 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Jean-Paul's CAFÉ costs $3.50!", "jean paul s cafe costs 3 50"),
        ("Straße – ﬁsh_and—chips", "strasse fish and chips"),
        ("東京 is 2 big", "東 京 is 2 big"),
        ("A\u0301rpad’s n\u0303", "arpad s n"),
        ("Ελλάδα Россия", "ελλαδα россия"),
        (" ... ", ""),
        ("", ""),
    ],
)
def test_words_are_folded_and_signs_left_out(text, expected):
    assert counted_words(text) == expected.split()


def test_all_ways_to_split_find_the_words_of_names():
    chance = random.Random(3)
    letters = "aZ09 -_.'’“é ßÆøИяΩ\u0301\u00ad\u200d東ก½…—🏽"
    for _ in range(300):
        text = "".join(chance.choices(letters, k=chance.randint(1, 30)))
        hashes = [
            word_hash for word_hash, word in zip(split(text).hashes, words(text), strict=True) if word[0].isalnum()
        ]
        found = counted_words(text)
        assert len(found) == len(hashes)
        assert [int(split(word).hashes[0]) for word in found if len(split(word).hashes) == 1] == [
            int(one) for one, word in zip(hashes, found, strict=True) if len(split(word).hashes) == 1
        ]


def test_events_without_words_do_not_count(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(["a b", "", "...", "a b", " ", "c d", "c", "e"]))
    limits = TableLimits(min_count=1, min_pair=1)
    table = correlate(Corpus.of_files([tmp_path / "a.txt"]), tmp_path / "t.pmi", limits=limits)
    check(table, [["a", "b"], ["a", "b"], ["c", "d"], ["c"], ["e"]], limits)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 << 30), ("800 mb", 800 << 20), ("1.5G", 3 << 29), ("2TiB", 2 << 40), ("1000000000", 10**9)],
)
def test_memory_is_read_as_people_write_it(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda at: Corpus.of_files([at / "no.txt"]), InputError, "there is no .*no.txt; give text files"),
        (lambda at: Corpus.of_files(["-"]), UsageError, "standard input cannot be split into shards"),
        (lambda at: Corpus.of_files([at], window=1), UsageError, "makes no pairs"),
        (lambda at: Corpus.of_files([at / "a.txt"], window=4, step=5), UsageError, "give a step of 4 or less"),
        (lambda at: Corpus.of_files([at / "a.txt"], unit="page"), UsageError, "a line, a paragraph or a file"),
        (lambda at: TableLimits(min_count=0), UsageError, "expected min_count ≥ 1, min_pair ≥ 1"),
        (lambda at: TableLimits(measure="lift"), UsageError, "choose pmi or npmi"),
        (lambda at: parse_memory("much"), UsageError, "write it like 4GB"),
        (lambda at: parse_memory("10MB"), UsageError, "give 512MB or more"),
        (lambda at: Correlation.load(at), InputError, "make one with: wellread correlate TEXT --to"),
        (lambda at: engines.start_engine("mysql", memory=1, workers=1, spill=at), UsageError, "choose duckdb or spark"),
        (
            lambda at: engines.start_engine("duckdb", memory=1, workers=1, spill=at, master="x"),
            UsageError,
            "only Spark has a master",
        ),
    ],
)
def test_errors_of_counting_name_the_fix(tmp_path, make, error, message):
    (tmp_path / "a.txt").write_text("a b c")
    with pytest.raises(error, match=message):
        make(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}', r"byte 14: a line without text \(it has body\); name its text"),
        ("a.jsonl", b'{"text": 3}', "is no text; name another with --field"),
        ("a.jsonl", b"[1]", "it is no object"),
        ("a.jsonl", b"{", "byte 0: no JSON"),
        ("a.txt.gz", gzip.compress(b"a b c" * 9000, mtime=0)[:40], "truncated or damaged"),
        ("a.txt", b"", "there is no text in"),
        ("a.txt", b"a b\nc d\n", "no two words of 2 events occur together often enough"),
    ],
)
@pytest.mark.parametrize("workers", [1])
def test_text_that_is_broken_says_where(tmp_path, name, content, message, workers):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        correlate(Corpus.of_files([tmp_path / name]), tmp_path / "t.pmi", workers=workers)


def test_a_failure_in_a_process_is_raised_unchanged(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_bytes(b"caf\xe9 " * 40)
    corpus = Corpus.of_files([tmp_path], shard_bytes=100)
    with pytest.raises(InputError, match="is not UTF-8"):
        correlate(corpus, tmp_path / "t.pmi", workers=2)


def test_folders_of_others_and_other_corpora_are_left_alone(texts, tmp_path):
    path, _ = texts
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    with pytest.raises(UsageError, match="has other files"):
        correlate(Corpus.of_files([path]), tmp_path / "mine")
    with pytest.raises(UsageError, match="is a file; a table is a folder"):
        correlate(Corpus.of_files([path]), path)
    correlate(Corpus.of_files([path]), tmp_path / "t.pmi", limits=ALL)
    with pytest.raises(UsageError, match=r"was counted on other text .*corpus.txt.*--add-to"):
        correlate(Corpus.of_files([tmp_path / "mine"]), tmp_path / "t.pmi", limits=ALL)
    with pytest.raises(InputError, match="there is no table"):
        add_corpus(Corpus.of_files([path]), tmp_path / "new.pmi")
    events = next((tmp_path / "t.pmi" / "counted").glob("*/events-*"))
    events.unlink()
    with pytest.raises(InputError, match="is missing, so counts cannot be summed"):
        add_corpus(Corpus.of_files([tmp_path / "mine"]), tmp_path / "t.pmi")


def test_only_the_nearest_of_either_word_are_kept(texts, tmp_path):
    path, _ = texts
    whole = correlate(Corpus.of_files([path]), tmp_path / "whole.pmi", limits=ALL)
    near = correlate(Corpus.of_files([path]), tmp_path / "near.pmi", limits=TableLimits(2, 2, neighbours=4))
    nearest = {}
    for word in whole.words:
        scores = [one.relevance for one in whole.neighbours(word)]
        nearest[word] = scores[3] if len(scores) > 4 else 0.0
    for word in whole.words:
        kept = {
            one.word: one.relevance
            for one in whole.neighbours(word)
            if one.relevance >= nearest[word] or one.relevance >= nearest[one.word]
        }
        assert {one.word: one.relevance for one in near.neighbours(word)} == kept
    assert near.about["pairs"] < whole.about["pairs"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lookup")
    (folder / "a.txt").write_text("\n".join(made_up(500, vocabulary=120)))
    return correlate(Corpus.of_files([folder / "a.txt"]), folder / "t.pmi", limits=TableLimits(3, 2), workers=1)


def naive(table):
    scores = {(word, word): 1.0 for word in table.words}
    for word in table.words:
        scores |= {(word, one.word): one.relevance for one in table.neighbours(word)}
    return scores


def test_relevance_is_one_to_itself_nothing_to_strangers_and_the_same_from_both_sides(table):
    scores = naive(table)
    chance = np.random.default_rng(2)
    for size in (1, 2, 17, 60):
        left, right = (chance.integers(-1, len(table), size) for _ in range(2))
        for ids, others in ((left, right), (left, left)):
            block = table.relevance(ids, others)
            assert block.dtype == np.float32
            expected = [
                [scores.get((table.words[a], table.words[b]), 0.0) if a >= 0 and b >= 0 else 0.0 for b in others]
                for a in ids
            ]
            assert np.array_equal(block, np.array(expected, np.float32))
            assert np.array_equal(block.T, table.relevance(others, ids))
        assert np.array_equal(table.relevance_of(left, right), np.diagonal(table.relevance(left, right)))
    assert table.relevance([], [0, 1]).shape == (0, 2)
    assert table.relevance_of(np.zeros(0, int), np.zeros(0, int)).shape == (0,)


def test_ids_do_not_mind_case_and_diacritics(table):
    word = table.words[3]
    assert table.ids_of([word, word.upper(), "nowhere", "", word.replace("w", "ẃ")]).tolist() == [3, 3, -1, -1, 3]
    assert table.ids_of_hashes(split(f"{word} nowhere").hashes).tolist() == [3, -1]
    assert table.ids_of(list(table.words)).tolist() == list(range(len(table)))


def test_words_are_a_sequence_from_the_most_frequent_on(table):
    assert list(table.words[:2]) == [table.words[0], table.words[1]]
    assert table.words[-1] == list(table.words)[-1]
    assert (np.diff(table.counts) <= 0).all()
    with pytest.raises(IndexError, match="out of range"):
        table.words[len(table)]


@pytest.mark.parametrize("leave_out", [False, True])
def test_related_words_have_the_highest_mean(table, leave_out):
    scores = naive(table)
    chance = np.random.default_rng(5)
    banned = [table.words[id] for id in range(0, len(table), 3)] if leave_out else []
    for size in (1, 2, 8):
        ids = chance.integers(-1, len(table), size)
        known = sorted({int(id) for id in ids if id >= 0})
        means = {
            word: sum(scores.get((table.words[id], word), 0.0) for id in known) / max(1, len(known))
            for number, word in enumerate(table.words)
            if number not in known and word not in banned
        }
        ranked = sorted(((-mean, word) for word, mean in means.items() if mean > 0))[:7]
        found = table.related(np.append(ids, ids), 7, leave_out=banned)
        assert [table.words[id] for id, _ in found] == [word for _, word in ranked]
        assert [mean for _, mean in found] == pytest.approx([-mean for mean, _ in ranked], abs=1e-10)
        assert table.related(ids, 7, leave_out=table.ids_of(banned) if banned else ()) == found
    assert table.related([-1], 5) == []
    assert table.related([0], 0) == []


def test_ties_go_by_the_word(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(["x zeta alpha mid"] * 6 + ["other things"] * 6))
    table = correlate(Corpus.of_files([tmp_path / "a.txt"]), tmp_path / "t.pmi")
    assert [table.words[id] for id, _ in table.related(table.ids_of(["x"]), 2)] == ["alpha", "mid"]
    assert [one.word for one in table.neighbours("x", 3)] == ["alpha", "mid", "zeta"]


def test_a_table_that_is_damaged_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(["x y"] * 6 + ["z z2"] * 6))
    table = correlate(Corpus.of_files([tmp_path / "a.txt"]), tmp_path / "t.pmi")
    file = table.folder / table.about["file"]
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InputError, match="is damaged"):
        Correlation.load(table.folder)
    file.unlink()
    with pytest.raises(InputError, match="has no table file"):
        Correlation.load(table.folder)
    (table.folder / "correlation.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="another version"):
        Correlation.load(table.folder)
    (table.folder / "correlation.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        Correlation.load(table.folder)


def test_events_on_disk_are_the_distinct_words_of_each_document(tmp_path):
    (tmp_path / "a.txt").write_text("b a b\n\na c c c\n")
    corpus = Corpus.of_files([tmp_path / "a.txt"])
    count_shard(corpus, 0, tmp_path)
    arrays = map_arrays(tmp_path / "events-000000.safetensors")
    assert arrays["sizes"].tolist() == [2, 2]
    assert arrays["ids"].tolist() == [0, 1, 1, 2]
    assert arrays["words"].tolist() == [7]


def test_counts_that_do_not_fit_16_bits_are_right(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet

    events = 70_000
    arrays = {"ids": np.tile(np.array([0, 1], np.uint32), events), "sizes": np.full(events, 2, np.uint32)}
    save_arrays(tmp_path / "events", arrays, {})
    pa.parquet.write_table(pa.table({"word": ["a", "b"], "n": [events, events]}), tmp_path / "words")
    pairs.arrange([(tmp_path / "words", tmp_path / "events")], pa.array(["a", "b"]), tmp_path / "chunk")
    for worth in (0, 1e9):
        monkeypatch.setattr(pairs, "_WORTH_A_PANEL", worth)
        for times in (1, 2):
            counts = np.array([events, events]) * times
            blocks = pairs.plan_blocks(counts, 2 * events * times, events * times, 1 << 30)
            chunks = [tmp_path / "chunk"] * times
            found = pairs.count_pairs(chunks, blocks, counts, least=1, threads=1, done=lambda _: False)
            assert [tuple(some.tolist() for some in each) for _, each in found] == [([0], [1], [events * times])]


def test_a_corpus_is_the_same_however_its_path_is_spelled(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a b")
    monkeypatch.chdir(tmp_path)
    spelled = ["corpus", "corpus/", "./corpus", str(tmp_path / "corpus"), "corpus/../corpus"]
    assert len({Corpus.of_files([path]).fingerprint for path in spelled}) == 1


def test_a_file_is_not_added_twice(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("\n".join(["x y"] * 6 + ["z w"] * 6))
    correlate(Corpus.of_files([tmp_path / "a.txt"]), tmp_path / "t.pmi", workers=1)
    with pytest.raises(UsageError, match=r"has counted .*a\.txt already; leave out what it has"):
        add_corpus(Corpus.of_files([tmp_path / "a.txt", tmp_path / "b.txt"]), tmp_path / "t.pmi", workers=1)


@pytest.mark.parametrize("shard_bytes", range(1, 32))
def test_no_paragraph_is_cut_where_a_shard_ends(tmp_path, shard_bytes):
    (tmp_path / "a.txt").write_text("alpha beta\ngamma delta\n\nepsilon\n")
    corpus = Corpus.of_files([tmp_path / "a.txt"], unit="paragraph", shard_bytes=shard_bytes)
    read = [text.strip() for shard in range(len(corpus.shards)) for text in corpus.documents(shard)]
    assert [text for text in read if text] == ["alpha beta\ngamma delta", "epsilon"]


def test_counts_that_were_given_up_are_deleted(texts, tmp_path):
    path, _ = texts
    orphan = tmp_path / "t.pmi" / "counted" / "0123456789abcdef"
    orphan.mkdir(parents=True)
    (orphan / "words-000000.parquet").write_bytes(b"")
    corpus = Corpus.of_files([path])
    correlate(corpus, tmp_path / "t.pmi", limits=ALL, workers=1)
    assert [each.name for each in orphan.parent.iterdir()] == [corpus.fingerprint]


def test_a_chunk_has_no_more_words_than_32_bits_can_tell(texts, tmp_path, monkeypatch):
    path, events = texts
    made = Counter()
    monkeypatch.setattr(counting, "arrange", counted(made, "arrange", counting.arrange))
    monkeypatch.setattr(counting, "MOST_IDS", 800)
    corpus = Corpus.of_files([path], shard_bytes=2000)
    check(correlate(corpus, tmp_path / "t.pmi", limits=ALL, workers=1), events, ALL)
    assert made["arrange"] > 2
    monkeypatch.setattr(pairs, "MOST_IDS", 3)
    with pytest.raises(InputError, match="more than 3 words to pair; split it into several"):
        correlate(corpus, tmp_path / "u.pmi", limits=ALL, workers=1)
