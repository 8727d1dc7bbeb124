"""Labels that a font can show: what it cannot is written as its code, never as an empty box.

Matplotlib neither orders right-to-left text nor shapes Arabic, so runs of such letters are turned
round; emoji and Chinese need a font that has them, and where none is installed the code of the
letter stands there, as ⟨U+732B⟩.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

#: Families that are known to have letters that the default one does not, tried in this order.
_FAMILIES = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
    "Arial Unicode MS",
    "Noto Sans Hebrew",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Emoji",
    "Segoe UI Emoji",
    "Segoe UI Symbol",
)
_LONGEST = 24


@functools.cache
def _fonts() -> dict[str, Any]:
    """Installed fonts of those families, by name."""
    from matplotlib import font_manager

    installed = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist}
    fonts = {}
    for name in _FAMILIES:
        if name in installed:
            fonts[name] = font_manager.get_font(installed[name])
    return fonts


def families() -> list[str]:
    """Names of fonts, in the order in which a letter is looked for."""
    return list(_fonts())


@functools.cache
def _shown(letter: str) -> bool:
    return any(font.get_char_index(ord(letter)) for font in _fonts().values())


def readable(label: str, *, ordered: bool = False) -> str:
    """A label as it can be drawn on one short line; `ordered` as for `shown`."""
    text = label.replace("\n", "⏎").replace("\t", "⇥")
    text = text if text.strip() else "␣" * max(1, len(text))
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return shown(text, ordered=ordered)


def shown(text: str, *, ordered: bool = False) -> str:
    """A text in letters that can be drawn; a dollar would begin a formula.

    `ordered` says that right-to-left letters are put in order by what reads the file, as of SVG.
    """
    letters = text if ordered else _in_order(text)
    return "".join(_coded(letter) for letter in letters).replace("$", r"\$")


def _coded(letter: str) -> str:
    if unicodedata.category(letter) in ("Cc", "Cf", "Mn") and not _shown(letter):
        return "" if letter in "\u200d\ufe0f\u200b" else f"⟨U+{ord(letter):04X}⟩"
    return letter if _shown(letter) else f"⟨U+{ord(letter):04X}⟩"


def _in_order(text: str) -> str:
    """Runs of right-to-left letters turned round, since they are drawn from left to right."""
    runs: list[tuple[bool, list[str]]] = []
    for letter in text:
        leftward = unicodedata.bidirectional(letter) in ("R", "AL")
        neutral = unicodedata.bidirectional(letter) in ("WS", "ON", "NSM", "CS")
        if runs and (leftward == runs[-1][0] or (neutral and runs[-1][0])):
            runs[-1][1].append(letter)
        else:
            runs.append((leftward, [letter]))
    return "".join("".join(run[::-1] if leftward else run) for leftward, run in runs)
