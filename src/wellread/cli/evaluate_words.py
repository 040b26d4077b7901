"""`wellread evaluate words`, `facts` and `lama`: predictions of masked words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import click

from wellread.cli.options import form_option, places_option
from wellread.errors import InputError, UsageError
from wellread.io import console

if TYPE_CHECKING:
    from wellread.inference.probe import Prober


@click.command("words")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.argument("data", type=click.Path(exists=True))
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.15,
    show_default=True,
    help="Share of masked tokens.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first N texts.")
@form_option
@places_option
def words(
    models: tuple[str, ...], data: str, share: float, limit: int | None, form: str, changes: tuple[str, ...]
) -> None:
    """Mask a --share of the tokens of texts, and score the predictions of MODEL... (perplexity: lower is better).

    A model is a run of wellread train whose task is "masking" or "lama", one of wellread pretrain knowbert, or an
    encoder (a folder, an asset, or a name on the hub with its commit) that has a head for masked words; knowledge
    layers use the knowledge named in its folder. DATA is a file or a folder of texts, plain or JSONL with "text",
    compressed or not. The same tokens are masked every time; models with one tokenizer are comparable.

    \b
    Examples:
      wellread evaluate words bert-folder runs/knowbert my-texts
      wellread evaluate words runs/words news.jsonl.xz --limit 1000 --format json
    """
    from itertools import islice

    from wellread.tasks.masked_lm import Masking, read_texts

    with ExitStack() as stack:
        found = []
        for prober in _load(models, stack, changes):
            texts = list(islice(read_texts([data], prober.segmenter), limit))
            if not texts:
                raise InputError(f"{data} has no texts; give a file or folder with texts")
            found.append(prober.ask(Masking(prober.tokenizer, share=share), texts) | {"texts": len(texts)})
    _tell(models, data, found, form)


@click.command("facts")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.argument("data", type=click.Path(exists=True))
@form_option
@places_option
def facts(models: tuple[str, ...], data: str, form: str, changes: tuple[str, ...]) -> None:
    """Predict the masked objects of facts in sentences with MODEL..., and score their ranks.

    This is the probe of KnowBERT; a MODEL is as in wellread evaluate words. DATA has the authors' lines (the numbers of
    the object's first and last word, a tab, the sentence), or JSONL with "text", "start" and "end". mrr is over pieces
    among the whole vocabulary, so that models are comparable where they have one tokenizer.

    \b
    Examples:
      wellread evaluate facts bert-folder runs/knowbert all.text
      wellread evaluate facts runs/knowbert my-facts.jsonl --format json
    """
    from wellread.tasks.fact_probe import FactProbing, read_rendered

    broken: list[str] = []
    rendered = list(read_rendered(data, skipped=broken))
    if broken:
        console.note(f"left out {len(broken):,} facts; the first: {broken[0]}")
    if not rendered:
        raise InputError(f"{data} has no facts{f'; the first that is left out: {broken[0]}' if broken else ''}")
    with ExitStack() as stack:
        found = [prober.ask(FactProbing(prober.tokenizer), rendered) for prober in _load(models, stack, changes)]
    _tell(models, data, found, form)


def _load(models: Sequence[str], stack: ExitStack, changes: Sequence[str]) -> list[Prober]:
    from wellread.inference.probe import is_run, load_prober

    if changes and not any(map(is_run, models)):
        raise UsageError(f"{changes[0]!r} is for runs, but {', '.join(models)} is not a run; omit --set")
    return [load_prober(model, stack, changes) for model in models]


def _tell(models: Sequence[str], data: str, found: Sequence[dict[str, float]], form: str) -> None:
    if form == "json":
        result = [{"model": model, **scores} for model, scores in zip(models, found, strict=True)]
        click.echo(json.dumps({"data": data, "models": result}, indent=2, ensure_ascii=False))
    else:
        rows = [(score, *(scores[score] for scores in found)) for score in found[0]]
        console.print_table(("score", *models), rows)


@click.command("lama")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.argument("data", type=click.Path())
@click.option(
    "--part",
    type=click.Choice(["google_re", "trex", "conceptnet", "squad"]),
    help="Use only this part of LAMA's data folder.  [default: all]",
)
@click.option(
    "--vocabulary",
    metavar="FILE",
    help="Words that may be answers, one a line, as LAMA's common_vocab_cased.txt.  [default: all that every MODEL has "
    "as one piece]",
)
@form_option
@places_option
def lama(
    models: tuple[str, ...],
    data: str,
    part: Literal["google_re", "trex", "conceptnet", "squad"] | None,
    vocabulary: str | None,
    form: str,
    changes: tuple[str, ...],
) -> None:
    """Predict the objects of facts with MODEL..., and score precision at k (LAMA).

    A MODEL is as in wellread evaluate words. DATA is LAMA's data folder, a folder of its JSONL
    files, or one such file; facts of your own are lines like
    {"relation": "capital", "sub_label": "Italy", "obj_label": "Rome", "masked_sentence": "Rome is in [MASK] ."}.

    All models are asked the same facts and answer in the same words: those that are one piece for each of them, and in
    the vocabulary. precision: over all facts (micro), the mean over relations (macro), and for each relation.

    \b
    Examples:
      wellread evaluate lama runs/words LAMA/data --part trex
      wellread evaluate lama runs/plain runs/kam bert-folder LAMA/data --vocabulary common_vocab_cased.txt
      wellread evaluate lama runs/words my-facts.jsonl --format json
      wellread evaluate lama runs/kam my-facts.jsonl --set maps.kb=moved/my.kb
    """
    with ExitStack() as stack:
        show_facts(lambda: _load(models, stack, changes), data, part, vocabulary, form)


def show_facts(
    load: Callable[[], Sequence[Prober]],
    data: str,
    part: Literal["google_re", "trex", "conceptnet", "squad"] | None,
    vocabulary: str | None,
    form: str,
) -> None:
    """Score models on LAMA, and print the results."""
    from wellread.data.readers.lama import read_probe, read_vocabulary
    from wellread.inference.lama import probe_models

    broken: list[str] = []
    facts = list(read_probe(data, part, skipped=broken))
    if broken:
        console.note(f"left out {len(broken):,} facts; the first: {broken[0]}")
    if not facts:
        raise InputError(f"{data} has no facts{f'; the first that is left out: {broken[0]}' if broken else ''}")
    words = None if vocabulary is None else read_vocabulary(vocabulary)
    begin = time.monotonic()
    found = probe_models(load(), facts, words)
    count = len(facts) - found.left_out
    console.note(
        f"asked for {count:,} facts in {time.monotonic() - begin:.1f} s, {found.vocabulary:,} words to choose from; "
        f"{found.left_out:,} others have an object that is none of these"
    )
    if form == "json":
        click.echo(json.dumps({"data": data, "facts": count, **found.to_dict()}, indent=2, ensure_ascii=False))
    elif len(found.models) == 1:
        (scores,) = found.scores
        shown = [("all (micro)", scores.micro), ("all (macro)", scores.macro), *scores.relations.items()]
        rows = [(name, one.facts, one.precision, *one.at.values(), one.mrr) for name, one in shown]
        console.print_table(("relation", "facts", "precision@1", *(f"@{k}" for k in scores.micro.at), "mrr"), rows)
    else:
        first = found.scores[0]
        precisions = [
            ("all (micro)", first.micro.facts, *(one.micro.precision for one in found.scores)),
            ("all (macro)", first.macro.facts, *(one.macro.precision for one in found.scores)),
            *(
                (name, of.facts, *(one.relations[name].precision for one in found.scores))
                for name, of in first.relations.items()
            ),
        ]
        console.print_table(("relation", "facts", *found.models), precisions, title="precision@1")
