"""Loading of embedders: from a plain encoder, one with knowledge layers, or a trained task.

    with ExitStack() as stack:
        embedder = load_embedder("runs/my-model", stack)
        rows = embedder.embed([Document("The bank of the river.")], of="words")

The knowledge of the encoder is loaded too: that of its task, or candidates of the KBs that its layers need.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wellread.errors import UsageError
from wellread.inference.embed import Embedder, RuntimeStates

if TYPE_CHECKING:
    from wellread.encoders.infusion.providers import KnowledgeProvider

_LINKERS = ("elq", "knowbert", "luke", "prior")


def load_embedder(model: str, stack: ExitStack, *, layers: int | None = None, width: int = 256) -> Embedder:
    """Load the encoder of an asset, folder, run or hub name; `stack` closes the knowledge bases it opens.

    `layers` returns the states after that many layers, `width` is the number of tokens in a window.
    """
    if model in _LINKERS and not Path(model).exists():
        raise UsageError(
            f"{model} is a linker, which returns links, not states; give an encoder, such as minilm; for vectors of "
            f"linked mentions: --of mentions --linker {model}"
        )
    if layers is None and (plain := _load_plain(model, width)) is not None:
        return plain
    encoder, tokenizer, provider = _load(model, stack)
    if layers is not None:
        _truncate(encoder, layers)
    return Embedder.build(encoder, tokenizer, provider=provider, width=width)


def _load_plain(model: str, width: int) -> Embedder | None:
    """Load an encoder without knowledge for onnxruntime; None for any other, and for one that it does not support."""
    from wellread.encoders.files import find_encoder, load_tokenizer, positions_of
    from wellread.runtime.session import EncoderSession
    from wellread.runtime.weights import check_supported, read_encoder

    if _is_task(model):
        return None
    folder = find_encoder(model)
    try:
        check_supported(folder)
        from wellread.runtime.graph import write_graph

        weights = read_encoder(folder)
        session = EncoderSession(write_graph(weights), weights.words)
    except UsageError:
        return None
    return Embedder(RuntimeStates(session), load_tokenizer(model), positions=positions_of(model), width=width)


def _is_task(model: str) -> bool:
    return any((Path(model) / place).is_file() for place in ("task.json", "model/task.json"))


def _load(model: str, stack: ExitStack) -> tuple[Any, Any, KnowledgeProvider | None]:
    """Load an encoder, its tokenizer, and its knowledge provider."""
    from wellread.encoders.files import find_encoder, load_tokenizer
    from wellread.encoders.load import load_encoder
    from wellread.models.knowbert.recipe import load_knowbert_provider

    if _is_task(model):
        from wellread.training.task import load_task

        task = load_task(model)
        return task.network.encoder, task.segmenter.tokenizer, task.provider
    encoder = load_encoder(model)
    return encoder, load_tokenizer(model), load_knowbert_provider(find_encoder(model), encoder, stack)


def _truncate(encoder: Any, layers: int) -> None:
    from wellread.models.knowbert.torch_linker import keep_first_layers

    count = int(encoder.config.num_hidden_layers)
    if layers > count:
        raise UsageError(f"the encoder has {count} layers, not {layers}; give at most {count}")
    keep_first_layers(encoder, layers)
