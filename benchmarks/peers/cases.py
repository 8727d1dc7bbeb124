"""What single peers do on their own: one short function a case, run by `peers.py`. Here: torch.

Every case returns what one would expect (from `regard.attend` where it is a number), what the
peer gives, and whether that still holds. Three verdicts are used:

- *changes*: the same question gets another answer when an unrelated switch is turned;
- *differs*: the peer follows another convention, often a documented one;
- *unanswered*: the peer gives no weights there, or refuses.

A few cases have the verdict *same*: there the peer agrees with regard.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from adapters import identity_torch
from torch import Tensor, nn

import regard


class Seen(NamedTuple):
    """What a case found."""

    expected: str
    got: str
    holds: bool


class Case(NamedTuple):
    """A case of one class or function of one distribution."""

    distribution: str
    where: str
    name: str
    verdict: str
    run: Callable[[], Seen]


CASES: list[Case] = []


def case(
    distribution: str, where: str, name: str, verdict: str
) -> Callable[[Callable[[], Seen]], Callable[[], Seen]]:
    """Add a function to the cases, run with a fixed seed."""

    def add(run: Callable[[], Seen]) -> Callable[[], Seen]:
        def seeded() -> Seen:
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return run()

        CASES.append(Case(distribution, where, name, verdict, seeded))
        return run

    return add


def numbers(row: Tensor) -> str:
    """A short row of numbers."""
    return "[" + " ".join(f"{number:.2f}" for number in row.detach().flatten().tolist()) + "]"


def apart(first: Tensor, second: Tensor) -> float:
    """The largest difference; NaN counts as infinite."""
    return float((first - second).detach().abs().nan_to_num(torch.inf).max())


def up_to(first: Tensor, second: Tensor) -> str:
    return f"up to {apart(first, second):.2f} apart"


def raises(run: Callable[[], Any]) -> str | None:
    """The name of the error, or None."""
    try:
        run()
    except Exception as error:  # whatever the peer raises is the answer
        return type(error).__name__
    return None


def triangle(queries: int, keys: int) -> Tensor:
    """Bottom-right causality, True = may attend."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def truth(query: Tensor, key: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """regard's output and weights for one head, (batch, position, width) in and out."""
    if allowed is not None:
        allowed = allowed.reshape(-1, 1, *allowed.shape[-2:])
    mask = None if allowed is None else regard.masks.pairs(allowed)
    found = regard.attend(query[:, None], key[:, None], key[:, None], mask=mask, weights=True)
    assert found.weights is not None
    return found.output[:, 0], found.weights[:, 0]


SDPA, MHA = "F.scaled_dot_product_attention", "nn.MultiheadAttention"
ENCODER = "nn.TransformerEncoder"


@case("torch", SDPA, "is_causal and a mask together", "changes")
def sdpa_causal_and_mask() -> Seen:
    x, keep = torch.randn(1, 1, 4, 8), torch.tensor([True, False, True, True]).expand(4, 4)
    both = truth(x[0], x[0], keep & triangle(4, 4))[0]
    four = F.scaled_dot_product_attention(x, x, x, attn_mask=keep, is_causal=True)[0]
    x = x[0]
    error = raises(lambda: F.scaled_dot_product_attention(x, x, x, attn_mask=keep, is_causal=True))
    got = f"4 axes: the intersection; 3 axes: {error}"
    return Seen("the intersection", got, apart(both, four) < 1e-5 and error == "RuntimeError")


@case("torch", SDPA, "row masked with finfo.min", "differs")
def sdpa_finfo_min() -> Seen:
    x, one = torch.randn(1, 3, 8), torch.eye(3)[None]
    low = torch.full((3, 3), torch.finfo(x.dtype).min)
    row = F.scaled_dot_product_attention(x, x, one, attn_mask=low)[0, 0]
    none = truth(x, x, torch.zeros(3, 3, dtype=torch.bool))[1][0, 0]
    return Seen(numbers(none), numbers(row), apart(row, torch.full((3,), 1 / 3)) < 1e-6)


@case("torch", SDPA, "0/1 mask in floating point", "differs")
def sdpa_zero_one_mask() -> Seen:
    x, one = torch.randn(1, 3, 8), torch.eye(3)[None]
    keep = torch.tensor([1.0, 1.0, 0.0]).expand(3, 3)
    row = F.scaled_dot_product_attention(x, x, one, attn_mask=keep)[0, 2]
    return Seen(numbers(truth(x, x, keep.bool())[1][0, 2]), numbers(row), float(row[2]) > 0.1)


@case("torch", MHA, "boolean mask given as for scaled_dot_product_attention", "differs")
def mha_polarity() -> Seen:
    x = torch.randn(1, 3, 8)
    row = identity_torch(8, 1, x.dtype)(x, x, x, attn_mask=triangle(3, 3))[1][0, 1]
    right = truth(x, x, triangle(3, 3))[1][0, 1]
    return Seen(numbers(right), numbers(row), bool((row[:2] == 0).all()) and float(row[2]) == 1)


