"""What transformers is told of wellread, when it is there: after `import wellread`, in whichever order.

`AutoModel` loads encoders with infusions, and `pipeline("entity-linking")` links. Nothing is imported for it until
somebody imports the part of transformers that it belongs to, or loads such an encoder, so that `import wellread` stays
quick.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

INFUSED = "infused-"
"""How the types of encoders with infusions begin."""


def _register_configs(theirs: ModuleType) -> None:
    """Have `AutoConfig`, which all of Auto's classes ask first, look again when it does not know an infused encoder.

    Classes cannot be registered yet: who imports this module may be in the middle of importing those they come from.
    """
    plain: Callable[..., Any] = theirs.AutoConfig.from_pretrained.__func__

    def from_pretrained(cls: type, *given: Any, **more: Any) -> Any:
        try:
            return plain(cls, *given, **more)
        except (ValueError, KeyError) as error:
            if INFUSED not in str(error) or "wellread.encoders.infusion.infuse" in sys.modules:
                raise
        import_module("wellread.encoders.infusion.infuse")
        return plain(cls, *given, **more)

    from_pretrained.__doc__ = plain.__doc__
    theirs.AutoConfig.from_pretrained = classmethod(from_pretrained)


def _register_pipelines(theirs: ModuleType) -> None:
    import_module("wellread.integrations.transformers.pipeline")


AWAITED: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.pipelines": _register_pipelines,
}
"""Modules of transformers, and how each is told."""


class _ImportHook:
    """A finder that finds nothing by itself: it has the loaders of some modules tell them of us."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        tell = AWAITED.get(name)
        if tell is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and not isinstance(finder, _ImportHook) else None
            if spec is not None:
                _follow(spec, tell)
                return spec
        return None


def _follow(spec: ModuleSpec, tell: Callable[[ModuleType], None]) -> None:
    loader = spec.loader
    assert loader is not None
    load = loader.exec_module

    def load_and_register(module: ModuleType) -> None:
        load(module)
        tell(module)

    loader.exec_module = load_and_register  # type: ignore[method-assign]


def register() -> None:
    """Tell transformers of us: at once what it has imported already, the rest when it comes."""
    if any(isinstance(finder, _ImportHook) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _ImportHook())
    for name, tell in AWAITED.items():
        if name in sys.modules:
            tell(sys.modules[name])
