"""Time series: forecasters with attention over time, over variables, or over nothing."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from .absent import imported
from .target import Target
from .truth import Run, each

SAME = "b h q k -> b h q k"
ONE_HEAD = "b q k -> b 1 q k"
FORECAST, NEURAL, GLUON, TSAI = "pytorch-forecasting", "neuralforecast", "gluonts", "tsai"


def neural(name: str, series: int = 1, **settings: Any):
    """A forecaster of neuralforecast on windows of 24 steps, 6 steps ahead."""

    def build():
        more = {"n_series": series} if series > 1 else {}
        model = imported(f"neuralforecast.models:{name}")(
            h=6, input_size=24, max_steps=1, **more, **settings)  # fmt: skip
        batch: dict[str, Any] = dict.fromkeys(("futr_exog", "hist_exog", "stat_exog"))
        history = torch.randn(5, 24, series)
        batch |= {"insample_y": history, "insample_mask": torch.ones_like(history)}
        return model, (batch,), {}

    return build


def forecasting_tft():
    """The data set of pytorch-forecasting's tutorial, made of noise."""
    import numpy
    import pandas

    module = imported("pytorch_forecasting")
    numbers = numpy.random.default_rng(7).normal(size=(90, 2))
    frame = pandas.DataFrame(numbers, columns=["y", "price"])
    frame["time"], frame["group"] = list(range(30)) * 3, ["a"] * 30 + ["b"] * 30 + ["c"] * 30
    data = module.TimeSeriesDataSet(
        frame, time_idx="time", target="y", group_ids=["group"], max_encoder_length=9,
        max_prediction_length=4, time_varying_known_reals=["price"],
        time_varying_unknown_reals=["y"], static_categoricals=["group"])  # fmt: skip
    model = module.TemporalFusionTransformer.from_dataset(
        data, hidden_size=12, attention_head_size=3, hidden_continuous_size=8)  # fmt: skip
    inputs, _ = next(iter(data.to_dataloader(train=False, batch_size=5, num_workers=0)))
    return model, (inputs,), {}


def forecasting_attention(run: Run) -> list[Tensor]:
    """One softmax for each head; those of variable selection come before."""
    lengths = {call.weights.shape for call in run.calls}
    assert lengths, "no softmax ran"
    return [w[:, None] for w in run.weights if w.dim() == 3 and w.shape[1] == 4]


def gluon_tft():
    model = imported("gluonts.torch.model.tft.module:TemporalFusionTransformerModel")(
        context_length=9, prediction_length=4, num_heads=3, d_hidden=12, d_var=12)  # fmt: skip
    inputs = {
        "past_target": torch.randn(5, 9), "past_observed_values": torch.ones(5, 9),
        "feat_static_real": torch.randn(5, 1), "feat_static_cat": torch.zeros(5, 1).long(),
        "feat_dynamic_real": torch.randn(5, 13, 1)}  # fmt: skip
    return model, (), inputs


def gluon_patch():
    model = imported("gluonts.torch.model.patch_tst.module:PatchTSTModel")(
        prediction_length=4, context_length=24, patch_len=4, stride=4, d_model=12, nhead=3,
        dim_feedforward=16, dropout=0.0, activation="relu", norm_first=False,
        num_encoder_layers=2, scaling="mean", num_feat_dynamic_real=0,
        padding_patch="end")  # fmt: skip
    inputs = {"past_target": torch.randn(5, 24), "past_observed_values": torch.ones(5, 24)}
    return model, (), inputs


def tsai(path: str, shape: tuple[int, ...], *args: Any, **settings: Any):
    def build():
        model = imported(f"tsai.models.{path}")(*args, **settings)
        for name, parameter in model.named_parameters():
            if name.endswith(("latent_array", "bias_table")):
                nn.init.normal_(parameter)  # zeros at first: all rows alike
        return model, (torch.randn(*shape),), {}

    return build


def biased(run: Run) -> list[dict[str, Tensor]]:
    """A bias that is added after the softmax."""
    (weights,), model = run.weights, run.model
    bias = model.relative_bias_table.gather(0, model.relative_index.repeat(1, 8))
    bias = rearrange(bias, "(q k) h -> 1 h q k", q=model.seq_len).detach()
    return [{"softmax": weights, "with bias": weights + bias}]


