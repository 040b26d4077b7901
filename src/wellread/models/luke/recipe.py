"""Section [luke] of a task recipe: rows of the entity table, links of the texts, and weights of an earlier training.

A task about mentions (names, relations, types, cloze questions) needs only the special rows [MASK] and [MASK2]; the
table has no others then, as in the authors' code. If [luke] names a source of links (`kb` or `given`), the table has
all entities of the vocabulary, frozen: as pretrained, or as initialised by the vectors of `start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wellread.data.formats import read_linked
from wellread.document import Document
from wellread.encoders.files import find_encoder
from wellread.encoders.infusion.hooks import Infusion
from wellread.encoders.infusion.infuse import InfusedEncoder
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
    """Options of infusion = "luke", in [luke]."""

    aware: bool = True
    """Entity-aware attention; its queries start as copies of the encoder's, or as pretrained."""
    seen: bool = True
    """Words attend to entities, as in the paper. False keeps the words independent of the entities, which helps if
    hundreds of candidate spans are entities (named entity recognition).
    """
    dim: int = 256
    """Width of a row of the entity table, if the encoder has none yet."""
    longest: int | None = None
    """Maximum number of tokens that a mention's position is averaged over; by default as pretrained, or 30.
    LUKE's authors use 16 for named entities.
    """
    kb: str | None = None
    """Knowledge base (name or path) to link the texts to."""
    linker: str = "auto"
    """Model of the linker."""
    given: str | None = None
    """File of linked text with the links to use, instead of `kb`."""
    start: str | None = None
    """Knowledge base whose entity vectors (`wellread index build`) initialise the rows of entities, if the encoder has
    none pretrained; None for random values.
    """
    most: int = 128
    """Maximum number of entities per input."""
    unknown: Unknown = "drop"
    """Treatment of linked entities outside the vocabulary: `drop`, or `unk` for [UNK]."""

    def __post_init__(self) -> None:
        if self.kb is not None and self.given is not None:
            raise UsageError(f"luke.kb is {self.kb!r} and luke.given is {self.given!r}; give one of the two")
        if self.start is not None and not self.links:
            raise UsageError(f"luke.start is {self.start!r}, but the texts are not linked; set luke.kb or luke.given")
        for name in ("dim", "longest", "most"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"luke.{name} is {value}; expected 1 or more")

    @property
    def links(self) -> bool:
        """True if texts are linked."""
        return self.kb is not None or self.given is not None


def vocabulary_of(recipe: TaskRecipe) -> EntityVocabulary:
    """Return the entity vocabulary of a recipe's model."""
    if not recipe.luke.links:
        return EntityVocabulary.of_ids(())
    known = _known(recipe)
    if recipe.luke.kb is None:
        return known or EntityVocabulary.of_documents(_given(recipe))
    with open_kb(recipe.luke.kb) as kb:
        return known.named_by(kb) if known is not None else EntityVocabulary.of_kb(kb)


def luke_config(recipe: TaskRecipe, before: Mapping[str, Infusion]) -> LukeConfig:
    """Return the LUKE settings of a recipe, based on those of the encoder's own infusion, if it has one."""
    old, options, vocabulary = before.get("luke"), recipe.luke, vocabulary_of(recipe)
    config = old.config if isinstance(old, Luke) else LukeConfig(entities=len(vocabulary), dim=options.dim)
    return replace(
        config,
        entities=len(vocabulary),
        aware=options.aware,
        seen=options.seen,
        longest=config.longest if options.longest is None else options.longest,
        predicts=False,
        masks=vocabulary.masks,
    )


def keep_entities(recipe: TaskRecipe, infusion: Luke, old: Luke | None) -> None:
    """Copy the weights of the encoder's own infusion into a fresh one, matching rows by name."""
    vocabulary = vocabulary_of(recipe)
    if old is None and recipe.luke.start is not None:
        with open_kb(recipe.luke.start) as kb:
            rows, at = vocabulary.start_rows(EntityVectors.of_kb(kb), infusion.config.dim)
        start_table(infusion, rows, at)
    if old is not None:
        known = _known(recipe)
        if known is None:
            raise UsageError(f"{recipe.encoder.name} has an entity table, but no {FILE}; copy it there")
        carry_over(infusion, old, same_rows(vocabulary, known))


def give_masks(recipe: TaskRecipe, encoder: InfusedEncoder) -> None:
    """Set the mask rows of an encoder that was saved before its configuration had them."""
    if (infusion := luke_in(encoder)) is not None:
        infusion.masks = vocabulary_of(recipe).masks


def build_entities(recipe: TaskRecipe) -> LukeProvider:
    """Return the knowledge provider of a recipe's linked entities; a linker is loaded on first use."""
    options = recipe.luke
    if options.kb is None:
        links = Links.given(_given(recipe), name="entities")
    else:
        with open_kb(options.kb) as kb:
            fingerprint = f"{kb.metadata['uid']} {kb.metadata['revision']} {options.linker}"
        links = Links(_linker(options.kb, options.linker), fingerprint=fingerprint, name="entities")
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
    """Return the entity vocabulary of the encoder's folder, or None."""
    folder: Path = find_encoder(recipe.encoder.name)
    return EntityVocabulary.load(folder) if (folder / FILE).exists() else None
