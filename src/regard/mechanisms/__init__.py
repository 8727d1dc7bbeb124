"""Attention mechanisms, all under the contract of `regard.Mechanism`."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.decomposable import Decomposable
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.feature_maps import (
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

__all__ = [
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
    "IdentityFeatures",
    "LocalMonotonic",
    "LocalPredictive",
    "LocationScore",
    "Luong",
    "MultiHead",
    "RelativeBias",
    "Rotary",
    "SumNormalised",
    "UnitNormalised",
]
