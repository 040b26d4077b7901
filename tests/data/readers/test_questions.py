"""Files of questions with answers and of masked facts: SQuAD, Quasar-T, SearchQA, LAMA."""

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.data.readers.lama import (
    MASK,
    MaskedFact,
    Relation,
    common_vocabulary,
    lower,
    read_facts,
    read_lama,
    read_relations,
    read_vocabulary,
    within,
)
from wellread.data.readers.open_qa import (
    OpenQuestion,
    answer_finder,
    holds_answer,
    ranked_hits,
    read_openqa,
    read_quasar,
    read_searchqa,
)
from wellread.data.readers.squad import (
    Answer,
    evaluate_squad,
    read_no_answers,
    read_predictions,
    read_squad,
    split_squad,
    squad_version,
    write_predictions,
)
from wellread.errors import InputError, UsageError
from wellread.evaluation.answers import exact_match
from wellread.evaluation.ranking import recall_at

SHARED = Path(__file__).parents[4] / "shared" / "data"
CONTEXT = "Žižkov 𝒜 tower stands in Prague, the capital."


def squad(*questions, context=CONTEXT, title="Prague", **more):
    return {"data": [{"title": title, "paragraphs": [{"context": context, "qas": list(questions)}]}], **more}


def question(name, *answers, **more):
    given = [{"text": text, "answer_start": CONTEXT.find(text) if at is None else at} for text, at in answers]
    return {"id": name, "question": "Where?", "answers": given, **more}


@pytest.fixture
def write(tmp_path):
    def write(content, name="file.json", lines=False):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(each) + "\n" for each in content) if lines else json.dumps(content)
        path.write_bytes(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())
        return path

    return write


# SQuAD


def test_answers_are_where_the_file_says_in_characters(write):
    path = write(squad(question("a", ("Prague", None), ("in Prague", None))), "dev.json.xz")
    (one,) = read_squad(path)
    assert one.answers == (Answer("Prague", 25), Answer("in Prague", 22))
    assert all(one.context[answer.start :].startswith(answer.text) for answer in one.answers)
    assert (one.id, one.title, one.question, one.impossible) == ("a", "Prague", "Where?", False)


def test_a_misplaced_answer_is_refused_or_reported(write):
    path = write(squad(question("a", ("Prague", 26), ("tower", None))))
    with pytest.raises(InputError, match=r"qas\[0\] \(a\): the answer 'Prague' is said to start at 26, .*'rague,'"):
        list(read_squad(path))
    misplaced = []
    (one,) = read_squad(path, misplaced=misplaced)
    assert one.answers == (Answer("Prague", None), Answer("tower", CONTEXT.index("tower")))
    assert len(misplaced) == 1


@pytest.mark.parametrize("start", [-1, 10_000])
def test_a_start_outside_the_context_is_misplaced(start, write):
    with pytest.raises(InputError, match="is said to start at"):
        list(read_squad(write(squad(question("a", ("Prague", start))))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], 'expected an object with "data"'),
        ({"data": [{}]}, r'data\[0\]: expected an object with "paragraphs"'),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, r'paragraphs\[0\]: expected an object with "context"'),
        (squad({"id": "a"}), '"question"'),
        (squad({"id": "a", "question": "?", "answers": [{"text": "x"}]}), '"answer_start"'),
        (squad(question("a", ("Prague", None), is_impossible=True)), "marked as impossible"),
    ],
)
def test_other_json_is_refused_with_its_place(content, message, write):
    with pytest.raises(InputError, match=message):
        list(read_squad(write(content)))


def test_a_file_of_predictions_is_evaluated(write, tmp_path):
    data = write(squad(question("a", ("Prague", None)), question("b", ("tower", None))))
    write_predictions(tmp_path / "out.json", {"a": "the Prague", "b": "Žižkov tower"})
    assert read_predictions(tmp_path / "out.json") == {"a": "the Prague", "b": "Žižkov tower"}
    scores = evaluate_squad(data, tmp_path / "out.json")
    assert squad_version(data) == "1.1"
    assert scores.all.exact == 0.5
    assert scores.all.f1 == pytest.approx((1 + 2 / 3) / 2)


