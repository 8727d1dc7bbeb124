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
from regard.editing.effects import Effect, Effects
from regard.editing.sweeps import knockout, patch

__all__ = [
    "Change",
    "EditWarning",
    "Edits",
    "Effect",
    "Effects",
    "allow",
    "bias",
    "edit",
    "forbid",
    "knockout",
    "multiply",
    "patch",
    "replace",
    "replace_values",
    "scale",
    "scale_values",
    "silence",
]
