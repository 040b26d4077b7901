"""Reading of RDF into rdflib graphs whose literals are plain texts, from sources that are not trusted.

rdflib computes the value of a literal with a datatype and writes it out again, so that `"1e999999999"^^xsd:decimal`
takes gigabytes, and it logs a literal that does not fit its datatype, with its text. No reader here needs values: the
literals of Turtle keep their text and language, those of RDF/XML are not written out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from wellread.errors import InputError

if TYPE_CHECKING:
    from rdflib import Graph

_OFTEN = 256
"""Triples between two calls of `stop`."""
_SETTINGS = threading.Lock()
"""Held while a setting of rdflib is changed, which is one for all threads."""


def parse_turtle(turtle: str, base: str, *, most: int | None = None, stop: Callable[[], bool] | None = None) -> Graph:
    """Return the graph of a text in Turtle or N-Triples; raises what rdflib raises, of many types.

    Relative IRIs belong to `base`. More than `most` triples, or `stop` that returns True, are an `InputError`.
    """
    from rdflib import Graph
    from rdflib.plugins.parsers.notation3 import SinkParser

    graph = Graph()
    sink = _sink_type()(graph, most, stop)
    SinkParser(sink, baseURI=graph.absolutize(base), turtle=True).loadBuf(turtle)
    return graph


def parse_xml(data: bytes, base: str) -> Graph:
    """Return the graph of RDF/XML; raises what rdflib and its XML parser raise."""
    from rdflib import Graph

    with _literals_as_written():
        return Graph().parse(data=data, format="xml", publicID=base)


@cache
def _sink_type() -> Any:
    """Return the class that receives triples and makes literals; a function, as rdflib is imported when needed."""
    from rdflib import Literal
    from rdflib.plugins.parsers.notation3 import RDFSink

    class TextSink(RDFSink):
        """Receiver of triples with literals as texts, which counts the triples."""

        def __init__(self, graph: Graph, most: int | None, stop: Callable[[], bool] | None) -> None:
            super().__init__(graph)
            self._count, self._most, self._stop = 0, most, stop

        def newLiteral(self, s: str, dt: Any = None, lang: str | None = None) -> Any:  # noqa: N802  # rdflib's name
            """Return a literal without its datatype."""
            return Literal(s, lang=lang)

        def makeStatement(self, *args: Any, **options: Any) -> None:  # noqa: N802  # rdflib's name
            """Add a triple, unless there are too many or the result is no longer needed."""
            self._count += 1
            if self._most is not None and self._count > self._most:
                raise InputError(f"has more than {self._most:,} triples; send less at once")
            if self._stop is not None and not self._count % _OFTEN and self._stop():
                raise InputError("was not read to its end: its result is no longer needed")
            super().makeStatement(*args, **options)

    return TextSink


@contextmanager
def _literals_as_written() -> Iterator[None]:
    """Let rdflib neither write out the values of literals nor log those that do not fit their datatype."""
    import rdflib

    log = logging.getLogger("rdflib.term")
    with _SETTINGS:
        normalize, disabled = rdflib.NORMALIZE_LITERALS, log.disabled
        rdflib.NORMALIZE_LITERALS, log.disabled = False, True
        try:
            yield
        finally:
            rdflib.NORMALIZE_LITERALS, log.disabled = normalize, disabled
