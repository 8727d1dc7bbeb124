"""What single peers do on their own, continued: Keras, x-transformers and timm."""

from __future__ import annotations

import torch
from adapters import identity_keras, identity_timm, load_keras, load_xt
from cases import Seen, apart, case, numbers, raises, triangle, truth, up_to

import regard

KMHA, KGQA = "layers.MultiHeadAttention", "layers.GroupQueryAttention"


@case("keras", KMHA, "query_mask= given by hand", "differs")
def keras_query_mask() -> Seen:
    x, mask = torch.randn(1, 3, 8), torch.tensor([[True, True, False]])
    plain, grouped = (identity_keras(1, 8, x, x, groups=groups) for groups in (None, 1))
    rows = [
        layer(x, x, query_mask=mask, return_attention_scores=True)[1][0, 0, 2]
        for layer in (plain, grouped)
    ]
    got = f"{numbers(rows[0])}; GroupQueryAttention {numbers(rows[1])}"
    return Seen(
        "[0 0 0]", got, apart(rows[0].sum(), torch.tensor(1.0)) < 1e-5 and not rows[1].any()
    )


@case("keras", KMHA, "padded queries of a Masking layer", "changes")
def keras_masking() -> Seen:
    layers, x = load_keras().layers, torch.randn(1, 3, 8)
    x[:, 2] = 0
    layer = identity_keras(1, 8, x, x)
    masked = [layers.Masking()(x) for _ in range(4)]
    first = layer(masked[0], masked[1], return_attention_scores=True)[0]
    second = layer(masked[2], masked[3])
    got = f"scores asked: {numbers(first[0, 2, :2])}…, not asked: {numbers(second[0, 2, :2])}…"
    return Seen("one output", got, not first[0, 2].any() and apart(first, second) > 0.1)


@case("keras", KMHA, "row without keys, dropout=0.1 or 0, inference", "changes")
def keras_dropout_switch() -> Seen:
    x, mask = torch.randn(1, 3, 8), torch.zeros(1, 3, dtype=torch.bool)
    first, second = (
        identity_keras(1, 8, x, x, dropout=rate)(x, x, value_mask=mask, training=False)
        for rate in (0.1, 0.0)
    )
    held = not first.any() and apart(first, second) > 0.1
    return Seen("one output", f"dropout 0.1: zeros, 0: {up_to(first, second)}", held)


@case("keras", KMHA, "scores while training with dropout", "same")
def keras_dropout() -> Seen:
    x = torch.randn(1, 4, 8)
    layer = identity_keras(1, 8, x, x, dropout=0.5)
    output, scores = layer(x, x, training=True, return_attention_scores=True)
    rows = apart(scores.sum(-1), torch.ones(4)) < 1e-5
    held = rows and apart(output, scores[:, 0] @ x) > 0.1
    return Seen("before dropout", "before dropout", held)


@case("keras", KMHA, "additive mask (0 and -inf)", "differs")
def keras_additive_mask() -> Seen:
    x, keep = torch.randn(1, 3, 8), torch.tensor([True, True, False]).expand(1, 3, 3)
    added = torch.where(keep, 0.0, -torch.inf)
    layer = identity_keras(1, 8, x, x)
    row = layer(x, x, attention_mask=added, return_attention_scores=True)[1][0, 0, 0]
    return Seen(numbers(truth(x, x, keep)[1][0, 0]), numbers(row), float(row[2]) == 1)


@case("keras", KGQA, "mask of 0.3 everywhere", "changes")
def keras_soft_mask() -> Seen:
    x, mask = torch.randn(1, 3, 8), torch.full((1, 3, 3), 0.3)
    layer = identity_keras(1, 8, x, x, groups=1)
    first = layer(x, x, attention_mask=mask, return_attention_scores=True)[0]
    second = layer(x, x, attention_mask=mask)
    held = not first.any() and apart(second, truth(x, x)[0]) < 1e-5
    return Seen("one reading", "scores asked: nothing allowed, else everything", held)


