"""MobileSAM: attention in windows with a bias, and between points and an image, both by hand."""

import math

import pytest
import torch
from loaders import mobile_sam

import regard

IMAGE = "image_encoder"
DECODER = "mask_decoder.transformer"


@pytest.fixture(scope="module")
def model():
    return mobile_sam()[0]


@pytest.fixture(scope="module")
def run():
    """One captured run: the trace, what the model returned, and the inputs of each attention."""
    model, given = mobile_sam()
    seen: dict[str, list[tuple]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda _, args, named, name=name: seen.setdefault(name, []).append((args, named)),
            with_kwargs=True,
        )
        for name, module in model.named_modules()
        if type(module).__name__ == "Attention"
    ]
    try:
        with torch.no_grad():
            plain = model([given], multimask_output=True)[0]
            seen.clear()
            with regard.capture(model) as trace:
                output = model([given], multimask_output=True)[0]
    finally:
        for handle in handles:
            handle.remove()
    return trace, plain, output, seen


def windows(module, x):
    """Weights (window, head, place, place) of TinyViT: dot product plus a bias by distance."""
    heads = module.num_heads
    packed = module.qkv(module.norm(x)).view(
        *x.shape[:2], heads, -1
    )  # (window, place, head, 3 × d)
    query = packed[..., : module.key_dim].transpose(1, 2)
    key = packed[..., module.key_dim : 2 * module.key_dim].transpose(1, 2)
    bias = module.attention_biases[:, module.attention_bias_idxs]
    return (query @ key.mT * module.scale + bias).softmax(-1)


def two_way(module, q, k):
    """Weights (prompt, head, query, key) of the mask decoder."""
    parts = [
        projection(x).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for projection, x in ((module.q_proj, q), (module.k_proj, k))
    ]
    return (parts[0] @ parts[1].mT / math.sqrt(parts[0].shape[-1])).softmax(-1)


def test_every_attention_was_seen_once_and_nothing_else(model, run):
    trace, plain, output, seen = run
    assert sorted(trace.names()) == sorted(seen)
    assert len(trace) == 17, "ten windowed ones, two blocks of three, and a last one"
    assert all(torch.equal(plain[key], output[key]) for key in plain)


def test_weights_are_those_computed_by_hand(model, run):
    trace, _, _, seen = run
    for name, ((args, named),) in seen.items():
        module = model.get_submodule(name)
        with torch.no_grad():
            if name.startswith(IMAGE):
                want = windows(module, *args)
            else:
                want = two_way(module, named["q"], named["k"])
        torch.testing.assert_close(trace[name].weights(), want, atol=1e-5, rtol=0, msg=name)


def test_self_and_cross_are_told_apart(run):
    trace = run[0]
    for record in trace:
        cross = "cross_attn" in record.name or "final" in record.name
        assert record.attends == ("cross" if cross else "self"), record.name


def test_the_mask_tokens_look_inside_the_disc(run):
    trace, _, output, _ = run
    best = int(output["iou_predictions"].argmax())
    mask = output["masks"][0, best].float()  # (row, column)
    inside = torch.nn.functional.avg_pool2d(mask[None], 16).flatten()  # (place,)
    assert inside.mean() == pytest.approx(math.pi * 180**2 / 1024**2, rel=0.05), "it is the disc"
    weights = trace[f"{DECODER}.layers.1.cross_attn_token_to_image"].weights()
    share = weights[0, :, 1:5] @ inside  # (head, mask token)
    assert share.max() > 0.9
