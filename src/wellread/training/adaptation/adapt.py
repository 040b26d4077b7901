"""Adapt a linker to a KB and unlabelled texts: the scorer gets more trees, fitted to pseudo-labels on these texts.

    report = adapt("my.kb", ["my_texts/"], "runs/my")
    linker = Linker.load("my.kb", "runs/my/model")

The run's folder has the linker (`model`), a sample of links to mark (`sample.csv`), `report.json`, and what lets a run
that was killed go on: the sampled texts and the evidence of their spans.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load, save

from wellread.data.corpus import Unit
from wellread.data.formats import read_linked
from wellread.document import Document
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.files import only_writer, sweep_leftovers, write_atomically
from wellread.kb.packaged import open_kb
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding, without_overlaps
from wellread.linking.evidence import Evidence
from wellread.linking.link_scorer import SCORER, LinkScorer, scorer_of
from wellread.models.elq.candidate_pool import Search
from wellread.models.elq.linker import ElqBackend
from wellread.models.elq.load import find_model, load_backend
from wellread.training.adaptation.boosting import boost
from wellread.training.adaptation.corrections import Corrected, fit_corrections
from wellread.training.adaptation.judgements import LOWEST, Marked, Sample, fit_marks, has_marks
from wellread.training.adaptation.pseudo_labels import IMPOSTOR, NAME, NESTED, OPEN, OPEN_WEIGHT, PseudoLabels, label
from wellread.training.adaptation.unlabelled import UnlabelledTexts

MODEL, SAMPLE, REPORT = "model", "sample.csv", "report.json"
_TEXTS, _EVIDENCE, _STATE, _SETTINGS, _ADAPTED = (
    "texts.jsonl",
    "evidence",
    "sample.json",
    "settings.json",
    "adapted.safetensors",
)
_TOGETHER = 64
"""Texts that are read together; a run that was killed loses no more."""
_LEAST_NAMES = 30
"""Unambiguous names in the texts, below which the scorer is kept as it is."""


@dataclass(frozen=True, slots=True)
class Known:
    """Links to spans of one kind of pseudo-label that were held out: of how many, before and after."""

    spans: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class AdaptReport:
    """Figures of an adaptation, all from the user's texts and without labels."""

    texts: int
    names: int
    """Unambiguous rare names found in the texts."""
    adapted: bool
    """False where the scorer was kept as it is; `reason` says why."""
    reason: str
    right: Known
    """Held-out unambiguous names: links to them are right."""
    impostors: Known
    """The same as if the KB lacked their entities: links are wrong."""
    nested: Known
    """Spans inside these names: links are wrong."""
    loss: tuple[float, float]
    """Mean log loss on the held-out spans, before and after."""
    links: tuple[int, int]
    """Links in the texts."""
    mean_score: tuple[float, float]
    """Mean score of these links: precision as the scorer itself expects it."""
    threshold: float

    def known_precision(self, which: int) -> tuple[int, int]:
        """Return (right links, all links) on held-out spans, before (0) or after (1)."""
        right, *wrong = ((known.before, known.after)[which] for known in (self.right, self.impostors, self.nested))
        return right, right + sum(wrong)


def adapt(
    kb: str | Path,
    texts: Sequence[str | Path],
    folder: str | Path,
    *,
    model: str | Path = "elq",
    field: str = "text",
    unit: Unit = "line",
    most: int = 2000,
    sample: int = 50,
    resume: bool = True,
) -> AdaptReport:
    """Adapt a linker to a KB and texts, in a folder; goes on with what a killed run left there."""
    folder, source = Path(folder), _source(model)
    busy = UsageError(f"another process adapts in {folder}; wait for it or choose another folder")
    with only_writer(folder, busy), open_kb(str(kb)) as opened:
        if resume and has_marks(folder / SAMPLE):
            raise UsageError(
                f"{folder / SAMPLE} has marks, which a new sample would replace; use them with --marks "
                f"{folder / SAMPLE}, or begin anew with --anew"
            )
        found = UnlabelledTexts(texts, field=field, unit=unit, besides=folder)
        backend = _backend(opened, source)
        settings = {
            "kb": opened.metadata["uid"],
            "revision": opened.revision,
            "index": backend.pool.index.state,
            "model": _digest(source),
            "files": found.files,
            "field": field,
            "unit": unit,
            "most": most,
        }
        sampled = _sampled(folder, found, most, settings, resume)
        parts = list(_evidence(folder, backend, sampled))
        report, scorer = _fit(backend, sampled, parts)
        _write_model(folder, source, scorer)
        scorer.save(folder / _ADAPTED)
        documents = _documents(replace_scorer(backend, scorer), sampled, parts)
        Sample.draw(documents, scorer.threshold, sample).save(folder / SAMPLE, folder / _STATE)
        _write_json(folder / REPORT, asdict(report))
    return report