def test_a_file_with_impossible_questions_is_scored_by_the_second_rules(write):
    data = write(
        squad(question("a", ("Prague", None), is_impossible=False), question("b", is_impossible=True)), "2.json"
    )
    assert squad_version(data) == "2.0"
    assert squad_version(write(squad(version="v2.0"), "v2.json")) == "2.0"
    assert [one.impossible for one in read_squad(data)] == [False, True]
    predictions, chances = write({"a": "Prague", "b": "tower"}, "p.json"), write({"a": 0.1, "b": 0.9}, "n.json")
    assert evaluate_squad(data, predictions).all.exact == 0.5
    scores = evaluate_squad(data, predictions, chances, threshold=0.5)
    assert scores.all.exact == 1
    assert (scores.best.exact, scores.best.exact_threshold) == (1, 0.1)


def test_other_predictions_are_refused(write):
    with pytest.raises(InputError, match="answer for each question id"):
        read_predictions(write({"a": 1}))
    with pytest.raises(InputError, match="number for each question id"):
        read_no_answers(write({"a": "x"}))


def test_an_article_is_split_off_whole(write):
    data = {"data": [squad(question(f"{n}a"), question(f"{n}b"), title=f"Title {n}")["data"][0] for n in range(10)]}
    rest, dev = split_squad(list(read_squad(write(data))), 5)
    assert (len(rest), len(dev)) == (14, 6)
    assert {one.title for one in rest}.isdisjoint(one.title for one in dev)


def test_the_shared_questions_are_read_whole():
    path = SHARED / "squad" / "squad_train.json.xz"
    if not path.exists():
        pytest.skip("the shared data is not here")
    questions = list(read_squad(path))
    assert len(questions) == 6984
    assert all(one.answers for one in questions)


# open-domain questions


ASKED = [
    {"question": "Who wrote Faust (a play)?", "answers": ["Goethe", "J. W. von Goethe"]},
    {"question": "2 + 2", "answers": ["4"]},
]
FOUND = [
    [
        {"question": ["Who", "wrote", "Faust", "-LRB-", "a", "play", "-RRB-", "?"], "document": ["By", "Goethe", "."]},
        {
            "question": ["Who", "wrote", "Faust", "-LRB-", "a", "play", "-RRB-", "?"],
            "document": "A ``play'' by Marlowe.",
        },
        {"question": ["Who"], "document": ["By", "Goethe", "."]},
    ],
    [],
]


def test_passages_are_joined_to_questions_line_by_line(write):
    first, second = read_openqa(write(ASKED, "a.txt", True), write(FOUND, "a.json", True))
    assert first == OpenQuestion(
        "1",
        "Who wrote Faust (a play)?",
        ("Goethe", "J. W. von Goethe"),
        ("By Goethe .", "A ``play'' by Marlowe.", "By Goethe ."),
    )
    assert second.passages == ()
    assert holds_answer(first) == [True, False, True]


