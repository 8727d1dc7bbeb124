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
from regard.mechanisms.heads import Heads
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
from regard.mechanisms.scoring import Scoring
from regard.recipe import Entmax, Normaliser, Sigmoid, Softmax, Sparsemax

__all__ = [
    "DPFP",
    "Additive",
    "Alibi",
    "ConcatScore",
    "Decomposable",
    "DotProduct",
    "DotScore",
    "EluPlusOne",
    "Entmax",
    "FeatureMap",
    "FromRecipe",
    "GeneralScore",
    "Heads",
    "HyperbolicFeatures",
    "IdentityFeatures",
    "LocalMonotonic",
    "LocalPredictive",
    "LocationScore",
    "Luong",
    "Mixture",
    "MultiHead",
    "Normaliser",
    "PositiveFeatures",
    "RandomFeatures",
    "RelativeBias",
    "Rotary",
    "Scoring",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "SumNormalised",
    "TrigonometricFeatures",
    "UnitNormalised",
]
