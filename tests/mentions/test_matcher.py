"""The matcher against a naive search, word by word, that anybody can check by eye."""

import multiprocessing

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions import matcher as match
from wellread.mentions.matcher import Matcher, names_path
from wellread.text import words as names
from wellread.text.stopwords import FUNCTION_WORDS, STOP_WORDS


def naive_spans(text, aliases, case="folded"):
    """Every (start, end) whose words are those of an alias."""
    spelled = {tuple(names.word_hash(word, case) for word in names.words(alias)) for alias in aliases}
    found, places, place = [], [], 0
    for word in names.words(text):
        place = text.index(word, place)
        places.append((place, place + len(word), names.word_hash(word, case)))
        place += len(word)
    for first in range(len(places)):
        for last in range(first, len(places)):
            if tuple(word[2] for word in places[first : last + 1]) in spelled:
                found.append((places[first][0], places[last][1]))
    return sorted(found, key=lambda span: (span[0], -span[1]))


def naive_longest(spans):
    kept, free = [], 0
    for start, end in spans:
        if start >= free:
            kept.append((start, end))
            free = end
    return kept


def matcher_of(path, aliases):
    build(lambda tally: (Entity(f"e{n}", alias) for n, alias in enumerate(aliases)), path, origin=Origin("test"))
    with KnowledgeBase.open(path) as kb:
        return Matcher.of(kb)


def found_texts(matcher, text, **options):
    return [text[start:end] for start, end in matcher.find(text, **options).spans()]


WORDS = st.sampled_from(
    ["new", "York", "CITY", "a", "東", "京", "C", "+", "é", "e\u0301", "-", ".", "👩\u200d🚀", "x1"]
)
PHRASE = st.lists(WORDS, min_size=1, max_size=4)
JOINED = st.sampled_from(
    [" ", "  ", "-", "\t", "\r\n", "_", "", "___", "\u200b\u200b\u200b", "\0\0\0", " \u0301 \u0301 "]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PHRASE, min_size=1, max_size=8), st.lists(st.tuples(WORDS, JOINED), max_size=40), st.data())
def test_the_same_spans_as_a_naive_search(tmp_path_factory, phrases, written, data):
    aliases = [" ".join(phrase) for phrase in phrases]
    text = "".join(word + join for word, join in written)
    matcher = matcher_of(tmp_path_factory.mktemp("kb") / "x.kb", aliases)
    case = data.draw(st.sampled_from(names.CASES))
    expected = naive_spans(text, aliases, case)
    assert matcher.find(text, overlaps="all", case=case).spans() == expected
    assert matcher.find(text, overlaps="longest", case=case).spans() == naive_longest(expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, JOINED), max_size=120), st.integers(1, 40))
@example([("new", " "), ("York", " "), ("CITY", " "), ("a", " "), ("a", "")], 3)  # at a word's end
@example([("new", " "), ("York", " "), ("CITY", " "), ("a", " "), ("a", "")], 4)  # behind the blank
@example([("new", " "), ("York", " "), ("new", " "), ("York", "")], 8)  # between two names
@example([("C", ""), ("+", ""), ("+", ""), ("東", ""), ("京", "")], 1)
def test_where_a_long_text_is_cut_changes_nothing(tmp_path_factory, written, block):
    text = "".join(word + join for word, join in written)
    aliases = ["new York", "new York CITY", "東 京", "C + +", "a a", "x1 new x1 a", "é"]
    matcher = matcher_of(tmp_path_factory.mktemp("kb") / "x.kb", aliases)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "_BLOCK", block)
        tokenized = {overlaps: matcher.find(text, overlaps=overlaps).spans() for overlaps in ("all", "longest")}
    assert tokenized["all"] == naive_spans(text, aliases)
    assert tokenized["longest"] == naive_longest(tokenized["all"])


def test_names_are_found_where_they_stand_as_words(names_kb):
    matcher = Matcher.of(names_kb)
    text = "In New-York City I ate an APPLE; Beyonce codes C++ in 東京都, the U.S. and\r\nNew\tYork. Applet!"
    assert found_texts(matcher, text) == [
        "New-York City", "APPLE", "Beyonce", "C++", "東京", "U.S.", "New\tYork",
    ]  # fmt: skip


