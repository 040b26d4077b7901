"""Letters that a keyboard may lack, spelled out."""

import pytest

from wellread.text.transliteration import transliterated, transliterations
from wellread.text.words import split, word_hash


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("München", "Muenchen"),
        ("Mu\u0308nchen", "Muenchen"),
        ("ÖSTERREICH", "OeSTERREICH"),
        ("Łódź", "Lódź"),
        ("Søren", "Soren"),
        ("Straße", "Straße"),
        ("Paris", "Paris"),
        ("İstanbul Iı", "İstanbul Ii"),
    ],
)
def test_letters_are_spelled_out(name, other):
    assert transliterated(name) == other


def test_only_words_with_such_letters_get_another_hash():
    text = "In München und Mu\u0308nchen, nicht in Genève 😀 (ü)."
    words = split(text)
    place, hashes = transliterations(words)
    written = [text[words.starts[at] : words.ends[at]] for at in place]
    assert written == ["München", "Mu\u0308nchen", "ü"]
    assert hashes.tolist() == [word_hash("muenchen"), word_hash("muenchen"), word_hash("ue")]
    assert [len(part) for part in transliterations(split("plain text"))] == [0, 0]
