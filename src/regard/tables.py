"""Nested tables (TOML, JSON) to frozen dataclasses and back, with errors that name the setting."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from regard.errors import RegardError
from regard.files import reading

Section = TypeVar("Section")
Table = dict[str, Any]


def read_table(kind: type[Section], table: Mapping[str, Any], section: str = "") -> Section:
    """A dataclass from a table, as TOML or JSON hold one.

    Args:
        kind: the dataclass; its annotations say what each key may hold.
        table: the values by key; what is left out has the default of its field.
        section: the name of the table, for errors.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     width: int = 4
    ...     tied: bool = False
    >>> read_table(Sizes, {"width": 8}, "model")
    Sizes(width=8, tied=False)
    >>> read_table(Sizes, {"widht": 8}, "model")
    Traceback (most recent call last):
    regard.errors.RegardError: there is no setting model.widht; did you mean model.width?
    """
    field_types = _kinds(kind)
    for key in table:
        if key not in field_types:
            raise RegardError(_unknown(key, kind, section))
    values = {
        key: _fit(field_types[key], value, _name(section, key)) for key, value in table.items()
    }
    return kind(**values)


def override(kind: type, table: Table, setting: str) -> Table:
    """The table with one more setting, said as `part.key=value`; the value as TOML writes it, or a
    plain word.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     width: int = 4
    >>> override(Sizes, {}, "width=256")
    {'width': 256}
    """
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise RegardError(
            f"a setting is said as part.key=value, such as model.hidden=256; found {setting!r}"
        )
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    return _placed(kind, table, keys, value, "")


def read_toml(path: Path) -> Table:
    """The table of a TOML file; an error names its line."""
    text = ""
    try:
        with reading(path):
            text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RegardError(f"{path} is not TOML: {error}{_hint(text, error)}") from error


def absolute_path(text: str, folder: Path) -> str:
    """A path of a configuration from its folder; environment variables and "~" are filled in, and
    what begins with a variable is relative to the current folder."""
    filled = os.path.expanduser(os.path.expandvars(text))
    missing = re.search(r"\$\{?(\w+)", filled)
    if missing:
        raise RegardError(
            f"the path {text} needs the environment variable {missing[1]}, which is not set"
        )
    start = Path() if text.startswith("$") else folder
    return str((start / filled).resolve())


def merged(below: Table, above: Table) -> Table:
    """One table over another: what both say, the upper one says."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        nested = isinstance(under, dict) and isinstance(value, dict)
        both[key] = merged(under or {}, value) if nested else value
    return both