def test_all_overlapping_names_are_found_on_request(names_kb):
    found = found_texts(Matcher.of(names_kb), "State of New York City", overlaps="all")
    assert found == ["State of New York", "New York City", "New York"]


def test_from_left_to_right_the_longest_wins(names_kb):
    assert found_texts(Matcher.of(names_kb), "State of New York City") == ["State of New York"]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("exact", ["Apple", "US"]),
        ("title", ["Apple", "apple", "US", "tokyo"]),
        ("folded", ["Apple", "apple", "US", "us", "tokyo", "APPLE"]),
    ],
)
def test_the_case_policy_decides_which_spellings_count(names_kb, case, expected):
    names_kb.remove(["Q89"])
    assert found_texts(Matcher.of(names_kb), "Apple, apple: US vs us, tokyo, APPLE", case=case) == expected


def test_a_name_of_stop_words_only_is_passed_over_unless_it_is_in_capitals(names_kb):
    matcher = Matcher.of(names_kb)
    assert found_texts(matcher, "us and US and Us", stop_words=STOP_WORDS) == ["US"]
    assert found_texts(matcher, "state of new york", stop_words=STOP_WORDS) == ["state of new york"]


def test_short_names_and_long_names_can_be_left_out(names_kb):
    matcher = Matcher.of(names_kb)
    assert found_texts(matcher, "US, NYC, C++ and Tokyo", min_chars=3) == ["NYC", "C++", "Tokyo"]
    assert found_texts(matcher, "New York City", max_words=2) == ["New York"]


def test_an_empty_text_has_no_names(names_kb):
    assert len(Matcher.of(names_kb).find("")) == 0
    assert len(Matcher.of(names_kb).find(" \n")) == 0


