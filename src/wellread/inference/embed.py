"""Contextual embeddings of tokens, words, mentions and texts, from any encoder with its knowledge.

    embedder = Embedder.build(load_encoder("minilm"), load_tokenizer("minilm"))
    for rows in embedder.embed([Document("The bank of the river.")], of="words"):
        rows.vectors, rows.texts, rows.spans

Texts are streamed and may have any length: long ones are read in windows, and every row comes from the window that owns
its first token. The vector of a word or mention is the mean of its tokens; that of a text is the mean of all its
tokens, special ones included, as in sentence encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from jaxtyping import Float32, Int64
from tokenizers import Tokenizer

from wellread.data.batches import gather
from wellread.document import Document, Link
from wellread.errors import UsageError
from wellread.runtime.session import EncoderSession
from wellread.text.tokenization import Tokenization
from wellread.text.windows import TextWindow, TextWindowTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from wellread.encoders.infusion.providers import KnowledgeProvider

Of = Literal["pieces", "words", "mentions", "texts"]
Pooling = Literal["mean", "first"]

_TEXTS, _CHARACTERS = 256, 1 << 20
"""Texts, and characters, that are annotated together."""
_CHUNK = 1 << 14
"""Tokens whose states are kept before rows are emitted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Vectors in the order of texts and characters."""

    vectors: Float32[np.ndarray, "row dim"]
    texts: Int64[np.ndarray, " row"]
    """Index of each row's text in the stream."""
    spans: Int64[np.ndarray, "row 2"]
    """Character span in the text."""
    names: list[str]
    """Text of the span; "" for whole texts."""
    more: Mapping[str, list[Any]] = field(default_factory=dict)
    """Extra columns: `piece` ids of tokens; `entity`, `kb` and `score` of mentions."""


class TokenStates(Protocol):
    """Protocol of encoders of tokenized texts, with the knowledge they need."""

    @property
    def dim(self) -> int:
        """Size of a state."""

    def prepare(self, inputs: Sequence[Tokenization]) -> Any:
        """Return notes on what the encoder needs to know about the inputs."""

    def states(self, inputs: Sequence[Tokenization], notes: Any) -> list[Float32[np.ndarray, "token dim"]]:
        """Return the token states of each of the prepared inputs."""


class RuntimeStates:
    """Computes token states with a plain encoder on onnxruntime."""

    def __init__(self, session: EncoderSession) -> None:
        self.session = session

    @property
    def dim(self) -> int:
        """Size of a state."""
        return self.session.dim

    def prepare(self, inputs: Sequence[Tokenization]) -> None:
        """Return nothing: a plain encoder needs the tokens only."""

    def states(self, inputs: Sequence[Tokenization], notes: Any) -> list[Float32[np.ndarray, "token dim"]]:
        """Return the token states of each input."""
        if not inputs:
            return []
        found = self.session.states([one.ids for one in inputs])
        return np.split(found, np.cumsum([len(one) for one in inputs])[:-1])


