"""Parts added to a model that is already trained."""

from regard.grafting.attachment import Graft, graft, grafts
from regard.grafting.parts import (
    GateLayer,
    GraftWarning,
    Latents,
    OutputAttention,
    Part,
    ReuseLayer,
    States,
    ZeroProjection,
)

__all__ = [
    "GateLayer",
    "Graft",
    "GraftWarning",
    "Latents",
    "OutputAttention",
    "Part",
    "ReuseLayer",
    "States",
    "ZeroProjection",
    "graft",
    "grafts",
]
