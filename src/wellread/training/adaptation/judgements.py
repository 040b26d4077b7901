"""Links that a user marks as right or wrong: a sample stratified by score, and estimates from the marks.

Links are drawn from each stratum, including links just below the threshold. A mark is weighted by the number of links
in its stratum per marked link, so that precision is that of all links, with a Wilson interval.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wellread.document import Document
from wellread.errors import InputError
from wellread.io.files import csv_fault, read_text, write_atomically
from wellread.linking.decoding import Floats, Ints
from wellread.linking.link_scorer import LinkScorer

COLUMNS = ("id", "text", "mention", "title", "entity", "score", "right")
_YES = {"1", "y", "yes", "true", "t", "right", "x", "ok", "j", "ja"}
_NO = {"0", "n", "no", "false", "f", "wrong", "nein"}
_AROUND = 120
"""Characters shown on each side of a mention."""
_STRATA = 4
"""Number of groups of about equal size above the threshold; links below it are one more group."""
LOWEST = 0.1
"""Lowest score of links in the sample."""
_PRIOR = 4.0
"""Weight, in marks, of leaving scores as they are."""


@dataclass(frozen=True, slots=True)
class SampledLink:
    """A link to mark, with the stratum it was drawn from."""

    id: int
    text: str
    mention: str
    title: str
    entity: str
    score: float
    stratum: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Links to mark, the number of links of each stratum, and the scores of all."""

    links: tuple[SampledLink, ...]
    sizes: tuple[int, ...]
    scores: tuple[float, ...]
    threshold: float

    @classmethod
    def draw(cls, documents: Iterable[Document], threshold: float, count: int, seed: int = 0) -> Sample:
        """Draw links of documents (linked from `LOWEST` on), about equally many from each stratum."""
        found = [(document.text, link) for document in documents for link in document.links if link.entity is not None]
        scores = np.array([link.score for _, link in found])
        stratum_of = _stratify(scores, scores, threshold)
        groups = [np.flatnonzero(stratum_of == stratum).tolist() for stratum in range(_STRATA + 1)]
        rng = Random(seed)  # noqa: S311
        chosen = list[tuple[int, int]]()
        left = count
        for position, (stratum, group) in enumerate(sorted(enumerate(groups), key=lambda item: len(item[1]))):
            some = rng.sample(group, min(len(group), math.ceil(left / (len(groups) - position))))
            chosen += [(place, stratum) for place in some]
            left -= len(some)
        rng.shuffle(chosen)  # so that scores do not tell a reader what to expect
        links = []
        for number, (place, stratum) in enumerate(chosen, 1):
            text, link = found[place]
            assert link.entity is not None
            shown = _snippet(text, link.start, link.end)
            title = link.title or link.entity
            links.append(
                SampledLink(number, shown, link.text, title, link.entity, round(float(scores[place]), 4), stratum)
            )
        return cls(tuple(links), tuple(map(len, groups)), tuple(scores.round(5).tolist()), threshold)

    def save(self, table: Path, state: Path) -> None:
        """Write the table to mark, and what is needed to read it again."""
        lines = io.StringIO()
        writer = csv.writer(lines)
        writer.writerow(COLUMNS)
        for link in self.links:
            cells = map(_inert, (link.text, link.mention, link.title, link.entity))
            writer.writerow((link.id, *cells, link.score, ""))
        with write_atomically(table) as file:
            file.write(lines.getvalue().encode("utf-8", "replace"))
        with write_atomically(state) as file:
            file.write(json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, state: Path) -> Sample:
        """Read what `save` wrote."""
        try:
            state_json: dict[str, Any] = json.loads(state.read_bytes())
            links = tuple(SampledLink(**link) for link in state_json["links"])
            return cls(links, tuple(state_json["sizes"]), tuple(state_json["scores"]), float(state_json["threshold"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{state} is not the sample of an adapted linker ({error}); run wellread adapt with --texts first"
            ) from error

    def read_marks(self, table: Path) -> dict[int, bool]:
        """Return the marks by id; rows that are not those of the sample are refused."""
        expected = {link.id: link for link in self.links}
        marks: dict[int, bool] = {}
        for number, row in enumerate(read_rows(table), 2):
            where = f"{table}, row {number}"
            mark = (row.get("right") or "").strip().casefold()
            id = (row.get("id") or "").strip()
            link = expected.get(int(id)) if id.isdecimal() else None
            if link is None or not (_same(row.get("mention"), link.mention) and _same(row.get("entity"), link.entity)):
                raise InputError(
                    f"{where} is not a row of this sample; change the column right only, or draw a new sample"
                )
            if mark and mark not in _YES | _NO:
                raise InputError(f"{where}: {mark!r} is neither right nor wrong; write 1 or 0 in the column right")
            if mark:
                marks[link.id] = mark in _YES
        if not marks:
            raise InputError(f"no link in {table} is marked; write 1 (right) or 0 (wrong) in the column right")
        return marks


def read_rows(table: Path) -> list[dict[str, str | None]]:
    """Read a marked table; spreadsheets may have written it with semicolons or tabs."""
    lines = read_text(table).removeprefix("\ufeff")
    head = lines.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    try:
        reader = csv.DictReader(io.StringIO(lines, newline=""), delimiter=delimiter, strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{table} cannot be read as a table ({csv_fault(error)}); save it as CSV again") from error
    missing = {"id", "mention", "entity", "right"} - set(reader.fieldnames or ())
    if missing:
        raise InputError(f"{table} has no column {', '.join(sorted(missing))}; mark the sample.csv of the run's folder")
    return rows


def has_marks(table: Path) -> bool:
    """Return True if a link of the sample is marked."""
    return table.is_file() and any((row.get("right") or "").strip() for row in read_rows(table))


@dataclass(frozen=True, slots=True)
class Precision:
    """Precision of links with its 95 % interval, and the marks it is from."""

    share: float
    low: float
    high: float
    right: int
    marked: int
    links: int

    def __str__(self) -> str:
        return f"{self.share:.2f} ({self.low:.2f} to {self.high:.2f})" if self.marked else "not known"


def precision(right: NDArray[np.bool_], weights: Floats, links: int) -> Precision:
    """Estimate precision from weighted marks; the interval is for their effective number (Kish)."""
    if not len(right):
        return Precision(0.0, 0.0, 1.0, 0, 0, links)
    share = float(np.average(right, weights=weights))
    low, high = wilson(share, float(weights.sum() ** 2 / (weights**2).sum()))
    return Precision(share, low, high, int(right.sum()), len(right), links)


def wilson(share: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` items (Wilson 1927)."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _stratify(every: Floats, scores: Floats, threshold: float) -> Ints:
    """Return the stratum of scores: 0 below the threshold, else by quantiles of all scores above it."""
    linked = every > threshold
    edges = np.quantile(every[linked], np.linspace(0, 1, _STRATA + 1)[1:-1]) if linked.any() else np.zeros(0)
    return np.where(scores > threshold, 1 + np.searchsorted(edges, scores, "left"), 0)


@dataclass(frozen=True, slots=True)
class JudgedLinks:
    """Judged links among all links of some texts, with their strata."""

    scores: Floats
    right_mask: NDArray[np.bool_]
    stratum: Ints
    sizes: tuple[int, ...]
    """Number of links of each stratum, judged or not."""
    every: Floats
    """Scores of all links."""
    threshold: float

    @classmethod
    def of(cls, scores: Floats, right_mask: NDArray[np.bool_], every: Floats, threshold: float) -> JudgedLinks:
        """Stratify the scores of judged links and of all links."""
        sizes = np.bincount(_stratify(every, every, threshold), minlength=_STRATA + 1)
        return cls(scores, right_mask, _stratify(every, scores, threshold), tuple(sizes.tolist()), every, threshold)


@dataclass(frozen=True, slots=True)
class Marked:
    """The scorer that marks give, and precision before and after."""

    scorer: LinkScorer
    before: Precision
    after: Precision
    strata: tuple[tuple[str, Precision], ...]


def fit_marks(scorer: LinkScorer, sample: Sample, marks: dict[int, bool]) -> Marked:
    """Calibrate scores with the marks of a sample, and choose the threshold."""
    links = [link for link in sample.links if link.id in marks]
    right_mask = np.array([marks[link.id] for link in links], np.bool_)
    stratum, scores = np.array([link.stratum for link in links]), np.array([link.score for link in links])
    judged = JudgedLinks(scores, right_mask, stratum, sample.sizes, np.array(sample.scores), sample.threshold)
    return calibrate(scorer, judged)


def calibrate(scorer: LinkScorer, judged: JudgedLinks) -> Marked:
    """Calibrate scores with judged links, and choose the threshold with the highest expected F1."""
    right, stratum, scores, every = judged.right_mask, judged.stratum, judged.scores, judged.every
    marked = np.bincount(stratum, minlength=len(judged.sizes))
    weights = np.array(judged.sizes, float)[stratum] / marked[stratum]
    scale, shift = _calibration(_logit(scores), right, weights / weights.mean())
    everything = 1 / (1 + np.exp(-(scale * _logit(every) + shift)))
    lowest = float(1 / (1 + np.exp(-(scale * _logit(np.array(LOWEST)) + shift))))
    threshold = best_threshold(everything, judged.threshold, lowest)
    new = 1 / (1 + np.exp(-(scale * _logit(scores) + shift)))
    old_mask, new_mask = scores > judged.threshold, new > threshold
    groups = []
    for number, size in enumerate(judged.sizes):
        own = stratum == number
        if own.any():
            span = f"{scores[own].min():.2f} to {scores[own].max():.2f}"
            name = f"below the threshold, {span}" if number == 0 else span
            groups.append((name, precision(right[own], weights[own], size)))
    return Marked(
        scorer.calibrated(scale, shift, threshold),
        precision(right[old_mask], weights[old_mask], int((every > judged.threshold).sum())),
        precision(right[new_mask], weights[new_mask], int((everything > threshold).sum())),
        tuple(groups),
    )


def best_threshold(scores: Floats, default: float, lowest: float) -> float:
    """Return the threshold from `lowest` on with the highest expected F1; of equal ones the default."""
    tried = np.append(max(default, lowest), np.arange(lowest, 0.96, 0.01))
    total = scores.sum()
    f1 = [2 * scores[scores > t].sum() / max((scores > t).sum() + total, 1e-9) for t in tried]
    return float(tried[int(np.argmax(f1))])


def _calibration(logits: Floats, right: NDArray[np.bool_], weights: Floats) -> tuple[float, float]:
    """Return scale and shift of logits (Platt 1999), regularised towards 1 and 0."""
    from scipy.optimize import minimize

    def loss(x: Floats) -> float:
        z = np.exp(x[0]) * logits + x[1]
        return float((weights * (np.logaddexp(0, z) - right * z)).sum() + _PRIOR * (x[0] ** 2 + 0.25 * x[1] ** 2))

    found = minimize(loss, np.zeros(2), method="Nelder-Mead").x
    return float(np.exp(found[0])), float(found[1])


def _logit(p: Floats) -> Floats:
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(p) - np.log1p(-p))


def _snippet(text: str, start: int, end: int) -> str:
    before, behind = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    left, right = "…" if start > _AROUND else "", "…" if len(text) > end + _AROUND else ""
    return " ".join(f"{left}{before}[[{text[start:end]}]]{behind}{right}".split())


def _inert(cell: str) -> str:
    """Return a cell that a spreadsheet does not interpret as a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def _same(cell: str | None, expected: str) -> bool:
    """Return True if a cell is as written, ignoring line ends, blanks and the quote before a formula."""
    return (cell or "").removeprefix("'").split() == expected.removeprefix("'").split()
