"""HTML page of `wellread explain`: one file with all layers and heads.

Attention is stored as base64 of 16-bit fixed-point numbers. `attention.js` draws it; the content security policy
allows no other script. Without scripts, text, notes and auxiliary terms are still readable.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wellread.plots.attention import ABOUT, Seen, Term, units
from wellread.plots.html import escape, shell


def explained_page(
    seen: Seen,
    *,
    layer: int | None = None,
    head: int | Literal["mean"] = "mean",
    by: Literal["words", "pieces"] = "words",
    title: str = "What knowledge changes",
) -> str:
    """Return a self-contained page that starts at this layer (by default the one with the largest change) and head."""
    here = files("wellread.plots")
    style, script = (here.joinpath(f"attention.{kind}").read_text("utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    content = _data(seen, seen.best_layer if layer is None else layer, -1 if head == "mean" else head, by)
    texts = "".join(f'<p class="said" dir="auto" lang=""><bdi>{escape(text)}</bdi></p>' for text in seen.texts)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in seen.notes)
    header = (
        texts,
        f'<p class="soft">{_counts(seen)}</p>',
        notes,
        '<noscript><p class="note">The pictures on this page are drawn by a script, which is switched off here.</p>'
        "</noscript>",
    )
    return shell(
        title,
        style=style,
        header="\n".join(header),
        main="\n".join((_picker(seen, by), _SECTIONS, _maps(seen), _terms(seen.terms))),
        allowed=f"script-src 'sha256-{digest}'",
        behind=f'<script type="application/json" id="seen">{content}</script>\n<script>{script}</script>\n',
    )


def _counts(seen: Seen) -> str:
    model = f"<bdi>{escape(seen.model)}</bdi> · " if seen.model else ""
    terms = len(seen.labels) - seen.rows
    more = f" and {terms} of auxiliary terms" if terms else ""
    return (
        f"{model}{seen.layers} layers of {seen.heads} heads · {seen.rows} pieces{more}. Layers and heads count from 0."
    )


def _data(seen: Seen, layer: int, head: int, by: str) -> str:
    content: dict[str, Any] = {
        "layers": seen.layers,
        "heads": seen.heads,
        "layer": layer,
        "head": head,
        "by": by,
        "own": seen.rows,
        "labels": seen.labels,
        "words": [
            seen.words[word] if word >= 0 else label for word, label in zip(seen.word_of, seen.labels, strict=True)
        ],
        "units": units(seen.word_of).tolist(),
        "segments": seen.segment_of.tolist(),
        "special": [*seen.special_mask.tolist(), *[False] * (len(seen.labels) - seen.rows)],
        "without": _packed(seen.without),
        "infused": _packed(seen.infused),
        "maps": [_packed(scores) for scores in seen.maps.values()],
    }
    # "</script>" would end the data, "<!--" would start a comment.
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _packed(shares: NDArray[np.float32]) -> str:
    return base64.b64encode(np.rint(np.clip(shares, 0, 1) * 65535).astype("<u2").tobytes()).decode()


def _picker(seen: Seen, by: str) -> str:
    moved, most = seen.moved, max(float(seen.moved.max()), 0.01)
    heads = ["mean", *map(str, range(seen.heads))]
    head_row = "".join(f'<th scope="col">{head}</th>' for head in heads)
    rows = []
    for layer in range(seen.layers):
        cells = "".join(
            f'<td><button type="button" role="gridcell" data-layer="{layer}" data-head="{column - 1}" tabindex="-1" '
            f'style="--v:{moved[layer, column] / most:.3f}" '
            f'title="layer {layer}, {"mean of all heads" if not column else f"head {column - 1}"}: '
            f'{100 * moved[layer, column]:.1f} % moved">layer {layer}, head {head}</button></td>'
            for column, head in enumerate(heads)
        )
        rows.append(f'<tr><th scope="row">layer {layer}</th>{cells}</tr>')
    return f"""<section aria-labelledby="where"><h2 id="where">Where attention moves</h2>
