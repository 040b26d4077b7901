"""Word sense disambiguation by any linker: its links of running text as answers, and the scores of answers.

    wellread evaluate senses semeval2007.data.xml --as-linked

The linker gets neither lemmas nor parts of speech, so its mention detection and its tagging errors count, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wellread.data.readers.raganato import SenseText, join_sentences
from wellread.evaluation.senses import SenseInstance, answer_first, back_off, score_by_part, score_senses
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.linking.linker import Linker


def answer_as_linked(
    linker: Linker, keys: SenseKeys, texts: Sequence[SenseText]
) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """Return keys and scores of any linker on the plain text of whole documents; `answered` is the share it linked.

    The answer to an instance is the link with exactly its characters; without one, the first sense.
    """
    documents = list(join_sentences(texts, max(1, len(texts))))
    given: dict[str, tuple[str, ...]] = {}
    for document, linked in zip(documents, linker.link_many(one.text for one in documents), strict=True):
        entities = {(link.start, link.end): link.entity for link in linked.links}
        for mark in document.marks:
            entity = entities.get((mark.start, mark.end))
            key = None if entity is None else keys.key(mark.instance.lemma, entity)
            if key is not None:
                given[mark.instance.id] = (key,)
    instances = instances_of(texts)
    chosen = back_off(instances, given, keys.first)
    return chosen, score_answers(instances, given, keys) if all(text.has_gold for text in texts) else {}


def score_answers(
    instances: Sequence[SenseInstance], given: Mapping[str, tuple[str, ...]], keys: SenseKeys
) -> dict[str, float]:
    """Return F1 with back-off (all, by part of speech, by dataset), the first-sense F1, and the share answered."""
    scores = score_by_part(instances, back_off(instances, given, keys.first))
    first = score_senses(instances, answer_first(instances, keys.first))
    alone = score_senses(instances, given)
    parts = {f"f1_{name}": part.f1 for name, part in scores.items() if name != "all"}
    return {
        "f1": scores["all"].f1,
        **parts,
        "first_sense": first.f1,
        "answered": alone.answered / alone.count,
    }


def instances_of(examples: Sequence[SenseText]) -> list[SenseInstance]:
    """Return all instances of the texts."""
    return [mark.instance for one in examples for mark in one.marks]