class Embedder:
    """Computes embeddings with one encoder."""

    def __init__(
        self, encoder: TokenStates, tokenizer: Tokenizer, *, positions: int, width: int = 256, sentences: int = 0
    ) -> None:
        """Windows have at most `width` tokens, and no more than the encoder has `positions`."""
        self.encoder = encoder
        width = min(width, positions)
        shared = max(2, min(48, width // 4))
        self.window_tokenizer = TextWindowTokenizer(tokenizer, width=width, shared=shared, sentences=sentences)

    @classmethod
    def build(
        cls,
        encoder: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        provider: KnowledgeProvider | None = None,
        width: int = 256,
        sentences: int = 0,
    ) -> Embedder:
        """Build an embedder of a plain or infused encoder on torch, with windows of at most `width` tokens."""
        from wellread.inference.torch_states import TorchStates

        states = TorchStates(encoder, provider)
        return cls(states, tokenizer, positions=states.positions, width=width, sentences=sentences)

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return self.encoder.dim

    def embed(
        self, documents: Iterable[Document], *, of: Of = "texts", pooling: Pooling = "mean", unit: bool = False
    ) -> Iterator[Rows]:
        """Yield embeddings of each document's text, words, tokens or links, in chunks of rows.

        `pooling` is the vector of a text: the mean of its tokens, or the `first` token. `unit` normalises to length 1.
        """
        if of not in get_args(Of):
            raise UsageError(f"of={of!r} is not known; choose {', '.join(get_args(Of))}")
        if pooling not in get_args(Pooling):
            raise UsageError(f"pooling={pooling!r} is not known; choose {', '.join(get_args(Pooling))}")
        collector = _Texts(pooling) if of == "texts" else _COLLECTORS[of]()
        begin = 0
        for group in gather(documents, largest=_CHARACTERS, most=_TEXTS, size=lambda document: len(document.text)):
            tokenized = self.window_tokenizer.tokenize([one.text for one in group])
            windows = [one for some in tokenized for one in some]
            notes = self.encoder.prepare([one.input for one in windows])
            for chunk in gather(windows, largest=_CHUNK):
                states = self.encoder.states([one.input for one in chunk], notes)
                for window, found in zip(chunk, states, strict=True):
                    collector.take(window, found, group[window.text], begin + window.text)
                if len(collector) >= _CHUNK and of != "texts":
                    yield collector.rows(unit)
            collector.end(begin, len(group), self.dim)
            if len(collector):
                yield collector.rows(unit)
            begin += len(group)

    def nothing(self, of: Of) -> Rows:
        """Return an empty `Rows` with the right columns."""
        more: dict[str, list[Any]] = {name: [] for name in (() if of == "texts" else _COLLECTORS[of].columns)}
        return Rows(np.zeros((0, self.dim), np.float32), np.zeros(0, np.int64), np.zeros((0, 2), np.int64), [], more)


@dataclass
class _Collector:
    """Collects rows of one kind."""

    columns: ClassVar[tuple[str, ...]] = ()
    """Names of extra columns (`Rows.more`)."""
    vectors: list[Any] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    more: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, window: TextWindow, states: Any, document: Document, number: int) -> None:
        """Add the rows of a window, given its states."""
        raise NotImplementedError

    def end(self, begin: int, count: int, dim: int) -> None:
        """Finish a group of texts."""

    def add(self, number: int, span: tuple[int, int], name: str, vector: Any, **more: Any) -> None:
        """Add one row."""
        self.vectors.append(vector)
        self.texts.append(number)
        self.spans.append(span)
        self.names.append(name)
        for key, value in more.items():
            self.more.setdefault(key, []).append(value)

    def rows(self, unit: bool) -> Rows:
        """Return the collected rows, and start over."""
        vectors = np.stack(self.vectors).astype(np.float32, copy=False)
        if unit:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)
        texts, spans = np.array(self.texts, np.int64), np.array(self.spans, np.int64).reshape(-1, 2)
        made = Rows(vectors, texts, spans, self.names, self.more)
        self.vectors, self.texts, self.spans, self.names, self.more = [], [], [], [], {}
        return made


class _Tokens(_Collector):
    columns = ("piece",)

    def take(self, window: TextWindow, states: Any, document: Document, number: int) -> None:
        one = window.input
        for place in range(window.first, window.last):
            start, end = one.spans[place].tolist()
            self.add(number, (start, end), document.text[start:end], states[place], piece=int(one.ids[place]))


class _Words(_Collector):
    def take(self, window: TextWindow, states: Any, document: Document, number: int) -> None:
        one = window.input
        known = np.flatnonzero(one.word_of >= 0)
        words, first, counts = np.unique(one.word_of[known], return_index=True, return_counts=True)
        sums = np.add.reduceat(states[known], first) if len(known) else states[:0]
        for word, at, total, many in zip(words.tolist(), known[first].tolist(), sums, counts.tolist(), strict=True):
            if window.first <= at < window.last:
                start, end = one.word_spans[word].tolist()
                self.add(number, (start, end), document.text[start:end], total / many)


class _Mentions(_Collector):
    columns = ("entity", "kb", "score")

    def take(self, window: TextWindow, states: Any, document: Document, number: int) -> None:
        one = window.input
        own = one.spans[window.first : window.last]
        low, high = int(own[0, 0]), int(own[-1, 1])
        for link in document.links:
            if not low <= link.start < high:
                continue
            touched = np.flatnonzero(
                (one.segment_of == 0) & (one.spans[:, 0] < link.end) & (one.spans[:, 1] > link.start)
            )
            if len(touched) and window.first <= touched[0] < window.last:
                self._add(number, link, states[touched].mean(0))

    def _add(self, number: int, link: Link, vector: Any) -> None:
        more = {"entity": link.entity or "", "kb": link.kb or "", "score": float(link.score)}
        self.add(number, (link.start, link.end), link.text, vector, **more)


class _Texts(_Collector):
    """Sums states over the windows of each text."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling
        self._sums: dict[int, tuple[Any, int, int]] = {}

    def take(self, window: TextWindow, states: Any, document: Document, number: int) -> None:
        if self.pooling == "first":
            total, many = states[0], 1
        else:
            own = np.flatnonzero(window.input.segment_of < 0)
            total = states[window.first : window.last].sum(0) + states[own].sum(0)
            many = window.last - window.first + len(own)
        before, count, _ = self._sums.get(number, (0.0, 0, 0))
        self._sums[number] = before + total, count + many, len(document.text)

    def end(self, begin: int, count: int, dim: int) -> None:
        for number in range(begin, begin + count):
            total, many, size = self._sums.pop(number, (np.zeros(dim, np.float32), 1, 0))
            self.add(number, (0, size), "", total / many)


_COLLECTORS: dict[str, type[_Collector]] = {"pieces": _Tokens, "words": _Words, "mentions": _Mentions}