def test_broken_questions_are_left_out_where_there_is_somebody_to_tell(tmp_path, write):
    question_file = write([*ASKED, ASKED[0], ASKED[0]], "a.txt", True)
    found = write([*FOUND, 5, FOUND[0]], "a.json", True)
    lines = question_file.read_text().splitlines()
    question_file.write_text("\n".join([*lines[:3], "{"]) + "\n")
    skipped = []
    assert [one.id for one in read_openqa(question_file, found, skipped=skipped)] == ["1", "2"]
    assert "a.json, line 3: expected a list" in skipped[0]
    assert "a.txt, line 4 is not JSON: " in skipped[1]
    assert skipped[1].endswith("; mend the line, or leave it out")
    with pytest.raises(InputError, match=r"a.json ends before its line 4; .*copy it again"):  # which is no line's fault
        list(read_openqa(question_file, write([*FOUND, FOUND[0]], "a.json", True), skipped=[]))
    contexts = write([{"uid": "a", "contexts": []}, {"uid": "b"}], "c.json", True)
    questions = write([{"uid": name, "question": "x", "answer": "y"} for name in "ab"], "q.json", True)
    skipped = []
    assert [one.id for one in read_quasar(questions, contexts, skipped=skipped)] == ["a"]
    assert [message.partition(":")[0].rpartition(", ")[2] for message in skipped] == ["line 2", "line 2"]
    results = write([{"question": "x", "answer": "y"}, {"question": "x", "search_results": []}], "s.jsonl", True)
    skipped = []
    assert list(read_searchqa(results, skipped=skipped)) == [OpenQuestion("2", "x", (), ())]
    assert len(skipped) == 1


def test_answers_may_be_secret(write):
    questions = [{"question": "x"}, {"question": "x", "answers": []}, {"question": "x", "answers": None}]
    found = read_openqa(write(questions, "a.txt", True), write([[], [], []], "a.json", True))
    assert [one.answers for one in found] == [(), (), ()]


@pytest.mark.parametrize(
    ("questions", "found", "message"),
    [
        (ASKED, FOUND[:1], "a.json ends before its line 2"),
        (ASKED[:1], FOUND, "a.txt ends before its line 2"),
        (
            ASKED[::-1],
            FOUND,
            "a.txt, line 1 has the question '2 . 2', but .*a.json, line 1 has passages for 'Who wrote",
        ),
        (FOUND, ASKED, 'a.txt, line 1: expected "question"'),
        (ASKED, ASKED, "are the two files swapped"),
        ([{"question": "x", "answers": [5]}], [[]], r'a.txt, line 1: "answers" is \[5\], expected a text, or a list'),
        (ASKED, [[{"question": "Who wrote Faust", "document": 5}], []], 'expected "document"'),
    ],
)
def test_files_that_do_not_belong_together_are_refused(questions, found, message, write):
    with pytest.raises(InputError, match=message):
        list(read_openqa(write(questions, "a.txt", True), write(found, "a.json", True)))


def test_quasar_is_joined_by_uid(write):
    records = [{"uid": "s1", "question": "Who?", "answer": "Goethe", "tags": []}]
    found = [{"uid": "s0", "contexts": []}, {"uid": "s1", "contexts": [[3.5, "By Goethe."], [1.0, "By Marlowe."]]}]
    questions, contexts = write(records, "q.json", True), write(found, "c.json", True)
    assert list(read_quasar(questions, contexts)) == [
        OpenQuestion("s1", "Who?", ("Goethe",), ("By Goethe.", "By Marlowe."))
    ]
    with pytest.raises(InputError, match="no contexts for 's1'"):
        list(read_quasar(questions, write(found[:1], "c.json", True)))
    with pytest.raises(InputError, match=r"a list of \[score, text\]"):
        list(read_quasar(questions, write([{"uid": "s1", "contexts": ["x"]}], "c.json", True)))


def test_searchqa_has_snippets(write):
    line = {
        "question": "author of faust",
        "answer": "Goethe",
        "search_results": [{"snippet": None}, {"snippet": "By G."}],
    }
    (one,) = read_searchqa(write([line], "s.jsonl", True))
    assert one == OpenQuestion("1", "author of faust", ("Goethe",), ("By G.",))
    with pytest.raises(InputError, match="search_results"):
        list(read_searchqa(write([{"question": "x", "answer": "y"}], "s.jsonl", True)))


