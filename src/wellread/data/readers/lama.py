"""The LAMA probe (Petroni et al. 2019): sentences with the object of a fact masked, in the authors' files.

Its `data` folder has four parts. Google-RE and T-REx have a template for each relation, "[X] was born in [Y] ."; each
pair of subject and object is probed once. ConceptNet and SQuAD have a sentence for each fact. As in the authors' code,
facts that most judges of Google-RE reject are left out, and sentences of more than 100 words. Your own facts are lines
of the same format: `{"relation", "sub_label", "obj_label", "masked_sentence": "… [MASK] …"}`.

A model predicts one token, so only facts whose object is in a given vocabulary are probed (`within`): the vocabulary
common to all models under comparison, so that scores are comparable. Scored by `evaluation.probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from wellread.data.tables import Record, make_each, read_records, text_of
from wellread.errors import InputError, UsageError
from wellread.io.files import decode, path_name, read_lines

Part = Literal["google_re", "trex", "conceptnet", "squad"]

MASK = "[MASK]"
"""Mask of the object in a sentence, independent of the mask token of a tokenizer."""
MOST_WORDS = 100

_RELATIONS = "relations.jsonl"
_FOLDERS: dict[Part, str] = {"google_re": "Google_RE", "trex": "TREx", "conceptnet": "ConceptNet", "squad": "Squad"}
_GOOGLE_RE = {
    "place_of_birth": "[X] was born in [Y] .",
    "date_of_birth": "[X] (born [Y]).",
    "place_of_death": "[X] died in [Y] .",
}


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation and its template; without one, its facts have their own sentences."""

    name: str
    template: str | None = None
    label: str = ""
    kind: str = ""
    """Cardinality in T-REx: 1-1, N-1 or N-M."""

    def __post_init__(self) -> None:
        if self.template is not None and not (self.template.count("[X]") == self.template.count("[Y]") == 1):
            raise InputError(f"the template of {self.name} is {self.template!r}; expected one [X] and one [Y] in it")

    def sentence(self, subject: str) -> str:
        """Return the template with the subject inserted and the object masked."""
        if self.template is None:
            raise InputError(f"the relation {self.name} has no template")
        # The object first: a subject may contain brackets.
        before, after = self.template.replace("[Y]", MASK).split("[X]")
        return f"{before}{subject}{after}"


@dataclass(frozen=True, slots=True)
class MaskedFact:
    """A sentence with a mask in the place of the object."""

    id: str
    relation: str
    subject: str
    object: str
    sentence: str


def read_lama(folder: str | Path, part: Part, *, skipped: list[str] | None = None) -> Iterator[MaskedFact]:
    """Yield the facts of one part of LAMA's `data` folder, relation by relation; `skipped` gets what was left out."""
    folder = Path(folder)
    if part == "google_re":
        files = [(Relation(name, template), f"Google_RE/{name}_test.jsonl") for name, template in _GOOGLE_RE.items()]
    elif part == "trex":
        files = [(relation, f"TREx/{relation.name}.jsonl") for relation in read_relations(folder / _RELATIONS)]
    elif part in get_args(Part):
        name = _FOLDERS[part]
        files = [(Relation(name), f"{name}/test.jsonl")]
    else:
        raise UsageError(f"unknown part {part!r} of LAMA; choose one of {', '.join(get_args(Part))}")
    # relations.jsonl also lists relations that have no file.
    there = [(relation, folder / file) for relation, file in files if (folder / file).exists()]
    if not there:
        raise InputError(f"{folder} has no {files[0][1] if files else 'relations'}; give the data folder of LAMA")
    for relation, path in there:
        yield from read_facts(path, relation, skipped=skipped)


def read_probe(path: str | Path, part: Part | None = None, *, skipped: list[str] | None = None) -> Iterator[MaskedFact]:
    """Yield facts of LAMA's `data` folder (one part of it, or all parts), of a folder of files, or of one file.

    A file of T-REx or Google-RE uses its relation's template if that is known: by its name, and by a `relations.jsonl`
    beside the file or in the folder above. Other files have their own sentences.
    """
    path = Path(path)
    folder = _data_folder(path)
    parts = [part] if part is not None else [each for each in get_args(Part) if (folder / _FOLDERS[each]).is_dir()]
    if path.is_dir() and parts:
        for each in parts:
            yield from read_lama(folder, each, skipped=skipped)
        return
    if part is not None:
        raise UsageError(
            f"{path_name(path)} is a file, and {part!r} a part of LAMA's data folder; give that, or no part"
        )
    files = _fact_files(path) if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"{path_name(path)} has no facts; give LAMA's data folder, or a JSONL file with obj_label in it"
        )
    for file in files:
        yield from read_facts(file, _relation_of(file), skipped=skipped)


def has_parts(path: str | Path) -> bool:
    """Return whether this is LAMA's `data` folder, of which `read_probe` can read one part."""
    return any((_data_folder(Path(path)) / name).is_dir() for name in _FOLDERS.values())


def has_facts(path: str | Path) -> bool:
    """Return whether `read_probe` can read a file or folder, which may also have plain texts."""
    path = Path(path)
    if not path.is_dir():
        return path.is_file() and _is_fact_file(path)
    return has_parts(path) or bool(_fact_files(path))


