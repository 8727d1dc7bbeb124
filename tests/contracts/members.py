"""Every mechanism, built in each of its forms. A class without an entry here fails the suite."""

from torch import Tensor, nn

from regard.mechanisms import (
    DPFP,
    Additive,
    Alibi,
    BucketedBias,
    ConcatScore,
    Coverage,
    Decomposable,
    DeltaRule,
    Differential,
    DotProduct,
    EluPlusOne,
    Entmax,
    FixedDecay,
    GatedDecay,
    GeneralScore,
    Hard,
    Heads,
    HyperbolicFeatures,
    IdentityFeatures,
    LinearAttention,
    LocalMonotonic,
    LocalPredictive,
    LocationScore,
    Luong,
    Monotonic,
    MultiHead,
    MultiHeadLatent,
    Pointer,
    PositiveFeatures,
    RelativeBias,
    Rotary,
    Scoring,
    Shaped,
    Sigmoid,
    Sparsemax,
    SumNormalised,
    TalkingHeads,
    TrigonometricFeatures,
    Window,
    YarnScaling,
)


def _head_by_distance(
    score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
) -> Tensor:
    return score - 0.1 * (1 + head) * (query - key).abs()


def _scoring() -> MultiHead:
    return MultiHead(
        16, 4, scoring=Scoring(norms=(nn.RMSNorm(4), nn.RMSNorm(4)), sinks=True, softcap=5.0)
    )


#: name -> (build, sizes)
MEMBERS = {
    "dot_product": (DotProduct, {}),
    "dot_product_plain": (lambda: DotProduct(scale=1.0, dropout=0.5), {}),
    "multi_head": (lambda: MultiHead(16, 4, dropout=0.5), {}),
    "multi_head_grouped": (lambda: MultiHead(16, Heads(4, n_groups=2, value_width=3)), {}),
    "multi_head_multi_query": (lambda: MultiHead(16, Heads(4, n_groups=1), bias=False), {}),
    "multi_head_inputs": (
        lambda: MultiHead(16, Heads(2, head_width=5), inputs=(6, 10)),
        {"key_width": 6, "value_width": 10},
    ),
    "multi_head_rotary": (lambda: MultiHead(16, 4, position=Rotary()), {}),
    "multi_head_alibi": (lambda: MultiHead(16, 4, position=Alibi(4)), {}),
    "multi_head_relative": (lambda: MultiHead(16, 4, position=RelativeBias(4, 3)), {}),
    "multi_head_streaming": (
        lambda: MultiHead(16, 4, position=Rotary(), window=Window(2, 1, first=1)),
        {},
    ),
    "multi_head_rotary_scaled": (
        lambda: MultiHead(16, 2, position=Rotary(share=0.5, scaling=YarnScaling(4.0, original=8))),
        {},
    ),
    "multi_head_bucketed": (
        lambda: MultiHead(16, 4, position=BucketedBias(4, 8, distance=6)),
        {},
    ),
    "multi_head_in_cache": (
        lambda: MultiHead(16, 4, position=Rotary(), window=Window(1, 1, first=1, in_cache=True)),
        {},
    ),
    "multi_head_window": (lambda: MultiHead(16, 4, window=(3, 3)), {}),
    "multi_head_scoring": (_scoring, {}),
    "multi_head_sigmoid": (lambda: MultiHead(16, 4, normaliser=Sigmoid(bias=-1.9)), {}),
    "multi_head_sparsemax": (
        lambda: MultiHead(16, Heads(4, n_groups=2), normaliser=Sparsemax(), dropout=0.5),
        {},
    ),
    "multi_head_entmax": (
        lambda: MultiHead(16, 4, normaliser=Entmax(1.5), scoring=Scoring(sinks=True)),
        {},
    ),
    "multi_head_function": (
        lambda: MultiHead(
            16, Heads(4, n_groups=2), scoring=Scoring(sinks=True, function=_head_by_distance)
        ),
        {},
    ),
    "multi_head_gated": (lambda: MultiHead(16, 4, gate=nn.Linear(16, 4)), {}),
    "multi_head_everything": (
        lambda: MultiHead(
            *(16, Heads(4, n_groups=2, value_width=3)),
            position=Rotary(),
            window=(4, 4),
            scoring=Scoring(scale=0.4, sinks=True),
            gate=nn.Linear(16, 12),
        ),
        {},
    ),
    "multi_head_latent": (lambda: MultiHeadLatent(16, 4, latent_width=6, dropout=0.5), {}),
    "multi_head_latent_queries": (
        lambda: MultiHeadLatent(16, 2, latent_width=5, query_latent_width=7, value_width=3),
        {},
    ),
    "additive": (lambda: Additive(16, 6, width=8, dropout=0.5), {"key_width": 6}),
    "additive_self": (lambda: Additive(16, 16, width=8), {}),
    "luong_dot": (Luong, {}),
    "luong_general": (lambda: Luong(GeneralScore(16, 6), dropout=0.5), {"key_width": 6}),
    "luong_concat": (lambda: Luong(ConcatScore(16, 16, width=8)), {}),
    "luong_location": (lambda: Luong(LocationScore(16, longest=12)), {}),
    "luong_local_m": (lambda: Luong(window=LocalMonotonic(2)), {}),
    "luong_local_p": (lambda: Luong(GeneralScore(16, 16), window=LocalPredictive(16, 4)), {}),
    "multi_head_differential": (
        lambda: MultiHead(
            16,
            Heads(4, n_groups=2, head_width=2, value_width=4),
            mixture=Differential(2, layer=3),
            dropout=0.5,
        ),
        {},
    ),
    "multi_head_talking_heads": (
        lambda: MultiHead(16, Heads(4, n_groups=2), mixture=TalkingHeads(4), dropout=0.5),
        {},
    ),
    "shaped": (lambda: Shaped(16, 4, values=True, dropout=0.5), {}),
    "pointer": (lambda: Pointer(16, 16, width=8), {}),
    "coverage": (lambda: Coverage(16, 16, width=8, dropout=0.5), {}),
    "monotonic": (lambda: Monotonic(16, 16, width=8, offset=0.2), {}),
    "hard": (Hard, {}),
    "hard_multi_head": (lambda: Hard(MultiHead(16, Heads(4, n_groups=2), dropout=0.5)), {}),
    "decomposable": (lambda: Decomposable(nn.Linear(16, 8)), {}),
    "linear_attention": (lambda: LinearAttention(16, 4), {}),
    "linear_attention_1992": (
        lambda: LinearAttention(16, 2, feature_map=IdentityFeatures(), normalised=False),
        {},
    ),
    "linear_attention_decay": (
        lambda: LinearAttention(
            16, Heads(4, n_groups=2, value_width=3), decay=FixedDecay([0.9, 0.5, 1.0, 0.7])
        ),
        {},
    ),
    "linear_attention_inputs": (
        lambda: LinearAttention(16, 2, inputs=(6, 10), decay=GatedDecay(6, 2)),
        {"key_width": 6, "value_width": 10},
    ),
    "linear_attention_dpfp": (lambda: LinearAttention(16, 2, feature_map=DPFP(2)), {}),
    "performer": (lambda: LinearAttention(16, 4, feature_map=PositiveFeatures(4, seed=0)), {}),
    "performer_hyperbolic": (
        lambda: LinearAttention(16, 2, feature_map=HyperbolicFeatures(8, 12, seed=0)),
        {},
    ),
    "performer_trigonometric": (
        lambda: LinearAttention(16, 4, feature_map=TrigonometricFeatures(4, 1000, seed=0)),
        {},
    ),
    "delta_rule": (lambda: DeltaRule(16, 4, feature_map=SumNormalised(EluPlusOne())), {}),
    "delta_rule_dpfp": (lambda: DeltaRule(16, 4, feature_map=SumNormalised(DPFP())), {}),
    "delta_rule_gated": (
        lambda: DeltaRule(16, Heads(4, n_groups=2), decay=GatedDecay(16, 4), scale=0.5),
        {},
    ),
}