@pytest.mark.parametrize(
    ("answers", "passage", "expected"),
    [
        (["The U.S.", "Riga"], "riga (not in the U.S.)", ["riga", "U.S"]),
        (["Paris"], "Paris-based, Parisian; PARIS'", ["Paris", "PARIS"]),
        (["the sea", "a sea"], "the sea at sea", ["sea", "sea"]),
        (["New York", "York"], "New York", ["New York", "York"]),
        (["twenty-one"], "twenty one, twenty-one", ["twenty-one"]),
        (["A.B."], "by A.B. himself, not B", ["A.B"]),
        (["the", "!", ""], "the end !", []),
        (["x b x b"], "x b x b x b", ["x b x b", "x b x b"]),
        (["“Riga”"], "in “Riga”, Riga", ["“Riga”"]),
    ],
)
def test_answers_are_found_in_passages(answers, passage, expected):
    assert [passage[start:end] for start, end in answer_finder(answers)(passage)] == expected


WORDS = st.lists(st.sampled_from(["Riga", "the", "sea", "U.S.", "a-b", "(", "a", "It's", "…"]), max_size=8).map(
    " ".join
)


@given(st.lists(WORDS, max_size=3), WORDS)
def test_every_span_found_is_an_exact_match(answers, passage):
    spans = answer_finder(answers)(passage)
    assert spans == sorted(set(spans))
    for start, end in spans:
        assert any(exact_match(passage[start:end], answer) for answer in answers)


@given(WORDS.filter(lambda text: "sea" in text), WORDS, WORDS)
def test_an_answer_is_found_wherever_it_is_put(answer, before, after):
    assert answer_finder([answer])(f"{before} / {answer} / {after}")


def test_recall_is_computed_for_any_order_of_passages():
    questions = [OpenQuestion("1", "?", ("b",), ("a.", "b.")), OpenQuestion("2", "?", ("x",), ("y",))]
    hits = ranked_hits(questions, [[1, 0], [0]])
    assert hits == [[True, False], [False]]
    assert recall_at(hits, 1) == 0.5
    assert recall_at(ranked_hits(questions, [[0], []]), 1) == 0
    with pytest.raises(InputError, match="none of 2 passages"):
        ranked_hits(questions, [[0, 2], [0]])
    with pytest.raises(InputError, match="one for each"):
        ranked_hits(questions, [[0]])


# LAMA


BORN = {
    "sub_label": "Ada [Y] Byron",
    "obj_label": "London",
    "uuid": "u1",
    "masked_sentences": ["Ada came from [MASK]."],
}


@pytest.fixture
def lama(write, tmp_path):
    """A folder laid out as LAMA's data."""
    yes, no = {"rater": "1", "judgment": "yes"}, {"rater": "2", "judgment": "no"}
    write(
        [
            {**BORN, "judgments": [yes, no]},
            {**BORN, "uuid": "u2", "judgments": [yes]},
            {**BORN, "uuid": "u3", "obj_label": "Rome", "judgments": [yes, no, no]},
        ],
        "data/Google_RE/place_of_birth_test.jsonl",
        True,
    )
    write([{**BORN, "obj_label": "1815"}], "data/Google_RE/date_of_birth_test.jsonl", True)
    write(
        [
            {"relation": "P36", "template": "The capital of [X] is [Y] .", "label": "capital", "type": "1-1"},
            {"relation": "P99", "template": "[X] has no file of [Y] .", "label": "none", "type": "N-M"},
        ],
        "data/relations.jsonl",
        True,
    )
    evidence = {"sub_surface": "Latvia", "obj_surface": "Riga", "masked_sentence": "It is [MASK]."}
    write(
        [{"uuid": "t1", "sub_label": "Latvia", "obj_label": "Riga", "evidences": [evidence]}],
        "data/TREx/P36.jsonl",
        True,
    )
    sentence = {
        "sub": "bird",
        "obj_label": "fly",
        "pred": "CapableOf",
        "uuid": "c1",
        "masked_sentences": ["Birds [MASK]."],
    }
    write([sentence, sentence, {**sentence, "masked_sentences": ["[MASK] " * 101]}], "data/ConceptNet/test.jsonl", True)
    write(
        [{"id": "s1", "sub_label": "Squad", "obj_label": "red", "masked_sentences": ["It is", "[MASK]."]}],
        "data/Squad/test.jsonl",
        True,
    )
    return tmp_path / "data"


