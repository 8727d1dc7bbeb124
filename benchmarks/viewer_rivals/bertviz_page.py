"""bertviz's views as files: its own code, with the scripts it loads from the network lying beside.

bertviz names requirejs 2.3.6, d3 5.7.0 and jquery 2.0.0 at a content network. npm has the first two
in these versions; of jquery's second series the oldest it has is 2.1.0.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

CACHE = Path(__file__).parents[2] / ".venv" / "viewer-rivals"
SCRIPTS = {
    "require.min.js": ("requirejs@2.3.6", "requirejs/require.js"),
    "d3.min.js": ("d3@5.7.0", "d3/dist/d3.min.js"),
    "jquery.min.js": ("jquery@2.1.0", "jquery/dist/jquery.min.js"),
}


def scripts() -> Path:
    """The folder with the scripts that bertviz needs, fetched from npm once."""
    if not all((CACHE / name).exists() for name in SCRIPTS):
        wanted = [package for package, _ in SCRIPTS.values()]
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", CACHE, *wanted],
            check=True,
        )
        for name, (_, path) in SCRIPTS.items():
            shutil.copy(CACHE / "node_modules" / path, CACHE / name)
    return CACHE


def view(name: str, attentions: Sequence[Tensor], tokens: list[str]) -> str:
    """The page of `head_view` or `model_view`, as bertviz returns it."""
    import bertviz

    page: str = getattr(bertviz, name)(attentions, tokens, html_action="return").data
    return page


def write(page: str, path: Path) -> None:
    """Save a page so that it draws without a network."""
    near = scripts().as_uri()
    head, tail = page[:5000], page[5000:]  # the addresses come first; the rest may be 1 GB
    head = re.sub(r"https://cdnjs[^'\"]*/(require|d3|jquery)\.min", rf"{near}/\1.min", head)
    with path.open("w") as file:
        file.write("<!doctype html><meta charset=utf-8><title>bertviz</title>")
        file.write(head)
        file.write(tail)