def _data_folder(path: Path) -> Path:
    return path / "data" if (path / "data").is_dir() else path


def _fact_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if ".jsonl" in file.suffixes and _is_fact_file(file))


def _is_fact_file(file: Path) -> bool:
    """Return whether the first line has an object, unlike texts."""
    try:
        first = next((line for _, line in read_lines(file) if line.strip()), b"")
    except InputError:
        return False
    return first.lstrip().startswith(b"{") and b'"obj_label"' in first


def _relation_of(file: Path) -> Relation:
    """Return the relation of a file, with its template if known."""
    name = file.name.partition(".")[0]
    if (plain := name.removesuffix("_test")) in _GOOGLE_RE:
        return Relation(plain, _GOOGLE_RE[plain])
    for beside in (file.parent / _RELATIONS, file.absolute().parent.parent / _RELATIONS):
        if beside.is_file():
            known = {relation.name: relation for relation in read_relations(beside)}
            if name in known:
                return known[name]
    return Relation(file.absolute().parent.name if name == "test" else name)


def read_relations(path: str | Path) -> list[Relation]:
    """Read the relations of a file such as LAMA's `relations.jsonl`."""
    return list(make_each(path, read_records(path, "jsonl"), _relation))


def read_facts(path: str | Path, relation: Relation, *, skipped: list[str] | None = None) -> Iterator[MaskedFact]:
    """Yield the facts of one relation's file, plain or compressed, each (subject, object) once if there is a template.

    `skipped` gets the reasons of what was left out; without it a broken line is an error.
    """
    asked: set[tuple[str, str]] = set()
    make = partial(_fact, relation=relation)
    for number, fact, reason in make_each(path, read_records(path, "jsonl"), make, skipped):
        if reason is not None:
            if skipped is not None:
                skipped.append(f"{path_name(path)}, line {number}: {reason}")
        elif relation.template is None or (fact.subject, fact.object) not in asked:
            asked.add((fact.subject, fact.object))
            yield fact


def within(
    facts: Iterable[MaskedFact], vocabulary: Collection[str], *, skipped: list[str] | None = None
) -> Iterator[MaskedFact]:
    """Yield facts whose object is in the vocabulary; `skipped` gets the other objects."""
    for fact in facts:
        if fact.object in vocabulary:
            yield fact
        elif skipped is not None:
            skipped.append(fact.object)


def lower(fact: MaskedFact) -> MaskedFact:
    """Return a fact in lower case, for an uncased model; the mask is unchanged."""
    sentence = MASK.join(part.lower() for part in fact.sentence.split(MASK))
    return replace(fact, subject=fact.subject.lower(), object=fact.object.lower(), sentence=sentence)


def read_vocabulary(path: str | Path) -> frozenset[str]:
    """Read the words of a file, one per line, such as LAMA's `common_vocab_cased.txt`."""
    words = (decode(line, f"{path_name(path)}, line {number}").strip() for number, line in read_lines(path))
    return frozenset(word for word in words if word)


def common_vocabulary(
    vocabularies: Sequence[Collection[str]], *, usable: Callable[[str], bool] = str.isalnum
) -> frozenset[str]:
    """Return words that are in every vocabulary and may be an answer: no signs, no special tokens."""
    first, *others = vocabularies
    return frozenset(word for word in first if usable(word) and all(word in other for other in others))


def _relation(record: Record, number: str) -> Relation:
    template = record.get("template")
    return Relation(
        text_of(record, "relation"),
        None if template is None else text_of(record, "template").strip(),
        str(record.get("label", "")),
        str(record.get("type", "")),
    )


def _fact(record: Record, number: str, *, relation: Relation) -> tuple[str, MaskedFact, str | None]:
    """Return the line number, its fact, and the reason to leave it out, if any."""
    subject = text_of(record, "sub_label" if "sub_label" in record or relation.template else "sub").strip()
    object = text_of(record, "obj_label").strip()
    sentence = _own_sentence(record) if relation.template is None else relation.sentence(subject)
    if MASK not in sentence or not object:
        raise InputError(f"the sentence {sentence!r} and the object {object!r}: expected {MASK} and what it stands for")
    name = str(record.get("relation") or relation.name)
    fact = MaskedFact(str(record.get("uuid") or record.get("id") or number), name, subject, object, sentence)
    judgments = record.get("judgments") or []
    yes = sum(isinstance(each, dict) and each.get("judgment") == "yes" for each in judgments)
    if 2 * yes < len(judgments):
        return number, fact, "most judges reject the fact"
    if relation.template is None and len(sentence.split()) > MOST_WORDS:
        return number, fact, f"the sentence has more than {MOST_WORDS} words"
    return number, fact, None


def _own_sentence(record: Record) -> str:
    """Return LAMA's `masked_sentences` joined, or T-REx's first evidence."""
    given = record.get("masked_sentences", record.get("masked_sentence"))
    if given is None and isinstance(evidences := record.get("evidences"), list) and evidences:
        given = evidences[0].get("masked_sentence") if isinstance(evidences[0], dict) else None
    if isinstance(given, str):
        return given.strip()
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return " ".join(given).strip()
    raise InputError(f"no masked sentence (there are {', '.join(record)}), and no template")
