"""What mechanisms whose weights come from a recipe have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from regard.bias import Bias, bias_without_keys
from regard.checks import check_parameter_dtype, refuse_nested
from regard.contract import Attended, Mechanism, RecurrentState, State
from regard.errors import RegardError, ShapeError
from regard.kernel.attend import checked_bias, run
from regard.kernel.reduce import Reducer
from regard.masks import Mask
from regard.mechanisms.inputs import Inputs, Widths, check_features, finite, gather
from regard.recipe import Recipe


class FromRecipe(Mechanism):
    """A mechanism that says how weights are made, and leaves the rest to the library.

    Three things are a mechanism's own: what a state holds (`prepare`), how weights are made
    (`recipe`), and what becomes of the mixed values (`finish`). Defaults, checks, masks, states,
    dropout, weights and reductions are the same for all.
    """

    n_heads: int = 1
    dropout: float = 0.0

    def widths(self, query_width: int) -> Widths:
        """Features that fit, given those of the query; any where None."""
        return Widths()

    @abstractmethod
    def recipe(self, given: Inputs, bias: Tensor | Bias | None) -> Recipe:
        """What the weights are made from: checked inputs, and keys as `prepare` made them."""

    def modulate(self, mixed: Tensor, query: Tensor) -> Tensor:
        """Mixed values (batch, head, query, width) before `finish`, changed by what follows the
        attention inside a head: a norm, a gate of the query (batch, query, width). By default
        nothing does."""
        return mixed

    def finish(self, mixed: Tensor, recipe: Recipe) -> Tensor:
        """The output, (batch, query, width), of mixed values (batch, head, query, width)."""
        return mixed[:, 0]

    def remembered(self, state: State | None, recipe: Recipe) -> State | None:
        """The state for the next call, where it holds more than keys and values."""
        return state

    def fix(self, key: Tensor, value: Tensor | None = None, *, mask: Mask | None = None) -> State:
        """A fixed state: keys and values prepared once; later calls pass the query alone.

        `mask` (padding) is remembered: later calls need not be given it again.
        """
        return super().fix(*self._checked(key, value, mask), mask=mask)

    def begin(self, key: Tensor, value: Tensor | None = None, *, mask: Mask | None = None) -> State:
        """A growing state that already holds these keys; each call appends its own."""
        return super().begin(*self._checked(key, value, mask), mask=mask)

    def _checked(
        self, key: Tensor, value: Tensor | None, mask: Mask | None
    ) -> tuple[Tensor, Tensor]:
        self._check_value(key, value)
        value = key if value is None else value
        refuse_nested(type(self).__name__, key=key, value=value)
        self._same_dtype(key)
        # The query is not here yet: where a key must be as wide as it, nothing can be said.
        widths = self.widths(key.shape[-1])
        check_features(type(self).__name__, "key", key, widths.key, key)
        check_features(type(self).__name__, "value", value, widths.value, key)
        length = key.shape[1]
        if value.shape[1] != length:
            raise ShapeError(
                f"{type(self).__name__}: value: axis key has size {value.shape[1]}, "
                f"expected {length}"
            )
        alive = None if mask is None else mask.alive(length, length, key.device)
        if alive is not None:
            same_value, key = value is key, finite(key, alive)
            value = key if same_value else finite(value, alive)
        return key, value

    def _check_value(self, key: Tensor, value: Tensor | None) -> None:
        if value is not None and value is not key and not self.traits.takes_value:
            raise RegardError(
                f"{type(self).__name__}: value was passed apart from the keys, expected none: "
                "leave it out"
            )

    def _same_dtype(self, features: Tensor) -> None:
        if features.is_floating_point():
            argument = f"{type(self).__name__}: the input"
            check_parameter_dtype(argument, features, _first_parameter(self))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        causal: bool = False,
        state: State | RecurrentState | bool | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> Attended:
        """Attend; see `Mechanism.forward`."""
        refuse_nested(type(self).__name__, query=query, key=key, value=value)
        self._same_dtype(query)
        self._check_value(query if key is None else key, value)
        given = self.gather(query, key, value, mask=mask, causal=causal, state=state)
        bias = None if bias is None else checked_bias(bias, given.text)
        recipe = self.recipe(given, bias_without_keys(bias, given.gap))
        dropout = self.dropout if self.training else 0.0
        attended = run(recipe, dropout=dropout, weights=weights, reduce=reduce)
        output = self.finish(self.modulate(attended.output, given.query), recipe)
        after = None if state is None or state is False else self.after(given, recipe, attended)
        return attended.finished(output, after, crosses=given.crosses)

    def gather(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        mask: Mask | Tensor | None,
        causal: bool,
        state: State | RecurrentState | bool | None,
    ) -> Inputs:
        """Checked inputs: defaults and state resolved, keys and values prepared."""
        return gather(
            self,
            query,
            key,
            value,
            mask=mask,
            causal=causal,
            state=state,
            widths=self.widths(query.shape[-1]),
            n_heads=self.n_heads,
        )

    def after(
        self, given: Inputs, recipe: Recipe, attended: Attended
    ) -> State | RecurrentState | None:
        """The state after a call with one."""
        return self.remembered(given.state, recipe)


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """`next(module.parameters(), None)` at a tenth of its price, which a decode step would feel."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        parameter = None if child is None else _first_parameter(child)
        if parameter is not None:
            return parameter
    return None
