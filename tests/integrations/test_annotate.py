"""Annotating files: every text once, with the right id, the same for any number of workers, and on after a kill."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kb.conftest import CITIES, build_kb
from wellread import Document, Linker
from wellread.data.text_shards import Inputs
from wellread.errors import InputError, KnowledgeBaseError, UsageError
from wellread.integrations import annotate as module
from wellread.integrations.annotate import annotate
from wellread.integrations.annotation_folder import PLAN, SUCCESS, Plan, Worker
from wellread.integrations.arrow_batches import SCHEMA, Annotation, annotate_batches
from wellread.kb.store import KnowledgeBase
from wellread.linking.link_table import LINK_SCHEMA

NAMES = ["Paris", "Einstein", "東京", "US", "France", "nowhere", "City of Light"]


def some_texts(count, seed=0):
    chance = random.Random(seed)
    return [f"{chance.choice(NAMES)} saw {chance.choice(NAMES)} {number}." for number in range(count)]


@pytest.fixture
def kb(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    return str(tmp_path / "cities.kb")


@pytest.fixture
def how(kb):
    return Annotation((kb,), model="prior")


@pytest.fixture
def corpus(tmp_path):
    """Texts in every kind of file."""
    folder, texts = tmp_path / "in", some_texts(120)
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("\ufeff" + "\r\n".join(texts[:30]) + "\r\n \n", "utf-8", newline="")
    lines = [json.dumps({"id": 7 + place, "text": text}) for place, text in enumerate(texts[30:60])]
    (folder / "b.jsonl").write_text("\n".join(lines))
    (folder / "deep" / "c.md.gz").write_bytes(gzip.compress("\n".join(texts[60:90]).encode()))
    table = pa.table({"id": [f"row {place}" for place in range(30)], "text": texts[90:]})
    pq.write_table(table, folder / "deep" / "d.parquet", row_group_size=7)
    for hidden in (".e.txt", "_f.txt", "g.bin"):
        (folder / hidden).write_text("Paris")
    return folder


def rows_of(folder):
    parts = sorted(folder.glob("part-*"))
    if parts[0].suffix == ".parquet":
        return [row for part in parts for row in pq.read_table(part).to_pylist()]
    return [json.loads(line) for part in parts for line in part.read_text("utf-8").splitlines()]


def bytes_of(folder):
    return {part.name: part.read_bytes() for part in folder.glob("part-*")}


# What is read


def test_every_text_of_every_kind_of_file_comes_once_and_in_order(corpus):
    inputs = Inputs.of_files([corpus], shard_bytes=300)
    found = [row for shard in range(len(inputs.shards)) for row in inputs.texts(shard)]
    assert [text for _, text in found] == some_texts(120)
    assert len(inputs.shards) > 8
    assert len({name for name, _ in found}) == 120
    names = [name for name, _ in found]
    assert names[0] == f"{corpus}/a.txt:3"  # behind the byte-order mark
    assert (names[30], names[59], names[90], names[119]) == ("7", "36", "row 0", "row 29")
    assert names[61] == f"{corpus}/deep/c.md.gz:{len(some_texts(120)[60].encode()) + 1}"


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=12),
    st.integers(1, 60),
    st.sampled_from(["line", "paragraph"]),
)
def test_wherever_a_file_is_cut_its_texts_are_the_same(tmp_path_factory, lines, shard_bytes, unit):
    path = tmp_path_factory.mktemp("cut") / "a.txt"
    path.write_bytes("\n".join(["first", *lines]).encode())

    def texts(size):
        inputs = Inputs.of_files([path], unit=unit, shard_bytes=size)
        return [row for shard in range(len(inputs.shards)) for row in inputs.texts(shard)]

    whole = path.read_bytes()
    assert texts(shard_bytes) == texts(1 << 20)
    for name, text in texts(shard_bytes):
        at = int(name.rpartition(":")[2])
        assert whole[at : at + len(text.encode())] == text.encode()
    if unit == "line":
        assert [text for _, text in texts(shard_bytes)] == [line for line in ["first", *lines] if line.encode().strip()]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, lambda data: data])
def test_archives_are_what_is_in_them(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(b"one\n\ntwo and\nmore\n"))
    for unit, texts in {
        "line": ["one", "two and", "more"],
        "paragraph": ["one", "two and\nmore"],
        "file": ["one\n\ntwo and\nmore\n"],
    }.items():
        assert [text for _, text in Inputs.of_files([tmp_path / "a"], unit=unit).texts(0)] == texts


def test_rows_without_a_text_or_an_id_are_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x", "key": null}\n\n{"body": null, "key": 0}\n')
    coded = pa.array(["x", None], pa.string()).dictionary_encode()
    pq.write_table(pa.table({"body": coded}), tmp_path / "b.parquet")
    inputs = Inputs.of_files([tmp_path / "a.jsonl", tmp_path / "b.parquet"], field="body", id_field="key")
    at = str(tmp_path)
    assert [*inputs.texts(0)] == [
        (f"{at}/a.jsonl:0", "x"),
        ("0", ""),
        (f"{at}/b.parquet:0", "x"),
        (f"{at}/b.parquet:1", ""),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": 3}\n', "a.jsonl:14: text is no text; name another with --field"),
        (b'{"body": "a"}', r"a.jsonl:0: a line without text \(it has body\); name its text with --field"),
        (b"[1]", r"a.jsonl:0: a line without text \(it is no object\)"),
        (b'{"text": ', "a.jsonl:0: no JSON"),
        (b'{"text": "\\ud800"}', "a.jsonl:0: no JSON"),
    ],
)
def test_an_unreadable_line_is_reported_with_its_position(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(Inputs.of_files([tmp_path / "a.jsonl"]).texts(0))


def test_unreadable_files_are_reported(tmp_path, corpus):
    (tmp_path / "latin.txt").write_bytes(b"ok\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"latin\.txt, byte 3 is not UTF-8"):
        list(Inputs.of_files([tmp_path / "latin.txt"]).texts(0))
    whole = (corpus / "deep" / "d.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    for path, message in {
        "half.parquet": "cannot be read as Parquet",
        "numbers.parquet": "is int64, no text",
        "missing": "there is no ",
        "..": "",
    }.items():
        with pytest.raises(InputError, match=message) if message else pytest.raises(UsageError, match="given twice"):
            Inputs.of_files([tmp_path / path] if message else [corpus, corpus])
    with pytest.raises(InputError, match=r"no column body \(it has id, text\)"):
        Inputs.of_files([corpus / "deep" / "d.parquet"], field="body")
    with pytest.raises(UsageError, match="standard input cannot be gone on with"):
        Inputs.of_files(["-"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is nothing in"):
        Inputs.of_files([tmp_path / "empty"])


def test_tables_with_damaged_content_are_reported(tmp_path, corpus):
    texts = pa.array([b"Paris", b"caf\xe9", b"US"], pa.binary())
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 3, texts.buffers())})  # as some writers do
    pq.write_table(table, tmp_path / "latin.parquet")
    inputs = Inputs.of_files([tmp_path / "latin.parquet"])
    with pytest.raises(
        InputError, match=r"latin\.parquet:1: this row is not UTF-8; write the table again, or leave out"
    ):
        list(inputs.texts(0))
    skipped = []
    assert [text for _, text in inputs.texts(0, skipped)] == ["Paris", "US"]
    assert len(skipped) == 1
    data = bytearray((corpus / "deep" / "d.parquet").read_bytes())
    data[8:20] = b"\xff" * 12
    (tmp_path / "page.parquet").write_bytes(data)
    with pytest.raises(
        InputError, match=r"page\.parquet cannot be read as Parquet \([^\n]+\); fetch or write it again$"
    ):
        list(Inputs.of_files([tmp_path / "page.parquet"]).texts(0))
    (tmp_path / "none.parquet").touch()
    with pytest.raises(InputError, match=r"none\.parquet cannot be read as Parquet"):
        Inputs.of_files([tmp_path / "none.parquet"])


def test_a_pipe_in_a_folder_is_refused_and_does_not_hang(corpus, how, tmp_path):
    os.mkfifo(corpus / "p.txt")
    with pytest.raises(UsageError, match=r"p\.txt is a pipe or a device, which is read only once; write it to a file"):
        annotate([corpus], tmp_path / "out", how)


def test_a_dead_link_in_a_folder_is_named_with_what_it_leads_to(corpus, how, tmp_path):
    (corpus / "dead.txt").symlink_to(tmp_path / "gone.txt")
    for path in (corpus, corpus / "dead.txt"):
        with pytest.raises(InputError, match=r"dead\.txt is a link to .*gone\.txt, which is not there; mend the link"):
            annotate([path], tmp_path / "out", how)


@pytest.mark.parametrize("name", [b"\xff.txt", b"\xff.jsonl", b"\xff.parquet"])
def test_a_file_whose_name_is_not_utf8_is_read_under_an_escaped_name(tmp_path, how, name):
    folder = tmp_path / "in"
    folder.mkdir()
    path = os.path.join(os.fsencode(folder), name)
    if name.endswith(b"parquet"):
        table = io.BytesIO()
        pq.write_table(pa.table({"text": ["Paris"]}), table)
        content = table.getvalue()
    else:
        content = b'{"text": "Paris"}\n' if name.endswith(b"jsonl") else b"Paris\n"
    with open(path, "wb") as file:
        file.write(content)
    for target, workers in (("one", 1), ("two", 2)):
        annotate([folder], tmp_path / target, how, workers=workers)
        assert [row["id"] for row in rows_of(tmp_path / target)] == [
            f"{folder}/\\xff{os.path.splitext(name)[1].decode()}:0"
        ]


def test_a_pipe_is_refused_and_not_taken_for_an_empty_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is a pipe or a device, which is read only once; write it to a file"):
        Inputs.of_files([tmp_path / "pipe"])


def test_inputs_can_be_sent(corpus):
    inputs = Inputs.of_files([corpus], unit="paragraph", shard_bytes=300)
    assert Inputs.from_dict(json.loads(json.dumps(inputs.to_dict()))) == inputs


# What is written


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_rows_are_what_the_linker_says(tmp_path, corpus, how, kb, format):
    done = annotate([corpus], tmp_path / "out", how, format=format, workers=1, shard_bytes=1000)
    rows = rows_of(tmp_path / "out")
    with Linker.load(kb, "prior") as linker:
        expected = list(linker.link_many(some_texts(120)))
    assert [row["text"] for row in rows] == some_texts(120)
    read = [Document.from_dict(row) for row in rows]
    assert [[(link.start, link.end, link.entity, link.score, link.kb) for link in one.links] for one in read] == [
        [(link.start, link.end, link.entity, link.score, link.kb) for link in one.links] for one in expected
    ]
    assert sum(len(one.links) for one in read) > 100
    assert not any(link.candidates for one in read for link in one.links)
    assert (len(done.parts), done.made) == (len(list((tmp_path / "out").glob("part-*"))),) * 2
    assert done.made > 2


def test_candidates_are_written_on_request(tmp_path, how, kb):
    (tmp_path / "a.txt").write_text("Paris")
    annotate([tmp_path / "a.txt"], tmp_path / "out", Annotation((kb,), model="prior", candidates=1), workers=1)
    ((found,),) = ([link["candidates"] for link in row["links"]] for row in rows_of(tmp_path / "out"))
    assert [one["entity"] for one in found] == ["Q90"]
    with Linker.load(kb, "prior") as linker:
        assert len(linker.link("Paris").links[0].candidates) == 2


def test_several_processes_write_the_same_parts(tmp_path, corpus, how):
    for workers in (1, 2):
        annotate([corpus], tmp_path / f"out{workers}", how, workers=workers, shard_bytes=1500)
    assert bytes_of(tmp_path / "out1") == bytes_of(tmp_path / "out2")
    assert len(bytes_of(tmp_path / "out1")) >= 3


def test_vectors_are_made_once_and_not_by_every_worker(tmp_path, corpus, how, monkeypatch):
    from wellread.linking.multi import Linkers

    said = []
    monkeypatch.setattr(Linkers, "link", lambda self, text: said.append(text))
    monkeypatch.setattr(module, "_make", lambda folder, shards, done, processes, *_: said.append(processes))
    annotate([corpus], tmp_path / "a", how, workers=2, shard_bytes=1500)
    (tmp_path / "cities.kb.vectors").mkdir()
    (tmp_path / "cities.kb.vectors" / "index.json").write_text('{"revision": 1}')
    annotate([corpus], tmp_path / "b", how, workers=2, shard_bytes=1500)
    assert said == ["", 2, 2]


def test_a_run_that_was_killed_goes_on_at_what_is_missing(tmp_path, corpus, how, monkeypatch, capsys):
    whole, out = tmp_path / "whole", tmp_path / "out"
    annotate([corpus], whole, how, workers=1, shard_bytes=1000)
    make, made = Worker.make, []

    def killed(self, shard):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(shard)
        make(self, shard)

    monkeypatch.setattr(Worker, "make", killed)
    with pytest.raises(KeyboardInterrupt):
        annotate([corpus], out, how, workers=1, shard_bytes=1000)
    assert (made, sorted(bytes_of(out)), (out / SUCCESS).exists()) == (
        [0, 1],
        ["part-00000.jsonl", "part-00001.jsonl"],
        False,
    )
    before = {part: part.stat().st_mtime_ns for part in out.glob("part-*")}
    monkeypatch.setattr(Worker, "make", make)
    capsys.readouterr()
    done = annotate([corpus], out, how, workers=1, shard_bytes=1000)
    assert done.made == len(done.parts) - 2
    assert f"2 of {len(done.parts)} parts exist; continuing" in capsys.readouterr().err
    assert {part: part.stat().st_mtime_ns for part in before} == before
    assert bytes_of(out) == bytes_of(whole)
    assert (out / SUCCESS).exists()
    assert annotate([corpus], out, how, workers=1, shard_bytes=1000).made == 0


def test_a_folder_that_misses_a_part_again_is_no_success(tmp_path, corpus, how, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    annotate([corpus], out, how, workers=1, shard_bytes=1000)
    (out / "part-00001.jsonl").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            annotate([corpus], out, how, workers=1, shard_bytes=1000)
    assert not (out / SUCCESS).exists()
    assert annotate([corpus], out, how, workers=1, shard_bytes=1000).made == 1
    assert (out / SUCCESS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_process_that_is_killed_at_any_moment_ends_with_the_same(tmp_path, kb, how, workers):
    """SIGKILL, again and again, of a process of its own; its workers are left to themselves."""
    (tmp_path / "in.txt").write_text("\n".join(some_texts(2000)))
    whole, out = tmp_path / "whole", tmp_path / "out"
    annotate([tmp_path / "in.txt"], whole, how, workers=1, shard_bytes=500)
    code = (
        "import sys; from wellread.integrations.annotate import annotate\n"
        "from wellread.integrations.arrow_batches import Annotation\n"
        "file, out, kb, workers = sys.argv[1:]\n"
        "annotate([file], out, Annotation((kb,), model='prior'), workers=int(workers), shard_bytes=500)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "in.txt"), str(out), kb, str(workers)]
    for more in (1, 10, 20):
        before = len(bytes_of(out))
        running = subprocess.Popen(command)
        while len(list(out.glob("part-*"))) < before + more:
            assert running.poll() is None
        running.kill()
        assert running.wait(60) == -signal.SIGKILL
        assert not (out / SUCCESS).exists()
    assert subprocess.run(command, timeout=240).returncode == 0
    assert bytes_of(out) == bytes_of(whole)
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.iterdir())


def test_a_part_is_whole_or_not_there(tmp_path, how, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "Paris"}\n' * 300 + "no json")
    with pytest.raises(InputError, match="no JSON"):
        annotate([tmp_path / "a.jsonl"], tmp_path / "out", how, workers=1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name != ".lock") == [PLAN]


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_broken_inputs_can_be_left_out_and_are_reported(tmp_path, how, format):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b'{"text": "Paris"}\nno json\n{"body": 1}\n{"text": "US"}\n')
    (tmp_path / "in" / "b.txt").write_bytes(b"Einstein\ncaf\xe9\n\xe6\x9d\xb1\xe4\xba\xac")
    (tmp_path / "in" / "c.txt").write_text("France\n" * 20)
    out = {workers: tmp_path / f"out{workers}" for workers in (1, 2)}
    for workers, folder in out.items():
        options = {"broken": "skip", "format": format, "shard_bytes": 60}
        done = annotate([tmp_path / "in"], folder, how, workers=workers, **options)
        assert (done.broken, done.made) == (3, len(done.parts))
        assert annotate([tmp_path / "in"], folder, how, workers=workers, **options).broken == 3
    assert [row["text"] for row in rows_of(out[1])] == ["Paris", "US", "Einstein", "東京", *["France"] * 20]
    lines = [line for file in sorted(out[1].glob("_broken-*.txt")) for line in file.read_text().splitlines()]
    assert [line.partition("in/")[2].partition(" ")[0] for line in lines] == ["a.jsonl:18:", "a.jsonl:26:", "b.txt,"]
    assert not any("--broken" in line for line in lines)
    assert {file.name: file.read_bytes() for file in out[1].glob("_broken-*")} == {
        file.name: file.read_bytes() for file in out[2].glob("_broken-*")
    }
    with pytest.raises(UsageError, match="other broken"):
        annotate([tmp_path / "in"], out[1], how, workers=1, format=format, shard_bytes=60)


def test_a_plan_that_made_no_part_gives_way(tmp_path, how, kb):
    (tmp_path / "a.jsonl").write_text('{"body": "Paris"}\n')
    call = [tmp_path / "a.jsonl"], tmp_path / "out"
    with pytest.raises(InputError, match="name its text with --field"):
        annotate(*call, how, workers=1)
    with pytest.raises(UsageError, match="there is no model 'pior'"):
        annotate(*call, Annotation((kb,), model="pior"), field="body", workers=1)
    assert annotate(*call, how, field="body", workers=1).made == 1
    with pytest.raises(UsageError, match="other annotation"):
        annotate(*call, Annotation((kb,), model="prior", candidates=3), field="body", workers=1)


def test_a_worker_that_outlived_its_plan_writes_nothing(tmp_path, corpus, how):
    out = tmp_path / "out"
    out.mkdir()
    Plan.build(Inputs.of_files([corpus]), how, "jsonl").write(out)
    with Worker(out) as worker:
        Plan.build(Inputs.of_files([corpus], unit="paragraph"), how, "jsonl").write(out)
        with pytest.raises(InputError, match=r"the plan of .* has changed since this process began"):
            worker.make(0)
    assert not bytes_of(out)


def test_a_folder_is_not_read_and_written(tmp_path, corpus, how):
    with pytest.raises(UsageError, match=r"the inputs are in .*, the folder of the results; choose another folder"):
        annotate([corpus], corpus, how, workers=1)


def test_a_folder_keeps_to_its_plan(tmp_path, corpus, how, kb):
    out = tmp_path / "out"
    annotate([corpus], out, how, workers=1)
    for change, what in (
        ({"format": "parquet"}, "other written as"),
        ({"field": "body"}, "no column body|other inputs"),
        ({"unit": "paragraph"}, "other inputs"),
    ):
        with pytest.raises((UsageError, InputError), match=what):
            annotate([corpus], out, how, workers=1, **change)
    with pytest.raises(UsageError, match="other annotation"):
        annotate([corpus], out, Annotation((kb,), model="prior", candidates=3), workers=1)
    with KnowledgeBase.open(kb, writable=True) as opened:
        opened.remove("Q937")
    with pytest.raises(UsageError, match="other knowledge bases"):
        annotate([corpus], out, how, workers=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(UsageError, match="holds other files"):
        annotate([corpus], tmp_path / "full", how, workers=1)


def test_a_file_that_changed_is_another_input(tmp_path, how):
    (tmp_path / "a.txt").write_text("Paris")
    annotate([tmp_path / "a.txt"], tmp_path / "out", how, workers=1)
    os.utime(tmp_path / "a.txt", (1, 1))
    with pytest.raises(UsageError, match="other inputs"):
        annotate([tmp_path / "a.txt"], tmp_path / "out", how, workers=1)


def test_a_knowledge_base_that_changes_meanwhile_stops_the_run(tmp_path, corpus, how, kb):
    out = tmp_path / "out"
    out.mkdir()
    Plan.build(Inputs.of_files([corpus], shard_bytes=1000), how, "jsonl").write(out)
    with Worker(out) as worker:
        worker.make(0)
        with KnowledgeBase.open(kb, writable=True) as opened:
            opened.remove("Q937")
        with pytest.raises(KnowledgeBaseError, match="has changed since the annotation began"):
            worker.make(1)
    assert list(bytes_of(out)) == ["part-00000.jsonl"]


@pytest.mark.parametrize("change", ["longer", "shorter", "later", "gone"])
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_file_that_changes_while_it_is_read_stops_the_run(tmp_path, how, monkeypatch, change, format):
    file, out = tmp_path / "a.jsonl", tmp_path / "out"
    lines = [json.dumps({"text": text}) + "\n" for text in some_texts(300)]
    file.write_text("".join(lines))
    out.mkdir()
    Plan.build(Inputs.of_files([file], shard_bytes=file.stat().st_size // 2), how, format).write(out)
    changes = {
        "longer": lambda: file.write_text("".join([*lines, lines[0]])),
        "shorter": lambda: os.truncate(file, file.stat().st_size - 20),  # which cuts the last line
        "later": lambda: os.utime(file, (1, 1)),
        "gone": file.unlink,
    }
    texts = Inputs.texts

    def changing(self, shard, skipped):
        rows = texts(self, shard, skipped)
        yield next(rows)
        if shard:
            changes[change]()
        yield from rows

    monkeypatch.setattr(Inputs, "texts", changing)
    with Worker(out) as worker:
        worker.make(0)
        with pytest.raises(InputError, match=r"a\.jsonl has changed since the annotation began"):
            worker.make(1)
        with pytest.raises(InputError, match=r"has changed since"):  # and before it was read
            worker.make(1)
    assert list(bytes_of(out)) == [f"part-00000.{format}"]


def test_what_was_written_is_not_read(tmp_path, how):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("Paris")
    for _ in range(2):
        done = annotate([tmp_path / "in"], tmp_path / "in" / "out", how, workers=1)
    assert (len(done.parts), done.made) == (1, 0)


def test_a_second_process_is_refused(tmp_path, corpus, how, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"), pytest.raises(UsageError, match="another process annotates into"):
        annotate([corpus], tmp_path / "out", how, workers=1)


def test_a_worker_answers_every_shard_with_a_line(tmp_path, corpus, how, monkeypatch):
    from wellread.integrations import worker

    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "bad.jsonl").write_text("no json")
    inputs = Inputs.of_files([corpus / "a.txt", tmp_path / "bad.jsonl"], shard_bytes=200)
    Plan.build(inputs, how, "jsonl").write(out)
    bad = len(inputs.shards) - 1
    monkeypatch.setattr("sys.argv", ["worker", str(out)])
    monkeypatch.setattr("sys.stdin", io.StringIO(f"0\n{bad}\n1\n"))
    monkeypatch.setattr("sys.stdout", said := io.StringIO())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    worker.main()
    first, second, third = said.getvalue().splitlines()
    assert (first, third) == ("done", "done")
    assert second.startswith("InputError ")
    assert sorted(bytes_of(out)) == ["part-00000.jsonl", "part-00001.jsonl"]


# Batches


def test_batches_are_linked_row_for_row(how):
    texts = [*some_texts(600), None, ""]
    batch = pa.record_batch({"body": texts})
    with how.open() as linkers:
        found = pa.Table.from_batches(annotate_batches([batch, batch], linkers, how, text="body"))
        assert found.schema == SCHEMA
        assert found.column("text").to_pylist() == [text or "" for text in texts] * 2
        assert set(found.column("id").to_pylist()) == {None}
        with pytest.raises(InputError, match=r"no column text \(but body\)"):
            next(annotate_batches([batch], linkers, how))


# The command


def test_the_command_annotates_and_tells(tmp_path, corpus, kb, wellread):
    call = ["annotate", corpus, "--kb", kb, "--model", "prior", "--to", tmp_path / "out", "--workers", 1]
    done = wellread(*call)
    assert (done.code, done.out, done.err) == (0, "", f"1 parts written to {tmp_path / 'out'}\n")
    assert wellread(*call).err == f"0 parts written to {tmp_path / 'out'}, 1 were there\n"
    assert len(rows_of(tmp_path / "out")) == 120
    (tmp_path / "latin.txt").write_bytes(b"Paris\ncaf\xe9\n")
    call[1], call[-3] = tmp_path / "latin.txt", tmp_path / "skipped"
    assert wellread(*call).code == 3
    assert wellread(*call, "--broken", "skip").err == (
        f"1 parts written to {tmp_path / 'skipped'}\nskipped 1 broken texts; see {tmp_path / 'skipped'}/_broken-*.txt\n"
    )


def test_the_command_says_what_is_wrong(tmp_path, corpus, kb, wellread):
    for arguments, code, message in (
        ([], 2, "Missing argument 'FILES...'"),
        ([corpus, "--master", "x"], 2, "--master needs --engine spark"),
        ([tmp_path / "none"], 3, "there is no "),
    ):
        done = wellread("annotate", *arguments, "--kb", kb, "--to", tmp_path / "out")
        assert (done.code, message in done.err) == (code, True), done.err
        assert not (tmp_path / "out").exists()


# Tables


TICKETS = 'ticket_id,message,when\nT1,"Paris, the ""City of Light"",\nsaw Einstein.",x\nT2,,y\n=1+2,"東京",z\n'


def texts_of(paths, **how):
    inputs = Inputs.of_files(paths, **how)
    return [row for shard in range(len(inputs.shards)) for row in inputs.texts(shard, how.get("skipped"))]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_csv_is_read_by_its_header(tmp_path, pack):
    path = tmp_path / "tickets.csv"
    path.write_bytes(pack(TICKETS.encode()))
    texts = ['Paris, the "City of Light",\nsaw Einstein.', "", "東京"]
    assert texts_of([path], field="message", id_field="ticket_id") == list(
        zip(["T1", "T2", "=1+2"], texts, strict=True)
    )
    assert [name for name, _ in texts_of([path], field="message")] == [f"{path}:{row}" for row in range(3)]


def test_a_csv_is_cut_where_rows_end(tmp_path):
    path = tmp_path / "t.tsv"
    rows = [f'{number}\t"a ""{number}""\n\n{"x" * (number % 7)}"' for number in range(200)]
    path.write_text("\n".join(["id\ttext", *rows]))
    inputs = Inputs.of_files([path], shard_bytes=100)
    assert len(inputs.shards) > 20
    found = [row for shard in range(len(inputs.shards)) for row in inputs.texts(shard)]
    assert found == texts_of([path], shard_bytes=1 << 20)
    assert [name for name, _ in found] == [str(number) for number in range(200)]


def test_a_broken_row_is_named_or_skipped(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"id,text\n1,Paris\n2\n3,caf\xe9\n4,Paris\n")
    with pytest.raises(InputError, match=r"t.csv, line 3: 1 cell, expected 2 .*--broken skip"):
        texts_of([path])
    inputs, skipped = Inputs.of_files([path]), []
    assert list(inputs.texts(0, skipped)) == [("1", "Paris"), ("4", "Paris")]
    assert [line.partition("t.csv, ")[2][:7] for line in skipped] == ["line 3:", "line 4:"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"id,message\n1,a\n", "has no column text .*name yours with --field"),
        ("t.csv", b"", "is empty; expected a header"),
        ("t.csv", b'id,text\n1,"a\n', "line 2: a quotation mark is not closed"),
        ("t.csv", b"text,text\n1,a\n", "several columns called text"),
        ("t.xlsx", b"PK\3\4", "is a spreadsheet; save it as CSV"),
        ("t.txt", b"PK\3\4", "is a binary file"),
        ("t.txt", b"\x7fELF\0\xff\xff", "is a binary file"),
        ("t.txt", "Paris\n".encode("utf-16"), "is UTF-16; convert it"),
        ("t.dat", b"Paris\n", "files called .dat are not known .*rename it to t.txt"),
    ],
)
def test_a_file_that_is_no_text_names_the_fix(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        Inputs.of_files([tmp_path / name])


def test_a_missing_column_of_ids_is_refused_if_it_was_named(tmp_path):
    (tmp_path / "t.csv").write_text("ticket_id,text\n1,Paris\n")
    with pytest.raises(InputError, match="did you mean ticket_id"):
        Inputs.of_files([tmp_path / "t.csv"], id_field="ticketid")


@pytest.mark.parametrize("name", ["notes", "news.2024-01", "log.jsonl.1"])
def test_a_name_without_a_suffix_is_text(tmp_path, name):
    (tmp_path / name).write_text("Paris\n")
    assert [text for _, text in texts_of([tmp_path / name])] == ["Paris"]


def test_links_are_written_as_a_flat_table(tmp_path, how):
    path = tmp_path / "tickets.csv"
    path.write_text(TICKETS)
    given = {"field": "message", "id_field": "ticket_id", "workers": 1}
    tables = {}
    for form in ("csv", "parquet", "jsonl"):
        annotate([path], tmp_path / form, how, format=form, rows="link", **given)
        (part,) = (tmp_path / form).glob("part-*")
        if form == "csv":
            table = list(csv.DictReader(io.StringIO(part.read_text("utf-8"), newline="")))
            numbers = {"start": int, "end": int, "score": float}
            table = [{key: numbers.get(key, str)(cell) or None for key, cell in row.items()} for row in table]
            for row in table:
                row["start"] = row["start"] or 0
            tables[form] = table
        else:
            tables[form] = rows_of(tmp_path / form)
    assert tables["csv"] == tables["parquet"] == tables["jsonl"]
    texts = dict(texts_of([path], field="message", id_field="ticket_id"))
    assert [(row["id"], row["mention"], row["entity"]) for row in tables["csv"]] == [
        ("T1", "Paris", "Q90"),
        ("T1", "City of Light", "Q90"),
        ("T1", "Einstein", "Q937"),
        ("=1+2", "東京", "Q1490"),
    ]
    assert all(texts[row["id"]][row["start"] : row["end"]] == row["mention"] for row in tables["csv"])


def test_a_flat_table_of_no_links_has_its_columns(tmp_path, how):
    (tmp_path / "t.csv").write_text("text\nnowhere\n")
    annotate([tmp_path / "t.csv"], tmp_path / "out", how, format="parquet", rows="link", workers=1)
    table = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert (table.num_rows, table.schema.names) == (0, LINK_SCHEMA.names)


def test_rows_that_do_not_fit_the_format_are_refused(tmp_path, how, kb):
    (tmp_path / "t.txt").write_text("Paris\n")
    with pytest.raises(UsageError, match="CSV has one row per link"):
        annotate([tmp_path / "t.txt"], tmp_path / "out", how, format="csv", rows="text")
    with pytest.raises(UsageError, match="omit --candidates"):
        annotate([tmp_path / "t.txt"], tmp_path / "out", Annotation((kb,), model="prior", candidates=2), format="csv")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_the_parts_may_be_joined_to_one_file(tmp_path, how, form):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.csv").write_text("text\n" + '"Paris,\nEinstein"\n' * 40)
    to = tmp_path / f"links.{form}"
    done = annotate([tmp_path], to, how, rows="link", workers=1, shard_bytes=100)
    assert (done.file, len(done.parts) > 3) == (to, True)
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(to.read_text("utf-8"), newline="")))
    else:
        found = (
            pq.read_table(to).to_pylist()
            if form == "parquet"
            else [json.loads(line) for line in to.read_text("utf-8").splitlines()]
        )
    assert [row["mention"] for row in found] == ["Paris", "Einstein"] * 40
    before = to.stat().st_mtime_ns
    again = annotate([tmp_path], to, how, rows="link", workers=1, shard_bytes=100)  # neither result is an input
    assert (again.made, to.stat().st_mtime_ns) == (0, before)
    to.unlink()
    annotate([tmp_path], to, how, rows="link", workers=1, shard_bytes=100)
    assert to.exists()


def test_a_file_of_someone_else_is_not_replaced(tmp_path, how):
    (tmp_path / "t.txt").write_text("Paris\n")
    (tmp_path / "links.csv").write_text("mine")
    with pytest.raises(UsageError, match=r"links\.csv exists already; choose another file"):
        annotate([tmp_path / "t.txt"], tmp_path / "links.csv", how)
    with pytest.raises(UsageError, match=r"is not called \.jsonl; rename it, or choose --format csv"):
        annotate([tmp_path / "t.txt"], tmp_path / "other.csv", how, format="jsonl")
