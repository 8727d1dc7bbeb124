"""The delta rule: fast weights that replace what they hold for a key, gated or not."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from regard.bias import Bias
from regard.contract import Traits
from regard.mechanisms.decays import Decay
from regard.mechanisms.feature_maps import UnitNormalised
from regard.mechanisms.heads import Heads
from regard.mechanisms.inputs import Inputs
from regard.mechanisms.recurrent import RecurrentMechanism
from regard.recipe import Delta


class DeltaRule(RecurrentMechanism):
    """Sₜ = αₜ (1 − βₜ φ(kₜ) φ(kₜ)ᵀ) Sₜ₋₁ + βₜ φ(kₜ) vₜᵀ, outputₜ = scale · φ(qₜ)ᵀ Sₜ.

    Schlag et al. 2021, "Linear transformers are secretly fast weight programmers", eqs. 21–24
    (α = 1, φ = `SumNormalised(...)`). With `decay=GatedDecay(...)`: Yang et al. 2024, "Gated delta
    networks", eq. 10 (φ = `UnitNormalised()`), as in today's hybrid models, which take
    scale = 1/√head width.

    | here             | paper      | meaning                                                    |
    |------------------|------------|------------------------------------------------------------|
    | `feature_map`    | φ          | of queries and keys; warns where it is not normalised      |
    | `to_strength`    | W_β        | β = σ(w·x), how far a key replaces what is held for it     |
    | `decay`          | α          | how fast the memory fades                                  |
    | `state.memory`   | Wᵀ, Sᵀ     | features × value width                                     |

    The weight of key s at query t is βₛ φ(qₜ)ᵀ Aₜ … Aₛ₊₁ φ(kₛ), Aᵣ = αᵣ (1 − βᵣ φ(kᵣ) φ(kᵣ)ᵀ): what
    later keys left of it. It may be negative.

    Departures. The memory is transposed. Hybrid models put a short convolution before the rule and
    a gated norm behind it; those are not part of this module. The output projection has no bias.

    Args:
        width: features per position of queries and output.
        heads: how many heads, which divide `width`; or `Heads(...)` with groups and widths.
        inputs: features of the keys and values that come in; both `width` when None.
        bias: whether the projections of queries, keys and values have one.
        feature_map: φ, a part of `regard.mechanisms.feature_maps`; `UnitNormalised()` when None.
        decay: how fast the memory fades, as `GatedDecay(width, n_heads)`; not at all when None.
        scale: what queries are multiplied by.

    >>> import torch
    >>> from regard.mechanisms import DeltaRule, GatedDecay
    >>> attn = DeltaRule(16, 4, decay=GatedDecay(16, 4))
    >>> attended = attn(torch.randn(2, 5, 16), causal=True, weights=True)
    >>> attended.weights.shape, attn.kind
    (torch.Size([2, 4, 5, 5]), 'signed')
    """

    kind = "signed"

    def __init__(
        self,
        width: int,
        heads: int | Heads,
        *,
        inputs: tuple[int, int] | None = None,
        bias: bool = True,
        feature_map: nn.Module | None = None,
        decay: Decay | None = None,
        scale: float = 1.0,
    ) -> None:
        feature_map = UnitNormalised() if feature_map is None else feature_map
        super().__init__(
            width, heads, inputs=inputs, bias=bias, feature_map=feature_map, decay=decay
        )
        if not getattr(feature_map, "normalised", False):
            warnings.warn(
                f"DeltaRule: features of {type(feature_map).__name__} are not normalised: the "
                "memory grows without bound where strength · ‖φ(key)‖² passes 2; wrap the map in "
                "UnitNormalised or SumNormalised, or set normalised = True on one whose features "
                "have a length of at most 1",
                stacklevel=2,
            )
        self.to_strength = nn.Linear(self.to_key.in_features, self.n_heads)
        self.scale = scale
        self.traits = Traits(order_matters=True, recurrent=True, scored=False)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Delta:
        query = self.features(self.to_query(inputs.query), "query") * self.scale
        return Delta(
            query,
            self.features(self.to_key(inputs.key), "key"),
            self.to_strength(inputs.key).sigmoid().mT,  # (batch, head, key)
            self.values(inputs.value),
            log_decay=self.log_decay(inputs.key),
            mask=inputs.mask,
            memory=self.memory(inputs, query.shape[3]),
        )

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        scale = "" if self.scale == 1.0 else f", scale {self.scale:.4g}"
        return f"{self.n_heads} heads, head width {self.head_width}{scale}"
