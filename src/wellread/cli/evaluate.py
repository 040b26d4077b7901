"""`wellread evaluate`: score a trained task on its data, models on facts, a linker (or its links) on linked text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from wellread.cli.defaults import DefaultGroup
from wellread.cli.evaluate_words import facts, lama, show_facts, words
from wellread.cli.options import (
    draw_options,
    form_option,
    gold_options,
    places_option,
    reading_options,
    refuse_nan,
    trust_option,
)
from wellread.data.formats import Format, Ids, read_linked
from wellread.document import Document
from wellread.errors import InputError, UsageError
from wellread.io import console
from wellread.io.extras import require
from wellread.io.files import write_atomically

if TYPE_CHECKING:
    from wellread.linking.linker import Linker


@click.group(
    "evaluate",
    cls=DefaultGroup,
    default="task",
    subcommand_metavar="RUN DATA | senses FILE... | linking FILE... | words|facts|lama MODEL... DATA [OPTIONS]",
)
def command() -> None:
    """Score the model of a run on a task's data, a linker on linked text, or models on masked words and facts.

    \b
    Example: wellread evaluate linking --kb vital questions.jsonl
    Example: wellread evaluate runs/rte RTE/dev.tsv
    Example: wellread evaluate senses semeval2007.data.xml
    Example: wellread evaluate lama runs/words LAMA/data
    Example: wellread evaluate words bert-folder runs/knowbert my-texts
    """


for verb in (words, facts, lama):
    command.add_command(verb)


@command.command("task")
@click.argument("run", type=click.Path())
@click.argument("data", type=click.Path())
@click.option("--predictions", metavar="FILE", help="Write the predictions in the task's official format.")
@form_option
@places_option
def task(run: str, data: str, predictions: str | None, form: str, changes: tuple[str, ...]) -> None:
    """Predict DATA with the model of RUN (a folder of wellread train), and score the predictions.

    DATA is a file in the task's format. Without labels, as in test files, it is predicted but not scored: give
    --predictions. For a run trained on masked words, DATA may also be LAMA's: see wellread evaluate lama --help.

    \b
    Examples:
      wellread evaluate runs/rte RTE/dev.tsv
      wellread evaluate runs/rte RTE/test.tsv --predictions RTE.tsv
      wellread evaluate runs/esci other-pairs.jsonl --format json
      wellread evaluate runs/words LAMA/data
    """
    from wellread.data.readers.lama import has_facts, has_parts
    from wellread.training.task import load_task

    model = load_task(run, changes)
    if model.recipe.task in ("masking", "lama") and predictions is None and has_facts(data):
        from wellread.inference.probe import prober_of

        part = model.recipe.lama.part if has_parts(data) else None
        show_facts(lambda: [prober_of(run, model)], data, part, None, form)
        return
    if predictions is not None:
        model.writer()  # before anything is answered in vain
    examples = model.read(data)
    secret = sum(not model.has_gold([example]) for example in examples)
    if secret and predictions is None:
        which = "" if secret == len(examples) else f" for {secret:,} of its {len(examples):,} examples"
        raise InputError(f"{data} has no labels to score against{which}; give --predictions FILE to write predictions")
    begin = time.monotonic()
    answers = model.answers(examples)
    console.note(f"answered {len(examples):,} examples in {time.monotonic() - begin:.1f} s")
    if predictions is not None:
        model.write(predictions, examples, answers)
        if secret:
            console.note(f"{data} has no labels to score against; the answers are in {predictions}")
            return
    scores = model.score(examples, answers)
    if form == "json":
        click.echo(json.dumps({"data": data, "examples": len(examples), "scores": scores}, indent=2))
    else:
        console.print_table(("score", Path(data).name), list(scores.items()))


@command.command("senses")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--model", default="knowbert", show_default=True, help="Linker: a name, or a folder.")
@click.option("--kb", "kb_name", default="wordnet", show_default=True, help="Knowledge base of its senses.")
@click.option(
    "--as-linked",
    is_flag=True,
    help="Score links of plain text, as of wellread link: without given lemmas and parts of speech.",
)
@click.option("--predictions", metavar="FILE", help="Write predictions in the format of the official scorer.")
@form_option
def senses(
    files: tuple[str, ...], model: str, kb_name: str, as_linked: bool, predictions: str | None, form: str
) -> None:
    """Score a linker on word senses: FILE... of Raganato's framework (XML with its gold keys beside it) or JSONL.

    F1 over all words that are asked about, by part of speech and data set; first_sense is that of WordNet's first
    senses, which also answer where the linker does not. Where files share ids, those of the predictions begin with
    their data set, as in the framework's ALL: senseval2.d000.s000.t000.

    --as-linked links the plain text of whole documents; a link answers for the word that has its characters, and
    answered is the share of words that were linked.

    \b
    Examples:
      wellread evaluate senses semeval2007.data.xml
      wellread evaluate senses senseval2.data.xml senseval3.data.xml --predictions all.key.txt
      wellread evaluate senses my-texts.jsonl --model models/senses --format json
      wellread evaluate senses semeval2007.data.xml --as-linked
    """
    from wellread.data.readers.raganato import read_data_sets, write_keys
    from wellread.kb.packaged import open_kb
    from wellread.kb.readers.sense_keys import SenseKeys
    from wellread.linking.linker import Linker
    from wellread.linking.sense_answers import answer_as_linked

    texts = [text for some in read_data_sets(files, secret=predictions is not None) for text in some]
    begin = time.monotonic()
    keys = SenseKeys.read()
    if as_linked:
        with Linker.load(kb_name, model) as linker:
            chosen, scores = answer_as_linked(linker, keys, texts)
    else:
        require("train", "evaluate senses without --as-linked")
        from wellread.inference.sense_evaluation import answer_senses

        with open_kb(kb_name) as kb:
            chosen, scores = answer_senses(model, kb, keys, texts)
    words = sum(len(text.text.split()) for text in texts)
    console.note(f"answered {len(chosen):,} words of {words:,} in {time.monotonic() - begin:.1f} s")
    if predictions is not None:
        write_keys(predictions, chosen)
        if not all(text.has_gold for text in texts):
            console.note(f"not all texts have gold keys to score against; the answers are in {predictions}")
            return
    if form == "json":
        click.echo(json.dumps({"data": list(files), "scores": scores}, indent=2))
    else:
        console.print_table(("score", ", ".join(Path(file).name for file in files)), list(scores.items()))


@command.command("linking")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--kb", help="Knowledge base, by name or path; gold entities that it lacks count as NIL.")
@click.option("--model", help="Model: elq, knowbert, prior, or a folder.  [default: as wellread link]")
@reading_options
@trust_option
@gold_options("--format")
@click.option("--threshold", type=float, callback=refuse_nan, help="Omit links with a lower score.")
@click.option("--fold-ids", is_flag=True, help="Compare entity ids without case, as ELQ's authors do.")
@click.option("--limit", type=click.IntRange(min=1), help="Take only the first N documents of each file.")
@click.option("--skip-broken", is_flag=True, help="Skip and count broken documents instead of stopping.")
@click.option("--predictions", metavar="FILE", help="Score the documents in this JSONL file instead of linking.")
@click.option("--save", metavar="FILE", help="Write the predictions, before --threshold, as JSONL.")
@draw_options
@click.option("--json", "as_json", is_flag=True, help="Write all scores as JSON.")
def linking(
    files: tuple[str, ...],
    kb: str | None,
    model: str | None,
    sources: Literal["union", "dense", "names"],
    precision: Literal["auto", "fp32", "int8"],
    trust: float | None,
    kind: Format | Literal["auto"],
    ids: Ids | None,
    prefix: str,
    threshold: float | None,
    fold_ids: bool,
    limit: int | None,
    skip_broken: bool,
    predictions: str | None,
    save: str | None,
    bootstrap: int,
    seed: int,
    as_json: bool,
) -> None:
    """Link the texts of FILE... and score the links against those in the files.

    The files are JSONL ({"text", "mentions": [[start, end, id or null], ...]}), AIDA-CoNLL-YAGO or NIF, plain or
    compressed. The table has a row for each file, scope (in KB: NIL is no answer; with NIL: it is one) and match (exact
    span, or any overlap), with 95 % intervals from a bootstrap over documents; --json has more.

    \b
    Examples:
      wellread evaluate linking --kb vital questions.jsonl
      wellread evaluate linking --kb my.db --save predicted.jsonl --json a.jsonl b.jsonl.xz
      wellread evaluate linking --predictions predicted.jsonl --threshold 0.5 a.jsonl b.jsonl.xz
      wellread evaluate linking --kb vital --format aida --ids title --prefix wp: AIDA-YAGO2-dataset.tsv
    """
    if kb is None and predictions is None:
        raise UsageError("nothing to score; give --kb to link the texts, or --predictions with existing links")
    if predictions is not None and (save is not None or model is not None):
        raise UsageError("--predictions cannot be combined with --save and --model; omit these, or --predictions")

    from wellread.evaluation.linking import align, strangers, with_prefix

    gold = [_read(file, None if kind == "auto" else kind, ids, limit, skip_broken) for file in files]
    if prefix:
        gold = [[with_prefix(prefix, document) for document in documents] for documents in gold]
    texts = [document for documents in gold for document in documents]
    linker = None
    if kb is not None:
        from wellread.linking.linker import Linker

        least = threshold if threshold is None or save is None else 0.0
        linker = Linker.load(
            kb, model or "auto", threshold=least, sources=sources, precision=precision, trust=trust, nil=True
        )
    known = None if linker is None else cache(linker.kb.__contains__)
    if known is not None and (result := strangers(texts, known, str(kb))):
        console.note(result)
    if predictions is not None:
        predicted = align(texts, read_linked(predictions, "jsonl"))
    else:
        assert linker is not None
        predicted = _link(linker, texts)
    if save is not None:
        _save(save, predicted)
    if threshold is not None and (predictions is not None or save is not None):
        predicted = [_keep_above(threshold, document) for document in predicted]
    options = {"bootstrap": bootstrap, "seed": seed}
    _tell(files, gold, predicted, known, **options, fold_ids=fold_ids, as_json=as_json)


def _read(file: str, format: Format | None, ids: Ids | None, limit: int | None, skip_broken: bool) -> list[Document]:
    skipped: list[str] | None = [] if skip_broken else None
    documents = list(islice(read_linked(file, format, ids=ids, skipped=skipped), limit))
    if skipped:
        console.note(f"skipped {len(skipped):,} broken documents; the first: {skipped[0]}")
    return documents


def _link(linker: Linker, texts: list[Document]) -> list[Document]:
    """Link the gold texts; keep the gold ids."""
    begin = time.monotonic()
    linked = _with_nil(linker, [document.text for document in texts])
    predicted = [replace(made, id=document.id) for document, made in zip(texts, linked, strict=True)]
    console.note(f"linked {len(predicted):,} documents in {time.monotonic() - begin:.1f} s")
    return predicted


def _with_nil(linker: Linker, texts: Sequence[str]) -> Iterator[Document]:
    """Link with defaults, and add NIL links that overlap none of these links."""
    try:
        scored = iter(linker.score_many(texts))
        first = list(islice(scored, 1))
    except UsageError:  # names alone have no scores to decide anew, and their NIL links displace nothing
        yield from linker.link_many(texts)
        return
    for one in chain(first, scored):
        document = one.document(nil=False)
        nils = [
            nil
            for nil in one.document(nil=True).links
            if nil.entity is None and not any(nil.start < link.end and link.start < nil.end for link in document.links)
        ]
        links = sorted((*document.links, *nils), key=lambda link: (link.start, link.end))
        yield replace(document, links=tuple(links))


def _save(path: str, predicted: Sequence[Document]) -> None:
    with write_atomically(path) as file:
        file.writelines(document.to_json().encode() + b"\n" for document in predicted)


def _keep_above(threshold: float, document: Document) -> Document:
    kept = tuple(
        link
        for link in document.links
        if link.score >= threshold or (link.entity is None and link.mention_score is None)  # a tagger's NIL stays
    )
    return replace(document, links=kept)


def _tell(
    files: Sequence[str],
    gold: Sequence[list[Document]],
    predicted: list[Document],
    known: Callable[[str], bool] | None,
    *,
    bootstrap: int,
    seed: int,
    fold_ids: bool,
    as_json: bool,
) -> None:
    """Score each file, then write the table or JSON."""
    from wellread.evaluation.linking import LinkingScores, score_linking

    scores = []
    rest = iter(predicted)
    score = partial(score_linking, known=known, bootstrap=bootstrap, seed=seed, fold_ids=fold_ids)
    for file, documents in zip(files, gold, strict=True):
        guesses = list(islice(rest, len(documents)))
        try:
            scores.append(score(documents, guesses))
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
    if as_json:
        results = [{"file": file, **score.to_dict()} for file, score in zip(files, scores, strict=True)]
        click.echo(
            json.dumps({"bootstrap": bootstrap, "seed": seed, "datasets": results}, indent=2, ensure_ascii=False)
        )
        return
    console.print_table(
        ("file", *LinkingScores.columns),
        [(Path(file).name, *_shown(row)) for file, score in zip(files, scores, strict=True) for row in score.rows()],
    )


def _shown(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return a row of the table; without gold mentions there is no score."""
    scope, match, gold, *scores = row
    return (scope, match, gold, *(scores if gold else ["–"] * len(scores)))
