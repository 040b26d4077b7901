"""`wellread convert`: take over what others have trained."""

from __future__ import annotations

import click


@click.group("convert")
def command() -> None:
    """Make wellread's models of the checkpoints that the authors of papers released.

    Example: wellread convert elq elq_wiki_large.bin elq_large_params.txt --vocab vocab.txt --to models/elq-large
    """


@command.command("elq")
@click.argument("checkpoint", type=click.Path())
@click.argument("params", type=click.Path())
@click.option("--to", "folder", required=True, help="The linker's folder, which must be new.")
@click.option("--vocab", metavar="FILE", help="The vocab.txt of the BERT that the model grew from.")
@click.option("--tokenizer", metavar="NAME", help="Instead: an encoder (folder or hub) with the same tokenizer.")
@click.option("--heads", type=click.IntRange(1), help="Attention heads.  [default: one for each 64 of the width]")
def elq(checkpoint: str, params: str, folder: str, vocab: str | None, tokenizer: str | None, heads: int | None) -> None:
    """Convert ELQ's CHECKPOINT and its PARAMS, as facebookresearch/BLINK has them, to a linker with the same scores.

    Nothing in the checkpoint is run. Its vocabulary is not in it: give that of its bert_model.

    \b
    Examples:
      wellread convert elq elq_wiki_large.bin elq_large_params.txt --vocab vocab.txt --to models/elq-large
      wellread convert elq elq_wiki_large.bin elq_large_params.txt --tokenizer bert-large-uncased --to models/elq
    """
    from wellread import console
    from wellread.models.conversion import convert_elq

    convert_elq(checkpoint, params, folder, vocab=vocab, tokenizer=tokenizer, heads=heads)
    console.note(f"the linker is in {folder}; use it with: wellread link --model {folder} --kb KB")
