"""Attention mechanisms, all under the contract of `regard.Mechanism`."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.decays import Decay, FixedDecay, GatedDecay
from regard.mechanisms.decomposable import Decomposable
from regard.mechanisms.delta_rule import DeltaRule
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.feature_maps import (
    DPFP,
    EluPlusOne,
    FeatureMap,
    IdentityFeatures,
    SumNormalised,
    UnitNormalised,
)
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.heads import Heads
from regard.mechanisms.linear_attention import LinearAttention
from regard.mechanisms.luong import LocalMonotonic, LocalPredictive, Luong
from regard.mechanisms.luong_scores import ConcatScore, DotScore, GeneralScore, LocationScore
from regard.mechanisms.mixture import Mixture
from regard.mechanisms.multi_head import MultiHead
from regard.mechanisms.positions import Alibi, RelativeBias, Rotary
from regard.mechanisms.random_features import (
    HyperbolicFeatures,
    PositiveFeatures,
    RandomFeatures,
    TrigonometricFeatures,
)
from regard.mechanisms.recurrent import RecurrentMechanism
from regard.mechanisms.scoring import Scoring

__all__ = [
    "DPFP",
    "Additive",
    "Alibi",
    "ConcatScore",
    "Decay",
    "Decomposable",
    "DeltaRule",
    "DotProduct",
    "DotScore",
    "EluPlusOne",
    "FeatureMap",
    "FixedDecay",
    "FromRecipe",
    "GatedDecay",
    "GeneralScore",
    "Heads",
    "HyperbolicFeatures",
    "IdentityFeatures",
    "LinearAttention",
    "LocalMonotonic",
    "LocalPredictive",
    "LocationScore",
    "Luong",
    "Mixture",
    "MultiHead",
    "PositiveFeatures",
    "RandomFeatures",
    "RecurrentMechanism",
    "RelativeBias",
    "Rotary",
    "Scoring",
    "SumNormalised",
    "TrigonometricFeatures",
    "UnitNormalised",
]
