"""Frozen dataclasses ⇄ TOML: recipes are read, overridden from the command line and written completely.

A setting is a bool, int, float, str, a `Literal`, a tuple, a dict with str keys, another dataclass (a table in TOML),
or one of these or None. TOML has no None, so such a setting is left out and must have None as its default. A typo, a
wrong type or a value outside its `Literal` is an error that says what was expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from wellread.errors import InputError, UsageError, WellreadError
from wellread.io.files import path_name, read_text

T = TypeVar("T")

_PLAIN: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def read(cls: type[T], path: str | Path) -> T:
    """Read settings from a TOML file; missing ones have their defaults."""
    table = read_table(path)
    try:
        return from_dict(cls, table)
    except InputError as error:
        raise InputError(f"{path_name(path)}: {error}") from None


def read_table(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as a plain dict."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path_name(path)}: not TOML: {error}; expected lines like: name = value") from None


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """Build a dataclass from a dict: `from_dict(cls, to_dict(settings)) == settings`."""
    return typing.cast(T, _table(cls, data, ""))


def to_dict(settings: Any) -> dict[str, Any]:
    """Return settings as plain dicts, lists and values as TOML has them, without those that are None."""
    return {
        field.name: _plain(value)
        for field in _fields(type(settings)).values()
        if (value := getattr(settings, field.name)) is not None
    }


def to_toml(settings: Any) -> str:
    """Return settings as TOML, defaults included: `from_dict(cls, tomllib.loads(to_toml(settings))) == settings`."""
    return "\n".join(_lines(to_dict(settings), "")).strip("\n") + "\n"


def override(settings: T, changes: Iterable[str]) -> T:
    """Return settings with changes as from a command line: `override(recipe, ["training.steps=100"])`.

    Values are written as in TOML, but a string needs no quotes; `none` removes an optional setting. A list may also be
    its members joined by "+", "maps.maps=entity+phrase", or `none` if it is empty.
    """
    valid, joint, refused = to_dict(settings), to_dict(settings), None
    for change in changes:
        name, equals, text = change.partition("=")
        name, text = name.strip(), text.strip()
        if not equals or not name:
            raise UsageError(f"{change!r} changes no setting; expected name=value, as in training.steps=100")
        value, error = _settle(type(settings), valid, name, text)
        refused = refused or error
        keys = _keys(type(settings), name)
        joint = _with(joint, keys, value)
        valid = _with(valid, keys, value) if error is None else valid
    try:  # two changes may be valid together where one alone is not
        return from_dict(type(settings), joint)
    except InputError as error:
        raise UsageError(str(refused or error)) from None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return settings that differ between two tables, by full name: {"training.steps": (100, 200)}; None if missing."""
    before, after = _flat(old), _flat(new)
    names = [*before, *(name for name in after if name not in before)]
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def changed(path: str | Path, settings: Any) -> dict[str, tuple[Any, Any]]:
    """Return how settings differ from those in a file, perhaps written by an earlier version.

    Settings that did not exist then have their defaults.
    """
    before = read_table(path)
    with contextlib.suppress(WellreadError):  # a file with removed settings is compared as it is
        before = to_dict(from_dict(type(settings), before))
    return differences(before, to_dict(settings))


# from plain to typed


class _SenselessError(InputError):
    """Values that are valid one by one, but not together."""


def _fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


def _table(cls: Any, data: Any, name: str) -> Any:
    """Build the dataclass `cls` from a table whose full name is `name` ("" is the whole file)."""
    if not isinstance(data, Mapping):
        raise InputError(f"{name!r} is {_shown(data)}; expected a table of settings: {', '.join(_fields(cls))}")
    hints, fields, values = typing.get_type_hints(cls), _fields(cls), {}
    for key, value in data.items():
        if key not in fields:
            raise InputError(f"{_join(name, key)!r} is not a setting of {cls.__name__}; {_hint(cls, hints, name, key)}")
        try:
            values[key] = _value(hints[key], value, _join(name, key))
        except InputError as error:
            if other := _setting_for(value, key, hints):
                raise type(error)(f"{error}; did you mean {_join(name, other)!r}?") from None
            raise
    for field in fields.values():
        if _is_union(hints[field.name]) and field.default is not None:
            raise TypeError(f"{cls.__name__}.{field.name} may be None, so None must be its default")
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            if dataclasses.is_dataclass(hints[field.name]):
                values[field.name] = _table(hints[field.name], {}, _join(name, field.name))
                continue
            raise InputError(
                f"{_join(name, field.name)!r} is missing; {cls.__name__} needs it: {_expected(hints[field.name])}"
            )
    try:
        return cls(**values)
    except WellreadError as error:
        raise _SenselessError(f"{name}: {error}" if name else str(error)) from error


