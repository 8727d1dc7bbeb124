"""Every setting has its meaning: in the docstring of its part, and on the page of settings."""

import re
import tomllib
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import pytest

from regard.translate.config import PRESETS, Config
from regard.translate.models.build import names
from regard.translate.training.resuming import _flat

PAGE = Path(__file__).parents[2] / "docs/translate/settings.md"


def parts(kind=Config, place=""):
    """Each part of a configuration with its place in a file."""
    yield place, kind
    for field in fields(kind):
        if is_dataclass(field.default_factory):
            yield from parts(field.default_factory, f"{place}.{field.name}".lstrip("."))


def plain(kind):
    """The settings of a part that hold a value, and their defaults."""
    found = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    inner = {field.name for field in fields(kind) if is_dataclass(field.default_factory)}
    assert {*found, *inner} == {field.name for field in fields(kind)}
    return found


def rows(text):
    """The cells of the tables in a text, without the lines of their heads."""
    lines = [line.strip() for line in text.splitlines()]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells if row[0] not in ("field", "setting") and set(row[0]) != {"-"}]


def of_page(place):
    """Setting, default and meaning in the section of a table."""
    heading = f"\n## `[{place}]`\n" if place else "# Settings of a training\n"
    _, found, after = PAGE.read_text(encoding="utf-8").partition(heading)
    assert found, f"there is no {heading.strip()!r}"
    return rows(after.partition("\n## ")[0])


PARTS = dict(parts())


@pytest.mark.parametrize("place", PARTS)
def test_every_field_has_its_meaning_in_the_docstring(place):
    kind = PARTS[place]
    told = [
        name.strip("`")
        for first, *meaning in rows(kind.__doc__)
        for name in first.split(", ")
        if first and all(meaning)
    ]
    assert told == [field.name for field in fields(kind)]


@pytest.mark.parametrize("place", PARTS)
def test_every_setting_is_on_the_page_with_its_default(place):
    found = of_page(place)
    assert [f"`{name}`" for name in plain(PARTS[place])] == [name for name, *_ in found]
    for (name, default, meaning), held in zip(found, plain(PARTS[place]).values()):
        written = tomllib.loads(f"value = {default.strip('`')}")["value"]
        assert (written, type(written)) == (
            (list(held), list) if isinstance(held, tuple) else (held, type(held))
        ), name
        assert meaning


@pytest.mark.parametrize("place", PARTS)
def test_every_choice_is_on_the_page(place):
    hints = typing.get_type_hints(PARTS[place])
    for name, _, meaning in of_page(place):
        hint = hints[name.strip("`")]
        choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
        if name == "`name`" and place == "model":
            choices = names()
        if name == "`preset`":
            choices = PRESETS
        assert all(f"`{choice}`" in meaning for choice in choices), (name, choices)


def test_no_other_tables_are_on_the_page():
    headings = re.findall(r"^## `\[(.*)\]`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [place for place in PARTS if place]


def test_the_preset_is_as_the_page_says():
    ((_, _, meaning),) = of_page("")
    for name, value in _flat(PRESETS["reference"]).items():
        assert f"`{name}`" in meaning or value == "words"
        assert str(value) in meaning