@case("keras", KMHA, "sliding_window with fewer queries than keys", "differs")
def keras_window() -> Seen:
    query, key = torch.randn(1, 2, 8), torch.randn(1, 6, 8)
    layer = identity_keras(1, 8, query, key, sliding_window=2)
    scores = layer(query, key, use_causal_mask=True, return_attention_scores=True)[1][0, 0, 1]
    window = regard.masks.window(left=1, right=0).dense(2, 6)
    right = truth(query, key, window)[1][0, 1]
    return Seen(numbers(right), numbers(scores), not scores[2:].any())


@case("keras", KMHA, "flash_attention=True and scores", "unanswered")
def keras_flash() -> Seen:
    x = torch.randn(1, 3, 8)
    layer = identity_keras(1, 8, x, x, flash_attention=True)
    error = raises(lambda: layer(x, x, return_attention_scores=True))
    return Seen("the weights", str(error), error == "ValueError")


@case("keras", "layers.Attention", "scale", "differs")
def keras_no_scale() -> Seen:
    x = torch.randn(1, 3, 8)
    row = load_keras().layers.Attention()([x, x], return_attention_scores=True)[1][0, 0]
    raw = regard.attend(x[:, None], x[:, None], x[:, None], scale=1.0, weights=True).weights
    assert raw is not None
    expected = f"1/√width: {numbers(truth(x, x)[1][0, 0])}"
    return Seen(expected, f"1: {numbers(row)}", apart(row, raw[0, 0, 0]) < 1e-5)


@case("keras", "layers.Attention", "no key allowed, large scores", "differs")
def keras_large() -> Seen:
    x, mask = torch.randn(1, 3, 8) * 100, torch.zeros(1, 3, dtype=torch.bool)
    layer = load_keras().layers.Attention()
    row = layer([x, x], mask=[None, mask], return_attention_scores=True)[1][0, 0]
    return Seen("[0.00 0.00 0.00]", numbers(row), float(row.max()) == 1)


@case("keras", "layers.Attention", "no key allowed, float16", "differs")
def keras_half() -> Seen:
    x, mask = torch.randn(1, 3, 8).half(), torch.zeros(1, 3, dtype=torch.bool)
    layer = load_keras().layers.Attention(dtype="float16")
    row = layer([x, x], mask=[None, mask], return_attention_scores=True)[1][0, 0]
    return Seen("[0.00 0.00 0.00]", numbers(row), bool(row.isnan().all()))


@case("keras", "layers.Attention", "scores while training with dropout", "differs")
def keras_attention_dropout() -> Seen:
    x = torch.randn(1, 4, 8)
    layer = load_keras().layers.Attention(dropout=0.5, seed=0)
    sums = layer([x, x], training=True, return_attention_scores=True)[1].sum(-1)
    return Seen("row sums [1 1 1 1]", numbers(sums), apart(sums, torch.ones(4)) > 0.1)


@case("keras", "layers.Attention", "third mask, that of the keys", "differs")
def keras_third_mask() -> Seen:
    x, mask = torch.randn(1, 3, 8), torch.tensor([[True, True, False]])
    layer = load_keras().layers.Attention()
    row = layer([x, x, x], mask=[None, None, mask], return_attention_scores=True)[1][0, 2]
    return Seen("0 for the third key", numbers(row), float(row[2]) > 0.1)


