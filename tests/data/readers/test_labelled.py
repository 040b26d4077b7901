"""Files of labelled texts, relevance and multiple choice: what is read, what is refused, and what is split off."""

import gzip
import json
import lzma
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.data.readers.glue import GLUE, glue_average, glue_task, read_glue, write_glue
from wellread.data.readers.labelled import (
    LabelledColumns,
    LabelledTask,
    LabelledText,
    find_labels,
    read_labelled,
    split_labelled,
)
from wellread.data.readers.multiple_choice import read_choices, score_choices, split_choices, write_choices
from wellread.data.readers.relevance import RelevanceColumns, RelevancePair, read_relevance, split_queries
from wellread.data.splits import split_by
from wellread.data.tables import read_json_drafts
from wellread.errors import InputError, UsageError

SHARED = Path(__file__).parents[4] / "shared" / "data"

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
# The header (if any) and a line of each part of each task, as GLUE has them; and the example that comes of it.
OFFICIAL = {
    "CoLA train": ("", "gj04\t0\t*\tA cat were here.", ("A cat were here.", None, 0)),
    "CoLA test": ("index\tsentence", "7\tA cat was here.", ("A cat was here.", None, None)),
    "SST-2 train": ("sentence\tlabel", "fine stuff \t1", ("fine stuff ", None, 1)),
    "SST-2 test": ("index\tsentence", "7\tdull stuff", ("dull stuff", None, None)),
    "MRPC train": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '1\t70\t71\tHe said " no .\tHe refused .',
        ('He said " no .', "He refused .", 1),
    ),
    "MRPC test": ("index\t#1 ID\t#2 ID\t#1 String\t#2 String", "7\t70\t71\tA .\tB .", ("A .", "B .", None)),
    "STS-B dev": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "7\tnews\tf\t2015\t1\tnone\tnone\tA cat.\tA dog.\t1.600",
        ("A cat.", "A dog.", 1.6),
    ),
    "STS-B test": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "7\tnews\tf\t2015\t1\tnone\tnone\tA cat.\tA dog.",
        ("A cat.", "A dog.", None),
    ),
    "QQP train": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "7\t1\t2\tWhy?\tHow?\t0", ("Why?", "How?", 0)),
    "QQP test": ("id\tquestion1\tquestion2", "7\tWhy?\tHow?", ("Why?", "How?", None)),
    "MNLI train": (
        "\t".join([*MNLI.split(), "sentence1", "sentence2", "label1", "gold_label"]),
        "\t".join(["7", *"abcdefg", "A cat.", "A dog.", "neutral", "contradiction"]),
        ("A cat.", "A dog.", 2),
    ),
    "MNLI test": (
        "\t".join([*MNLI.split(), "sentence1", "sentence2"]),
        "\t".join(["7", *"abcdefg", "A cat.", "A dog."]),
        ("A cat.", "A dog.", None),
    ),
    "QNLI dev": ("index\tquestion\tsentence\tlabel", "7\tWho?\tHim.\tentailment", ("Who?", "Him.", 0)),
    "RTE train": ("index\tsentence1\tsentence2\tlabel", "7\tA.\tB.\tnot_entailment", ("A.", "B.", 1)),
    "WNLI train": ("index\tsentence1\tsentence2\tlabel", "7\tA.\tB.\t1", ("A.", "B.", 1)),
    "WNLI test": ("index\tsentence1\tsentence2", "7\tA.\tB.", ("A.", "B.", None)),
}


