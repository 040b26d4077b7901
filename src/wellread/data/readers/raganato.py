"""Texts with WordNet senses: the XML of Raganato et al. (2017) with its gold keys, and JSONL.

The framework's evaluation sets and its SemCor are two files each, `x.data.xml` and `x.gold.key.txt`:

    <corpus source="semeval2007"><text id="d000"><sentence id="d000.s000">
    <wf lemma="you" pos="PRON">Your</wf> <instance id="d000.s000.t000" lemma="refer" pos="VERB">referred</instance> …

    d000.s000.t000 refer%2:32:01::

JSONL has one object per sentence: `{"id": …, "tokens": [word, …], "senses": [[place, lemma, part of speech, [key, …],
id], …]}`. These files have words without the white space between them: it is restored by rules (`spell`). Your own
texts are given as they are: `{"id": …, "text": …, "senses": [[start, end, lemma, part of speech, [key, …], id], …]}`. A
definition names the sense keys that it defines (`"keys"`): its text begins with their first word, and these words are
not marked in it. A line may name its data set (`"source": …`); the default is the name of the file.

Ids start again in every file. If several files are read together (`read_data_sets`) and share ids, all ids get their
data set as prefix, like those of the framework's ALL: "senseval2.d000.s000.t000".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

from lxml import etree

from wellread.data.tables import Record, make_each, read_records, text_of
from wellread.errors import InputError
from wellread.evaluation.senses import SenseInstance, refuse_twins
from wellread.io.files import BROKEN, decode, open_bytes, path_name, read_lines, write_atomically
from wellread.kb.readers.sense_keys import SenseKeys, as_lemma, kind_of

_KINDS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r", "NN": "n", "VB": "v", "JJ": "a", "RB": "r"}
"""Parts of speech of the framework, and prefixes of Penn treebank tags."""
_TAGS = {"n": "NOUN", "v": "VERB", "a": "ADJ", "r": "ADV"}

_SIGNS = {"``": '"', "''": '"', "`": "'", "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{"}
_SIGNS |= {"-RCB-": "}"}
"""Words in files that stand for a sign."""
_LEFT = frozenset(", . ; : ! ? ) ] } % ... 's 'S 'll 're 've 'd 'm n't N'T '".split())
"""Signs without a space before them."""
_RIGHT = frozenset("( [ { $ #".split())
"""Signs without a space after them."""


@dataclass(frozen=True, slots=True)
class SenseMark:
    """A word of a text, by its characters, whose sense is to be predicted."""

    start: int
    end: int
    instance: SenseInstance


@dataclass(frozen=True, slots=True)
class SenseText:
    """A text, and its words whose senses are to be predicted."""

    id: str
    text: str
    marks: tuple[SenseMark, ...]
    source: str = ""
    """Name of its data set."""

    @property
    def has_gold(self) -> bool:
        """Return whether every word has a gold sense."""
        return all(mark.instance.gold for mark in self.marks)


def read_senses(path: str | Path, gold: str | Path | None = None, **options: Any) -> Iterator[SenseText]:
    """Yield the sentences of an XML or JSONL file, detected by its beginning; gold keys of XML as in `read_xml`."""
    with open_bytes(path) as file:
        is_xml = file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    if is_xml:
        return read_xml(path, gold, **options)
    if gold is not None:
        raise InputError(f"{path_name(path)} is not XML, and has its gold keys itself; leave {gold} out")
    return read_lines_of_senses(path, **options)


def read_data_sets(
    paths: Sequence[str | Path], *, secret: bool = False, skipped: list[str] | None = None
) -> list[list[SenseText]]:
    """Yield the sentences of each file; if files share ids, all get their data set as prefix.

    Predictions are stored by id: an id that still occurs twice is an error.
    """
    files = [list(read_senses(path, secret=secret, skipped=skipped)) for path in paths]
    ids = [{text.id for text in texts} | {mark.instance.id for text in texts for mark in text.marks} for texts in files]
    if any(not one.isdisjoint(other) for one, other in combinations(ids, 2)):
        files = [[_named(text) for text in texts] for texts in files]
    refuse_twins(mark.instance for texts in files for text in texts for mark in text.marks)
    return files


def read_xml(
    path: str | Path, gold: str | Path | None = None, *, secret: bool = False, skipped: list[str] | None = None
) -> Iterator[SenseText]:
    """Yield the sentences of the framework's XML; `x.data.xml` has its gold keys in `x.gold.key.txt`.

    `secret`: without a gold file, instances have no keys. An instance that is missing in the gold file is an error, or,
    with a list as `skipped`, left out and reported there.
    """
    keys_file = gold_of(path) if gold is None else Path(gold)
    keys = None if secret and gold is None and not keys_file.exists() else read_gold(keys_file)
    count = 0
    with open_bytes(path) as file:
        try:
            for sentence, source in _sentences(file, path):
                made = _sentence(sentence, source, keys, path_name(path), skipped)
                count += len(made.marks)
                yield made
        except (etree.XMLSyntaxError, *BROKEN) as error:
            raise InputError(f"{path_name(path)} is broken XML: {error}; fetch or copy it again") from error
    if keys and not count:
        raise InputError(f"{path_name(path)} has no instance that {keys_file} has a key for; are they of one data set?")


def gold_of(path: str | Path) -> Path:
    """Return the path of the gold keys of an XML file, whatever its compression."""
    path = Path(path)
    stem = path.name.partition(".data.xml")[0].removesuffix(".xml")
    plain = path.with_name(f"{stem}.gold.key.txt")
    twins = (plain.with_name(plain.name + end) for end in (".xz", ".gz", ".bz2"))
    return plain if plain.exists() else next((twin for twin in twins if twin.exists()), plain)


def read_gold(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read the keys of each instance: a line has its id and one or more keys."""
    if not Path(path).exists():
        raise InputError(
            f"the gold keys {path} are not there; put them beside the XML, or read a file whose answers are secret "
            "with secret=True"
        )
    found: dict[str, tuple[str, ...]] = {}
    for number, line in read_lines(path):
        if not line.strip():
            continue
        id, *keys = decode(line, f"{path}, line {number}").split()
        try:
            if not keys:
                raise InputError("expected the id of an instance and its keys")
            if id in found:
                raise InputError(f"{id!r} has keys already")
            for key in keys:
                kind_of(key)
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        found[id] = tuple(keys)
    return found