def additive(x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """regard's weights for scores that are made here: vector · tanh(query + key)."""
    scores = (x[:, :, None] + x[:, None]).tanh() @ vector
    heads = x[:, None]
    found = regard.attend(heads, heads, heads, scale=0.0, bias=scores[:, None], weights=True)
    assert found.weights is not None
    return found.weights[:, 0]


@case("keras", "layers.AdditiveAttention", "scale", "differs")
def keras_additive_scale() -> Seen:
    x, layer = torch.randn(1, 3, 8), load_keras().layers.AdditiveAttention()
    found = layer([x, x], return_attention_scores=True)[1]
    vector = torch.tensor(layer.get_weights()[0])
    held = apart(found, additive(x, vector)) < 1e-5 and vector.shape == (8,)
    got = f"a vector of {len(vector)} random numbers, {numbers(vector[:3])}…"
    return Seen("as documented, a scalar", got, held)


@case("keras", "layers.AdditiveAttention", "first query, left padding and causal", "differs")
def keras_additive_left() -> Seen:
    x, mask = torch.randn(1, 3, 8), torch.tensor([[False, True, True]])
    layer = load_keras().layers.AdditiveAttention()
    call = {"mask": [None, mask], "use_causal_mask": True, "return_attention_scores": True}
    row = layer([x, x], **call)[1][0, 0]
    return Seen("[0.00 0.00 0.00]", numbers(row), apart(row, torch.full((3,), 1 / 3)) < 1e-5)


@case("keras", "layers.Attention", "score_mode='concat'", "differs")
def keras_concat() -> Seen:
    x, layers = torch.randn(1, 3, 8), load_keras().layers
    first = layers.Attention(score_mode="concat")([x, x], return_attention_scores=True)[1]
    held = apart(first, additive(x, torch.ones(8))) < 1e-5
    return Seen("tanh of a concatenation", "sum of tanh(query + key)", held)


@case("x-transformers", "Attend", "weights with flash=True", "unanswered")
def xt_flash_weights() -> Seen:
    x = torch.randn(1, 2, 4, 8)
    found = load_xt().Attend(flash=True)(x, x, x)[1].post_softmax_attn
    return Seen("the weights", str(found), found is None)


@case("x-transformers", "Attend", "forward(causal=False) on a causal module", "changes")
def xt_causal_override() -> Seen:
    x, make = torch.randn(1, 1, 4, 8), load_xt().Attend
    first, second = (make(causal=True, flash=flash)(x, x, x, causal=False)[0] for flash in (0, 1))
    held = apart(first[0], truth(x[0], x[0])[0]) < 1e-5
    held = held and apart(second[0], truth(x[0], x[0], triangle(4, 4))[0]) < 1e-5
    return Seen("one output", f"flash stays causal: {up_to(first, second)}", held)


@case("x-transformers", "Attend", "weights while training with dropout", "same")
def xt_dropout() -> Seen:
    x = torch.randn(1, 1, 4, 8)
    output, between = load_xt().Attend(dropout=0.5)(x, x, x)
    mixed = between.post_softmax_attn @ x
    held = apart(between.post_softmax_attn.sum(-1), torch.ones(4)) < 1e-5 < apart(output, mixed)
    return Seen("before dropout", "before dropout", held)


@case("x-transformers", "Attend", "custom_attn_fn with flash=True", "changes")
def xt_custom() -> Seen:
    x, make = torch.randn(1, 1, 4, 8), load_xt().Attend
    first, second = (
        make(custom_attn_fn=lambda scores: (2 * scores).softmax(-1), flash=flash)(x, x, x)[0]
        for flash in (False, True)
    )
    held = apart(second[0], truth(x[0], x[0])[0]) < 1e-5
    return Seen("used or refused", f"not used: {up_to(first, second)}", held)


@case("x-transformers", "Attend", "gumbel_softmax with flash=True", "changes")
def xt_gumbel() -> Seen:
    x = torch.randn(1, 1, 4, 8)
    output = load_xt().Attend(gumbel_softmax=True, flash=True)(x, x, x)[0]
    held = apart(output[0], truth(x[0], x[0])[0]) < 1e-5
    return Seen("used or refused", "not used: plain softmax", held)


@case("x-transformers", "Attend", "l2_distance, default scale, flash", "changes")
def xt_distance() -> Seen:
    x, make = torch.randn(3, 1, 1, 4, 8), load_xt().Attend
    first, second = (make(l2_distance=True, flash=flash)(*x)[0] for flash in (False, True))
    return Seen("one output", up_to(first, second), apart(first, second) > 0.01)


@case("x-transformers", "Attend", "weights with post_talking_heads", "differs")
def xt_talking() -> Seen:
    x, attend = torch.randn(1, 2, 4, 8), load_xt().Attend(post_talking_heads=True, heads=2)
    torch.nn.init.normal_(attend.post_softmax_talking_heads.weight)
    output, between = attend(x, x, x)
    mixed = between.post_softmax_attn @ x
    got = f"before mixing heads; output and weights @ values {up_to(output, mixed)}"
    return Seen("those applied", got, apart(output, mixed) > 0.1)


@case("x-transformers", "Attend", "weights with head_learned_sink", "differs")
def xt_sink() -> Seen:
    x, attend = torch.randn(1, 2, 4, 8), load_xt().Attend(head_learned_sink=True, heads=2)
    columns = attend(x, x, x)[1].post_softmax_attn.shape[-1]
    return Seen("4 columns for 4 keys", f"{columns} columns, the sink first", columns == 5)


def timm_pair(x: torch.Tensor, **call: object) -> list[torch.Tensor]:
    """The answers with the fused kernel and without."""
    module, found = identity_timm(x.shape[2], 1, x.dtype), []
    for fused in (True, False):
        module.fused_attn = fused
        found.append(module(x, **call))
    return found


@case("timm", "timm.layers.Attention", "weights", "unanswered")
def timm_weights() -> Seen:
    fused, plain = timm_pair(torch.randn(1, 4, 8))
    held = isinstance(fused, torch.Tensor) and isinstance(plain, torch.Tensor)
    return Seen("can be asked for", "the output alone", held)


@case("timm", "timm.layers.Attention", "is_causal and a mask together", "changes")
def timm_causal_and_mask() -> Seen:
    x, keep = torch.randn(1, 4, 8), torch.tensor([True, False, True, True]).expand(4, 4)
    fused, plain = timm_pair(x, attn_mask=keep[None, None], is_causal=True)
    held = apart(fused, truth(x, x, keep & triangle(4, 4))[0]) < 1e-5
    held = held and apart(plain, truth(x, x, triangle(4, 4))[0]) < 1e-5
    return Seen("the intersection", f"not fused leaves the mask out: {up_to(fused, plain)}", held)


@case("timm", "timm.layers.Attention", "integer 0/1 mask", "changes")
def timm_integer_mask() -> Seen:
    x, keep = torch.randn(1, 3, 8), torch.tensor([1, 1, 0]).expand(1, 1, 3, 3)
    module = identity_timm(8, 1, x.dtype)
    module.fused_attn = True
    error = raises(lambda: module(x, attn_mask=keep))
    module.fused_attn = False
    wrong = apart(module(x, attn_mask=keep), truth(x, x, keep.bool())[0])
    got = f"fused {error}; not fused adds it: {wrong:.2f} off"
    return Seen("used or refused", got, error == "RuntimeError" and wrong > 0.1)


@case(
    "timm",
    "timm.layers.Attention",
    "gradient when one row has no key, loss without that row",
    "changes",
)
def timm_gradient() -> Seen:
    x, keep, bad = torch.randn(1, 4, 8), torch.ones(1, 1, 4, 4, dtype=torch.bool), []
    keep[:, :, 1] = False
    for fused in (True, False):
        module = identity_timm(8, 1, x.dtype)
        module.fused_attn = fused
        module(x, attn_mask=keep)[:, [0, 2, 3]].sum().backward()
        bad.append(bool(module.qkv.weight.grad.isnan().any()))
    return Seen("finite", f"NaN fused: {bad[0]}, not fused: {bad[1]}", bad == [False, True])