def write_toml(table: Mapping[str, Any], section: str = "") -> str:
    """A table as TOML: plain values first, then the tables inside it. None is left out.

    >>> print(write_toml({"seed": 1, "model": {"name": "dot"}}))
    seed = 1
    <BLANKLINE>
    [model]
    name = "dot"
    <BLANKLINE>
    """
    plain = [
        f"{key} = {_literal(value)}\n"
        for key, value in table.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    tables = [
        f"\n[{_name(section, key)}]\n" + write_toml(value, _name(section, key))
        for key, value in table.items()
        if isinstance(value, Mapping)
    ]
    return "".join(plain + tables)


def check_numbers(
    section: str,
    config: Any,
    *,
    above_0: tuple[str, ...] = (),
    at_least_0: tuple[str, ...] = (),
    shares: tuple[str, ...] = (),
    below_1: tuple[str, ...] = (),
    seeds: tuple[str, ...] = (),
) -> None:
    """Refuse numbers out of range, by the name they have in the file."""
    ranges: list[tuple[tuple[str, ...], str, float, float]] = [
        (at_least_0, "at least 0", 0, math.inf),
        (above_0, "above 0", math.nextafter(0, 1), math.inf),
        (shares, "from 0 to 1", 0, 1),
        (below_1, "from 0 to below 1", 0, math.nextafter(1, 0)),
        (seeds, "from 0 to below 2 to the power of 63", 0, (1 << 63) - 1),
    ]
    for names, wanted, least, most in ranges:
        for name in names:
            value = getattr(config, name)
            if not least <= value <= most:
                raise RegardError(f"{section}.{name} must be {wanted}, found {value}")


def _hint(text: str, error: Exception) -> str:
    """The line of an error, and a hint."""
    position = re.search(r"\(at line (\d+)", str(error))
    if position is None:
        return ""
    line = text.split("\n")[int(position[1]) - 1].strip()
    capital = re.search(r"=\s*(True|False)\b", line)
    return f": {line:.60}" + (f"; TOML writes {capital[1].lower()}" if capital else "")


def _placed(kind: Any, table: Table, keys: list[str], value: Any, section: str) -> Table:
    key, *rest = keys
    field_types = _kinds(kind)
    if key not in field_types:
        raise RegardError(_unknown(key, kind, section))
    name = _name(section, key)
    if not rest:
        beside = table.get(key)
        if getattr(field_types[key], "SHORT", "") == "name" and isinstance(beside, Mapping):
            value = {
                **beside,
                **_as_table(field_types[key], value, name),
            }  # the name alone changes
        return table | {key: value}
    if typing.get_origin(field_types[key]) is dict:
        return table | {key: _free(table.get(key, {}), rest, value, name)}
    if not is_dataclass(field_types[key]):
        raise RegardError(f"{name} holds one value, so there is no {name}.{'.'.join(rest)}")
    inside = dict(_as_table(field_types[key], table.get(key, {}), name))
    return table | {key: _placed(field_types[key], inside, rest, value, name)}


def _free(table: Any, keys: list[str], value: Any, section: str) -> Table:
    """A table of any keys with one more setting."""
    if not isinstance(table, Mapping):
        raise RegardError(f"{section} holds {table!r}, so there is no {section}.{'.'.join(keys)}")
    key, *rest = keys
    inner = _free(table.get(key, {}), rest, value, _name(section, key)) if rest else value
    return {**table, key: inner}


def _kinds(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _unknown(key: str, kind: Any, section: str) -> str:
    names = list(_kinds(kind))
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    meant = _deeper(key, kind, section) or [_name(section, match) for match in near]
    name = _name(section, key)
    if meant:
        return f"there is no setting {name}; did you mean {' or '.join(meant)}?"
    return f"there is no setting {name}; there are: {', '.join(names)}"


def _deeper(key: str, kind: Any, section: str) -> list[str]:
    """The settings of that very name in the tables inside."""
    names = []
    for name, inner in _kinds(kind).items():
        if is_dataclass(inner):
            inside = _name(section, name)
            names += [_name(inside, key)] * (key in _kinds(inner)) + _deeper(key, inner, inside)
    return names


def _fit(kind: Any, value: Any, name: str) -> Any:
    """The value as its field holds it, or an error that names both."""
    if is_dataclass(kind):
        return read_table(typing.cast(type, kind), _as_table(kind, value, name), name)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _one_of(typing.get_args(kind), value, name)
    if origin is dict:
        return dict(_as_table(kind, value, name))
    if origin is Literal:
        return _choice(typing.get_args(kind), value, name)
    if origin is tuple:
        return _several(typing.get_args(kind)[0], value, name)
    return _single(kind, value, name)


def _as_table(kind: Any, value: Any, name: str) -> Mapping[str, Any]:
    """A table; or one value, where the dataclass says by `SHORT` which of its fields that means."""
    if isinstance(value, Mapping):
        return value
    if not hasattr(kind, "SHORT"):
        raise RegardError(f"{name} must be a table, found {_shown(value)}")
    return {kind.SHORT: value}


def _choice(choices: tuple[Any, ...], value: Any, name: str) -> Any:
    choice = str(value) if type(value) is int else value  # precision = 32 is the text "32"
    if choice in choices:
        return choice
    near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise RegardError(
        f"{name} must be one of {', '.join(map(repr, choices))}; found {_shown(value)}{hint}"
    )


def _several(kind: Any, value: Any, name: str) -> tuple[Any, ...]:
    entries: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
    return tuple(_fit(kind, entry, name) for entry in entries)


def _one_of(kinds: tuple[type, ...], value: Any, name: str) -> Any:
    """The value of a field that may hold one of several types."""
    if type(value) not in kinds:
        words = " or ".join(_WORDS[kind] for kind in kinds)
        raise RegardError(f"{name} must be {words}, found {_shown(value)}")
    return _single(type(value), value, name)


def _single(kind: Any, value: Any, name: str) -> Any:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 1023 else math.inf
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RegardError(f"{name} must be {_WORDS[kind]}, found {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise RegardError(f"{name} must be finite, found {value}")
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise RegardError(f"{name} must be a text that UTF-8 can hold, found {value!r}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # JSON's escapes are TOML's too, but for those of characters beyond U+FFFF.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _name(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key
