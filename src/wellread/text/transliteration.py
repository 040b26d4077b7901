"""Spelling without letters that a keyboard may lack: "München" as "Muenchen", "Łódź" as "Lodz".

Names are compared without diacritics already ("Zürich" = "Zurich"). A KB in plain ASCII often has the German "ue" for
"ü", and letters such as "ł" and "ø" are no base letter with a diacritic in Unicode.
"""

from __future__ import annotations

import unicodedata

import numpy as np

from wellread.text.characters import text_of
from wellread.text.words import Keys, Offsets, Words, word_hash

_SPELLED = {
    "ä": "ae",
    "ö": "oe",
    "ü": "ue",
    "æ": "ae",
    "œ": "oe",
    "ø": "o",
    "ł": "l",
    "đ": "d",
    "ð": "d",
    "þ": "th",
    "ħ": "h",
    "ı": "i",
}
_TABLE = str.maketrans(_SPELLED | {letter.upper(): other.capitalize() for letter, other in _SPELLED.items()})
_CODES = np.array(sorted({ord(letter) for pair in _SPELLED for letter in (pair, pair.upper())} - {ord("I")}), np.uint32)
_DIAERESIS = 0x308


def transliterated(name: str) -> str:
    """Return a name with these letters spelled out, and all others as they are.

    >>> transliterated("Münchner Straße in Łódź")
    'Muenchner Straße in Lódź'
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name).translate(_TABLE)


def transliterations(words: Words) -> tuple[Offsets, Keys]:
    """Return the places of the words of a text that have such letters, and the hashes of their other spelling."""
    if words.codes.dtype == np.uint8:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    letters = np.flatnonzero(np.isin(words.codes, _CODES) | (words.codes == _DIAERESIS))
    place = np.searchsorted(words.ends, letters, "right")
    place = np.unique(place[place < len(words.starts)])
    hashes = np.array([word_hash(transliterated(text_of(words, at))) for at in place.tolist()], np.uint64)
    other = hashes != words.hashes[place]
    return place[other], hashes[other]
