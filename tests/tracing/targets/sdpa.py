"""`F.scaled_dot_product_attention` in all its forms."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import SEED, Case, Target, dense

BATCH, HEADS, QUERIES, KEYS = 2, 4, 5, 7


class Fused(nn.Module):
    """Projections and the fused function; `options` go to it as they are."""

    def __init__(self, width: int = 4, groups: int = HEADS, **options: Any) -> None:
        super().__init__()
        self.groups, self.options = groups, options
        self.query = nn.Linear(16, HEADS * width)
        self.key, self.value = nn.Linear(16, groups * width), nn.Linear(16, groups * width)

    def heads(self, x: Tensor, memory: Tensor) -> list[Tensor]:
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        counts = (HEADS, self.groups, self.groups)
        return [
            y.unflatten(-1, (count, -1)).transpose(-3, -2)
            for y, count in zip((query, key, value), counts)
        ]

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.heads(x, memory)
        dropout = 0.4 if self.training else 0.0
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, **self.options
        )


def _random_mask(*shape: int) -> Tensor:
    mask = torch.rand(*shape) < 0.6
    mask[..., 0] = True
    return mask


def _masked_row() -> Tensor:
    mask = _random_mask(BATCH, 1, QUERIES, KEYS)
    mask[1, 0, 2] = False
    return mask


def _build(
    mask: Tensor | Any = None,
    causal: bool = False,
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    grad: bool = False,
    keys: int = KEYS,
    batch: tuple[int, ...] = (BATCH,),
    **parts: Any,
) -> Case:
    if callable(mask):
        mask = mask()
    if causal:
        parts["is_causal"] = True
    model = Fused(**parts).to(dtype).train(train)
    # bfloat16 weights are taken from the bfloat16 queries and keys, which are exact in float64:
    # the kernel multiplies and sums them in float32, so 1e-5 holds there too.
    x = (torch.randn(*batch, QUERIES, 16) * 2).to(dtype).requires_grad_(grad)
    memory = (torch.randn(*batch, keys, 16) * 2).to(dtype).requires_grad_(grad)
    with torch.no_grad():
        query, key, value = (y.reshape(-1, *y.shape[-3:]) for y in model.heads(x, memory))
        allowed = torch.ones(QUERIES, keys, dtype=torch.bool).tril() if causal else None
        bias = None
        if mask is not None and mask.dtype == torch.bool:
            allowed = mask
        elif mask is not None:
            bias, mask = mask, mask.to(dtype)
        weights = dense.weights(query, key, allowed=allowed, bias=bias, scale=parts.get("scale"))
        used = weights
        if train:
            torch.manual_seed(SEED)
            used = weights * F.dropout(torch.ones_like(weights, dtype=dtype), 0.4)
        expected = dense.mix(used, value).to(dtype).view(*batch, HEADS, QUERIES, -1)
    return Case(model, (x, memory), {"mask": mask}, [weights], expected)


class ThreeAxes(nn.Module):
    """Inputs (head, position, width): no batch axis, as for one sentence, or no head axis."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 8) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.query(x), self.key(memory), self.value(memory))


def _three_axes() -> Case:
    """(batch, position, width) inputs: the one leading axis is the batch."""
    model = ThreeAxes()
    x, memory = torch.randn(3, QUERIES, 16) * 2, torch.randn(3, KEYS, 16) * 2
    query, key, value = (m(y)[:, None] for m, y in zip(model.children(), (x, memory, memory)))
    weights = dense.weights(query, key)
    return Case(model, (x, memory), {}, [weights], dense.mix(weights, value)[:, 0].float())


class TwoInOrder(nn.Module):
    """Self-attention, then cross-attention: two sites, in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Fused(is_causal=True), Fused()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.first(x, x).transpose(1, 2).flatten(2)
        return x + self.second(x, memory).transpose(1, 2).flatten(2)


def _two_in_order() -> Case:
    model = TwoInOrder().eval()
    x, memory = torch.randn(BATCH, QUERIES, 16), torch.randn(BATCH, KEYS, 16)
    with torch.no_grad():
        query, key, value = model.first.heads(x, x)
        first = dense.weights(query, key, allowed=torch.ones(QUERIES, QUERIES).tril().bool())
        y = x + dense.merged(dense.mix(first, value)).float()
        query, key, value = model.second.heads(y, memory)
        second = dense.weights(query, key)
        y = y + dense.merged(dense.mix(second, value)).float()
    return Case(model, (x, memory), {}, [first, second], y)


_FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal_square": {"causal": True, "keys": QUERIES},
    "bool_mask": {"mask": partial(_random_mask, BATCH, 1, QUERIES, KEYS)},
    "bool_mask_two_axes": {"mask": partial(_random_mask, QUERIES, KEYS)},
    "bool_mask_of_heads": {"mask": partial(_random_mask, 1, HEADS, QUERIES, KEYS)},
    "bool_mask_of_keys": {"mask": partial(_random_mask, BATCH, 1, 1, KEYS)},
    "float_mask": {"mask": partial(torch.randn, BATCH, HEADS, QUERIES, KEYS)},
    "float_mask_infinite": {
        "mask": lambda: torch.zeros(QUERIES, KEYS).masked_fill(
            ~_random_mask(QUERIES, KEYS), -torch.inf
        )
    },
    "scale": {"scale": 0.9},
    "dropout": {"train": True},
    "dropout_causal": {"train": True, "causal": True},
    "gqa": {"groups": 2, "enable_gqa": True},
    "gqa_causal": {"groups": 2, "enable_gqa": True, "causal": True},
    "multi_query": {"groups": 1, "enable_gqa": True},
    "masked_row": {"mask": _masked_row},
    "head_width_5": {"width": 5},
    "head_width_80": {"width": 80},
    "float64": {"dtype": torch.float64},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16},
    "bfloat16_float_mask": {
        "dtype": torch.bfloat16,
        "mask": lambda: torch.randn(QUERIES, KEYS).bfloat16().float(),
    },
    "inputs_need_grad": {"grad": True},
    "inputs_need_grad_masked": {"grad": True, "mask": _masked_row},
    "no_batch_axis": {"batch": ()},
    "five_axes": {"batch": (2, 3)},
    "one_key": {"keys": 1},
}

TARGETS = [
    *(Target(f"sdpa_{name}", "sdpa", partial(_build, **form)) for name, form in _FORMS.items()),
    Target("sdpa_math", "sdpa", _build, around=partial(sdpa_kernel, SDPBackend.MATH)),
    Target(
        "sdpa_math_masked_row",
        "sdpa",
        partial(_build, mask=_masked_row),
        around=partial(sdpa_kernel, SDPBackend.MATH),
    ),
    Target("sdpa_no_grad", "sdpa", partial(_build, causal=True), around=torch.no_grad),
    Target("sdpa_three_axes", "sdpa", _three_axes),
    Target("sdpa_two_in_order", "sdpa", _two_in_order),
]