@pytest.fixture
def write(tmp_path):
    def write(content, name="file"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(each) + "\n" for each in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# GLUE


@pytest.mark.parametrize("part", OFFICIAL)
def test_official_files_are_read(part, write):
    header, line, expected = OFFICIAL[part]
    path = write("".join(f"{each}\n" for each in (header, line, line) if each))
    first, second = read_glue(path, part.split()[0])
    assert (first.text, first.text_b, first.label) == expected
    assert (second.text, second.text_b, second.label) == expected
    assert first.id == ("7" if "7\t" in line else "1" if not header else "2")


def test_every_task_has_its_facts():
    assert list(GLUE) == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"]
    assert {part.split()[0] for part in OFFICIAL} == set(GLUE)
    for task, columns in GLUE.values():
        assert task.pair == (columns.text_b is not None)
    assert [name for name, (task, _) in GLUE.items() if task.kind == "regression"] == ["STS-B"]


@pytest.mark.parametrize("name", ["sst2", "SST-2", "sst_2"])
def test_tasks_are_found_by_any_writing_of_their_name(name):
    assert glue_task(name).name == "SST-2"
    with pytest.raises(UsageError, match="CoLA, SST-2"):
        glue_task("SST-3")


@pytest.mark.parametrize(("name", "pack"), [("a.tsv.gz", gzip.compress), ("a.tsv.xz", lzma.compress)])
def test_compressed_files_are_read(name, pack, write):
    path = write(pack(b"sentence\tlabel\nfine\t1\n"), name)
    assert [example.label for example in read_glue(path, "SST-2")] == [1]


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("RTE", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\n", "line 2: 3 cells, expected 4: index, sentence1"),
        (
            "RTE",
            "index\tsentence1\tsentence2\tlabel\n\n0\tA\tB\tyes\n",
            "line 3: the label is 'yes', expected one of ent",
        ),
        ("RTE", "a\tb\n", "line 1: expected a header with sentence1, sentence2, got 'a | b'; is this the RTE"),
        ("CoLA", "a\tb\n", "expected 4 cells without a header, or a header with sentence"),
        (
            "STS-B",
            "sentence1\tsentence2\tscore\nA\tB\t5.1\n",
            "line 2: the label is '5.1', expected a number from 0 to 5",
        ),
        ("STS-B", "sentence1\tsentence2\tscore\nA\tB\tnan\n", "expected a number from 0 to 5"),
        ("SST-2", "", "is empty"),
        ("SST-2", b"sentence\tlabel\n\xff\t1\n", "line 2 is not UTF-8"),
    ],
)
def test_broken_files_are_refused_with_line_and_expectation(task, content, message, write):
    with pytest.raises(InputError) as caught:
        list(read_glue(write(content), task))
    assert message in str(caught.value)


def test_broken_lines_can_be_passed_over(write):
    skipped = []
    path = write("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\n7\t1\t2\tWhy?\tHow?\t0\n")
    assert [example.id for example in read_glue(path, "QQP", skipped=skipped)] == ["7"]
    assert len(skipped) == 1
    assert "line 2: 2 cells" in skipped[0]


@pytest.mark.parametrize(
    ("task", "predicted", "expected"),
    [("RTE", [0, 1], ["entailment", "not_entailment"]), ("STS-B", [5.2, 1.23456], ["5.000", "1.235"])],
)
def test_predictions_are_written_as_the_leaderboard_takes_them(task, predicted, expected, tmp_path):
    examples = [LabelledText("0", "a", "b"), LabelledText("1", "c", "d")]
    write_glue(tmp_path / "out.tsv", task, examples, predicted)
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert rows == [["index", "prediction"], ["0", expected[0]], ["1", expected[1]]]
    with pytest.raises(InputError, match="1 predictions for 2"):
        write_glue(tmp_path / "out.tsv", task, examples, [0])


def test_tasks_are_scored_by_their_official_metrics():
    examples = [LabelledText(str(label), "a", "b", label) for label in (1, 1, 0, 0)]
    assert glue_task("MRPC").score(examples, [1, 0, 0, 0]) == pytest.approx(
        {"accuracy": 0.75, "f1": 2 / 3, "score": (0.75 + 2 / 3) / 2}
    )
    assert glue_task("CoLA").score(examples, [1, 0, 0, 0]).keys() == {"matthews", "score"}
    numbers = [LabelledText(str(n), "a", "b", n / 2) for n in (1, 2, 3)]
    assert glue_task("STS-B").score(numbers, [0.1, 0.2, 5.0])["spearman"] == pytest.approx(1)
    with pytest.raises(InputError, match="1 of 1 examples of RTE have no label"):
        glue_task("RTE").score([LabelledText("0", "a", "b")], [1])


