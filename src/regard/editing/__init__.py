"""Behind `regard.edit`: changes to attention while a model runs."""

from regard.editing.changes import (
    Change,
    allow,
    bias,
    forbid,
    multiply,
    replace,
    replace_values,
    scale,
    scale_values,
    silence,
)
from regard.editing.edit import Edits, EditWarning, edit

__all__ = [
    "Change",
    "EditWarning",
    "Edits",
    "allow",
    "bias",
    "edit",
    "forbid",
    "multiply",
    "replace",
    "replace_values",
    "scale",
    "scale_values",
    "silence",
]
