"""An embedder of whatever was saved: a plain encoder, one with knowledge layers, or a trained task.

    with ExitStack() as stack:
        embedder = load_embedder("runs/my-model", stack)
        rows = embedder.embed([Document("The bank of the river.")], of="words")

What the encoder is lent comes with it: that of its task, or candidates of the knowledge bases that its layers need.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellread.errors import UsageError
from wellread.tasks.embedding import Embedder

if TYPE_CHECKING:
    from wellread.knowledge.lending import Lends


def load_embedder(model: str, stack: ExitStack, *, layers: int | None = None, width: int = 256) -> Embedder:
    """An asset's encoder, a folder's, a run's or the hub's; `stack` closes the knowledge bases that it looks in.

    `layers` gives the states after that many layers, `width` is how many pieces are read at once.
    """
    encoder, tokenizer, lender = _load(model, stack)
    if layers is not None:
        _cut(encoder, layers)
    return Embedder.build(encoder, tokenizer, lender=lender, width=width)


def _load(model: str, stack: ExitStack) -> tuple[Any, Any, Lends | None]:
    """An encoder, its tokenizer, and what lends it knowledge."""
    from wellread.nn.encoders import find_encoder, load_encoder, load_tokenizer

    if any((Path(model) / place).is_file() for place in ("task.json", "model/task.json")):
        from wellread.training.task import load_task

        task = load_task(model)
        return task.reader.encoder, task.segmenter.tokenizer, task.lender
    encoder = load_encoder(model)
    return encoder, load_tokenizer(model), _offers(find_encoder(model), encoder, stack)


def _offers(folder: Path, encoder: Any, stack: ExitStack) -> Lends | None:
    from wellread.kb.packaged import open_kb
    from wellread.knowledge.needs import Needs
    from wellread.knowledge.offers import OfferLender
    from wellread.models.knowbert import KnowBert

    parts, readings = [], {}
    for part in getattr(encoder, "infusions", ()):
        if not isinstance(part, KnowBert):
            raise UsageError(
                f"this encoder is lent more than candidates ({type(part).__name__}), and only a trained task says how; "
                "give the folder of its run"
            )
        name = part.config.kb
        needs = Needs.of(folder, name)
        kb = stack.enter_context(open_kb(needs.kb))
        vectors = needs.open_vectors(kb)
        part.take_of(kb, vectors)
        parts.append((name, kb, vectors))
        readings[name] = needs.reading
    return OfferLender(parts, readings) if parts else None


def _cut(encoder: Any, layers: int) -> None:
    from wellread.linker.knowbert_folder import cut_layers

    count = int(encoder.config.num_hidden_layers)
    if layers > count:
        raise UsageError(f"the encoder has {count} layers, not {layers}; ask for fewer")
    cut_layers(encoder, layers)