def apply_marks(folder: str | Path, table: str | Path, *, kb: str | Path | None = None) -> Marked:
    """Calibrate the linker in a run's folder with marked links, and choose its threshold; another KB is refused."""
    folder = Path(folder)
    if not (folder / _STATE).is_file() or not (folder / _ADAPTED).is_file():
        raise InputError(f"{folder} is not the folder of an adapted linker; run wellread adapt with --texts first")
    if kb is not None:
        with open_kb(str(kb)) as opened:
            if opened.metadata["uid"] != json.loads((folder / _SETTINGS).read_bytes())["kb"]:
                raise UsageError(f"{folder} was adapted to another KB than {kb}; give that one with --kb")
    with only_writer(folder, UsageError(f"another process adapts in {folder}; wait for it")):
        sample = Sample.load(folder / _STATE)
        marks = sample.read_marks(Path(table))
        done = fit_marks(LinkScorer.load(folder / _ADAPTED), sample, marks)
        done.scorer.save(folder / MODEL / SCORER)
    return done


def apply_corrections(folder: str | Path, file: str | Path, *, kb: str | Path, model: str | Path = "elq") -> Corrected:
    """Fit a linker to corrected links (JSONL of `wellread kb corrections`), in a run's folder or a new one.

    The linker that was adapted to texts in the folder is the start, else `model`. Earlier corrections do not count.
    """
    folder = Path(folder)
    documents = list(read_linked(file, "jsonl"))
    with (
        only_writer(folder, UsageError(f"another process adapts in {folder}; wait for it")),
        open_kb(str(kb)) as opened,
    ):
        is_run = (folder / _ADAPTED).is_file() and (folder / _SETTINGS).is_file()
        if is_run and json.loads((folder / _SETTINGS).read_bytes())["kb"] != opened.metadata["uid"]:
            raise UsageError(f"{folder} was adapted to another KB than {kb}; give that one with --kb, or another --to")
        named = [link.entity for document in documents for link in document.links if link.entity is not None]
        if named and not any(entity in opened for entity in named):
            raise UsageError(f"no entity of {file} is in {kb}; give the knowledge base that was corrected with --kb")
        source = folder / MODEL if is_run else _source(model)
        backend = _backend(opened, source)
        if is_run:
            backend.scorer = LinkScorer.load(folder / _ADAPTED)
        assert backend.scorer is not None
        done = fit_corrections(backend, documents)
        if not is_run:
            backend.scorer.save(folder / _ADAPTED)
            _write_model(folder, source, backend.scorer)
            _write_json(folder / _SETTINGS, {"kb": opened.metadata["uid"]})
        done.marked.scorer.save(folder / MODEL / SCORER)
    return done


def replace_scorer(backend: ElqBackend, scorer: LinkScorer) -> ElqBackend:
    """Return the reader with another scorer, decoding from the lowest score that is sampled."""
    backend.scorer = scorer
    backend.decoding = replace(backend.decoding, threshold=min(LOWEST, scorer.threshold), nil=False)
    return backend


def _source(model: str | Path) -> Path:
    if str(model) in ("prior", "knowbert"):
        raise UsageError(f"{model} has no link scorer to adapt; choose elq, or the folder of a trained ELQ linker")
    folder = find_model(model)
    if scorer_of(folder) is None:
        raise UsageError(
            f"the model {model} has no link scorer ({SCORER}), which is what is adapted; choose --model elq, or a "
            "folder that has one"
        )
    return folder