def test_both_parts_of_mnli_are_one_task_of_the_average():
    assert glue_average({"CoLA": 0.5, "MNLI-m": 0.8, "MNLI-mm": 0.9}) == pytest.approx((0.5 + 0.85) / 2)
    for wrong in ({}, {"X": 1.0}, {"MNLI": 0.5, "MNLI-m": 0.5}):
        with pytest.raises(InputError, match="cannot average"):
            glue_average(wrong)


@pytest.mark.parametrize(("task", "count"), [("CoLA", 8551), ("MRPC", 3667), ("STS-B", 5749), ("RTE", 2490)])
def test_the_shared_training_parts_are_read_whole(task, count):
    path = SHARED / "glue" / task / "train.tsv.xz"
    if not path.exists():
        pytest.skip("the shared data is not here")
    examples = list(read_glue(path, task))
    assert len(examples) == count
    assert all(example.text and example.label is not None for example in examples)


# own data


TASK = LabelledTask("mood", ("bad", "good"))
PAIRS = LabelledTask("nearness", (), ("pearson",), pair=True)


@pytest.mark.parametrize(
    "content",
    [
        'text,label\n"fine, ""really""",good\n"two\nlines",bad\n',
        'text\tlabel\nfine, "really"\tgood\ntwo lines\tbad\n',
        [{"text": 'fine, "really"', "label": "good"}, {"text": "two lines", "label": "bad"}],
    ],
    ids=["csv", "tsv", "jsonl"],
)
def test_own_data_is_read_in_three_forms(content, write):
    first, second = read_labelled(write(content), TASK)
    assert (first.text, first.label) == ('fine, "really"', 1)
    assert (second.text.split(), second.label) == (["two", "lines"], 0)


def test_own_columns_have_any_names(write):
    path = write([{"one": "a", "two": "b", "near": 0.5, "key": 3}, {"one": "c", "two": "d", "near": 2, "key": 4}])
    columns = LabelledColumns("one", "two", "near", "key")
    assert list(read_labelled(path, PAIRS, columns)) == [
        LabelledText("3", "a", "b", 0.5),
        LabelledText("4", "c", "d", 2.0),
    ]
    without = LabelledColumns("one", "two", None)
    assert [example.label for example in read_labelled(path, PAIRS, without)] == [None, None]


def test_labels_of_own_data_are_found(write):
    assert find_labels(write("text,label\na,10\nb,9\nc,10\n")) == ("9", "10")
    assert find_labels(write([{"text": "a", "is": True}, {"text": "b", "is": False}]), "is") == ("false", "true")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,good,more\n", "line 2: 3 cells, expected 2"),
        ("text,mood\na,good\n", "line 2: no 'label' (there are text, mood)"),
        ("words,label\na,good\n", "line 2: no 'text' (there are words, label)"),
        ('text,label\n"a,good\n', "line 2: a quote is not closed"),
        ("text,label\n ,good\n", "line 2: a text is empty"),
        ("", "is empty; expected a header"),
        ('{"text": "a", "label": "good"}\n{"text"\n', "line 2: not JSON"),
        ('{"text": "a", "label": "good"}\n[1]\n', "line 2: expected an object"),
        ('{"text": 1, "label": "good"}\n', "line 1: 'text' is 1, expected a text"),
        ('{"text": "a", "label": null}\n', "line 1: no 'label'"),
    ],
)
def test_broken_own_data_is_refused(content, message, write):
    with pytest.raises(InputError) as caught:
        list(read_labelled(write(content), TASK))
    assert message in str(caught.value)


