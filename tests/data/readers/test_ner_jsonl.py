"""Names in characters: which words they are, what no run of words is, and what is read and written."""

import json

import pytest

from tests.task_models import SEGMENTER, learner, teach
from wellread.data.readers.conll import Columns, Name, NamedText, write_conll
from wellread.data.readers.ner_jsonl import place_names, read_named, read_names, report_missed, write_names
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk
from wellread.tasks.ner import NamedEntities

LABELS = ("place", "thing")


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def named(text, *names, borders="miss"):
    """A text whose names are given as they are written in it."""
    spans = [Name(text.index(name), text.index(name) + len(name), label) for name, label in names]
    return place_names(NamedText.of_text("1", text), spans, borders)


def words_of(one):
    return [
        (one.text[one.words[chunk.start][0] : one.words[chunk.end - 1][1]], chunk.label) for chunk in one.chunks or ()
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("the U.S.-based firm", "U.S."),
        ("the U.S.-based firm", "based"),
        ("Jean-Luc left", "Jean"),
        ("Jean-Luc left", "Jean-Luc"),
        ("the mayor's hat", "mayor"),
        ("(Cork)", "Cork"),
        ("住在東京的人", "東京"),
        ("in  New York ,", "New York"),
    ],
)
def test_a_name_within_what_blanks_divide_is_a_run_of_words(text, name):
    one = named(text, (name, "place"))
    assert words_of(one) == [(name, "place")]
    assert one.missed == ()


def test_blanks_around_a_name_do_not_count():
    assert words_of(named("in New York now", (" New York ", "place"))) == [("New York", "place")]


@pytest.mark.parametrize(("name", "whole"), [("Xbox", "Xboxes"), ("boxes", "Xboxes"), ("old Xbox", "old Xboxes")])
def test_a_name_that_cuts_a_word_is_missed_or_widened_but_never_lost(name, whole):
    text = "they sold old Xboxes in Cork"
    one = named(text, (name, "thing"), ("Cork", "place"))
    assert words_of(one) == [("Cork", "place")]
    assert [(text[start:end], label) for start, end, label in one.missed] == [(name, "thing")]
    wide = named(text, (name, "thing"), ("Cork", "place"), borders="widen")
    assert words_of(wide) == [(whole, "thing"), ("Cork", "place")]
    assert wide.missed == ()


def test_what_is_missed_is_asked_for_in_all_scores():
    task = NamedEntities(LABELS)
    found = [named("avon", ("avon", "place")), named("xboxes", ("xbox", "thing"))]
    right = [[[]], [[]]]
    right[0][0] = [_found(task, found[0], 0, 1, "place")]
    scores = task.scores(found, right)
    assert scores["recall"] == 0.5
    assert (scores["precision"], scores["f1_place"], scores["f1_thing"]) == (1, 1, 0)
    alone = task.scores(found[1:], right[1:])
    assert (alone["f1"], alone["recall"]) == (0, 0)


def _found(task, one, start, end, label):
    from wellread.tasks.ner import Found

    return Found(-0.1, Chunk(start, end, label), one.words[start][0], one.words[end - 1][1])


@pytest.mark.parametrize("knowing", [False, True])
def test_names_in_characters_are_learned(knowing):
    texts = [
        named("the river-based mayor", ("river", "place"), ("mayor", "thing")),
        named("the mayor is near avon-cork", ("avon", "place"), ("mayor", "thing")),
    ]
    made = learner(NamedEntities(LABELS), texts, knowing=knowing)
    teach(made, 40, rate=1e-2)
    assert made.evaluate()["f1"] == 1


def test_a_text_with_a_missed_name_can_be_learned_from_and_asked():
    task = NamedEntities(LABELS)
    texts = [named("the mayor is near avons", ("avon", "place"), ("mayor", "thing"))]
    made = learner(task, texts)
    teach(made, 30, rate=1e-2)
    scores = made.evaluate()
    assert (scores["precision"], scores["recall"]) == (1, 0.5)
    assert task.tokenize(SEGMENTER, texts, learning=False)[0]


