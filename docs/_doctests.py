"""Puts the examples of docstrings into code fences, so that Markdown shows them as code.

Without a fence three angle brackets begin a quotation in a quotation in a quotation.
"""

import re

import griffe

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Changes every docstring as it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