_NO_SELF = ("own_padding", "causality", "step_by_step")  # queries and keys have other widths
_ORDER = ("key_permutation",)
_SIGNED = ("row_sums",)  # which have none to hold to

#: Laws that cannot be seen on a member. One that becomes visible, or stops being so, fails.
NOT_SEEN = {
    "multi_head_inputs": _NO_SELF,
    "additive": _NO_SELF,
    "luong_general": _NO_SELF,
    "multi_head_rotary": _ORDER,
    "multi_head_alibi": _ORDER,
    "multi_head_relative": _ORDER,
    "multi_head_streaming": _ORDER,
    "multi_head_rotary_scaled": _ORDER,
    "multi_head_bucketed": _ORDER,
    "multi_head_in_cache": _ORDER,
    "multi_head_window": _ORDER,
    "multi_head_everything": _ORDER,
    "multi_head_function": _ORDER,
    "multi_head_sigmoid": ("row_sums",),
    "multi_head_differential": ("row_sums",),
    "multi_head_talking_heads": ("row_sums",),
    "shaped": ("row_sums", *_ORDER),
    "multi_head_latent": _ORDER,
    "multi_head_latent_queries": _ORDER,
    "monotonic": _ORDER,
    "luong_location": _ORDER,
    "luong_local_m": _ORDER,
    "luong_local_p": _ORDER,
    "linear_attention_1992": _SIGNED,
    "linear_attention_decay": _ORDER,
    "linear_attention_inputs": (*_NO_SELF, *_ORDER),
    "delta_rule": (*_SIGNED, *_ORDER),
    "delta_rule_gated": (*_SIGNED, *_ORDER),
    "delta_rule_dpfp": (*_SIGNED, *_ORDER),
    "performer_trigonometric": _SIGNED,
}