@case("torch", MHA, "weights while training with dropout", "differs")
def mha_dropout() -> Seen:
    x = torch.randn(1, 4, 8)
    sums = identity_torch(8, 1, x.dtype, dropout=0.5).train()(x, x, x)[1].sum(-1)
    return Seen("row sums [1 1 1 1]", numbers(sums), apart(sums, torch.ones(4)) > 0.1)


@case("torch", MHA, "weights as returned by default", "differs")
def mha_average() -> Seen:
    x = torch.randn(1, 4, 8)
    found = identity_torch(8, 2, x.dtype)(x, x, x)[1]
    shape = tuple(found.shape)
    return Seen("(batch, head, query, key)", f"mean over heads {shape}", shape == (1, 4, 4))


@case("torch", MHA, "add_bias_kv and add_zero_attn", "differs")
def mha_extra_keys() -> Seen:
    x = torch.randn(1, 4, 8)
    module = identity_torch(8, 2, x.dtype, add_bias_kv=True, add_zero_attn=True)
    shape = tuple(module(x, x, x)[1].shape)
    return Seen("4 columns for 4 keys", f"{shape[-1]} columns", shape[-1] == 6)


@case("torch", MHA, "is_causal=True without a mask, no_grad", "changes")
def mha_causal_fast() -> Seen:
    x, module = torch.randn(1, 3, 8), identity_torch(8, 2, torch.float32)
    with torch.no_grad():
        row = module(x, x, x, is_causal=True)[1][0, 0]
    error = raises(lambda: module(x, x, x, is_causal=True))
    got = f"first query {numbers(row)}; with gradients {error}"
    return Seen("first query [1 0 0]", got, bool((row > 0).all()) and error == "RuntimeError")


@case("torch", MHA, "is_causal=True with a bottom-right causal mask", "changes")
def mha_causal_hint() -> Seen:
    query, key = torch.randn(1, 2, 8), torch.randn(1, 5, 8)
    module, mask = identity_torch(8, 1, query.dtype), ~triangle(2, 5)
    first = module(query, key, key, attn_mask=mask, is_causal=True)[0]
    second = module(query, key, key, attn_mask=mask, is_causal=True, need_weights=False)[0]
    right = apart(first, truth(query, key, ~mask)[0]) < 1e-5
    got = f"need_weights True and False: {up_to(first, second)}"
    return Seen("one output", got, right and apart(first, second) > 0.1)


@case("torch", MHA, "is_causal=True with a causal window mask", "changes")
def mha_window_hint() -> Seen:
    x, module = torch.randn(1, 4, 8), identity_torch(8, 1, torch.float32)
    mask = ~triangle(4, 4).triu(-1)
    first = module(x, x, x, attn_mask=mask, is_causal=True)[0]
    second = module(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
    right = apart(first, truth(x, x, ~mask)[0]) < 1e-5
    got = f"need_weights True and False: {up_to(first, second)}"
    return Seen("one output", got, right and apart(first, second) > 0.01)


@case("torch", MHA, "gradient when one row has no key, loss without that row", "changes")
def mha_gradient() -> Seen:
    x, mask = torch.randn(1, 4, 8), torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    bad = []
    for asked in (True, False):
        module = identity_torch(8, 1, x.dtype)
        output = module(x, x, x, attn_mask=mask, need_weights=asked)[0]
        output[:, [0, 2, 3]].sum().backward()
        bad.append(bool(module.in_proj_weight.grad.isnan().any()))
    got = f"NaN with need_weights=True: {bad[0]}, False: {bad[1]}"
    return Seen("finite", got, bad == [True, False])


@case("torch", ENCODER, "forward hook on self_attn", "unanswered")
def encoder_hook() -> Seen:
    layer, seen = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), []
    layer.self_attn.register_forward_hook(lambda _module, _inputs, outputs: seen.append(outputs[1]))
    layer(torch.randn(1, 4, 8))
    return Seen("the weights", str(seen[0]), seen == [None])


@case("torch", ENCODER, "output at padded places", "changes")
def encoder_padded() -> Seen:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 4, 8)
    pad = torch.tensor([[False] * 4, [False, False, True, True]])
    slow = encoder(x, src_key_padding_mask=pad)
    with torch.no_grad():
        fast = encoder(x, src_key_padding_mask=pad)
    held = bool((fast[pad] == 0).all()) and apart(slow[~pad], fast[~pad]) < 1e-5
    got = f"zeros under no_grad, else not: {up_to(slow[pad], fast[pad])}"
    return Seen("one output", got, held and apart(slow[pad], fast[pad]) > 0.1)