def test_half_a_surrogate_pair_is_a_broken_line(write):
    path = write('{"text": "ok \\ud83d broken", "label": "good"}\n{"text": "\\ud83d\\ude00", "label": "bad"}\n')
    skipped = []
    assert [one.text for one in read_labelled(path, TASK, skipped=skipped)] == ["\U0001f600"]
    assert [message.partition(", ")[2] for message in skipped] == [
        "line 1: half a surrogate pair stands alone in a text; write it again as UTF-8"
    ]
    assert find_labels(path, skipped=[]) == ("bad",)
    (draft, whole) = read_json_drafts(path)
    assert whole()[1]["label"] == "bad"
    with pytest.raises(InputError, match="line 1: half a surrogate pair stands alone"):
        draft()


def test_standard_input_needs_its_form(write):
    with pytest.raises(UsageError, match="say if it is tsv"):
        read_labelled("-", TASK)
    with pytest.raises(UsageError, match="choose one of tsv, csv, jsonl"):
        read_labelled(write("a"), TASK, form="xlsx")


def test_a_task_has_metrics_that_fit_its_labels():
    assert (TASK.kind, PAIRS.kind) == ("classification", "regression")
    assert (TASK.metrics, LabelledTask("x").metrics) == (("accuracy", "macro_f1"), ("pearson", "spearman"))
    with pytest.raises(InputError, match="is scored by 'speed'; choose from accuracy"):
        LabelledTask("x", metrics=("speed",))
    for labels, metrics in (((), ("accuracy",)), (("a", "b"), ("pearson",)), (("a",), ("f1",)), (("a", "a"), ("f1",))):
        with pytest.raises(InputError, match="the task 'x'"):
            LabelledTask("x", labels, metrics)


# splits


@given(st.lists(st.tuples(st.sampled_from("ABCDEabcde"), st.integers(0, 3)), max_size=30), st.integers(0, 31))
def test_a_split_keeps_groups_whole_in_any_order(pairs, count):
    rest, dev = split_by(pairs, count, lambda pair: pair[0])
    assert sorted(rest + dev) == sorted(pairs)
    assert {name.lower() for name, _ in rest}.isdisjoint(name.lower() for name, _ in dev)
    assert len(dev) >= min(count, len(pairs))
    again = split_by(pairs[::-1], count, lambda pair: pair[0])
    assert [sorted(part) for part in again] == [sorted(part) for part in (rest, dev)]


def test_a_split_is_not_just_the_beginning():
    rest, dev = split_by(range(100), 50, str)
    assert len(dev) == 50
    assert 10 < sum(number < 50 for number in dev) < 40
    assert (rest, dev) == split_by(range(100), 50, str)


def test_equal_pairs_stay_together_but_equal_first_texts_need_not():
    examples = [LabelledText(str(n), "same", f"other {n // 2}", 0) for n in range(40)]
    rest, dev = split_labelled(examples, 11)
    assert len(dev) == 12
    assert {example.text_b for example in rest}.isdisjoint(example.text_b for example in dev)


# relevance


PRODUCT = {"query": "red  shoes", "asin": "B1", "title": "Shoes", "brand": "", "bullet_points": "red\nsoft"}


def test_products_are_read_as_one_text(write):
    path = write([{**PRODUCT, "description": None, "esci": "S"}, {**PRODUCT, "description": "x", "esci": "E"}])
    assert list(read_relevance(path)) == [
        RelevancePair("B1", "red  shoes", "Shoes\nred\nsoft", "S"),
        RelevancePair("B1", "red  shoes", "Shoes\nred\nsoft\nx", "E"),
    ]


def test_other_columns_and_labels_can_be_named(write):
    path = write("q,ad,click\nshoes,buy shoes,yes\n")
    columns = RelevanceColumns("q", ("ad",), "click", None)
    assert list(read_relevance(path, columns, labels=("no", "yes"))) == [
        RelevancePair("2", "shoes", "buy shoes", "yes")
    ]