def write_keys(path: str | Path, answers: Mapping[str, Iterable[str]]) -> None:
    """Write predictions for the official scorer: a line has the id of an instance and one or more keys."""
    with write_atomically(path) as file:
        file.writelines(f"{id} {' '.join(keys)}\n".encode() for id, keys in answers.items())


def read_lines_of_senses(
    path: str | Path, *, secret: bool = False, skipped: list[str] | None = None
) -> Iterator[SenseText]:
    """Yield the sentences of JSONL, plain or compressed; `secret`: an instance may have no key."""
    source = _stem(path)

    def make(record: Record, number: str) -> SenseText:
        made = _line(record, source)
        if not secret and not made.has_gold:
            raise InputError("a word has no sense key")
        return made

    return make_each(path, read_records(path, "jsonl"), make, skipped)


def write_lines_of_senses(path: str | Path, texts: Iterable[SenseText]) -> None:
    """Write texts as JSONL, unchanged, with the data set of each."""
    with write_atomically(path) as file:
        for text in texts:
            senses = [
                [mark.start, mark.end, one.lemma, _TAGS[one.kind], list(one.gold), one.id]
                for mark in text.marks
                for one in (mark.instance,)
            ]
            source = text.source or next((mark.instance.source for mark in text.marks), "")
            line = {"id": text.id, "text": text.text, "senses": senses} | ({"source": source} if source else {})
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def document_of(text: SenseText) -> str:
    """Return the document in a sentence's id: "d000" of "d000.s001"; one without a dot is its own document."""
    return text.id.rpartition(".")[0] or text.id


def join_sentences(texts: Iterable[SenseText], count: int) -> Iterator[SenseText]:
    """Join `count` sentences of one document to one text, as the context of a word determines its sense."""
    for _, group in groupby(texts, key=document_of):
        sentences = list(group)
        for begin in range(0, len(sentences), count):
            yield _joined(sentences[begin : begin + count])


def unknown_keys(texts: Iterable[SenseText], keys: SenseKeys) -> list[str]:
    """Return gold keys that WordNet does not have (of another version): they cannot be trained on or predicted."""
    return [key for text in texts for mark in text.marks for key in mark.instance.gold if key not in keys]