def _backend(kb: KnowledgeBase, source: Path) -> ElqBackend:
    """Load the linker at the KB's revision: cached evidence holds rows of its index."""
    backend = load_backend(
        kb,
        source,
        search=Search(),
        among=None,
        threshold=None,
        decoding=Decoding(),
        trust=None,
        precision="auto",
        name=kb.path.stem,
    )
    backend.pool = backend.pool.follow(lambda: backend.tower)
    return backend


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(file for file in folder.iterdir() if file.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _sampled(folder: Path, found: UnlabelledTexts, most: int, settings: dict[str, Any], resume: bool) -> list[str]:
    """Return the sampled texts: those of the folder if it was made with the same settings, else new ones."""
    path, texts = folder / _SETTINGS, folder / _TEXTS
    if resume and path.is_file() and texts.is_file():
        if json.loads(path.read_bytes()) == json.loads(json.dumps(settings)):
            return [orjson.loads(line)["text"] for line in texts.read_bytes().splitlines()]
        console.note(f"{folder} was made with other texts, settings, KB or model; starting over")
    path.unlink(missing_ok=True)
    shutil.rmtree(folder / _EVIDENCE, ignore_errors=True)
    sampled = found.sample(most)
    if found.skipped:
        console.note(f"skipped {len(found.skipped):,} broken texts; the first: {found.skipped[0]}")
    with write_atomically(texts) as file:
        file.writelines(orjson.dumps({"text": text}) + b"\n" for text in sampled)
    _write_json(path, settings)
    return sampled


def _evidence(folder: Path, backend: ElqBackend, texts: Sequence[str]) -> Iterator[Evidence]:
    """Yield the evidence of each group of texts, read from the folder or collected and written there."""
    (folder / _EVIDENCE).mkdir(exist_ok=True)
    sweep_leftovers(folder / _EVIDENCE)
    with console.step_bar("reading texts", 0, len(texts)) as tell:
        for begin in range(0, len(texts), _TOGETHER):
            path = folder / _EVIDENCE / f"{begin:06d}.safetensors"
            found = _load_evidence(path)
            if found is None:
                found = backend.evidence(texts[begin : begin + _TOGETHER])
                with write_atomically(path) as file:
                    file.write(
                        save({own.name: np.ascontiguousarray(getattr(found, own.name)) for own in fields(found)})
                    )
            yield found
            tell(min(begin + _TOGETHER, len(texts)), "texts")


def _load_evidence(path: Path) -> Evidence | None:
    """Read evidence; None where there is none, or it is damaged."""
    try:
        return Evidence(**load(path.read_bytes()))
    except (OSError, SafetensorError, TypeError):
        return None


def _fit(backend: ElqBackend, texts: Sequence[str], parts: Sequence[Evidence]) -> tuple[AdaptReport, LinkScorer]:
    scorer = backend.scorer
    assert scorer is not None
    labelled, base = [], 0
    for place, part in enumerate(parts):
        own = texts[place * _TOGETHER : (place + 1) * _TOGETHER]
        labelled.append(label(own, part, backend, base=base))
        base += sum(map(len, own)) + len(own)
    spans = PseudoLabels.joined(labelled)
    if not any((part.priors > 0).any() for part in parts):
        raise InputError(
            f"no name of {backend.kb.path.name} is in the {len(texts):,} texts; check that --kb and --texts belong "
            "together, and that the KB has the names that the texts use: wellread kb show"
        )
    targets = spans.targets(scorer)
    known = spans.kinds != OPEN
    fitted, reason = scorer, ""
    if spans.count(NAME) < _LEAST_NAMES:
        reason = f"only {spans.count(NAME)} unambiguous rare names are in the texts, {_LEAST_NAMES} are needed"
    else:
        weights = np.where(known, 1.0, OPEN_WEIGHT)
        train = ~spans.held_out_mask
        fitted = boost(scorer, spans.rows[train], targets[train], weights[train])
    held = spans.held_out_mask & known
    loss = tuple(_loss(one, spans.rows[held], targets[held]) for one in (scorer, fitted))
    if not reason and not held.any():
        reason, fitted = "the texts have too few different names to hold some out", scorer
    elif not reason and not loss[1] < loss[0]:
        reason, fitted = "it fits held-out names no better after the adaptation", scorer
    before, after = (_linked(one, spans) for one in (scorer, fitted))
    right, impostors, nested = (_known(spans, kind, before[0], after[0]) for kind in (NAME, IMPOSTOR, NESTED))
    report = AdaptReport(
        texts=len(texts),
        names=spans.count(NAME),
        adapted=not reason,
        reason=reason,
        right=right,
        impostors=impostors,
        nested=nested,
        loss=(loss[0], loss[1]),
        links=(before[1], after[1]),
        mean_score=(before[2], after[2]),
        threshold=fitted.threshold,
    )
    about = json.loads(fitted.about) if fitted.about else {}
    note = {**about, "adapted": {"kb": backend.kb.path.name, "texts": len(texts), "names": spans.count(NAME)}}
    return report, replace(fitted, about=json.dumps(note))


def _loss(scorer: LinkScorer, rows: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> float:
    logits = scorer.logits(rows)
    return float((np.logaddexp(0, logits) - targets * logits).mean()) if len(rows) else 0.0


def _linked(scorer: LinkScorer, spans: PseudoLabels) -> tuple[np.ndarray[Any, Any], int, float]:
    """Return (mask of the spans that are linked, links in the texts, their mean score)."""
    scores = scorer.probabilities(spans.rows)
    linked = scores > scorer.threshold
    real = len(spans.spans)
    rows = np.flatnonzero(linked[:real])
    kept = without_overlaps(spans.spans, rows[np.argsort(-scores[rows], kind="stable")].tolist())
    linked[:real] = False
    linked[kept] = True
    return linked, len(kept), float(scores[kept].mean()) if kept else 0.0


def _known(spans: PseudoLabels, kind: int, before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> Known:
    own = (spans.kinds == kind) & spans.held_out_mask
    return Known(int(own.sum()), int(before[own].sum()), int(after[own].sum()))


def _documents(backend: ElqBackend, texts: Sequence[str], parts: Sequence[Evidence]) -> Iterator[Document]:
    """Yield the linked texts, from the evidence that is there."""
    for place, part in enumerate(parts):
        own = texts[place * _TOGETHER : (place + 1) * _TOGETHER]
        for scored in backend.score_evidence(own, part):
            yield scored.document()


def _write_model(folder: Path, source: Path, scorer: LinkScorer) -> None:
    (folder / MODEL).mkdir(exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.name != SCORER:
            shutil.copyfile(file, folder / MODEL / file.name)
    scorer.save(folder / MODEL / SCORER)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with write_atomically(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
