"""`nn.MultiheadAttention`: its slow path, its fast path, and every argument that changes either."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import SEED, Case, Target, dense

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 16


def _projections(module: nn.MultiheadAttention, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Heads of query, key and value, with the learned and the zero key where there are any."""
    if module._qkv_same_embed_dim:
        matrices = module.in_proj_weight.chunk(3)
    else:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    query, key, value = (F.linear(x, w, b) for x, w, b in zip(inputs, matrices, biases))
    if module.bias_k is not None:
        key = torch.cat([key, module.bias_k.expand(len(key), 1, -1)], 1)
        value = torch.cat([value, module.bias_v.expand(len(value), 1, -1)], 1)
    if module.add_zero_attn:
        key, value = (F.pad(x, (0, 0, 0, 1)) for x in (key, value))
    return [dense.heads(x, module.num_heads) for x in (query, key, value)]


def _as_bias(mask: Tensor | None, keys: int) -> Tensor | None:
    """torch's masks as something to add: True means "may not"; added keys are never masked."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(mask, -torch.inf)
    return F.pad(mask, (0, keys - mask.shape[-1]))


@torch.no_grad()
def attend(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    stretched: bool = True,
) -> tuple[Tensor, Tensor]:
    """Weights (batch, head, query, key), and the output; inputs are (batch, position, width).

    In training the output has the dropout that the module draws next. `stretched` gives the
    output the strides that torch's has, since dropout draws in the order of memory.
    """
    q, k, v = _projections(module, (query, key, value))
    keys = k.shape[2]
    bias = torch.zeros(len(q), module.num_heads, q.shape[2], keys)
    if (padding := _as_bias(key_padding_mask, keys)) is not None:
        bias = bias + padding[:, None, None]
    if (pairs := _as_bias(attn_mask, keys)) is not None:
        bias = bias + (pairs.view_as(bias) if pairs.ndim == 3 else pairs)
    weights = dense.weights(q, k, bias=bias)
    used = weights
    if module.training and module.dropout:
        used = weights * F.dropout(torch.ones(weights.shape), module.dropout)
    mixed = dense.merged(dense.mix(used, v)).float()
    output = module.out_proj(mixed)
    return weights, output.transpose(0, 1).contiguous().transpose(0, 1) if stretched else output


def _mask(kind: str, *shape: int) -> Tensor:
    hidden = torch.rand(*shape) < 0.3
    hidden[..., 0] = False
    if kind == "bool":
        return hidden
    return torch.randn(*shape).masked_fill(hidden, -torch.inf)


def _padding(kind: str, keys: int) -> Tensor:
    hidden = torch.zeros(BATCH, keys, dtype=torch.bool)
    hidden[1, keys - 2 :] = True
    return hidden if kind == "bool" else torch.zeros(BATCH, keys).masked_fill(hidden, -torch.inf)


def _build(
    cross: bool = False,
    train: bool = False,
    padding: str | None = None,
    mask: str | None = None,
    mask_axes: int = 2,
    call: dict[str, Any] | None = None,
    **parts: Any,
) -> Case:
    parts = {"batch_first": True, **parts}
    model = nn.MultiheadAttention(WIDTH, HEADS, **parts).train(train)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # biases begin at zero
    query = torch.randn(BATCH, QUERIES, WIDTH) * 2
    key = value = query
    if cross:
        key = value = torch.randn(BATCH, KEYS, parts.get("kdim", WIDTH)) * 2
        if "vdim" in parts:
            value = torch.randn(BATCH, KEYS, parts["vdim"])
    shape = (QUERIES, key.shape[1])
    masks = {
        "key_padding_mask": padding and _padding(padding, key.shape[1]),
        "attn_mask": mask and _mask(mask, *((BATCH * HEADS,) if mask_axes == 3 else ()), *shape),
    }
    torch.manual_seed(SEED)
    weights, expected = attend(model, query, key, value, **masks)
    if not parts["batch_first"]:
        expected = expected.transpose(0, 1)
        turned = {id(x): x.transpose(0, 1).contiguous() for x in (query, key, value)}
        query, key, value = (turned[id(x)] for x in (query, key, value))  # still one tensor
    return Case(model, (query, key, value), {**masks, **(call or {})}, [weights], expected)


def _unbatched() -> Case:
    model = nn.MultiheadAttention(WIDTH, HEADS).eval()
    x = torch.randn(QUERIES, WIDTH) * 2
    weights, expected = attend(model, *(x[None],) * 3)
    return Case(model, (x, x, x), {}, [weights], expected[0])


_LEAN = {"need_weights": False}
_PER_HEAD = {"average_attn_weights": False}
_FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lean": {"call": _LEAN},
    "per_head": {"call": _PER_HEAD},
    "sequence_first": {"batch_first": False},
    "sequence_first_lean": {"batch_first": False, "call": _LEAN},
    "padding": {"padding": "bool"},
    "padding_lean": {"padding": "bool", "call": _LEAN},
    "padding_float_lean": {"padding": "float", "call": _LEAN},
    "bool_mask": {"mask": "bool"},
    "bool_mask_lean": {"mask": "bool", "call": _LEAN},
    "float_mask": {"mask": "float"},
    "float_mask_of_heads_lean": {"mask": "float", "mask_axes": 3, "call": _LEAN},
    "padding_and_mask_lean": {"padding": "bool", "mask": "bool", "call": _LEAN},
    "cross": {"cross": True},
    "cross_lean": {"cross": True, "call": _LEAN},
    "cross_padding_lean": {"cross": True, "padding": "bool", "call": _LEAN},
    "kdim_vdim": {"cross": True, "kdim": 6, "vdim": 10},
    "kdim_vdim_lean": {"cross": True, "kdim": 6, "vdim": 10, "call": _LEAN},
    "bias_kv": {"add_bias_kv": True},
    "bias_kv_lean": {"add_bias_kv": True, "padding": "bool", "call": _LEAN},
    "zero_attn": {"add_zero_attn": True},
    "zero_attn_lean": {"add_zero_attn": True, "mask": "bool", "call": _LEAN},
    "bias_kv_zero_attn": {"add_bias_kv": True, "add_zero_attn": True, "cross": True},
    "no_bias": {"bias": False},
}
_TRAINED = {"plain", "lean", "per_head", "sequence_first_lean", "padding_and_mask_lean", "cross"}
_FAST = {"plain", "lean", "per_head", "sequence_first", "padding_lean", "bool_mask_lean", "cross"}


def _targets() -> list[Target]:
    found = [Target("mha_unbatched", "torch_nn", _unbatched)]
    for name, form in _FORMS.items():
        found.append(Target(f"mha_{name}", "torch_nn", partial(_build, **form)))
        if name in _TRAINED:
            build = partial(_build, train=True, dropout=0.3, **form)
            found.append(Target(f"mha_{name}_train", "torch_nn", build))
        if name in _FAST:  # torch takes its fast path only where nothing needs a gradient
            build = partial(_build, **form)
            found.append(Target(f"mha_{name}_no_grad", "torch_nn", build, around=torch.no_grad))
    return found


TARGETS = _targets()