def spell(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join words with natural spacing, and return their spans: ["Is", "n't", "it", "?"] -> "Isn't it?"."""
    text, spans, glue, is_open = "", [], True, False
    for word in words:
        sign = _SIGNS.get(word, word)
        shown = sign.replace("_", " ").strip() or sign
        opens = word == "`" or (sign == '"' and not is_open and word != "''")
        closes = sign == '"' and not opens
        if not (glue or closes or (sign in _LEFT and not opens)):
            text += " "
        spans.append((len(text), len(text) + len(shown)))
        text += shown
        glue = opens or sign in _RIGHT
        is_open = opens if sign == '"' else is_open
    return text, spans


def _sentences(file: Any, path: str | Path) -> Iterator[tuple[Any, str]]:
    """Yield each sentence and the name of the corpus, or of the file if it has none; XML entities are not expanded."""
    for _, element in etree.iterparse(file, ("end",), tag="sentence", resolve_entities=False, no_network=True):
        root = element.getroottree().getroot()
        if root.tag != "corpus":
            raise InputError(
                f"{path_name(path)} is XML, but not of the framework: expected <corpus>, got <{root.tag}>; give a file "
                "such as semeval2007.data.xml"
            )
        yield element, root.get("source") or _stem(path)
        element.clear()
        while element.getprevious() is not None:
            del element.getparent()[0]


def _sentence(
    element: Any,
    source: str,
    keys: Mapping[str, tuple[str, ...]] | None,
    where: str,
    skipped: list[str] | None,
) -> SenseText:
    id = element.get("id", "")
    where = f"{where}, sentence {id!r}"
    tokens, found = [], []
    for word in element.iterchildren("wf", "instance"):
        tokens.append("".join(word.itertext()).strip())
        if word.tag == "instance":
            found.append((len(tokens) - 1, word.get("lemma"), word.get("pos"), word.get("id")))
    text, spans = spell(tokens)
    marks = []
    for place, lemma, tag, name in found:
        try:
            if not (lemma and tag and name and tokens[place]):
                raise InputError("an instance lacks its id, lemma, pos or word")
            if keys is not None and name not in keys:
                raise InputError(f"the instance {name!r} has no gold key")
            instance = SenseInstance(
                name, as_lemma(lemma), _kind(tag), () if keys is None else keys[name], _source(name, source, 3)
            )
        except InputError as error:
            if skipped is None:
                raise InputError(f"{where}: {error}") from error
            skipped.append(f"{where}: {error}")
            continue
        marks.append(SenseMark(*spans[place], instance))
    return SenseText(id, text, tuple(marks), _source(id, source, 2))


def _source(id: str, corpus: str, parts: int) -> str:
    """Return the data set of an instance, whose id has `parts` parts, or of a sentence.

    Ids of a file of several ("ALL") have one more, which names it: "senseval2.d000.s000.t000".
    """
    first, *rest = id.split(".")
    return first if len(rest) == parts else corpus


def _named(text: SenseText) -> SenseText:
    """Return a text whose ids have the data set as prefix."""
    marks = (
        replace(mark, instance=replace(one, id=_begun(one.id, one.source)))
        for mark in text.marks
        for one in (mark.instance,)
    )
    return replace(text, id=_begun(text.id, text.source), marks=tuple(marks))


def _begun(id: str, source: str) -> str:
    return id if id.startswith(f"{source}.") else f"{source}.{id}"


def _stem(path: str | Path) -> str:
    return Path(path).name.partition(".")[0]


def _line(record: Record, source: str) -> SenseText:
    senses, id = record.get("senses"), text_of(record, "id")
    if record.get("source"):
        source = text_of(record, "source")
    if not isinstance(senses, list):
        raise InputError(f'"senses" is {senses!r}, expected a list')
    defined = _defined(record)
    if "text" in record:
        text, form = text_of(record, "text"), "[start, end, lemma, part of speech, [key, …]]"
    else:
        words, form = record.get("tokens"), "[place, lemma, part of speech, [key, …]]"
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError('expected a "text", or "tokens": [word, …]')
        text, spans = spell([*(f"{name}:" for name in defined[:1]), *words])
        spans = spans[len(defined[:1]) :]
    marks = []
    for number, sense in enumerate(senses):
        wrong = InputError(f"the sense {sense!r} is not {form}, in a text of {len(text)} characters")
        try:
            if "text" in record:
                start, end, lemma, tag, keys, *rest = sense
            else:
                place, lemma, tag, keys, *rest = sense
                start, end = spans[place] if place >= 0 else (0, 0)
            named = isinstance(lemma, str) and isinstance(tag, str) and isinstance(keys, list)
            if not (named and 0 <= start < end <= len(text)):
                raise wrong
        except (TypeError, ValueError, IndexError) as error:
            raise wrong from error
        if as_lemma(lemma) in defined:
            continue  # a definition says nothing about the sense of the words that it defines
        gold = tuple(str(key) for key in keys)
        for key in gold:
            kind_of(key)
        name = rest[0] if rest and isinstance(rest[0], str) else f"{id}.t{number:03d}"
        marks.append(SenseMark(start, end, SenseInstance(name, as_lemma(lemma), _kind(tag), gold, source)))
    return SenseText(id, text, tuple(marks), source)


def _defined(record: Record) -> list[str]:
    """Return the lemmas that a line defines, by their sense keys; none for other texts."""
    keys = record.get("keys", [])
    if not isinstance(keys, list):
        raise InputError(f'"keys" is {keys!r}, expected a list')
    return list(dict.fromkeys(str(key).partition("%")[0] for key in keys))


def _kind(tag: str) -> str:
    kind = _KINDS.get(tag) or _KINDS.get(tag[:2])
    if kind is None:
        raise InputError(f"the part of speech is {tag!r}; expected NOUN, VERB, ADJ, ADV, or a tag such as NNS")
    return kind


def _joined(sentences: Sequence[SenseText]) -> SenseText:
    text, marks = "", []
    for sentence in sentences:
        text += " " if text else ""
        marks += [replace(mark, start=mark.start + len(text), end=mark.end + len(text)) for mark in sentence.marks]
        text += sentence.text
    return SenseText(sentences[0].id, text, tuple(marks), sentences[0].source)
