"""Linear attention: products of features, added up in a memory."""

from __future__ import annotations

from torch import Tensor, nn

from regard.bias import Bias
from regard.mechanisms.decays import Decay
from regard.mechanisms.feature_maps import EluPlusOne, is_nonnegative
from regard.mechanisms.heads import Heads
from regard.mechanisms.inputs import Inputs
from regard.mechanisms.recurrent import RecurrentMechanism
from regard.recipe import Linear


class LinearAttention(RecurrentMechanism):
    """Sₜ = αₜ Sₜ₋₁ + φ(kₜ) vₜᵀ, zₜ = αₜ zₜ₋₁ + φ(kₜ), outputₜ = φ(qₜ)ᵀ Sₜ / φ(qₜ)ᵀ zₜ.

    Katharopoulos et al. 2020, "Transformers are RNNs", eqs. 16–20, with φ = elu + 1 and α = 1.
    Without the division and with φ the identity: the fast weights of Schmidhuber 1992, "Learning to
    control fast-weight memories". With a decay: Sun et al. 2023, "Retentive network".

    | here                     | paper            | shape                                   |
    |--------------------------|------------------|-----------------------------------------|
    | `feature_map`            | φ                | head width → features                   |
    | `decay`                  | α, γ             | a number per head and position          |
    | `state.memory`           | S, W             | features × value width                  |
    | `state.normaliser`       | z, Z             | features                                |
    | `to_key`, `to_value`     | FROM, TO (1992)  | width → heads × head or value width     |

    The weight of key s at query t is φ(qₜ)·φ(kₛ), faded by the decay between them and divided by
    the sum of its row: a distribution where φ is not negative, and signed otherwise, or where rows
    are not divided.

    Departures. The paper's code adds 10⁻⁶ to the denominator; here it is the sum itself, so that
    rows sum to 1, and a row of zeros stays 0. The memory of 1992 is squashed after each step; here
    it is not. The output projection has no bias.

    Args:
        width: features per position of queries and output.
        heads: how many heads, which divide `width`; or `Heads(...)` with groups and widths.
        inputs: features of the keys and values that come in; both `width` when None.
        bias: whether the projections of queries, keys and values have one.
        feature_map: φ, a part of `regard.mechanisms.feature_maps`; `EluPlusOne()` when None.
        normalised: divide each row by its sum.
        decay: how fast the memory fades, as `GatedDecay(width, n_heads)`; not at all when None.

    >>> import torch
    >>> from regard.mechanisms import LinearAttention
    >>> attn = LinearAttention(16, 4)
    >>> attended = attn(torch.randn(2, 5, 16), causal=True, state=True, weights=True)
    >>> attended.weights.shape, attended.state.memory.shape
    (torch.Size([2, 4, 5, 5]), torch.Size([2, 4, 4, 4]))
    """

    def __init__(
        self,
        width: int,
        heads: int | Heads,
        *,
        inputs: tuple[int, int] | None = None,
        bias: bool = True,
        feature_map: nn.Module | None = None,
        normalised: bool = True,
        decay: Decay | None = None,
    ) -> None:
        super().__init__(
            width,
            heads,
            inputs=inputs,
            bias=bias,
            feature_map=EluPlusOne() if feature_map is None else feature_map,
            decay=decay,
        )
        self.normalised = normalised
        sums_to_one = normalised and is_nonnegative(self.feature_map)
        self.kind = "distribution" if sums_to_one else "signed"

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Linear:
        query = self.features(self.to_query(inputs.query), "query")
        return Linear(
            query,
            self.features(self.to_key(inputs.key), "key"),
            self.values(inputs.value),
            log_decay=self.log_decay(inputs.key),
            mask=inputs.mask,
            memory=self.memory(inputs, query.shape[3], normalised=self.normalised),
            normaliser=None if inputs.past is None else inputs.past.normaliser,
            normalised=self.normalised,
            of=self.kind,
        )

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        sums = "" if self.normalised else ", not normalised"
        return f"{self.n_heads} heads, head width {self.head_width}{sums}"