def test_a_matcher_of_nothing_finds_nothing(tmp_path):
    build(lambda tally: iter(()), tmp_path / "empty.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "empty.kb") as kb:
        assert len(Matcher.of(kb).find("New York")) == 0


def test_word_forms_are_found_with_the_kinds_they_can_have(senses_kb):
    text = "The axes of geese ran out as the attorneys general was happiest. Axe!"
    found = Matcher.of(senses_kb).find(text, overlaps="all", stop_words=FUNCTION_WORDS)
    kinds = {
        (text[start:end], key): kind
        for start, end, key, kind in zip(
            *(column.tolist() for column in (found.starts, found.ends, found.keys, found.kinds)), strict=True
        )
    }
    assert kinds == {
        ("axes", names.key("axis")): 1,
        ("axes", names.key("axe")): 2,
        ("geese", names.key("goose")): 1,
        ("ran", names.key("run")): 2,
        ("ran out", names.key("run out")): 2,
        ("attorneys general", names.key("attorney general")): 1,
        ("was", names.key("be")): 2,
        ("happiest", names.key("happy")): 4,
        ("Axe", names.key("axe")): 255,
    }


def test_words_of_a_form_must_agree_in_kind(tmp_path):
    records = [Entity("v", "bear out", kind="v"), Entity("n", "bear", kind="n"), Entity("o", "out", kind="r")]
    build(lambda tally: iter(records), tmp_path / "x.kb", origin=Origin("test", extra={"inflection": "wordnet"}))
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        matcher = Matcher.of(kb)
        assert found_texts(matcher, "It bears out and bearing out; bears outs") == [
            "bears out",
            "bearing out",
            "bears outs",
        ]
        assert names.key("bear") in matcher.find("bears").keys.tolist()
        assert len(matcher.find("outs")) == 0  # a form of the verb "bear out" ends in, which is no name of its own


def test_the_compiled_names_lie_beside_the_kb_and_are_mapped_again(names_kb):
    Matcher.of(names_kb)
    path = names_path(names_kb)
    before = path.stat().st_mtime_ns
    again = Matcher.of(names_kb)
    assert path.stat().st_mtime_ns == before
    assert not again.names.nodes.slots.flags.owndata
    assert found_texts(again, "big apple") == ["big apple"]


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_file_of_names_that_is_not_ours_is_made_again(names_kb, damage):
    Matcher.of(names_kb)
    path = names_path(names_kb)
    path.write_bytes(path.read_bytes()[:300] if damage is None else damage)
    assert found_texts(Matcher.of(names_kb), "NYC") == ["NYC"]


def test_names_compiled_for_another_kb_are_not_used(names_kb, tmp_path):
    Matcher.of(names_kb)
    build(lambda tally: iter([Entity("x", "Zanzibar")]), tmp_path / "other.kb", origin=Origin("test"))
    (tmp_path / "other.kb.names").write_bytes(names_path(names_kb).read_bytes())
    with KnowledgeBase.open(tmp_path / "other.kb") as other:
        assert found_texts(Matcher.of(other), "NYC, Zanzibar") == ["Zanzibar"]


def test_changes_are_laid_over_the_compiled_names(names_kb):
    old = Matcher.of(names_kb)
    before = names_path(names_kb).stat().st_mtime_ns
    with names_kb.change() as change:
        change.add(Entity("n1", "Gotham", aliases={"New York Minute": 1}))
        change.remove("Q312")
        change.update(Entity("Q30", "United States", aliases={"America": 1}))
    fresh = old.refresh(names_kb)
    text = "Gotham: a new york minute, Apple Inc., apple, US, America, NYC"
    assert found_texts(fresh, text) == ["Gotham", "new york minute", "Apple", "apple", "America", "NYC"]
    assert found_texts(fresh, "Gotham, gotham, Apple, apple", case="exact") == ["Gotham", "apple"]
    joined = Matcher(fresh.joined())
    assert found_texts(joined, text) == found_texts(fresh, text)
    assert found_texts(joined, "Gotham, gotham, Apple, apple", case="exact") == ["Gotham", "apple"]
    assert fresh.revision == names_kb.revision
    assert names_path(names_kb).stat().st_mtime_ns == before
    assert fresh.refresh(names_kb) is fresh


def test_a_kb_built_anew_under_the_same_path_is_followed(tmp_path):
    path = tmp_path / "x.kb"
    matcher = matcher_of(path, ["Alpha"])
    with KnowledgeBase.open(path) as kb:
        build(lambda tally: iter([Entity("b", "Beta")]), path, origin=Origin("other"))
        assert found_texts(matcher.refresh(kb), "Alpha and Beta") == ["Beta"]


def test_many_changes_are_joined_into_the_compiled_file(names_kb, senses_kb, monkeypatch):
    monkeypatch.setattr(match, "_JOIN_AFTER", 2)
    for kb in (names_kb, senses_kb):
        Matcher.of(kb)
        kb.add([Entity(f"n{n}", f"Newtown {n}", kind="n") for n in range(5)] + [Entity("m", "moose", kind="n")])
        kb.remove(["n3"])
        joined = Matcher.of(kb)
        assert joined.added is None
        assert joined.revision == kb.revision
        assert found_texts(joined, "newtown 3, Newtown 4, new york, moose") == [
            "Newtown 4", *(["new york"] if kb is names_kb else []), "moose",
        ]  # fmt: skip
        assert found_texts(Matcher.of(kb), "Newtown 4, Newtown 3") == ["Newtown 4"]
    assert found_texts(Matcher.of(senses_kb), "mooses, geese and axes") == ["mooses", "geese", "axes"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), PHRASE), max_size=12))
