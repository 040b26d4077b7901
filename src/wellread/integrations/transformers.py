"""Registration with Hugging Face transformers: Auto classes of infused encoders, and an entity-linking pipeline.

>>> import wellread.integrations.transformers
>>> from transformers import pipeline
>>> pipeline("entity-linking")("Mozart lived in Vienna.")[0]["title"]
'Wolfgang Amadeus Mozart'

Importing this module calls `register`. `model` is the folder of a trained linker, or a `Linker`; a linker that has a
name but no folder is given as `linker="prior"`. Texts go through `Linker.link_many`, which makes its own batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.pipelines import PIPELINE_REGISTRY, base
from transformers.pipelines.pt_utils import KeyDataset

import wellread.encoders.infusion.infuse  # noqa: F401  # registers the infused classes with AutoModel and its heads
from wellread.document import Document, Link
from wellread.errors import UsageError
from wellread.linking.decoding import check_threshold
from wellread.linking.linker import Linker
from wellread.linking.prior import PriorBackend
from wellread.models.folder import LINKER

TASK = "entity-linking"
_Pipeline: Any = base.Pipeline  # its annotations expect models and tensors


class LinkerConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a linker folder; holds the model type only, so that AutoConfig accepts the folder."""

    model_type = LINKER

    def __init__(self, **given: Any) -> None:
        super().__init__()


class LinkerFolder:
    """Path of a linker, loaded by transformers as the model; the pipeline loads the linker with its KB."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"{self.name!r}, the linker that wellread chooses for the knowledge base"

    def __fspath__(self) -> str:
        """Return an existing folder: transformers looks up any other name on the hub."""
        return self.name if Path(self.name).is_dir() else str(Path(__file__).parent)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **given: Any) -> LinkerFolder:
        """Return the folder without loading it."""
        return cls(str(folder))


class EntityLinkingPipeline(_Pipeline):  # type: ignore[misc]
    """Pipeline that links texts to one KB; links have the field names of token classification."""

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = False

    def __init__(
        self,
        model: LinkerFolder | Linker | None = None,
        *,
        kb: str | Path | None = None,
        linker: str | Path | None = None,
        threshold: float | None = None,
        top_k: int | None = None,
        task: str = TASK,
        device: object = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        dtype: object = None,
        binary_output: bool = False,
        **settings: Any,
    ) -> None:
        # Pipeline.__init__ is not called: it moves a torch model to a device.
        if isinstance(model, Linker):
            if kb is not None or linker is not None or settings:
                raise UsageError(
                    "the Linker given as model has its knowledge base already; give only threshold and top_k beside it"
                )
            self.linker = model
        else:
            chosen = linker if linker is not None else model.name if model is not None else "auto"
            self.linker = Linker.load("vital" if kb is None else kb, chosen, **settings)
        self.task, self.model, self.device = task, self.linker, torch.device("cpu")
        self.tokenizer = self.feature_extractor = self.image_processor = self.processor = None
        self.call_count, self.binary_output = 0, binary_output
        self._batch_size, self._num_workers = batch_size, num_workers
        self._preprocess_params, self._forward_params, self._postprocess_params = self._sanitize_parameters(
            threshold=threshold, top_k=top_k
        )

    def __repr__(self) -> str:
        return f"EntityLinkingPipeline: {self.linker.name}"

    def __call__(
        self, inputs: str | Iterable[str], *, batch_size: int | None = None, num_workers: int | None = None, **how: Any
    ) -> Any:
        """Return the links of a text, a list of them for a list of texts, or an iterator for any other iterable.

        Each link has `entity`, `title`, `score`, `word`, `start`, `end`, `kb` and `candidates` (at most `top_k`).
        Links below `threshold` are omitted.
        """
        _, forward, postprocess = self._sanitize_parameters(**how)
        forward, postprocess = {**self._forward_params, **forward}, {**self._postprocess_params, **postprocess}
        if isinstance(inputs, bytes | dict) or not (hasattr(inputs, "__iter__") or hasattr(inputs, "__getitem__")):
            raise UsageError(f"cannot link {type(inputs).__name__}; give a text, a list of texts or a stream of them")
        texts = [inputs] if isinstance(inputs, str) else inputs
        if isinstance(inputs, KeyDataset):  # has __getitem__ and __len__ only; its iterator would not end
            texts = (inputs[number] for number in range(len(inputs)))
        found = (self.postprocess(document, **postprocess) for document in self._documents(texts, **forward))
        if isinstance(inputs, str):
            return next(found)
        return list(found) if isinstance(inputs, list | tuple) else found

    def _documents(self, texts: Iterable[str], threshold: float | None = None) -> Iterator[Document]:
        if threshold is None:
            yield from self.linker.link_many(texts)
        elif isinstance(self.linker.backend, PriorBackend):
            for document in self.linker.link_many(texts):
                links = (link for link in document.links if link.entity is None or link.score >= threshold)
                yield Document(document.text, tuple(links), document.id, document.meta)
        else:
            for scored in self.linker.score_many(texts):
                yield scored.document(threshold=threshold)

    def _sanitize_parameters(
        self, threshold: float | None = None, top_k: int | None = None, **odd: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if odd:
            raise UsageError(f"unknown option {', '.join(odd)}; a call takes threshold and top_k")
        check_threshold(threshold)
        if top_k is not None and (not isinstance(top_k, Integral) or top_k < 0):
            raise UsageError(f"top_k={top_k!r} is not a number of candidates; give 0, 1, 2 …, or omit it for all")
        forward = {} if threshold is None else {"threshold": threshold}
        return {}, forward, {} if top_k is None else {"top_k": top_k}

    def preprocess(self, text: str) -> str:
        """Return the text unchanged: the linker tokenizes it."""
        return text

    def _forward(self, text: str, threshold: float | None = None) -> Document:
        return next(self._documents([text], threshold))

    def postprocess(self, document: Document, top_k: int | None = None) -> list[dict[str, Any]]:
        """Return the links as dicts."""
        return [_to_dict(link, top_k) for link in document.links]

    def save_pretrained(self, save_directory: str | Path, **given: Any) -> None:
        """Raise: the KB and the model are files already."""
        raise UsageError(
            f"a linking pipeline cannot be saved; its knowledge base and model are files already: copy "
            f"{self.linker.kb.path}"
        )


def _to_dict(link: Link, top_k: int | None) -> dict[str, Any]:
    fields = asdict(link)
    fields["word"] = fields.pop("text")
    fields["candidates"] = list(fields["candidates"][:top_k])
    return fields


def register() -> None:
    """Register the pipeline task and the config of linker folders with transformers."""
    AutoConfig.register(LINKER, LinkerConfig, exist_ok=True)
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        default = {"model": (LinkerFolder("auto"), None)}
        PIPELINE_REGISTRY.register_pipeline(TASK, EntityLinkingPipeline, LinkerFolder, default, type="text")


register()
