"""Attention mechanisms, all under the contract of `regard.Mechanism`."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.decomposable import Decomposable
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.heads import Heads
from regard.mechanisms.luong import LocalMonotonic, LocalPredictive, Luong
from regard.mechanisms.luong_scores import ConcatScore, DotScore, GeneralScore, LocationScore
from regard.mechanisms.mixture import Mixture
from regard.mechanisms.multi_head import MultiHead
from regard.mechanisms.positions import Alibi, RelativeBias, Rotary
from regard.mechanisms.scoring import Scoring

__all__ = [
    "Additive",
    "Alibi",
    "ConcatScore",
    "Decomposable",
    "DotProduct",
    "DotScore",
    "FromRecipe",
    "GeneralScore",
    "Heads",
    "LocalMonotonic",
    "LocalPredictive",
    "LocationScore",
    "Luong",
    "Mixture",
    "MultiHead",
    "RelativeBias",
    "Rotary",
    "Scoring",
]