def test_a_label_that_is_kept_secret_is_none(write):
    rows = [{**PRODUCT, "description": None, "esci": label} for label in (None, "", "E")]
    assert [pair.label for pair in read_relevance(write(rows))] == [None, None, "E"]
    with pytest.raises(InputError, match="no 'esci'"):  # a column that is nowhere is another thing
        list(read_relevance(write([{**PRODUCT, "description": None}])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"esci": "X"}, "line 1: the label is 'X', expected one of E, S, C, I"),
        ({"query": " "}, "line 1: the query or the text is empty"),
        ({"title": "", "bullet_points": ""}, "the query or the text is empty"),
        ({"title": 5}, "'title' is 5, expected a text"),
    ],
)
def test_broken_pairs_are_refused_or_passed_over(change, message, write):
    path = write([{**PRODUCT, "description": "", "esci": "E", **change}])
    with pytest.raises(InputError) as caught:
        list(read_relevance(path))
    assert message in str(caught.value)
    skipped = []
    assert list(read_relevance(path, skipped=skipped)) == []
    assert len(skipped) == 1


def test_a_missing_text_column_is_named(write):
    with pytest.raises(InputError, match=r"no 'description' .*; name the columns of the text"):
        list(read_relevance(write([{**PRODUCT, "esci": "E"}])))


def test_a_query_has_all_its_pairs_on_one_side():
    pairs = [RelevancePair(str(n), f"query  {n % 7}" if n % 2 else f"Query {n % 7} ", "text", "E") for n in range(70)]
    rest, dev = split_queries(pairs, 25)
    assert len(dev) == 30
    assert {pair.query.split()[1] for pair in rest}.isdisjoint(pair.query.split()[1] for pair in dev)


def test_the_shared_pairs_are_read_whole():
    path = SHARED / "relevance" / "esci_train.jsonl.xz"
    if not path.exists():
        pytest.skip("the shared data is not here")
    pairs = list(read_relevance(path))
    assert len(pairs) == 4637
    assert {pair.label for pair in pairs} == set("ESCI")


# multiple choice


COSMOS = """id,context,question,answer0,answer1,answer2,answer3,label
q1,"It rained, a lot.",Why?,a,b,c,None of the above .,2
"""


def test_choices_are_read_from_csv_and_jsonl(write):
    (question,) = read_choices(write(COSMOS))
    assert question.context == "It rained, a lot."
    assert question.answers == ("a", "b", "c", "None of the above .")
    assert question.label == 2
    line = {"id": "q1", "context": "It rained.", "question": "Why?", "answer0": "a", "answer1": "b"}
    assert [one.label for one in read_choices(write([line, {**line, "label": 1}]))] == [None, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (COSMOS.replace(",2\n", ",4\n"), "line 2: the label is '4', expected one of 0, 1, 2, 3"),
        (COSMOS.replace("answer3", "answer4"), "the answers are answer0, answer1, answer2, answer4, expected"),
        (COSMOS.replace("context", "text"), "no 'context'"),
        ("id,context,question,label\nq,c,w,0\n", "the answers are not there"),
    ],
)
def test_broken_choices_are_refused(content, message, write):
    with pytest.raises(InputError) as caught:
        list(read_choices(write(content)))
    assert message in str(caught.value)


def test_choices_are_scored_split_and_written(write, tmp_path):
    rows = "".join(f"q{n},context {n // 3},Why?,a,b,c,d,{n % 4}\n" for n in range(12))
    questions = list(read_choices(write(COSMOS.splitlines()[0] + "\n" + rows)))
    assert score_choices(questions, [0] * 12) == {"accuracy": 0.25}
    rest, dev = split_choices(questions, 4)
    assert (len(rest), len(dev)) == (6, 6)
    write_choices(tmp_path / "out.lst", [0, 3])
    assert (tmp_path / "out.lst").read_text() == "0\n3\n"
    secret = read_choices(write(COSMOS.replace(",label", "").replace(",2\n", "\n")))
    with pytest.raises(InputError, match="no label"):
        score_choices(list(secret), [0])


def test_the_shared_choices_are_read_whole():
    path = SHARED / "cosmosqa" / "cosmosqa_train.csv.xz"
    if not path.exists():
        pytest.skip("the shared data is not here")
    questions = list(read_choices(path))
    assert len(questions) == 2010
    assert all(len(question.answers) == 4 for question in questions)
    assert math.isclose(score_choices(questions, [3] * 2010)["accuracy"], 512 / 2010)
