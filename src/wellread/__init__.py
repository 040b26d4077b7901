"""wellread links text to a knowledge base and lends that knowledge to any pretrained encoder.

>>> from wellread import Linker
>>> [link.title for link in Linker.load().link("Mozart lived in Vienna.").links]
['Wolfgang Amadeus Mozart', 'Vienna']

Names are loaded when first used, so that `import wellread` costs nothing. transformers is told of what we have for it
when it is imported (`arrivals`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wellread.integrations.transformers.hooks import register

if TYPE_CHECKING:
    from wellread.document import Candidate, Document, Link, Mention
    from wellread.kb.records import Entity
    from wellread.kb.store import KnowledgeBase
    from wellread.linking.linker import Linker

__version__ = "0.1.0"

__all__ = ["Candidate", "Document", "Entity", "KnowledgeBase", "Link", "Linker", "Mention", "__version__"]

_HOMES = {
    "Candidate": "wellread.document",
    "Document": "wellread.document",
    "Entity": "wellread.kb.records",
    "KnowledgeBase": "wellread.kb.store",
    "Link": "wellread.document",
    "Linker": "wellread.linking.linker",
    "Mention": "wellread.document",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wellread' has no attribute {name!r}")


register()
