"""Knowledge bases from ontologies: OBO files, SKOS thesauri and other RDF, and the UMLS.

>>> build_ontology("hp.obo", "hpo.kb", form="obo", below=["HP:0000118"])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from wellread.errors import InputError, UsageError
from wellread.kb.build import Origin, build, state_of
from wellread.kb.readers.obo import read_obo, read_obo_header
from wellread.kb.readers.skos import read_skos
from wellread.kb.readers.umls import read_umls
from wellread.kb.records import Record, Tally

OntologyForm = Literal["obo", "skos", "umls"]

_READERS: dict[str, Callable[..., Iterator[Record]]] = {"obo": read_obo, "skos": read_skos, "umls": read_umls}


def build_ontology(
    path: str | Path,
    to: str | Path,
    *,
    form: OntologyForm,
    licence: str = "",
    tally: Tally | None = None,
    **options: Any,
) -> Tally:
    """Build a KB at `to`; `options` are those of the reader: `read_obo`, `read_skos` or `read_umls`."""
    if form not in _READERS:
        raise UsageError(f"form={form!r} is not known; choose {', '.join(get_args(OntologyForm))}")
    if not Path(path).exists() and str(path) != "-":
        raise InputError(f"there is no {path}; check the path")
    about = read_obo_header(path) if form == "obo" else {}
    settings = state_of(Path(path)) + json.dumps(options, sort_keys=True, default=list)
    origin = Origin(
        f"{form}: {Path(path).name}",
        licence or about.pop("licence", ""),
        options.get("language", "en"),
        settings=settings,
        extra=about,
    )
    return build(lambda counting: _READERS[form](path, counting, **options), to, origin=origin, tally=tally)
