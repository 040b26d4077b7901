"""`wellread kb`, from the command line to the file and back; every failure is one line and an exit code."""

import gzip
import io
import json
import lzma
import os
import sqlite3
import subprocess
import sys
import time
from functools import partial

import pytest

from tests.kb.conftest import CITIES, FORMS, build_kb, content
from tests.kb.readers.test_vital import ARTICLES
from tests.kb.readers.test_wordnet import FILES
from wellread.io import console
from wellread.kb.records import Entity, Tally
from wellread.kb.store import KnowledgeBase


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of our own, and a folder to work in."""
    monkeypatch.setenv("WELLREAD_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def run(wellread):
    return partial(wellread, "kb")


@pytest.fixture
def path(tmp_path):
    build_kb(tmp_path / "work" / "cities.kb", (*CITIES, *FORMS))
    return tmp_path / "work" / "cities.kb"


def fails(result, code, message):
    """One line on stderr, nothing on stdout, no traceback."""
    assert result.code == code, result
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("error: ")
    assert message in result.err, result.err


def lines(path, *rows):
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path


# Looking into a KB.


def test_an_entity_is_shown_as_tables_and_as_json(run, path):
    shown = run("show", path, "Q90", "Q142")
    assert shown.code == 0
    for text in ("Paris  [Q90]  city", "capital of France", "City of Light", "→", "←", "2 neighbours"):
        assert text in shown.out
    alone = run("show", path, "Q937")
    assert ("Albert Einstein" in alone.out, "neighbours" in alone.out) == (True, False)
    data = json.loads(run("show", path, "Q90", "--json").out)
    assert data[0]["aliases"] == {"City of Light": 4, "Paris": 310}
    assert data[0]["facts"] == [["in", "Q142"]]


def test_entities_are_searched_in_three_ways(run, path):
    assert "Albert Einstein" in run("search", path, "einst").out
    assert json.loads(run("search", path, "einstien", "--how", "fuzzy", "--json").out)[0]["id"] == "Q937"
    found = json.loads(run("search", path, "capital", "--how", "text", "--limit", "1", "--json").out)
    assert len(found) == 1
    nothing = run("search", path, "einstien")
    assert (nothing.code, "nothing found for 'einstien'; try --how fuzzy" in nothing.err) == (0, True)
    assert run("search", path, "xyzzyx", "--how", "fuzzy").err == "nothing found for 'xyzzyx'; try other words\n"


def test_stats_say_what_is_in_a_kb(run, path):
    data = json.loads(run("stats", path, "--json").out)
    assert data["numbers"] == {"entities": 7, "aliases": 15, "relations": 2, "facts": 3, "forms": 2, "names": 12}
    assert data["kinds"]["city"] == 3
    assert data["about"]["licence"] == "CC0"
    assert "CC0" in run("stats", path).out


def test_check_says_sound_or_leaves_with_five(run, path):
    assert run("check", path).out == f"{path} is sound: 7 entities, no problem found\n"
    assert json.loads(run("check", path, "--json").out) == {"sound": True, "problems": []}
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE aliases SET key = 1 WHERE name = 'Paris'")
    connection.close()
    fails(run("check", path), 5, "the alias 'Paris' has a wrong key")
    result = run("check", path, "--json")
    assert (result.code, json.loads(result.out)["sound"]) == (5, False)


def test_a_kb_is_exported_and_built_again_equal(run, path):
    assert run("export", path, "--to", "x.jsonl").err == "7 entities written to x.jsonl\n"
    piped = run("export", path)
    assert piped.out.encode() == (path.parent / "x.jsonl").read_bytes()
    assert run("build", "jsonl", "x.jsonl", "--to", "again.kb").code == 0
    with KnowledgeBase.open(path) as kb, KnowledgeBase.open("again.kb") as again:
        assert content(again) == content(kb)
        said = {key: value for key, value in again.metadata.items() if key not in ("uid", "revision")}
        assert said == {"source": "test", "licence": "CC0", "language": "en"}
    assert run("build", "jsonl", "x.jsonl", "--to", "mine.kb", "--licence", "MIT").code == 0
    with KnowledgeBase.open("mine.kb") as mine:
        assert mine.metadata["licence"] == "MIT"


def test_a_reader_that_goes_away_is_no_error(path):
    build_kb(path, [Entity(str(number), f"thing {number}", "x" * 500) for number in range(2000)])
    command = f'"{sys.executable}" -m wellread.cli kb export "{path}" | head -1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith('{"kb":')


# Changing a KB.


def test_one_entity_is_added_updated_and_removed(run, path):
    added = run("add", path, "--id", "P7", "--title", "Aspirin Forte", "--alias", "ASA forte", "--kind", "drug")
    assert added.out == f"{path}: added 1, updated 0, revision 2\n"
    with KnowledgeBase.open(path) as kb:
        assert kb.get("P7").aliases == {"Aspirin Forte": 1, "ASA forte": 1}
    fails(run("add", path, "--id", "P7", "--title", "Again"), 5, "there is an entity 'P7' already; use update")
    result = run("add", path, "--id", "P7", "--title", "Again", "--update", "--json")
    assert json.loads(result.out) == {"kb": str(path), "added": 0, "updated": 1, "revision": 3}
    assert run("remove", path, "P7", "Q90").out == f"{path}: removed 2, revision 4\n"
    fails(run("remove", path, "Q142", "P7"), 5, "there is no entity 'P7'")
    with KnowledgeBase.open(path) as kb:
        assert "Q142" in kb


def test_entities_of_a_file_or_of_stdin_are_added_all_or_none(run, path):
    text = '{"id": "a", "title": "A", "facts": [["knows", "b"]]}\n{"id": "b", "title": "B"}\n'
    assert run("add", path, "-", stdin=text).code == 0
    fails(run("add", path, "-", stdin='{"id": "c", "title": "C"}\n{"id": "b", "title": "B"}\n'), 5, "'b' already")
    fails(run("add", path, "-", stdin='{"id": "c", "title": "C"}\n{"id": "d"\n'), 3, "standard input, line 2: not JSON")
    with KnowledgeBase.open(path) as kb:
        assert (kb.get("a").facts, "c" in kb) == ((("knows", "b"),), False)
    skipped = run("add", path, "-", "--broken", "skip", stdin='{"id": "c", "title": "C"}\n{"id": "d"\n')
    assert skipped.code == 0
    assert "skipped: 1 × broken line (first: standard input, line 2" in skipped.err


def test_adding_needs_a_file_or_an_entity(run, path):
    fails(run("add", path), 2, "give either a FILE of entities or one entity")
    fails(run("add", path, "x.jsonl", "--id", "a"), 2, "give either a FILE of entities or one entity")
    fails(run("add", path, "--id", "a"), 2, "an entity needs a --title")


def test_entities_of_a_table_are_added_with_a_mapping(run, path, tmp_path):
    table = b"sku\tname\tn\n1\tLamp\t3\n2\tBulb\t4\n"
    for number, (name, data) in enumerate({"x.tsv": table, "y.csv.gz": gzip.compress(table)}.items()):
        options = ("--map", "id=sku", "--map", "title=name", "--map", "popularity=n", *(["--update"] * number))
        result = run("add", path, make(tmp_path / name, data), *options)
        assert result.out == f"{path}: added {2 - 2 * number}, updated {2 * number}, revision {2 + number}\n"
    with KnowledgeBase.open(path) as kb:
        assert (kb.get("1").title, kb.get("2").popularity) == ("Lamp", 4)


def test_popularity_is_given_to_one_entity(run, path):
    assert run("add", path, "--id", "P7", "--title", "Aspirin", "--popularity", "7").code == 0
    with KnowledgeBase.open(path) as kb:
        assert kb.get("P7").popularity == 7
    fails(run("add", path, "--id", "P8", "--title", "x", "--popularity", "nan"), 2, "--popularity")


def test_the_last_of_a_file_wins_when_updating(run, path):
    text = '{"id": "a", "title": "old"}\n{"id": "Q90", "title": "Lutetia"}\n{"id": "a", "title": "new"}\n'
    fails(run("add", path, "-", stdin=text), 5, "already")
    assert run("add", path, "-", "--update", stdin=text).out == f"{path}: added 1, updated 1, revision 2\n"
    with KnowledgeBase.open(path) as kb:
        assert (kb.get("a").title, kb.get("Q90").title) == ("new", "Lutetia")


def test_a_file_without_entities_changes_nothing_and_says_so(run, path):
    result = run("add", path, "-", stdin="\n")
    assert result.out == f"{path}: added 0, updated 0, revision 1\n"
    assert result.err == f"standard input has no entities; {path} was not changed\n"


def test_an_entity_named_twice_is_removed_once(run, path):
    assert run("remove", path, "Q90", "Q90").out == f"{path}: removed 1, revision 2\n"


# Building.


def test_the_packaged_kbs_are_built_from_a_folder(run, home, tmp_path):
    for name, files in (
        ("wordnet", FILES),
        (
            "vital",
            {
                "summaries_en-us.json": json.dumps(
                    {t: {"title": t, "extract": x, "description": d, "topic": k} for t, d, k, x in ARTICLES}
                )
            },
        ),
    ):
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text, encoding="utf-8")
        built = json.loads(run("build", name, tmp_path / name, "--json").out)
        assert built["kb"] == str(home / "kb" / f"{name}.kb")
        assert built["entities"] == built["read"] == {"wordnet": 11, "vital": len(ARTICLES)}[name]
        assert run("check", name).code == 0
        assert (home / "kb" / f"{name}.kb.names").exists(), "names are compiled while building"
    merged = run("merge", "wordnet", "vital", "--to", "both.kb")
    assert merged.out == f"both.kb: {11 + len(ARTICLES)} entities\n"
    fails(run("merge", "wordnet", "--to", "both.kb"), 5, "both.kb exists already; choose another with --to")


def test_tables_are_built_with_mappings_and_facts(run, tmp_path):
    lines(tmp_path / "x.csv", "sku,name,other", "1,Lamp,Light|Torch", "2,Bulb,")
    lines(tmp_path / "facts.tsv", "2\tpart of\t1", "3\tpart of\t1")
    result = run(
        *("build", "csv", tmp_path / "x.csv", "--to", "shop", "--facts", tmp_path / "facts.tsv"),
        *("--map", "id=sku", "--map", "title=name", "--map", "aliases=other"),
    )
    assert result.code == 0
    assert result.out.endswith("shop.kb: 2 entities\n")
    assert result.err == "skipped: 1 × fact with an end that is not there\n"
    assert [e["id"] for e in json.loads(run("search", "shop", "torch", "--json").out)] == ["1"]
    assert "part of" in run("show", "shop", "1").out


def test_a_build_from_stdin_does_not_go_on_with_another_text(run, monkeypatch):
    monkeypatch.setattr("wellread.kb.build._BATCH", 1)
    one = '{"id": "a", "title": "A"}\n{"id": "b", "title": "B"}\n'
    fails(run("build", "jsonl", "-", "--to", "x.kb", stdin=one + "{"), 3, "standard input, line 3: not JSON")
    assert run("build", "jsonl", "-", "--to", "x.kb", stdin='{"id": "c", "title": "C"}\n' + one).code == 0
    with KnowledgeBase.open("x.kb") as kb:
        assert [entity.id for entity in kb.entities()] == ["c", "a", "b"]


def test_a_kb_that_is_there_is_kept_unless_it_shall_be_replaced(run, path, tmp_path):
    lines(tmp_path / "x.jsonl", '{"id": "a", "title": "A"}')
    fails(run("build", "jsonl", tmp_path / "x.jsonl", "--to", path), 5, "exists already; replace it with --replace")
    kept = run("build", "jsonl", tmp_path / "x.jsonl", "--to", path, "--if-missing")
    assert (kept.code, kept.out, kept.err) == (0, "", f"{path} is there already\n")
    with KnowledgeBase.open(path) as kb:
        assert len(kb) == 7
        assert run("build", "jsonl", tmp_path / "x.jsonl", "--to", path, "--replace").code == 0
        assert (len(kb), kb.revision) == (1, 2)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_shows_how_much_is_read_and_then_the_step(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(console, "_LINE_EVERY", 0.05)
    monkeypatch.setenv("COLUMNS", "120")
    tally = Tally(done_bytes=50, total_bytes=200)
    with console.progress_bar("building x.kb", tally):
        time.sleep(0.3)
        tally.step = "indexing"
        time.sleep(0.3)
    shown = sys.stderr.getvalue()
    assert shown.index("50/200 bytes" if stream is Terminal else "building x.kb: 25 %") < shown.index("x.kb: indexing")


# Every failure is one line with an exit code.


def make(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


ROWS = "".join(f'{{"id": "{n}", "title": "t{n * n}"}}\n' for n in range(3000)).encode()
SOURCES = {
    "none.jsonl": (None, "cannot read", "No such file or directory"),
    "broken.jsonl": ('{"id": 1, "title": "x"}\n{"id"', "line 2: not JSON", "--broken skip"),
    "latin.jsonl": ('{"id": 1, "title": "é"}'.encode("latin1"), "line 1: not UTF-8", "iconv"),
    "half.jsonl.gz": (gzip.compress(ROWS)[:-1000], "is truncated or damaged after line", "fetch or copy it again"),
    "half.jsonl.xz": (lzma.compress(ROWS)[:-1000], "is truncated or damaged after line", "fetch or copy it again"),
    "empty.csv": ("", "is empty; expected a header row", ""),
    "headless.csv": ("Q90,Paris\n", "has no column id, title", "--map id=COLUMN"),
    "short.csv": ("id,title\na,A\nb\n", "line 3: 1 cells, the header has 2", ""),
    "nul.jsonl": (
        '{"id": "a", "title": "A"}\n{"id": "b", "title": "B\\u0000"}',
        "line 2: the entity has a NUL",
        "correct it",
    ),
    "latin.csv": ("id,title\na,é\n".encode("latin1"), "line 2 is not UTF-8", "iconv"),
    "half.csv.xz": (lzma.compress(b"id,title\n" + os.urandom(5000).hex().encode())[:-500], "is truncated", ""),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_cannot_be_read_is_one_line(run, tmp_path, name):
    data, *messages = SOURCES[name]
    if data is not None:
        make(tmp_path / name, data)
    result = run("build", "csv" if "csv" in name else "jsonl", tmp_path / name, "--to", "x.kb")
    for message in messages:
        fails(result, 3, message)
    assert not os.path.exists("x.kb")


def test_a_folder_as_a_source_is_one_line(run, tmp_path):
    fails(run("build", "jsonl", tmp_path, "--to", "x.kb"), 3, "is a folder; give a file in it")
    fails(run("build", "wordnet", tmp_path), 3, "is not a WordNet database folder (WNDB)")
    fails(run("build", "vital", tmp_path), 3, "summaries_en-us.json: No such file or directory")


def test_broken_lines_can_be_passed_over(run, tmp_path):
    make(tmp_path / "x.jsonl", SOURCES["broken.jsonl"][0])
    result = run("build", "jsonl", tmp_path / "x.jsonl", "--to", "x.kb", "--broken", "skip", "--json")
    assert json.loads(result.out)["skipped"] == {"broken line": 1}
    assert "line 2: not JSON" in result.err


def test_options_that_do_not_fit_are_one_line(run, tmp_path):
    make(tmp_path / "x.jsonl", ROWS)
    fails(run("build", "jsonl"), 2, "the source jsonl needs the PATH of a file")
    fails(run("build", "jsonl", tmp_path / "x.jsonl", "--to", "x.kb", "--map", "tittle=x"), 2, "cannot map 'tittle=x'")


@pytest.mark.parametrize(
    ("source", "option", "message"),
    [
        ("csv", ("--class", "Q5"), "--class belongs to the source wikidata, not to csv"),
        ("jsonl", ("--with-page",), "--with-page belongs to the source wikidata"),
        ("wikidata", ("--paragraphs", "x"), "--paragraphs belongs to the source wikipedia"),
        ("wordnet", ("--map", "id=x"), "--map belongs to the source jsonl or csv, not to wordnet"),
        ("vital", ("--broken", "refuse"), "--broken belongs to the source jsonl or csv"),
        ("wordnet", ("--language", "de"), "jsonl, csv, skos, umls, wikidata, wikipedia or priors, not"),
    ],
)
def test_an_option_of_another_source_is_refused(run, source, option, message):
    fails(run("build", source, "x", *option), 2, message)


def test_a_build_without_entities_is_reported(run, tmp_path):
    result = run("build", "csv", make(tmp_path / "x.csv", "id,title\n"), "--to", "x.kb")
    assert (result.out, result.err) == (
        "x.kb: 0 entities\n",
        "x.kb has no entities; was this the right source?\n",
    )


def newer(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()


def foreign(path):
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()


KBS = {
    "missing": (lambda path: path.unlink(), "there is no knowledge base at"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "is a folder; a knowledge base is one file"),
    "text": (lambda path: path.write_text("not a database " * 99), "is not a knowledge base; check"),
    "foreign": (foreign, "is an SQLite file but not a knowledge base"),
    "newer": (newer, "was written by a newer wellread (schema 2, this one reads up to 1); upgrade"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:9000]), "is damaged"),
}
VERBS = {
    "show": ("Q90",),
    "search": ("paris",),
    "stats": (),
    "check": (),
    "export": (),
    "add": ("--id", "a", "--title", "A"),
    "remove": ("Q90",),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", KBS)
def test_what_is_not_a_kb_of_ours_is_one_line_for_every_verb(run, path, verb, what):
    spoil, message = KBS[what]
    spoil(path)
    fails(run(verb, path, *VERBS[verb]), 5, message)


def test_an_unknown_entity_is_one_line(run, path):
    fails(run("show", path, "Q0"), 5, "cities.kb has no entity 'Q0'; look for it with: wellread kb search")


def test_a_packaged_kb_that_was_not_built_says_how(run):
    fails(run("search", "wordnet", "dog"), 5, "the wordnet knowledge base is not built yet; build it with: wellread kb")


def test_a_place_that_cannot_be_written_is_one_line(run, path, tmp_path):
    make(tmp_path / "file", "")
    make(tmp_path / "x.jsonl", ROWS)
    fails(run("export", path, "--to", tmp_path), 6, "cannot write")
    fails(run("export", path, "--to", tmp_path / "file" / "x"), 6, "cannot write")
    fails(run("build", "jsonl", tmp_path / "x.jsonl", "--to", tmp_path / "file" / "x.kb"), 6, "cannot write")


def test_every_verb_has_an_example(run):
    for verb in ("build", "merge", *VERBS):
        assert "Example" in run(verb, "--help").out


# Ontologies.


OBO = """format-version: 1.2

