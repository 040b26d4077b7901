"""The entities of a task's recipe: which rows LUKE's table has, who links the texts, and what was learned before.

A task that asks about mentions (names, relations, types, cloze questions) needs the special rows alone: [MASK] and
[MASK2]. Then the table has no others, whatever the encoder knew, as LUKE's authors have it. Where [luke] says who links
the texts (`kb` or `given`), all entities of the vocabulary are there, and their rows stay as they are: as they were
learned, or where nothing was, as the vectors of `start` have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wellread.data.formats import read_linked
from wellread.document import Document
from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.infusion.infuse import InfusedEncoder
from wellread.encoders.load import find_encoder
from wellread.errors import UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.packaged import open_kb
from wellread.mentions.annotation_cache import Links
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.inputs import LukeProvider
from wellread.models.luke.model import Luke, carry_over, luke_in, same_rows, start_table
from wellread.models.luke.vocabulary import FILE, EntityVocabulary, Unknown
from wellread.tasks.task_type import find_file

if TYPE_CHECKING:
    from wellread.tasks.recipe import TaskRecipe


@dataclass(frozen=True, slots=True)
class LukeOptions:
    """How an encoder takes entities, for infusion = "luke"."""

    aware: bool = True
    """Entity-aware attention; its queries start as copies of the encoder's, or as they were learned."""
    seen: bool = True
    """Whether words look at entities, as in the paper; if not, hundreds of spans that ask what they are (names) do not
    get between the words of a text."""
    dim: int = 256
    """How wide a row of the entity table is, where the encoder has none yet."""
    longest: int | None = None
    """A mention's position is the mean over so many of its pieces; without it as the encoder has learned, else 30.
    LUKE's authors: 16 for names."""
    kb: str | None = None
    """Link the texts to this knowledge base, by its name or path, and lend them the entities."""
    linker: str = "auto"
    """The linker's model."""
    given: str | None = None
    """Or: a file of linked text, the links that you have."""
    start: str | None = None
    """A knowledge base whose entity vectors (`wellread index build`) the rows of linked entities start from, where the
    encoder has learned none; without it they start from chance."""
    most: int = 128
    """Entities of an input at most."""
    unknown: Unknown = "drop"
    """What becomes of linked entities that are not in the vocabulary: `drop`, or `unk`, [UNK]."""

    def __post_init__(self) -> None:
        if self.kb is not None and self.given is not None:
            raise UsageError(f"luke.kb is {self.kb!r} and luke.given is {self.given!r}; give one of the two")
        if self.start is not None and not self.links:
            raise UsageError(f"luke.start is {self.start!r}, but nobody links the texts; give luke.kb or luke.given")
        for name in ("dim", "longest", "most"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"luke.{name} is {value}; expected 1 or more")

    @property
    def links(self) -> bool:
        """Whether texts are linked."""
        return self.kb is not None or self.given is not None


def vocabulary_of(recipe: TaskRecipe) -> EntityVocabulary:
    """The rows of the entity table of a recipe's model."""
    if not recipe.luke.links:
        return EntityVocabulary.of_ids(())
    known = _known(recipe)
    if recipe.luke.kb is None:
        return known or EntityVocabulary.of_documents(_given(recipe))
    with open_kb(recipe.luke.kb) as kb:
        return known.named_by(kb) if known is not None else EntityVocabulary.of_kb(kb)


def luke_config(recipe: TaskRecipe, before: Mapping[str, Infusion]) -> LukeConfig:
    """As the encoder has it, if it has learned to take entities; with the rows that the task needs."""
    old = before.get("luke")
    vocabulary, wanted = vocabulary_of(recipe), recipe.luke
    rows, masks = len(vocabulary), vocabulary.masks
    start = old.config if isinstance(old, Luke) else LukeConfig(entities=rows, dim=wanted.dim)
    longest = start.longest if wanted.longest is None else wanted.longest
    return replace(
        start,
        entities=rows,
        aware=wanted.aware,
        seen=wanted.seen,
        longest=longest,
        predicts=False,
        masks=masks,
    )


def keep_entities(recipe: TaskRecipe, infusion: Luke, old: Luke | None) -> None:
    """Give a fresh infusion what the encoder's own had learned; rows that both have, by name."""
    vocabulary = vocabulary_of(recipe)
    if old is None and recipe.luke.start is not None:
        with open_kb(recipe.luke.start) as kb:
            rows, at = vocabulary.start_rows(EntityVectors.of_kb(kb), infusion.config.dim)
        start_table(infusion, rows, at)
    if old is not None:
        known = _known(recipe)
        if known is None:
            raise UsageError(
                f"{recipe.encoder.name} knows entities, but not which: its {FILE} is missing; copy it there"
            )
        carry_over(infusion, old, same_rows(vocabulary, known))


def give_masks(recipe: TaskRecipe, encoder: InfusedEncoder) -> None:
    """Tell an encoder which rows of its vocabulary are masks: one that was saved before its config said so."""
    if (infusion := luke_in(encoder)) is not None:
        infusion.masks = vocabulary_of(recipe).masks


def build_entities(recipe: TaskRecipe) -> LukeProvider:
    """What lends the texts of a recipe the entities that they are linked to; a linker is loaded when it is needed."""
    options = recipe.luke
    if options.kb is None:
        links = Links.given(_given(recipe), name="entities")
    else:
        with open_kb(options.kb) as kb:
            about = f"{kb.metadata['uid']} {kb.metadata['revision']} {options.linker}"
        links = Links(_linker(options.kb, options.linker), fingerprint=about, name="entities")
    return LukeProvider(links, vocabulary_of(recipe), most=options.most, unknown=options.unknown)


def _linker(kb: str, model: str) -> Callable[[list[str]], Iterable[Document]]:
    def link(texts: list[str]) -> Iterator[Document]:
        from wellread.linking.linker import Linker

        with Linker.load(kb, model) as linker:
            yield from linker.link_many(texts)

    return link


def _given(recipe: TaskRecipe) -> Iterator[Document]:
    return read_linked(find_file(recipe.data.root, str(recipe.luke.given)))


def _known(recipe: TaskRecipe) -> EntityVocabulary | None:
    """That of the encoder's folder, if it has one."""
    folder: Path = find_encoder(recipe.encoder.name)
    return EntityVocabulary.load(folder) if (folder / FILE).exists() else None
