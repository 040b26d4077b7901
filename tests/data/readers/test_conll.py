"""CoNLL columns: layouts, documents, what is broken, and what is written."""

import lzma
from pathlib import Path

import pytest

from wellread.data.readers.conll import Columns, NamedText, find_labels, read_conll, split_sentences, write_conll
from wellread.errors import InputError, UsageError
from wellread.evaluation.chunks import Chunk

SHARED = Path(__file__).parents[4] / "shared/data/ner"

CONLL2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- O O

BRUSSELS NNP I-NP I-LOC
"""


def read(path, text, *options, **more):
    path.write_text(text, "utf-8")
    return list(read_conll(path, *options, **more))


def test_sentences_of_a_document_are_the_context_of_each_other(tmp_path):
    first, second, third = read(tmp_path / "a", CONLL2003)
    assert first.text == "EU rejects German"
    assert [first.word(number) for number in range(3)] == ["EU", "rejects", "German"]
    assert first.chunks == (Chunk(0, 1, "ORG"), Chunk(2, 3, "MISC"))
    assert second.chunks == (Chunk(0, 2, "PER"),)
    assert first.document == second.document == ("EU rejects German", "Peter Blackburn")
    assert (first.place, second.place, third.place) == (0, 1, 0)
    assert third.document == ("BRUSSELS",)
    assert len({first.id, second.id, third.id}) == 3
    assert find_labels([first, second, third]) == ("LOC", "MISC", "ORG", "PER")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("new york\tB-loc\nbig\tO\n\t\n.\tO\n", Columns()),
        ("# a comment of five cells\n1\tnew york\tB-loc\tO\n2\tbig\tO\tO\n\n1\t.\tO\tO\n", Columns(1, 2)),
        ("B-loc x new_york\nO x big\n\nO x .\n", Columns(-1, 0)),
        ("# id 7\tdomain=en\nnew_york _ _ B-loc\nbig _ _ O\n\n\n\n# id 8\tdomain=en\n. _ _ O", Columns()),
    ],
)
def test_columns_may_lie_in_many_ways(text, columns, tmp_path):
    first, second = read(tmp_path / "a", text, columns)
    assert first.text.replace("_", " ") == "new york big"
    assert (first.words, first.chunks) == (((0, 8), (9, 12)), (Chunk(0, 1, "loc"),))
    assert (first.document, second.text) == ((), ".")


def test_a_word_may_begin_like_a_comment(tmp_path):
    (one,) = read(tmp_path / "a", "a O\n#tag B-x\n# O\n")
    assert one.text == "a #tag #"


def test_a_file_of_words_alone_keeps_its_names_secret(tmp_path):
    one, other = read(tmp_path / "a", "Peter\nsaw\n\nGalle\n")
    assert (one.text, one.chunks, other.chunks) == ("Peter saw", None, None)


def test_a_broken_line_is_reported_and_its_sentence_left_out(tmp_path):
    text = "-DOCSTART- O\n\na O\nb\n\nc I-x\n\nd Q-x\n\n\tO\ne\tO\n"
    with pytest.raises(InputError, match="line 4: 1 columns, expected 2 as above: 'b'; mend the line"):
        read(tmp_path / "a", text)
    broken = []
    (one,) = read(tmp_path / "a", text, skipped=broken)
    assert (one.text, one.document) == ("c", ("c",))
    assert [message.split(", ", 1)[1][:20] for message in broken] == [
        "line 4: 1 columns, e",
        "line 8: 'Q-x' is not",
        "line 10: a tag witho",
    ]
    with pytest.raises(UsageError, match="has 2 columns, and word is 0, tag is 5"):
        read(tmp_path / "a", "a O\n", Columns(0, 5))


def test_what_is_written_is_what_the_script_takes(tmp_path):
    sentences = read(tmp_path / "a", CONLL2003)
    write_conll(tmp_path / "out", sentences, [(Chunk(0, 1, "ORG"),), (), (Chunk(0, 1, "PER"),)])
    rows = (tmp_path / "out").read_text().splitlines()
    assert rows[:4] == ["EU B-ORG B-ORG", "rejects O O", "German B-MISC O", ""]
    again = list(read_conll(tmp_path / "out", Columns(tag=1)))
    assert [one.chunks for one in again] == [one.chunks for one in sentences]
    write_conll(tmp_path / "out", [NamedText.of_words("1", ["a b", "c"])], [(Chunk(1, 2, "x"),)])
    assert (tmp_path / "out").read_text() == "a_b O\nc B-x\n\n"


def test_a_document_stays_on_one_side(tmp_path):
    sentences = read(tmp_path / "a", CONLL2003)
    for count in (1, 2, 3):
        rest, dev = split_sentences(sentences, count)
        assert not {one.document for one in rest} & {one.document for one in dev}
        assert len(rest) + len(dev) == 3


def test_a_text_is_asked_about_in_its_own_words():
    one = NamedText.of_text("1", "New York's  mayor")
    assert [one.word(number) for number in range(len(one.words))] == ["New", "York", "'", "s", "mayor"]
    assert one.chunks is None


def test_all_of_wnut_is_read():
    if not SHARED.exists():
        pytest.skip("../shared/data has no WNUT-17")
    for name, count, chunks in (("train", 3394, 1975), ("dev", 1009, 836)):
        path = SHARED / f"wnut17_{name}.conll.xz"
        sentences = list(read_conll(path))
        assert len(sentences) == count
        assert sum(len(one.chunks) for one in sentences) == chunks
        with lzma.open(path, "rt", encoding="utf-8") as file:
            begins = sum("\tB-" in line for line in file)
        assert begins == chunks
