"""Comparison of linkers: every linker × dataset is a cell, linked in a fresh process, summarised in one table.

    folder/table.md, table.json, table.png     the result; updated whenever a cell is complete
    folder/WebQSP/elq/links.jsonl              the links
    folder/WebQSP/elq/cell.json                the inputs of the cell, and its cost

Finished cells are kept, so the same command resumes after a kill, and links only what is new with more linkers or
datasets. A cell is linked again if its knowledge base, model, texts or settings have changed. Scores are computed from
the links whenever a table is made (`evaluation.linking`).

Cells run one after the other, for reliable times, each in a fresh process, for reliable memory. The table gives the
reason of a failed cell, and the others continue.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

from wellread.data.formats import Format, Ids, read_linked
from wellread.data.splits import split_by
from wellread.document import Document
from wellread.errors import InputError, UsageError, WellreadError
from wellread.evaluation.linking import compare_linking, score_linking, strangers, with_prefix
from wellread.io import console
from wellread.io.files import storage, write_atomically
from wellread.kb.packaged import kb_path, open_kb
from wellread.models.folder import SENSES, WEIGHTS
from wellread.training.compare.comparison import folder_name, run_cells
from wellread.training.compare.linker_tables import LinkerCell, LinkerCost, LinkerFailure, LinkerTable

_START: str | None = "spawn"
"""Start method of a cell's process; None runs it in this process."""
_WARM = 8
"""Texts linked before the measurement, since some parts are loaded on first use."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Texts with gold links, and the selection of them."""

    file: str
    format: Format | None = None
    ids: Ids | None = None
    prefix: str = ""
    """Prefix of the gold ids, as the KB has it."""
    develop: int | None = None
    """Only the validation part of a training with `develop` of this number in its recipe."""
    limit: int | None = None
    """Only the first documents (of that part)."""
    skip_broken: bool = False

    def read(self) -> list[Document]:
        """Read the selected documents."""
        skipped: list[str] | None = [] if self.skip_broken else None
        documents = list(read_linked(self.file, self.format, ids=self.ids, skipped=skipped))
        if skipped:
            console.note(f"skipped {len(skipped):,} broken documents of {self.file}; the first: {skipped[0]}")
        if self.develop is not None:
            documents = split_by(documents, self.develop, lambda document: document.text)[1]
        documents = documents[: self.limit]
        if not documents:
            raise InputError(f"{self.file} has no documents; is it the right file?")
        return [with_prefix(self.prefix, document) for document in documents] if self.prefix else documents


@dataclass(frozen=True, slots=True)
class Loading:
    """Options that are common to all linkers."""

    kb: str
    sources: Literal["union", "dense", "names"] = "union"
    precision: Literal["auto", "fp32", "int8"] = "auto"


def compare_linkers(
    linkers: Mapping[str, str],
    data: Mapping[str, DataSet],
    loading: Loading,
    folder: str | Path,
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    command: str = "",
) -> LinkerTable:
    """Link all unfinished cells and return the table; `linkers` maps names to what `Linker.load` takes."""
    folder = Path(folder)
    places = _places(linkers, data, folder)
    gold = {name: one.read() for name, one in data.items()}
    with open_kb(loading.kb) as kb:
        state = [kb.metadata["uid"], kb.metadata["revision"]]
        known = cache(kb.__contains__)
        for documents in gold.values():
            if warning := strangers(documents, known, loading.kb):
                console.note(warning)
        table = LinkerTable(
            kb_path(loading.kb).stem,
            dict(linkers),
            {name: one.file for name, one in data.items()},
            {},
            command=command,
            settings={"loading": asdict(loading), "data": {name: asdict(one) for name, one in data.items()}},
        )
        links: dict[tuple[str, str], list[Document]] = {}
        first = next(iter(linkers))

        def run(cell: tuple[str, str]) -> tuple[LinkerCost, list[Document]]:
            name, linker = cell
            made_of = _made_of(loading, linkers[linker], state, gold[name])
            return _cell(places[linker, name], made_of, loading, linkers[linker], gold[name])

        for (name, linker), _, result in run_cells(product(data, linkers), run):
            if isinstance(result, WellreadError):
                table = replace(table, failed=(*table.failed, LinkerFailure(linker, name, str(result))))
                console.note(f"{linker} on {name} failed: {result}")
                continue
            cost, links[linker, name] = result
            scores = score_linking(gold[name], links[linker, name], known=known, bootstrap=bootstrap, seed=seed)
            difference = None
            if linker != first and (first, name) in links:
                difference = compare_linking(
                    gold[name],
                    links[linker, name],
                    links[first, name],
                    known=known,
                    bootstrap=bootstrap,
                    seed=seed,
                )
            cell = LinkerCell.of(scores, difference, cost)
            table = replace(table, cells={**table.cells, (linker, name): cell})
            f1 = cell.overlap.f1.value
            console.note(f"{linker} on {name}: F1 {f1:.3f}, {1000 * cost.cpu_seconds / cost.texts:.2f} ms a text")
            table.write(folder)
    table.write(folder, draw=True)
    return table


