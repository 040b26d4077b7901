"""Entity linking to any knowledge base, and infusion of its knowledge into pretrained encoders.

>>> from wellread import Linker
>>> [link.title for link in Linker.load().link("Mozart lived in Vienna.").links]
['Wolfgang Amadeus Mozart', 'Vienna']

Names are imported on first use, so `import wellread` loads neither torch nor transformers, and changes nothing in
them. To register the infused encoders and the entity-linking pipeline with transformers, import
`wellread.integrations.transformers`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wellread.io.extras import missing_extras

if TYPE_CHECKING:
    from wellread.document import Candidate, Document, Link, Mention
    from wellread.encoders.infusion.infuse import infuse
    from wellread.encoders.load import load_encoder
    from wellread.kb.records import Entity
    from wellread.kb.store import KnowledgeBase
    from wellread.linking.linker import Linker
    from wellread.models.kam.model import KamConfig
    from wellread.models.knowbert.config import KnowBertConfig
    from wellread.models.luke.config import LukeConfig

__version__ = "0.1.0"

__all__ = [
    "Candidate",
    "Document",
    "Entity",
    "KamConfig",
    "KnowBertConfig",
    "KnowledgeBase",
    "Link",
    "Linker",
    "LukeConfig",
    "Mention",
    "__version__",
    "infuse",
    "load_encoder",
]

_MODULES = {
    "Candidate": "wellread.document",
    "Document": "wellread.document",
    "Entity": "wellread.kb.records",
    "KamConfig": "wellread.models.kam.model",
    "KnowBertConfig": "wellread.models.knowbert.config",
    "KnowledgeBase": "wellread.kb.store",
    "Link": "wellread.document",
    "Linker": "wellread.linking.linker",
    "LukeConfig": "wellread.models.luke.config",
    "Mention": "wellread.document",
    "infuse": "wellread.encoders.infusion.infuse",
    "load_encoder": "wellread.encoders.load",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name in _MODULES:
        with missing_extras(f"wellread.{name}"):
            return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'wellread' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