def _value(kind: Any, value: Any, name: str) -> Any:
    """Convert a value to the type of its field."""
    if _is_union(kind):
        return None if value is None else _value(_one_of(kind), value, name)
    if dataclasses.is_dataclass(kind):
        return _table(kind, value, name)
    origin, inner = get_origin(kind), get_args(kind)
    fits: bool
    if origin is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in inner)
    elif origin is tuple:
        if fits := isinstance(value, list | tuple):
            kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
            if fits := len(kinds) == len(value):
                return tuple(_value(k, v, f"{name}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    elif origin is dict:
        if fits := isinstance(value, Mapping):
            return {key: _value(inner[1], each, _join(name, key)) for key, each in value.items()}
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif kind in _PLAIN:
        fits = type(value) is kind
    else:
        raise TypeError(f"{name}: a setting cannot be {kind}; see wellread.config")
    if not fits:
        raise InputError(f"{name!r} is {_shown(value)}; expected {_expected(kind)}")
    return value


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _one_of(kind: Any) -> Any:
    """Return the type `X` of `X | None`."""
    (one,) = (each for each in get_args(kind) if each is not type(None))
    return one


def _expected(kind: Any) -> str:
    if _is_union(kind):
        return f"{_expected(_one_of(kind))}, or nothing"
    if dataclasses.is_dataclass(kind):
        return "a table"
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(_shown(choice) for choice in inner)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return f"a list, each {_expected(inner[0])}"
        return f"a list of {len(inner)}: {', '.join(map(_expected, inner))}"
    if origin is dict:
        return f"a table, each {_expected(inner[1])}"
    return _PLAIN[kind]


def _hint(cls: Any, hints: Mapping[str, Any], name: str, key: str) -> str:
    """Suggest a setting: a similar name, or the same name in another table."""
    for table, kind in hints.items():
        if dataclasses.is_dataclass(kind) and key in _fields(kind):
            return f"did you mean {_join(name, table, key)!r}?"
    if close := difflib.get_close_matches(key, _fields(cls), n=1):
        return f"did you mean {_join(name, close[0])!r}?"
    return f"its settings are: {', '.join(_fields(cls))}"


def _setting_for(value: Any, key: str, hints: Mapping[str, Any]) -> str | None:
    """Return a setting with a similar name that the value fits: "dev" for develop = "dev.tsv"."""
    if isinstance(value, Mapping):
        return None
    for other in difflib.get_close_matches(key, hints.keys() - {key}):
        if not dataclasses.is_dataclass(hints[other]):
            with contextlib.suppress(InputError):
                _value(hints[other], value, other)
                return other
    return None


def _join(*names: str) -> str:
    return ".".join(filter(None, names))


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)


# from typed to plain, and to TOML


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _lines(table: Mapping[str, Any], name: str) -> list[str]:
    """Return TOML lines: values first, then tables, since lines after a header belong to it."""
    below = {key: each for key, each in table.items() if isinstance(each, Mapping) or _has_tables(each)}
    lines = [f"{_key(key)} = {_written(each)}" for key, each in table.items() if key not in below]
    for key, each in below.items():
        header = _join(name, _key(key))
        for one in each if isinstance(each, list) else [each]:
            lines += ["", f"[[{header}]]" if isinstance(each, list) else f"[{header}]", *_lines(one, header)]
    return lines


def _has_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _written(key)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # repr is exact, and Python's inf, nan and 1e-05 are TOML's too
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise UsageError(f"{value!r} is not Unicode text; rename the file, or give another string")
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_written(each)}' for key, each in value.items())}}}"
    raise TypeError(f"{value!r} cannot be written as TOML; see wellread.config")


# changes


def _settle(cls: type, data: dict[str, Any], name: str, text: str) -> tuple[Any, InputError | None]:
    """Return the data with the value of one setting parsed; and the error of the whole, if it is not valid so."""
    # None is the default of an optional setting; for others it produces the error that names what is expected.
    readings = (None, text) if text == "none" else _readings(text)
    refused: InputError | None = None
    senseless: list[tuple[Any, InputError]] = []
    for reading in (*readings, *_list_readings(text)):
        try:
            from_dict(cls, _with(data, _keys(cls, name), reading))
        except _SenselessError as error:
            senseless.append((reading, error))
        except InputError as error:
            refused = refused or error
        else:
            if not senseless:
                return reading, None
            break
    if senseless:
        return senseless[0]
    raise UsageError(str(refused)) from None


def _keys(kind: Any, name: str) -> list[str]:
    """Split the name of a setting by table: "schedule.rates.encoder.infusions" has three parts, as rates are a dict."""
    kind = _one_of(kind) if _is_union(kind) else kind
    below_dict = get_args(kind)[1] if get_origin(kind) is dict else None
    if below_dict in _PLAIN:
        return [name.strip("\"'")]
    key, dot, rest = name.partition(".")
    if not dot:
        return [key]
    hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
    return [key, *_keys(below_dict or hints.get(key), rest)]


def _with(data: dict[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of the data with one value replaced."""
    key, *below = keys
    if not below:
        return {**data, key: value}
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{'.'.join(keys)!r} is not a setting; {key!r} is one, and has no settings of its own")
    return {**data, key: _with(table, below, value)}


def _readings(text: str) -> Sequence[Any]:
    """Return possible values of a text: its TOML value, and the text itself ("1" may be a name)."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return (text,)
    if table.keys() != {"value"}:
        return (text,)
    return (table["value"],) if isinstance(table["value"], str) else (table["value"], text)


def _list_readings(text: str) -> Sequence[Any]:
    """Return possible values of a text for a list: its members, each as TOML or as text."""
    members = [] if text == "none" else [member.strip() for member in text.split("+")]
    if not all(members):
        return ()
    return ([_readings(member)[0] for member in members], members)


def _flat(table: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, _join(name, key))
        else:
            flat[_join(name, key)] = value
    return flat
