"""Attention mechanisms, all under the contract of `regard.Mechanism`."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.decomposable import Decomposable
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
from regard.mechanisms.luong import LocalMonotonic, LocalPredictive, Luong
from regard.mechanisms.luong_scores import ConcatScore, DotScore, GeneralScore, LocationScore
from regard.mechanisms.multi_head import MultiHead
from regard.mechanisms.positions import Alibi, RelativeBias, Rotary
from regard.mechanisms.random_features import (
    HyperbolicFeatures,
    PositiveFeatures,
    RandomFeatures,
    TrigonometricFeatures,
)

__all__ = [
    "DPFP",
    "Additive",
    "Alibi",
    "ConcatScore",
    "Decomposable",
    "DotProduct",
    "DotScore",
    "EluPlusOne",
    "FeatureMap",
    "FromRecipe",
    "GeneralScore",
    "HyperbolicFeatures",
    "IdentityFeatures",
    "LocalMonotonic",
    "LocalPredictive",
    "LocationScore",
    "Luong",
    "MultiHead",
    "PositiveFeatures",
    "RandomFeatures",
    "RelativeBias",
    "Rotary",
    "SumNormalised",
    "TrigonometricFeatures",
    "UnitNormalised",
]
