"""`wellread kb build` and `wellread kb merge`: a knowledge base from a source, or from others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wellread.errors import KnowledgeBaseError, UsageError

if TYPE_CHECKING:
    from wellread.kb.records import Record, Tally

SOURCES = ("wordnet", "vital", "hpo", "jsonl", "csv", "obo", "skos", "umls", "wikidata", "wikipedia", "priors")
_BELONGS = {
    "--map": ("maps", ("jsonl", "csv")),
    "--facts": ("facts", ("jsonl", "csv")),
    "--broken": ("broken", ("jsonl", "csv")),
    "--language": ("language", ("jsonl", "csv", "skos", "umls", "wikidata", "wikipedia", "priors")),
    "--licence": ("licence", ("jsonl", "csv", "obo", "skos", "umls", "wikidata", "wikipedia", "priors")),
    "--below": ("below", ("obo", "skos")),
    "--scope": ("scopes", ("obo",)),
    "--sab": ("sources", ("umls",)),
    "--suppressed": ("suppressed", ("umls",)),
    "--candidates": ("candidates", ("priors",)),
    "--entities": ("entities", ("priors",)),
    "--class": ("classes", ("wikidata",)),
    "--with-page": ("with_page", ("wikidata",)),
    "--paragraphs": ("paragraphs", ("wikipedia",)),
}
"""Options with their parameters, and the sources that use them."""
_ONTOLOGIES = {
    "obo": ("below", "scopes"),
    "skos": ("language", "below"),
    "umls": ("language", "sources", "suppressed"),
}
"""Ontologies, and the parameters of their readers."""


@click.command()
@click.argument("source", type=click.Choice(SOURCES))
@click.argument("path", required=False)
@click.option("--to", help="Knowledge base to write: a path, or a name in wellread's home.  [default: SOURCE]")
@click.option("--replace", is_flag=True, help="Replace an existing knowledge base atomically.")
@click.option("--if-missing", is_flag=True, help="Do nothing if an up-to-date one exists.")
@click.option("--map", "maps", multiple=True, metavar="FIELD=COLUMN", help="jsonl, csv: column of a field.")
@click.option("--facts", multiple=True, metavar="FILE", help="jsonl, csv: table of subject, relation, object.")
@click.option(
    "--broken",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Broken lines: stop, or skip them.",
)
@click.option(
    "--language", default="en", show_default=True, help="The language of names; wikidata, skos, umls: which to take."
)
@click.option("--below", multiple=True, metavar="ID", help="obo, skos: only what is below this term; repeatable.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["exact", "narrow", "broad", "related"]),
    help="obo: synonyms to take; repeatable.  [default: all]",
)
@click.option("--sab", "sources", multiple=True, metavar="SAB", help="umls: only names of this vocabulary; repeatable.")
@click.option("--suppressed", is_flag=True, help="umls: also suppressible and obsolete names.")
@click.option("--class", "classes", multiple=True, metavar="QID", help="wikidata: only instances of these classes.")
@click.option("--with-page", is_flag=True, help="wikidata: only items with a Wikipedia page in the language.")
@click.option("--paragraphs", metavar="FILE", help="wikipedia: also write paragraphs with their links as JSONL.")
@click.option(
    "--candidates", type=click.IntRange(1), default=30, show_default=True, help="priors: maximum entities per name."
)
@click.option("--entities", metavar="FILE", help="priors: file of entity ids to keep, one per line.")
@click.option("--licence", default="", help="Licence stored in the knowledge base.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def build(
    source: str, path: str | None, to: str | None, replace: bool, if_missing: bool, as_json: bool, **options: Any
) -> None:
    """Build a knowledge base from a source: a packaged one, a table, an ontology, or a dump.

    wordnet, vital and hpo need no PATH: their data is fetched. An interrupted build resumes when it is started again.

    \b
    Examples:
      wellread kb build wordnet
      wellread kb build csv products.csv --to products --map id=sku --map title=name --map aliases=synonyms
      wellread kb build jsonl kb.jsonl.xz --to my.kb --map description=short,text --facts triples.tsv.xz
      wellread kb build obo hp.obo --to hpo.kb --below HP:0000118 --scope exact
      wellread kb build skos eurovoc.ttl --to eurovoc.kb --language de
      wellread kb build umls 2025AA/META --to umls.kb --sab SNOMEDCT_US --sab MSH
      wellread kb build wikidata latest-all.json.bz2 --to people.kb --class Q5 --with-page
      wellread kb build wikipedia enwiki-pages-articles.xml.bz2 --to en.kb --paragraphs en.jsonl
      wellread kb build priors prob_yago_crosswikis_wikipedia_p_e_m.txt --to wiki.kb --entities entity.txt
    """
    from wellread.io import console
    from wellread.kb.packaged import PACKAGED, build_packaged, has_changes, is_outdated, kb_path
    from wellread.kb.records import Tally

    _refuse_strange(source)
    if path is None and source not in PACKAGED:
        raise UsageError(f"the source {source} needs the PATH of a file; see: wellread kb build --help")
    target = kb_path(to if to is not None else source)
    if target.exists() and if_missing:
        if path is not None or not is_outdated(source, target):
            console.note(f"{target} is there already")
            return
        if has_changes(target):
            console.note(
                f"{target} was built by an older wellread and changed since, so it is kept; rebuild it without the "
                "changes with --replace"
            )
            return
        console.note(f"{target} was built by an older wellread; building it again")
        replace = True
    if target.exists() and not replace:
        raise KnowledgeBaseError(f"{target} exists already; replace it with --replace, or choose another with --to")
    tally = Tally()
    with console.progress_bar(f"building {target.name}", tally):
        if source in PACKAGED:
            build_packaged(source, target, folder=path, tally=tally)
        else:
            assert path is not None
            if source in _ONTOLOGIES:
                _build_ontology(source, path, target, options, tally)
            else:
                _build_from(source, path, target, options, tally)
        _compile(target, tally)
    _report(target, tally, as_json)


@click.command()
@click.argument("kbs", nargs=-1, required=True, metavar="KB...")
@click.option("--to", required=True, help="Knowledge base to write.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def merge(kbs: tuple[str, ...], to: str, as_json: bool) -> None:
    """Join several knowledge bases; entities with the same id become one.

    \b
    Example:
      wellread kb merge wordnet vital --to both.kb
    """
    from wellread.io import console
    from wellread.kb.export import merge as merge_kbs
    from wellread.kb.packaged import kb_path
    from wellread.kb.records import Tally

    target = kb_path(to)
    if target.exists():
        raise KnowledgeBaseError(f"{target} exists already; choose another with --to")
    tally = Tally()
    with console.progress_bar(f"merging {target.name}", tally):
        merge_kbs([kb_path(kb) for kb in kbs], target, tally=tally)
        _compile(target, tally)
    _report(target, tally, as_json)


def _refuse_strange(source: str) -> None:
    """Reject options that the chosen source ignores."""
    given = click.get_current_context().get_parameter_source
    for option, (parameter, sources) in _BELONGS.items():
        if source not in sources and given(parameter) is ParameterSource.COMMANDLINE:
            known = " or ".join((", ".join(sources[:-1]), sources[-1])) if len(sources) > 1 else sources[0]
            raise UsageError(f"{option} belongs to the source {known}, not to {source}; omit it")


def _build_ontology(source: Any, path: str, target: Path, options: dict[str, Any], tally: Tally) -> None:
    from wellread.kb.readers.obo import SCOPES
    from wellread.kb.readers.ontologies import build_ontology

    chosen = {name: options[name] for name in _ONTOLOGIES[source]}
    if "scopes" in chosen:
        chosen["scopes"] = chosen["scopes"] or SCOPES
    build_ontology(path, target, form=source, licence=options["licence"], tally=tally, **chosen)


def _build_from(source: str, path: str, target: Path, options: dict[str, Any], tally: Tally) -> None:
    from wellread.kb.build import Origin, state_of
    from wellread.kb.build import build as build_kb
    from wellread.kb.readers.tables import read_header

    about = {"source": f"{source}: {Path(path).name}", "licence": "", "language": options["language"]}
    about |= read_header(path) if source == "jsonl" else {}
    about |= {"licence": options["licence"]} if options["licence"] else {}
    beside = [*options["facts"], *([options["entities"]] if options["entities"] else [])]
    settings = state_of(Path(path), *map(Path, beside)) + json.dumps(options, sort_keys=True)
    origin = Origin(about.pop("source"), about.pop("licence"), about.pop("language"), settings=settings, extra=about)
    build_kb(_reader(source, path, options), target, origin=origin, tally=tally)


def _reader(source: str, path: str, options: dict[str, Any]) -> Callable[[Tally], Iterable[Record]]:
    if source == "wikidata":
        from wellread.kb.readers.wikidata import read_wikidata

        return lambda tally: read_wikidata(
            path,
            tally,
            language=options["language"],
            classes=frozenset(options["classes"]) or None,
            with_page=options["with_page"],
        )
    if source == "wikipedia":
        from wellread.kb.readers.wikipedia import read_wikipedia

        return lambda tally: read_wikipedia(path, tally, paragraphs_to=options["paragraphs"])

    if source == "priors":
        from wellread.kb.readers.priors import read_ids, read_priors

        among = read_ids(options["entities"]) if options["entities"] else None
        return lambda tally: read_priors(path, tally, candidates=options["candidates"], among=among)

    from wellread.kb.readers.tables import parse_columns, read_csv, read_facts, read_jsonl

    columns = parse_columns(options["maps"])
    read = read_jsonl if source == "jsonl" else read_csv

    def records(tally: Tally) -> Iterator[Record]:
        yield from read(path, tally, columns=columns, on_broken=options["broken"])
        for facts in options["facts"]:
            yield from read_facts(facts, tally, on_broken=options["broken"])

    return records


def _compile(target: Path, tally: Tally) -> None:
    """Compile the names now instead of at the first link."""
    from wellread.kb.store import KnowledgeBase
    from wellread.mentions.matcher import Matcher

    tally.step = "compiling names"
    with KnowledgeBase.open(target) as kb:
        Matcher.of(kb)


def _report(target: Path, tally: Tally, as_json: bool) -> None:
    from wellread.io import console
    from wellread.kb.store import KnowledgeBase

    with KnowledgeBase.open(target) as kb:
        count = len(kb)
    if as_json:
        result = {"kb": str(target), "entities": count, "read": tally.read, "skipped": dict(tally.skipped)}
        click.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        click.echo(f"{target}: {count:,} entities")
    for line in tally.report():
        console.note(f"skipped: {line}")
    if not count:
        console.note(f"{target} has no entities; was this the right source?")