def test_templates_ask_each_fact_once(lama):
    skipped = []
    facts = list(read_lama(lama, "google_re", skipped=skipped))
    # The template's [Y] is masked, not the one in the subject's name.
    assert facts == [
        MaskedFact("u1", "place_of_birth", "Ada [Y] Byron", "London", "Ada [Y] Byron was born in [MASK] ."),
        MaskedFact("u1", "date_of_birth", "Ada [Y] Byron", "1815", "Ada [Y] Byron (born [MASK])."),
    ]
    assert len(skipped) == 1
    assert "line 3: most judges reject" in skipped[0]


def test_relations_have_their_templates_in_a_file(lama):
    assert list(read_lama(lama, "trex")) == [
        MaskedFact("t1", "P36", "Latvia", "Riga", "The capital of Latvia is [MASK] .")
    ]
    capital, _ = read_relations(lama / "relations.jsonl")
    assert (capital.label, capital.kind) == ("capital", "1-1")


def test_facts_without_template_have_sentences(lama):
    facts = list(read_lama(lama, "conceptnet"))
    assert facts == [MaskedFact("c1", "ConceptNet", "bird", "fly", "Birds [MASK].")] * 2
    assert [fact.sentence for fact in read_lama(lama, "squad")] == ["It is [MASK]."]
    assert [fact.sentence for fact in read_facts(lama / "TREx" / "P36.jsonl", Relation("P36"))] == ["It is [MASK]."]


def test_facts_are_kept_to_a_vocabulary(lama, tmp_path):
    (tmp_path / "vocabulary.txt").write_text("riga\n\nLondon\n")
    vocabulary = read_vocabulary(tmp_path / "vocabulary.txt")
    assert vocabulary == {"riga", "London"}
    skipped = []
    facts = list(read_lama(lama, "google_re"))
    assert [fact.object for fact in within(facts, vocabulary, skipped=skipped)] == ["London"]
    assert skipped == ["1815"]
    assert [fact.object for fact in within(map(lower, read_lama(lama, "trex")), vocabulary)] == ["riga"]


def test_the_mask_keeps_its_capitals():
    fact = lower(MaskedFact("1", "P36", "Latvia", "Riga", "Latvia's Capital is [MASK] ."))
    assert fact == MaskedFact("1", "P36", "latvia", "riga", f"latvia's capital is {MASK} .")


def test_a_common_vocabulary_has_what_all_have_but_signs():
    assert common_vocabulary([["Riga", "##s", ".", "sea", "[MASK]"], {"Riga": 1, "##s": 2, ".": 3}]) == {"Riga"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"sub_label": "x"}, "line 1: no 'obj_label'"),
        ({"sub_label": "x", "obj_label": "y"}, "line 1: no masked sentence"),
        ({"sub_label": "x", "obj_label": "y", "masked_sentences": ["none"]}, "expected .MASK. and what it stands for"),
    ],
)
def test_broken_facts_are_refused_or_passed_over(line, message, write):
    path = write([line], "facts.jsonl", True)
    with pytest.raises(InputError, match=message):
        list(read_facts(path, Relation("r")))
    skipped = []
    assert list(read_facts(path, Relation("r"), skipped=skipped)) == []
    assert len(skipped) == 1


def test_other_folders_parts_and_templates_are_refused(tmp_path):
    with pytest.raises(InputError, match="give the data folder of LAMA"):
        list(read_lama(tmp_path, "squad"))
    with pytest.raises(UsageError, match="google_re, trex"):
        list(read_lama(tmp_path, "other"))
    with pytest.raises(InputError, match=r"expected one \[X\]"):
        Relation("P36", "The capital of [X] is .")
