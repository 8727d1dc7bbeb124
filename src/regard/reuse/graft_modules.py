"""Attentions that are modules, torch's and ours: weights made again from what they were given."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from regard import masks
from regard.contract import Mechanism
from regard.errors import UnavailableError
from regard.kernel.attend import checked_bias
from regard.mechanisms.from_recipe import FromRecipe
from regard.recipe import Projected, Recipe
from regard.reuse.graft_passes import Unchanged


class _Given:
    """The arguments of a call, by name, and a check that no tensor of them was written into."""

    def __init__(self, kind: type[nn.Module], place: str, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(kind.forward).bind(None, *args, **kwargs)
        self.named = {name: one for name, one in bound.arguments.items() if name != "self"}
        self.held = [
            Unchanged(f"the input {name} of '{place}'", one)
            for name, one in self.named.items()
            if isinstance(one, Tensor)
        ]

    def take(self) -> dict[str, Any]:
        for one in self.held:
            one.take()
        return self.named


class TorchAttention:
    """A call of `nn.MultiheadAttention`."""

    def __init__(self, module: nn.MultiheadAttention, place: str, args: Any, kwargs: Any) -> None:
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            raise UnavailableError(
                f"graft: '{place}' has kdim, vdim, add_bias_kv or add_zero_attn, whose weights a "
                "graft cannot make again"
            )
        self.module = module
        self.given = _Given(nn.MultiheadAttention, place, args, kwargs)

    def __call__(self, batch: int) -> Recipe:
        given = self.given.take()
        query, key = given["query"], given["key"]
        same = key is query
        if query.dim() != 3 or query.is_nested:
            raise UnavailableError(
                "graft: nn.MultiheadAttention was given no batch, or a nested one"
            )
        if not self.module.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        return _projected(
            self.module,
            Projected(
                query,
                self.module.in_proj_weight,
                self.module.in_proj_bias,
                self.module.num_heads,
                key_input=None if same else key,
            ),
            given.get("attn_mask"),
            given.get("key_padding_mask"),
        )


class LayerAttention:
    """A call of `nn.TransformerEncoderLayer`, whatever path it takes."""

    def __init__(
        self, layer: nn.TransformerEncoderLayer, place: str, args: Any, kwargs: Any
    ) -> None:
        self.layer, self.place = layer, place
        self.given = _Given(nn.TransformerEncoderLayer, place, args, kwargs)

    def __call__(self, batch: int) -> Recipe:
        given = self.given.take()
        layer, source = self.layer, given["src"]
        if source.dim() != 3 or source.is_nested:
            raise UnavailableError(
                f"graft: '{self.place}' was given no batch, or a nested tensor, as "
                "nn.TransformerEncoder makes of padded batches; build it with "
                "enable_nested_tensor=False"
            )
        attention = layer.self_attn
        source = source if attention.batch_first else source.transpose(0, 1)
        source = layer.norm1(source) if layer.norm_first else source
        made = Projected(
            source, attention.in_proj_weight, attention.in_proj_bias, attention.num_heads
        )
        return _projected(attention, made, given.get("src_mask"), given.get("src_key_padding_mask"))


class MechanismAttention:
    """A call of a mechanism of regard."""

    def __init__(self, module: Mechanism, place: str, args: Any, kwargs: Any) -> None:
        if not isinstance(module, FromRecipe):
            raise UnavailableError(
                f"graft: '{place}' is a {type(module).__name__}, which does not say how its "
                "weights are made; expected a mechanism of regard"
            )
        self.module, self.place = module, place
        self.given = _Given(Mechanism, place, args, kwargs)

    def __call__(self, batch: int) -> Recipe:
        given, module = self.given.take(), self.module
        self._refuse_chance()
        state = given.get("state")
        inputs = module.gather(
            given["query"],
            given.get("key"),
            given.get("value"),
            mask=given.get("mask"),
            causal=given.get("causal", False),
            state=None if isinstance(state, bool) else state,
        )
        bias = given.get("bias")
        return module.recipe(inputs, None if bias is None else checked_bias(bias, inputs.shape))

    def _refuse_chance(self) -> None:
        """What is drawn, or changes with each call, cannot be made again."""
        for one in self.module.modules():
            drawn = isinstance(one, nn.Dropout) and one.p > 0
            if one.training and (drawn or isinstance(one, _NormBase)):
                raise UnavailableError(
                    f"graft: '{self.place}' makes its weights with a {type(one).__name__}, in "
                    "train mode another each time, so they cannot be made again"
                )


def _projected(
    module: nn.MultiheadAttention, made: Projected, pairs: Tensor | None, padding: Tensor | None
) -> Recipe:
    mask, bias = masks.from_torch(pairs, padding, n_heads=module.num_heads)
    return replace(made.plain(), mask=mask, bias=bias)