def test_lines_are_read_and_what_was_found_is_written_as_such_lines(tmp_path):
    path = lines(
        tmp_path / "in.jsonl",
        {"text": "in Cork", "mentions": [[3, 7, "place"]]},
        {"id": "two", "text": "a box", "mentions": [{"start": 2, "end": 5, "label": "thing", "score": 0.5}], "doc": 1},
        {"text": "no more", "mentions": [], "doc": 1},
        {"text": "who?", "doc": 2},
    )
    first, second, third, fourth = read_named(path)
    assert (words_of(first), first.id, first.document) == ([("Cork", "place")], "1", ())
    assert (words_of(second), second.id) == ([("box", "thing")], "two")
    assert second.document == third.document == ("a box", "no more")
    assert (third.place, third.chunks) == (1, ())
    assert (fourth.chunks, fourth.document) == (None, ("who?",))
    predicted = [[{"start": 3, "end": 7, "label": "place", "score": 0.9}], []]
    write_names(tmp_path / "out.jsonl", [first, second], predicted)
    again = list(read_names(tmp_path / "out.jsonl"))
    assert [words_of(one) for one in again] == [[("Cork", "place")], []]
    assert [one.id for one in again] == ["1", "two"]


def test_columns_are_distinguished_from_lines_by_the_first_line(tmp_path):
    path = tmp_path / "columns"
    path.write_text("{ O\nCork B-place\n")
    (one,) = read_named(path, Columns())
    assert (one.text, words_of(one)) == ("{ Cork", [("Cork", "place")])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "in Cork", "mentions": [[3, 8, "place"]]}, "offsets are characters from 0, end exclusive"),
        ({"text": "in Cork", "mentions": [[3, 3, "place"]]}, "offsets are characters from 0, end exclusive"),
        ({"text": "in Cork", "mentions": [[2, 3, "place"]]}, "2:3 is ' ', which has no word; mend its offsets"),
        ({"text": "in Cork", "mentions": [[3, 7]]}, r'expected \{"start": 4, "end": 8, "label": "place"\}, or'),
        ({"text": "in Cork", "mentions": [{"start": "3", "end": 7, "label": "x"}]}, "a mention is"),
        ({"text": "in Cork", "mentions": {"3": 7}}, "'mentions' is .* expected a list"),
        ({"mentions": []}, "no 'text'"),
    ],
)
def test_a_broken_line_is_reported_with_its_number(tmp_path, record, message):
    path = lines(tmp_path / "in.jsonl", {"text": "fine", "mentions": []}, record)
    with pytest.raises(InputError, match=f"in.jsonl, line 2: .*{message}"):
        list(read_names(path))
    broken = []
    assert [one.text for one in read_names(path, skipped=broken)] == ["fine"]
    assert len(broken) == 1


def test_the_number_of_missed_names_is_reported_with_an_example():
    texts = [named("fine"), named("two Xboxes", ("Xbox", "thing")), named("in Cork", ("Cork", "place"))]
    said = []
    assert list(report_missed(iter(texts), said.append)) == texts
    (message,) = said
    assert message.startswith("1 of 2 names begin or end within a word ('Xbox' in 'Xboxes') and count as missed")
    assert 'set ner.borders = "widen"' in message
    assert list(report_missed([texts[0]], said.append)) == [texts[0]]
    assert len(said) == 1


def test_what_tags_cannot_tell_is_not_written_as_tags(tmp_path):
    whole, tokenized = named("in Cork", ("Cork", "place")), named("Xboxes", ("Xbox", "thing"))
    nested = named("New York Times", ("New York", "place"), ("New York Times", "thing"))
    write_conll(tmp_path / "out", [whole], [()])
    for one in (tokenized, nested):
        with pytest.raises(UsageError, match=r"write to a file named \.jsonl"):
            write_conll(tmp_path / "out", [whole, one], [(), ()])
