"""Attention mechanisms, all under the contract of `regard.Mechanism`."""

from regard.kernel.rotary import LinearScaling, NtkScaling, YarnScaling
from regard.mechanisms.additive import Additive
from regard.mechanisms.coverage import Coverage, coverage_loss
from regard.mechanisms.decays import Decay, FixedDecay, GatedDecay
from regard.mechanisms.decomposable import Decomposable
from regard.mechanisms.delta_rule import DeltaRule
from regard.mechanisms.differential import Differential
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
from regard.mechanisms.hard import Hard
from regard.mechanisms.heads import Heads
from regard.mechanisms.linear_attention import LinearAttention
from regard.mechanisms.luong import LocalMonotonic, LocalPredictive, Luong
from regard.mechanisms.luong_scores import ConcatScore, DotScore, GeneralScore, LocationScore
from regard.mechanisms.mixture import Mixture
from regard.mechanisms.monotonic import Monotonic
from regard.mechanisms.multi_head import MultiHead
from regard.mechanisms.multi_head_latent import MultiHeadLatent
from regard.mechanisms.pointer import Pointer
from regard.mechanisms.positions import (
    Alibi,
    BucketedBias,
    GridBias,
    GridRotary,
    RelativeBias,
    Rotary,
)
from regard.mechanisms.random_features import (
    HyperbolicFeatures,
    PositiveFeatures,
    RandomFeatures,
    TrigonometricFeatures,
)
from regard.mechanisms.recurrent import RecurrentMechanism
from regard.mechanisms.scoring import Scoring
from regard.mechanisms.shaped import Shaped
from regard.mechanisms.talking_heads import TalkingHeads
from regard.mechanisms.window import Window
from regard.recipe import Entmax, Normaliser, Sigmoid, Softmax, Sparsemax

__all__ = [
    "DPFP",
    "Additive",
    "Alibi",
    "BucketedBias",
    "ConcatScore",
    "Coverage",
    "Decay",
    "Decomposable",
    "DeltaRule",
    "Differential",
    "DotProduct",
    "DotScore",
    "EluPlusOne",
    "Entmax",
    "FeatureMap",
    "FixedDecay",
    "FromRecipe",
    "GatedDecay",
    "GeneralScore",
    "GridBias",
    "GridRotary",
    "Hard",
    "Heads",
    "HyperbolicFeatures",
    "IdentityFeatures",
    "LinearAttention",
    "LinearScaling",
    "LocalMonotonic",
    "LocalPredictive",
    "LocationScore",
    "Luong",
    "Mixture",
    "Monotonic",
    "MultiHead",
    "MultiHeadLatent",
    "Normaliser",
    "NtkScaling",
    "Pointer",
    "PositiveFeatures",
    "RandomFeatures",
    "RecurrentMechanism",
    "RelativeBias",
    "Rotary",
    "Scoring",
    "Shaped",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "SumNormalised",
    "TalkingHeads",
    "TrigonometricFeatures",
    "UnitNormalised",
    "Window",
    "YarnScaling",
    "coverage_loss",
]
