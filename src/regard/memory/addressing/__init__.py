"""How the heads of a memory find its slots: functions on tensors, each an equation of a paper.

Graves, Wayne & Danihelka 2014, "Neural Turing machines" (NTM), section 3.3, and Graves et al. 2016,
"Hybrid computing using a neural network with dynamic external memory" (DNC), methods.

| here         | NTM     | DNC       | meaning                                        |
|--------------|---------|-----------|------------------------------------------------|
| `memory`     | M       | M         | (batch, slot, width)                           |
| `key`        | k       | k         | what a head looks for, (batch, head, width)    |
| `strength`   | β       | β         | how sharply it looks, (batch, head)            |
| `gate`       | g       | g         | between 0 and 1, (batch, head)                 |
| `kernel`     | s       |           | how far to move, (batch, head, shift)          |
| `exponent`   | γ       |           | at least 1, (batch, head)                      |
| `weights`    | w       | w         | over the slots, (batch, head, slot)            |
| `usage`      |         | u         | how full each slot is, (batch, slot)           |
| `precedence` |         | p         | how far each slot was the last one written     |
| `links`      |         | L         | [batch, i, j]: slot i written right after j    |
| `modes`      |         | π         | backward, content, forward: (batch, head, 3)   |

The weights of an NTM sum to 1, those of a DNC to at most 1.
"""

from regard.memory.addressing.dnc_equations import (
    allocation,
    backward_weights,
    forward_weights,
    links,
    precedence,
    read_weights,
    usage,
    write_weights,
)
from regard.memory.addressing.ntm_equations import (
    content_weights,
    interpolate,
    read,
    sharpen,
    shift,
    write,
)

__all__ = [
    "allocation",
    "backward_weights",
    "content_weights",
    "forward_weights",
    "interpolate",
    "links",
    "precedence",
    "read",
    "read_weights",
    "sharpen",
    "shift",
    "usage",
    "write",
    "write_weights",
]
