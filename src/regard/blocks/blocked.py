"""What a block returns."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.contract import Attended
from regard.types import register_pytree


@dataclass(frozen=True, eq=False)
class Blocked:
    """Output, the attentions inside by name, and the state the next step needs."""

    output: Float[Tensor, "*_"]
    attentions: dict[str, Attended] = field(default_factory=dict)
    state: Any = None


register_pytree(Blocked)