<p class="soft">The stronger a square, the more of that head's attention is moved by knowledge
(at most {100 * float(moved.max()):.0f} %). Pick one, with arrow keys too.</p>
<div class="pick">
<table class="heads" role="grid" aria-label="Layer and head" style="--heads:{seen.heads}">
<thead><tr><td></td>{head_row}</tr></thead><tbody>{"".join(rows)}</tbody></table>
<div>
<fieldset><legend>Show</legend>
<label><input type="radio" name="by" value="words"{_checked(by == "words")}>words</label>
<label><input type="radio" name="by" value="pieces"{_checked(by == "pieces")}>pieces</label></fieldset>
<fieldset><legend>Special pieces</legend>
<label><input type="radio" name="special" value="shown" checked>shown</label>
<label><input type="radio" name="special" value="hidden">hidden</label></fieldset>
<p class="readout" id="readout" role="status" aria-live="polite"></p>
</div></div></section>"""


def _checked(on: bool) -> str:
    return " checked" if on else ""


_SECTIONS = """<section aria-labelledby="view"><h2 id="view">One word’s view</h2>
<p class="soft">What the underlined word attends to. Pick another one, with arrow keys too.</p>
<div class="views two">
<div><h3>without knowledge</h3><div class="view" id="view0" role="group" aria-label="without knowledge"></div></div>
<div><h3>with knowledge</h3><div class="view" id="view1" role="group" aria-label="with knowledge"></div></div>
</div></section>
<section aria-labelledby="all"><h2 id="all">Attention: <span id="which"></span></h2>
<p class="soft">Each row attends to the columns. Point at a square, or move with arrow keys.</p>
<p class="now" id="now" aria-hidden="true"></p>
<div class="grids">
<figure><h3>without knowledge</h3><div class="scroll"><canvas id="without" tabindex="0" role="application"
 aria-label="Attention without knowledge, by arrow keys"></canvas></div>
<div class="scale">0 <i class="seen"></i><span id="most"></span></div></figure>
<figure><h3>with knowledge</h3><div class="scroll"><canvas id="infused" tabindex="0" role="application"
 aria-label="Attention with knowledge, by arrow keys"></canvas></div>
<div class="scale">0 <i class="seen"></i><span id="most1"></span></div></figure>
<figure><h3>difference</h3><div class="scroll"><canvas id="change" tabindex="0" role="application"
 aria-label="Difference that knowledge makes, by arrow keys"></canvas></div>
<div class="scale"><span id="fewest"></span><i class="change"></i><span id="reach"></span></div></figure>
</div></section>"""


def _maps(seen: Seen) -> str:
    if not seen.maps:
        return ""
    figures = []
    for number, (name, scores) in enumerate(seen.maps.items()):
        about = ABOUT.get(name, "a map of your own") if scores.any() else "nothing found in this text"
        figures.append(
            f'<figure><h3><bdi>{escape(name)}</bdi></h3><p class="soft">{about}</p>'
            f'<div class="scroll"><canvas id="map{number}" tabindex="0" role="application" '
            f'aria-label="{escape(name)} map, by arrow keys">'
            f'</canvas></div><figcaption class="soft" id="map{number}says" aria-live="polite"></figcaption></figure>'
        )
    return f"""<section aria-labelledby="maps"><h2 id="maps">Maps</h2>
<p class="soft">Relevance of words to each other, from 0 to 1, as infused into the model.</p>
<div class="grids">{"".join(figures)}</div></section>"""


def _terms(terms: tuple[Term, ...]) -> str:
    if not terms:
        return ""
    most = max(term.relevance for term in terms) or 1.0
    rows = "".join(
        f'<tr><td class="word"><bdi>{escape(term.word)}</bdi></td>'
        f'<td><span class="bar" style="--v:{term.relevance / most:.3f}"></span>{term.relevance:.2f}</td>'
        f'<td class="soft">{_by(term)}</td></tr>'
        for term in terms
    )
    return f"""<section aria-labelledby="terms"><h2 id="terms">Auxiliary terms</h2>
<p class="soft">Words that are not in the text but related to it, added as extra tokens in every
layer.</p>
<table class="terms"><thead><tr><th scope="col">term</th><th scope="col">mean relevance</th>
<th scope="col">goes with</th></tr></thead><tbody>{rows}</tbody></table></section>"""


def _by(term: Term) -> str:
    return " · ".join(f"<q><bdi>{escape(word)}</bdi></q> {score:.2f}" for word, score in term.by[:5])