def _places(linkers: Mapping[str, str], data: Mapping[str, DataSet], folder: Path) -> dict[tuple[str, str], Path]:
    """Return a distinct folder for each cell."""
    made = {(linker, name): folder / folder_name(name) / folder_name(linker) for linker in linkers for name in data}
    if len(set(made.values())) < len(made):
        raise UsageError(f"two cells would share a folder among {', '.join((*linkers, *data))}; rename them")
    return made


def _made_of(loading: Loading, model: str, kb: Sequence[Any], documents: Sequence[Document]) -> dict[str, Any]:
    """Return all inputs that the links of a cell depend on."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.text.encode(errors="surrogatepass") + b"\0")
    inputs = {**asdict(loading), "model": model, "weights": _weights_of(model), "texts": digest.hexdigest()}
    inputs["kb"] = list(kb)
    return inputs


def _weights_of(model: str) -> str:
    """Return a fingerprint of the model's files."""
    folder = Path(model) if Path(model).is_dir() else WEIGHTS
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _cell(
    folder: Path, made_of: dict[str, Any], loading: Loading, model: str, documents: Sequence[Document]
) -> tuple[LinkerCost, list[Document]]:
    """Return the cost and links of a cell, from its folder or newly linked."""
    about, links = folder / "cell.json", folder / "links.jsonl"
    kept = _kept(about, made_of) if links.exists() else None
    if kept is None:
        console.note(f"linking {len(documents):,} texts with {model}")
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
            about.unlink(missing_ok=True)
        kept = _apart(link_cell, loading, model, [document.text for document in documents], links)
        with write_atomically(about) as file:
            file.write(json.dumps({"made_of": made_of, "cost": asdict(kept)}, indent=2).encode() + b"\n")
    return kept, list(read_linked(links, "jsonl"))


def _kept(path: Path, made_of: dict[str, Any]) -> LinkerCost | None:
    """Return the cost of a finished cell, if its inputs are the same."""
    try:
        about = json.loads(path.read_bytes())
        return LinkerCost(**about["cost"]) if about["made_of"] == made_of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _apart(work: Callable[..., LinkerCost], *given: Any) -> LinkerCost:
    """Call a function in a fresh process."""
    if _START is None:
        return work(*given)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context(_START)) as pool:
            return pool.submit(work, *given).result()
    except BrokenProcessPool as error:
        raise UsageError(
            "the process that linked was killed, perhaps for lack of memory; use fewer texts (--limit)"
        ) from error


def link_cell(loading: Loading, model: str, texts: Sequence[str], links: Path) -> LinkerCost:
    """Load a linker, link the texts, write their links, and return the cost."""
    begin = time.perf_counter()
    from wellread.linking.linker import Linker, choose_model, kind_of_model, open_linked_kb
    from wellread.linking.model_options import used_options

    kb = open_linked_kb(loading.kb)
    chosen = choose_model(kb, model)
    options = used_options(kind_of_model(chosen), {"sources": loading.sources, "precision": loading.precision})
    with Linker.load(kb, chosen, **options) as linker:
        for _ in linker.link_many(islice(texts, _WARM)):
            pass
        ready = time.perf_counter()
        used = time.process_time()
        made = list(linker.link_many(texts))
        seconds, cpu = time.perf_counter() - ready, time.process_time() - used
        with write_atomically(links) as file:
            file.writelines(document.to_json().encode() + b"\n" for document in made)
        sizes = _sizes(linker, model)
    return LinkerCost(len(texts), seconds, cpu, ready - begin, peak_memory(), *sizes)


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None if the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text("ascii", errors="replace")
    except OSError:
        status = ""
    if found := re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE):
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _sizes(linker: Any, model: str) -> tuple[int, int, int]:
    """Return bytes of the KB with its names, of entity vectors and index, and of the model's folder."""
    kb = linker.kb.path
    return (
        sum(_size(path) for path in (kb, Path(f"{kb}.names"))),
        sum(map(_size, _index_files(linker.backend))),
        sum(map(_size, _model_folder(model).rglob("*"))),
    )


def _model_folder(model: str) -> Path:
    """Return the folder without importing torch, which would add to the memory of a linker by name."""
    return {"elq": WEIGHTS / "elq-minilm", "knowbert": SENSES}.get(model, Path(model))


def _index_files(backend: Any) -> list[Path]:
    """Return the files of entity vectors that a backend uses: ELQ's index, or a knowledge layer's vectors."""
    if (pool := getattr(backend, "pool", None)) is not None:
        folder: Path = pool.index.vectors.folder
        about = json.loads((folder / "index.json").read_bytes())
        return [folder / pool.index.vectors.file, *(folder / name for name in about["files"])]
    vectors = getattr(getattr(backend, "entities", None), "vectors", None)
    return [] if vectors is None else [vectors.folder / vectors.file]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