def test_a_refreshed_matcher_equals_one_compiled_anew(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("kb") / "x.kb"
    matcher = matcher_of(path, ["new York", "CITY a"])
    with KnowledgeBase.open(path, writable=True) as kb:
        for adding, number, phrase in steps:
            id = f"s{number}"
            if adding and id not in kb:
                kb.add([Entity(id, " ".join(phrase))])
            elif not adding and id in kb:
                kb.remove([id])
            matcher = matcher.refresh(kb)
            aliases = [row[0] for row in kb.connection.execute("SELECT name FROM aliases")]
            text = " ".join(word for _, _, words in steps for word in words) + " new york city a"
            assert matcher.find(text, overlaps="all").spans() == naive_spans(text, aliases)


def _find_elsewhere(path, text, results):
    with KnowledgeBase.open(path) as kb:
        results.put(found_texts(Matcher.of(kb), text))


def test_several_processes_share_one_compiled_file(names_kb):
    Matcher.of(names_kb)
    compiled = names_path(names_kb).stat()
    results = multiprocessing.get_context("spawn").Queue()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_find_elsewhere, args=(names_kb.path, "Tokyo, NYC", results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [["Tokyo", "NYC"]] * 3
    for worker in workers:
        worker.join()
    results.close()
    results.join_thread()
    again = names_path(names_kb).stat()  # a process that compiled for itself would have put another in its place
    assert (again.st_ino, again.st_mtime_ns) == (compiled.st_ino, compiled.st_mtime_ns)


def test_a_form_that_no_entity_of_its_kind_has_hides_nothing(tmp_path):
    """ "two years" is a form of the noun phrase only if there is such a noun; here "two year" is an adjective."""
    records = [Entity("a", "two year", kind="a"), Entity("v", "two", kind="v"), Entity("n", "year", kind="n")]
    build(lambda tally: iter(records), tmp_path / "x.kb", origin=Origin("test", extra={"inflection": "wordnet"}))
    with KnowledgeBase.open(tmp_path / "x.kb") as kb:
        assert found_texts(Matcher.of(kb), "two years and a two year") == ["two", "years", "two year"]


def test_the_compiled_file_is_one_that_safetensors_reads(names_kb):
    from safetensors.numpy import load_file

    matcher = Matcher.of(names_kb)
    arrays = load_file(names_path(names_kb))
    assert arrays["nodes"].tolist() == matcher.names.nodes.slots.tolist()
    assert arrays["flags"].tolist() == matcher.names.nodes.values.tolist()


def test_a_kb_put_back_from_a_copy_is_not_matched_with_the_names_of_its_future(names_kb, tmp_path):
    Matcher.of(names_kb)
    copy = tmp_path / "copy"
    names_kb.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy.write_bytes(names_kb.path.read_bytes())
    names_kb.remove(["Q1490"])
    names_kb.add([Entity("g", "Gotham")])
    names_path(names_kb).unlink()
    Matcher.of(names_kb)
    names_kb.close()
    for side in ("-wal", "-shm"):
        names_kb.path.with_name(names_kb.path.name + side).unlink(missing_ok=True)
    names_kb.path.write_bytes(copy.read_bytes())
    with KnowledgeBase.open(names_kb.path) as restored:
        assert found_texts(Matcher.of(restored), "Gotham and Tokyo") == ["Tokyo"]


def test_a_refresh_after_many_changes_joins_them(names_kb, monkeypatch):
    monkeypatch.setattr(match, "_JOIN_AFTER", 2)
    matcher = Matcher.of(names_kb)
    names_kb.add([Entity(f"n{n}", f"Newtown {n}") for n in range(5)])
    fresh = matcher.refresh(names_kb)
    assert fresh.added is None
    assert found_texts(fresh, "Newtown 4, NYC") == ["Newtown 4", "NYC"]


def test_a_name_of_stop_words_in_capitals_is_a_name(tmp_path):
    matcher = matcher_of(tmp_path / "x.kb", ["The Who", "It", "out of"])
    text = "The Who: it is out of the who"
    assert found_texts(matcher, text, stop_words=STOP_WORDS) == ["The Who"]


def test_no_words_at_most_means_no_names(names_kb):
    assert len(Matcher.of(names_kb).find("Tokyo", max_words=0)) == 0


def test_a_stop_word_may_have_several_words(names_kb):
    assert found_texts(Matcher.of(names_kb), "new york, Tokyo", stop_words=["new york"]) == ["Tokyo"]
