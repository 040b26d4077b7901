"""Knowledge bases made from wellread's default assets, and the folder of knowledge bases by name.

`wordnet` is WordNet 3.0. `vital` is Wikipedia's 10,033 vital articles with their leads (`kb.readers.vital`). `hpo` is
the Human Phenotype Ontology below "Phenotypic abnormality", and only built when it is asked for by name. Each has
the version of its builder in its metadata, so that a KB of an older wellread is recognised and can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wellread import assets
from wellread.errors import KnowledgeBaseError, UsageError
from wellread.io.similar import suggestion
from wellread.kb.build import Origin, build, state_of
from wellread.kb.readers import vital, wordnet
from wellread.kb.readers.obo import read_obo
from wellread.kb.records import Record, Tally
from wellread.kb.store import KnowledgeBase

DEFAULT_KB = "vital"
"""Knowledge base that is used if none is given."""
BUILDER = "builder"
"""Key of the builder's version in the metadata of a packaged KB; one without it was built by version 1."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A default KB: its asset and its reader."""

    asset: str
    licence: str
    read: Callable[..., Iterator[Record]]
    """Called with the asset's folder, a tally, and the folders of the assets in `besides`."""
    extra: dict[str, str]
    besides: tuple[str, ...] = ()
    """Further assets that are read, unless the data comes from another folder."""
    version: str = "1"
    """Version of the reader: a KB of an older one lacks names or counts."""


def kb_path(name: str | Path) -> Path:
    """Return the path of a KB: a path as it is; a plain name ("wordnet", "drugs") below `kb` in wellread's home."""
    path = Path(name)
    if str(name).endswith("/") or not path.name or (path.name.startswith(".") and not path.is_file()):
        raise UsageError(f"{str(name)!r} cannot be a knowledge base; give a plain name (drugs) or a path (./drugs.kb)")
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return path
    return assets.home() / "kb" / f"{name}.kb"


def open_kb(name: str | Path, *, writable: bool = False) -> KnowledgeBase:
    """Open a KB by name or path; a packaged one that is not built yet is an error that names the command."""
    path = kb_path(name)
    check_exists(name)
    return KnowledgeBase.open(path, writable=writable)


def check_exists(name: str | Path) -> None:
    """Raise an error if there is no KB of this name or path; it names a similar one, or the command that builds it."""
    path = kb_path(name)
    if path.exists():
        return
    if str(name) in PACKAGED:
        raise KnowledgeBaseError(f"the {name} knowledge base is not built yet; build it with: wellread kb build {name}")
    by_name = path.parent == assets.home() / "kb" and str(name) == path.stem
    there = path.parent.glob("*.kb") if path.parent.is_dir() else ()
    if by_name:
        what, similar = repr(str(name)), suggestion(str(name), {*PACKAGED, *(other.stem for other in there)})
    else:
        what, similar = f"at {path}", suggestion(path.name, [other.name for other in there])
    raise KnowledgeBaseError(
        f"there is no knowledge base {what}{similar + ' Build' if similar else '; build'} one with: "
        f"wellread kb build SOURCE --to {name}"
    )


def is_outdated(name: str, path: str | Path | None = None) -> bool:
    """Return whether a packaged KB exists, but was made by an older version of its builder."""
    path = kb_path(name if path is None else path)
    if name not in PACKAGED or not path.exists():
        return False
    with KnowledgeBase.open(path) as kb:
        about = kb.metadata
    return about.get("source") == name and about.get(BUILDER, "1") != PACKAGED[name].version


def has_changes(path: str | Path) -> bool:
    """Return whether entities of a KB were added, updated or removed since it was built."""
    with KnowledgeBase.open(kb_path(path)) as kb:
        return bool(kb.changed_entities(0))


def build_packaged(name: str, to: str | Path | None = None, *, folder: str | Path | None = None, tally: Tally) -> Path:
    """Build a default KB, fetching its assets if needed; `folder` is another folder with data of the same format.

    From a folder, `vital` has no synonyms of WordNet: nothing is fetched then.
    """
    recipe = PACKAGED[name]
    where = Path(folder) if folder is not None else assets.fetch(recipe.asset)
    besides = [assets.fetch(asset) for asset in recipe.besides] if folder is None else []
    path = kb_path(to if to is not None else name)
    extra = {**recipe.extra, BUILDER: recipe.version}
    settings = f"{state_of(where, *besides)}\nbuilder {recipe.version}"
    origin = Origin(name, recipe.licence, settings=settings, extra=extra)
    build(lambda counting: recipe.read(where, counting, *besides), path, origin=origin, tally=tally)
    return path


def _read_hpo(folder: Path, tally: Tally) -> Iterator[Record]:
    return read_obo(folder / "hp.obo" if folder.is_dir() else folder, tally, below=(_PHENOTYPES,))


_PHENOTYPES = "HP:0000118"

PACKAGED = {
    "wordnet": Packaged("wordnet", wordnet.LICENCE, wordnet.read_wordnet, {"inflection": "wordnet"}),
    "vital": Packaged(
        "vital",
        f"CC BY-SA 4.0 (Wikipedia); synonyms: {wordnet.LICENCE}",
        vital.read_vital,
        {},
        besides=("wordnet",),
        version=vital.VERSION,
    ),
    "hpo": Packaged(
        "hpo",
        "HPO licence (https://hpo.jax.org/app/license): Human Phenotype Ontology, release 2025-01-16",
        _read_hpo,
        {"version": "hp/releases/2025-01-16", "title": "Human Phenotype Ontology"},
    ),
}
