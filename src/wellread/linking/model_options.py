"""Options of `Linker.load` that belong to some models only; an option that a model ignores is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from wellread.errors import UsageError

ModelKind = Literal["elq", "knowbert", "luke", "prior"]
"""Type of a linker's model."""

DEFAULTS: dict[str, Any] = {
    "kind": "joint",
    "overlaps": "auto",
    "sources": "union",
    "among": None,
    "kinds": None,
    "trust": None,
    "precision": "auto",
    "tags": "auto",
    "order": "global",
    "passes": 8,
    "device": "cpu",
}
"""Options that not every model has, with the defaults of `Linker.load`."""

TAKEN: dict[ModelKind, frozenset[str]] = {
    "elq": frozenset({"kind", "overlaps", "sources", "among", "kinds", "trust", "precision", "device"}),
    "knowbert": frozenset({"overlaps", "among", "kinds", "precision", "tags"}),
    "luke": frozenset({"overlaps", "among", "kinds", "trust", "order", "passes", "device"}),
    "prior": frozenset({"overlaps"}),
}
"""Options of each model."""


def ignored_options(model: ModelKind, options: Mapping[str, Any]) -> list[str]:
    """Return the options that are not at their defaults and that a model does not have.

    >>> ignored_options("prior", {"trust": 6.0, "overlaps": "keep", "passes": 8})
    ['trust']
    """
    others = DEFAULTS.keys() - TAKEN[model]
    return [name for name in DEFAULTS if name in others and _is_given(name, options)]


def used_options(model: ModelKind, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those that a model does not have."""
    ignored = ignored_options(model, options)
    return {name: value for name, value in options.items() if name not in ignored}


def _is_given(name: str, options: Mapping[str, Any]) -> bool:
    value, default = options.get(name, DEFAULTS[name]), DEFAULTS[name]
    if default is None or not isinstance(value, str | int):
        return value is not None
    return bool(value != default)


def refuse_ignored(models: Iterable[ModelKind], options: Mapping[str, Any]) -> None:
    """Raise an error for an option that none of the models has."""
    used = list(dict.fromkeys(models))
    ignored = [ignored_options(model, options) for model in used]
    for name in DEFAULTS:
        if ignored and all(name in some for some in ignored):
            takers = [model for model, taken in TAKEN.items() if name in taken]
            raise UsageError(
                f"{name} has no effect on model {' or '.join(used)}; leave it out, or choose a model that uses it: "
                f"{', '.join(takers)}"
            )