[Term]
id: B:1
name: beast

[Term]
id: B:2
name: lion
alt_id: B:20
synonym: "Panthera leo" EXACT []
synonym: "king" RELATED []
is_a: B:1

[Term]
id: B:3
name: obsolete lyon
is_obsolete: true
"""


def test_an_ontology_is_built_and_its_other_ids_are_shown_and_exported(run, tmp_path):
    path = tmp_path / "work" / "beasts.obo"
    path.write_text(OBO)
    built = run("build", "obo", path, "--to", "beasts.kb", "--below", "B:1", "--scope", "exact", "--json")
    result = json.loads(built.out)
    assert (result["entities"], result["skipped"]["obsolete term"], result["skipped"]["related synonym"]) == (1, 1, 1)
    shown = run("show", "beasts.kb", "B:20").out
    assert "lion  [B:2]" in shown
    assert "former" in shown
    for verb in (("export", "beasts.kb", "--to", "out.jsonl"), ("build", "jsonl", "out.jsonl", "--to", "again.kb")):
        assert run(*verb).code == 0
    assert run("merge", "beasts.kb", "again.kb", "--to", "both.kb").code == 0
    for name in ("again.kb", "both.kb"):
        assert "lion  [B:2]" in run("show", name, "B:20").out
        assert run("check", name).code == 0


def test_a_thesaurus_and_the_umls_are_built(run, tmp_path):
    (tmp_path / "work" / "t.ttl").write_text(
        "<urn:tea> a <http://www.w3.org/2004/02/skos/core#Concept> ; "
        '<http://www.w3.org/2004/02/skos/core#prefLabel> "Tee"@de .'
    )
    assert "t.kb: 1 entities" in run("build", "skos", "t.ttl", "--to", "t.kb", "--language", "de").out
    (tmp_path / "work" / "META").mkdir()
    row = "C0000001|ENG|P|L1|PF|S1|Y|A1||||SNOMEDCT_US|PT|1|Tea|9|O||\n"
    (tmp_path / "work" / "META" / "MRCONSO.RRF").write_text(row)
    fails(run("build", "umls", "META", "--to", "u.kb"), 3, "has no name in en")
    assert (
        "u.kb: 1 entities" in run("build", "umls", "META", "--to", "u.kb", "--suppressed", "--sab", "SNOMEDCT_US").out
    )


@pytest.mark.parametrize("source", ["obo", "skos", "umls"])
def test_an_ontology_that_is_not_there_is_named(run, source):
    fails(run("build", source, "none", "--to", "x.kb"), 3, "there is no none; check the path")
