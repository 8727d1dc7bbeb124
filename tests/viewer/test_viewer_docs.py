"""What the docs say of the page is what it has."""

import inspect
import re
from pathlib import Path

from regard.viewer import page

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "src/regard/viewer/frontend"
VIEWER = (ROOT / "docs/viewer.md").read_text()


def codes(text):
    """What stands between backticks in the first cell of a table's row."""
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row)}


def test_every_key_of_the_help_is_in_the_docs():
    table = re.search(
        r"KEY_TABLE = \[(.*?)\n\];", (FRONTEND / "page/keyboard.js").read_text(), re.DOTALL
    )
    keys = [key for row in re.findall(r'^  \["([^"]+)"', table[1], re.M) for key in row.split()]
    assert len(keys) > 20
    for key in keys:
        assert key in ("–", "?") or key in codes(VIEWER), key


def test_every_field_of_a_link_is_in_the_docs():
    start = re.search(
        r"return \{(.*?)\n  \};", (FRONTEND / "state/state.js").read_text(), re.DOTALL
    )[1]
    fields = re.findall(r"(\w+): ", re.sub(r"\{.*?\}", "0", start))
    assert {"view", "limit", "zoom"} <= set(fields)
    assert set(fields) <= codes(VIEWER)


def test_every_argument_of_a_page_is_in_the_docs():
    named = set(inspect.signature(page).parameters) - {"attention"}
    assert named <= codes(VIEWER)
