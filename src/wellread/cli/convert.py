"""`wellread convert`: convert released checkpoints, and make trained linkers small."""

from __future__ import annotations

from typing import Literal

import click

from wellread.cli.defaults import Group


@click.group("convert", cls=Group)
def command() -> None:
    """Convert checkpoints released by the papers' authors, and make small linkers of your own models.

    Example: wellread convert elq elq_wiki_large.bin elq_large_params.txt --vocab vocab.txt --to models/elq-large
    """


@command.command("elq")
@click.argument("checkpoint", type=click.Path())
@click.argument("params", type=click.Path())
@click.option("--to", "folder", required=True, help="Folder of the linker; it must not exist.")
@click.option("--vocab", metavar="FILE", help="vocab.txt of the BERT that the model was initialised from.")
@click.option(
    "--tokenizer", metavar="NAME", help="Instead of --vocab: an encoder (folder or hub) with the same tokenizer."
)
@click.option("--heads", type=click.IntRange(1), help="Number of attention heads.  [default: width / 64]")
def elq(checkpoint: str, params: str, folder: str, vocab: str | None, tokenizer: str | None, heads: int | None) -> None:
    """Convert ELQ's CHECKPOINT and its PARAMS, as facebookresearch/BLINK has them, to a linker with the same scores.

    No code of the checkpoint is run. It does not contain its vocabulary: give that of its bert_model.

    \b
    Examples:
      wellread convert elq elq_wiki_large.bin elq_large_params.txt --vocab vocab.txt --to models/elq-large
      wellread convert elq elq_wiki_large.bin elq_large_params.txt --tokenizer bert-large-uncased --to models/elq
    """
    from wellread.io import console
    from wellread.models.elq.conversion import convert_elq

    convert_elq(checkpoint, params, folder, vocab=vocab, tokenizer=tokenizer, heads=heads)
    console.note(f"the linker is in {folder}; use it with: wellread link --model {folder} --kb KB")


@command.command("knowbert")
@click.argument("archive", type=click.Path())
@click.option("--to", "folder", required=True, help="Folder of the model; it must not exist.")
@click.option("--vocab", metavar="FILE", help="vocab.txt of the BERT that the model was initialised from.")
@click.option(
    "--tokenizer", metavar="NAME", help="Instead of --vocab: an encoder (folder or hub) with the same tokenizer."
)
@click.option("--heads", type=click.IntRange(1), help="Number of attention heads.  [default: width / 64]")
@click.option(
    "--entities", "lists", multiple=True, metavar="KB=FILE", help="A list of entities that the archive lacks."
)
@click.option("--synsets", is_flag=True, help='Name synsets as the WordNet KB does: "02084071-n", not "dog.n.01".')
def knowbert(
    archive: str,
    folder: str,
    vocab: str | None,
    tokenizer: str | None,
    heads: int | None,
    lists: tuple[str, ...],
    synsets: bool,
) -> None:
    """Convert KnowBERT's ARCHIVE, as allenai/kb has it (a tar file, or the folder of one), to a BERT with its layers.

    Hidden states, candidate scores and losses are theirs. Nothing in the archive is run. The vocabulary of pieces is
    not in it: give that of its bert_model_name.

    \b
    Examples:
      wellread convert knowbert knowbert_wiki_wordnet_model.tar.gz --vocab vocab.txt --to models/knowbert
      wellread convert knowbert knowbert_wordnet_model.tar.gz --vocab vocab.txt --synsets --to models/knowbert-wordnet
    """
    from wellread.errors import UsageError
    from wellread.io import console
    from wellread.kb.readers.sense_keys import SenseKeys
    from wellread.models.knowbert.conversion import convert_knowbert

    entities = {}
    for given in lists:
        kb, equals, file = given.partition("=")
        if not (kb and equals and file):
            raise UsageError(f"--entities is {given!r}; expected KB=FILE, as in wiki=entity.txt")
        entities[kb] = file
    senses = SenseKeys.read() if synsets else None
    convert_knowbert(archive, folder, vocab=vocab, tokenizer=tokenizer, heads=heads, entities=entities, senses=senses)
    console.note(f"the model is in {folder}; use it with: wellread link --model {folder} --kb KB")


@command.command("linker")
@click.argument("model", type=click.Path())
@click.option("--kb", "kb_name", required=True, help="Knowledge base that it links to, by name or path.")
@click.option("--to", "folder", required=True, help="Folder of the linker; it must not exist.")
@click.option(
    "--base", metavar="NAME", help="Encoder that the model was trained from; only the differences are stored."
)
@click.option(
    "--rank", type=click.IntRange(1), help="With --base: store differences of this rank; by default in 4 bits."
)
@click.option("--tags", type=click.Choice(["spacy"]), help="Default source of part-of-speech tags when it links.")
def linker(
    model: str, kb_name: str, folder: str, base: str | None, rank: int | None, tags: Literal["spacy"] | None
) -> None:
    """Make a small linker of a MODEL with a trained knowledge layer (the run of a recipe).

    Entity vectors are stored in 8 bits, so the vectors of the knowledge base are not needed. With --base only the
    differences to the encoder are stored: in 4 bits, or with --rank exactly, if adapters of that rank were trained
    (encoder.rank in the recipe).

    \b
    Examples:
      wellread convert linker runs/senses --kb wordnet --base minilm --to models/senses
      wellread link --kb wordnet --model models/senses "They sat on the bank."
    """
    from wellread.io import console
    from wellread.kb.packaged import open_kb
    from wellread.models.knowbert.saving import shrink

    with open_kb(kb_name) as kb:
        saved = shrink(model, kb, folder, base=base, rank=rank, tags=tags)
    lost = f"; up to {saved.error:.1%} of a weight's change is lost" if saved.error > 1e-3 else ""
    console.note(f"the linker is in {folder} ({saved.bytes / 1e6:.1f} MB{lost})")


@command.command("luke")
@click.argument("source", metavar="FOLDER", type=click.Path())
@click.option("--to", "folder", required=True, help="Folder of the model; it must not exist.")
@click.option(
    "--layout",
    type=click.Choice(["hf", "wellread"]),
    help="Target layout: transformers or wellread.  [default: the other one]",
)
def luke(source: str, folder: str, layout: Literal["hf", "wellread"] | None) -> None:
    """Convert the LUKE or mLUKE in FOLDER: one of Hugging Face's layout to one of wellread's, and one of these back.

    Outputs stay the same, under the head that the model was saved with. The authors' own files (metadata.json,
    pytorch_model.bin, entity_vocab.tsv) are read, too. Tokenizer and entity vocabulary go along. Nothing is run.

    \b
    Examples:
      wellread convert luke downloads/luke-base --to models/luke-base
      wellread convert luke models/my-luke --layout hf --to for-transformers/my-luke
    """
    from wellread.io import console
    from wellread.models.luke.conversion import convert_luke

    made = convert_luke(source, folder, layout)
    loads = {
        "wellread": f"wellread.models.luke.conversion.load({folder!r})",
        "hf": f"transformers.AutoModel.from_pretrained({folder!r})",
    }
    console.note(f"the model is in {folder}; load it with: {loads[made]}")
