"""Recipes: what weights are made from, kept instead of the weights.

A recipe knows its shapes, gives back any block of exact weights, and says how many bytes it
holds. The family is closed:

| recipe      | what it holds                                                                     |
|-------------|-----------------------------------------------------------------------------------|
| `Dot`       | query, key, mask, bias, scale, normaliser: softmax of dot products                |
| `Additive`  | query, key, vector: softmax of vectorᵀ tanh(query + key)                          |
| `Pointing`  | the same, where the weights are the output: a pointer                             |
| `Given`     | the matrix a model made itself                                                    |
| `Unrolled`  | the same, made row by row: coverage, monotonic attention                          |
| `Projected` | input and projection weights: torch's native multi-head operators                 |
| `Flex`      | query, key and the score and mask functions of flex attention                     |
| `Edges`     | a sparse list of (query, key) pairs and their weights: graphs, gathered keys      |
| `Linear`    | features of query and key, a decay: linear attention                              |
| `Delta`     | features of query and key, a strength, a decay: the delta rule                    |
| `Mixture`   | other recipes and a coefficient for each head: differential, talking heads        |
| `Identity`  | sizes and a mask: each query attends to its own position                          |
| `Uniform`   | sizes and a mask: the same weight for every permitted key                         |

Half-precision inputs are computed in float32, so weights are never rounded to half precision.
"""

from regard.recipe.base import Recipe, per_head, tensors
from regard.recipe.edges import Edges, Offsets
from regard.recipe.flex import Flex
from regard.recipe.given import Given, Unrolled
from regard.recipe.linear import Delta, Linear, Recurrent
from regard.recipe.mixture import Mixture
from regard.recipe.normalisers import Entmax, Normaliser, Sigmoid, Softmax, Sparsemax
from regard.recipe.positional import Identity, Positional, Uniform
from regard.recipe.projected import Projected
from regard.recipe.softmaxed import Additive, Dot, Pointing, Softmaxed

__all__ = [
    "Additive",
    "Delta",
    "Dot",
    "Edges",
    "Entmax",
    "Flex",
    "Given",
    "Identity",
    "Linear",
    "Mixture",
    "Normaliser",
    "Offsets",
    "Pointing",
    "Positional",
    "Projected",
    "Recipe",
    "Recurrent",
    "Sigmoid",
    "Softmax",
    "Softmaxed",
    "Sparsemax",
    "Uniform",
    "Unrolled",
    "per_head",
    "tensors",
]