def chronos_bolt():
    from transformers import T5Config

    config = T5Config(
        vocab_size=2, d_model=24, d_kv=8, num_heads=3, d_ff=32, num_layers=2, num_decoder_layers=1,
        chronos_config={
            "context_length": 32, "prediction_length": 6, "input_patch_size": 4,
            "input_patch_stride": 4, "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True},
        is_encoder_decoder=True, decoder_start_token_id=0, pad_token_id=0)  # fmt: skip
    module = imported("chronos.chronos_bolt")
    return module.ChronosBoltModelForForecasting(config), (torch.randn(5, 32),), {}


def darts_attention():
    module = imported("darts.models.components.tft_submodels")
    model = module._InterpretableMultiHeadAttention(n_head=3, d_model=12, dropout=0.0)
    x = torch.randn(5, 9, 12)
    return model, (x[:, 5:], x, x), {}


def darts_selection():
    module = imported("darts.models.components.tft_submodels")
    sizes = dict.fromkeys(("price", "load", "wind"), 8)
    model = module._VariableSelectionNetwork(
        input_sizes=sizes, hidden_size=8, input_embedding_flags={}, dropout=0.0, context_size=None,
        single_variable_grns={}, prescalers={name: nn.Linear(1, 8) for name in sizes},
        layer_norm=nn.LayerNorm)  # fmt: skip
    inputs = {name: torch.randn(5, 9, 1) for name in sizes}
    return model, (inputs,), {}


SMALL = {"hidden_size": 12, "n_head": 3}
TARGETS = [
    Target("TemporalFusionTransformer", FORECAST, forecasting_tft, forecasting_attention, None,
           quick=True),
    Target("Informer", NEURAL, neural(
        "Informer", factor=2, conv_hidden_size=16, encoder_layers=2, distil=True, **SMALL),
        each(SAME), None),
    Target("Autoformer", NEURAL, neural("Autoformer", factor=2, conv_hidden_size=16, **SMALL)),
    Target("FEDformer", NEURAL, neural(
        "FEDformer", conv_hidden_size=16, modes=4, hidden_size=16, n_head=8)),
    Target("VanillaTransformer", NEURAL, neural(
        "VanillaTransformer", conv_hidden_size=16, **SMALL), each(SAME),
        ("self", "self", "self", "cross")),
    Target("PatchTST", NEURAL, neural(
        "PatchTST", n_heads=3, hidden_size=12, linear_hidden_size=16, encoder_layers=2, patch_len=6,
        stride=3), lambda run: [w if w.dim() == 4 else rearrange(w, "(b h) q k -> b h q k", h=3)
                                for w in run.weights], "self"),
    Target("PatchTST, batch and heads folded", NEURAL, neural(
        "PatchTST", n_heads=3, hidden_size=12, linear_hidden_size=16, encoder_layers=2, patch_len=6,
        stride=3, res_attention=False), each("(b h) q k -> b h q k", h=3), "self"),
    Target("iTransformer", NEURAL, neural(
        "iTransformer", 7, hidden_size=12, n_heads=3, e_layers=2, d_ff=16), each(SAME), "self"),
    Target("TFT", NEURAL, neural("TFT", **SMALL),
           lambda run: [w for w in run.weights if w.dim() == 4 and w.shape[1] == 3], "self"),
    Target("TimesNet", NEURAL, neural("TimesNet", hidden_size=12, conv_hidden_size=16, top_k=3)),
    Target("SOFTS", NEURAL, neural("SOFTS", 7, hidden_size=12, d_core=10, e_layers=1, d_ff=16)),
    Target("TemporalFusionTransformer", GLUON, gluon_tft,
           lambda run: [w.unflatten(0, (5, 3)) for w in run.weights if w.shape[-1] == 13], None),
    Target("PatchTST", GLUON, gluon_patch, each(SAME), "self"),
    Target("InterpretableMultiHeadAttention", "darts", darts_attention, each(ONE_HEAD)),
    Target("VariableSelectionNetwork", "darts", darts_selection),
    Target("TST", TSAI, tsai(
        "TST:TST", (5, 4, 9), 4, 2, 9, d_model=12, n_heads=3, n_layers=2), each(SAME), "self"),
    Target("PatchTST", TSAI, tsai(
        "PatchTST:PatchTST", (5, 4, 24), 4, 4, 24, 6, n_layers=2, d_model=12, n_heads=3,
        d_ff=16, patch_len=6, stride=3), each(SAME), "self"),
    Target("TSPerceiver", TSAI, tsai(
        "TSPerceiver:TSPerceiver", (5, 4, 9), 4, 2, 9, n_latents=7, d_latent=12, n_layers=2,
        cross_n_heads=3, self_n_heads=4), each(SAME), ("cross", "self") * 2),
    Target("ConvTran, bias after softmax", TSAI, tsai(
        "ConvTranPlus:Attention_Rel_Scl", (3, 5, 24), 24, 5, n_heads=8), biased, "self"),
    Target("Chronos-Bolt", "chronos-forecasting", chronos_bolt, each(SAME),
           ("self", "self", "self", "cross")),
]  # fmt: skip
