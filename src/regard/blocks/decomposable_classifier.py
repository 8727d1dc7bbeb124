"""The decomposable attention model: attend, compare, aggregate, classify."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard import masks
from regard.contract import BlockOutput
from regard.mechanisms import Decomposable, RelativeBias


class DecomposableClassifier(nn.Module):
    """Attend βᵢ, αⱼ; compare v₁ᵢ = G([aᵢ; βᵢ]), v₂ⱼ = G([bⱼ; αⱼ]); aggregate H([Σ v₁; Σ v₂]).

    Parikh et al. 2016, sections 3.1 to 3.4. With `input_width` 300, `width` 200 and 3 classes it
    has 381,803 parameters (the paper: 382 thousand), 582,226 with `intra` (the paper: 582).

    | here                   | paper    | meaning                                            |
    |------------------------|----------|----------------------------------------------------|
    | `project`              |          | embeddings to `width`, no bias                     |
    | `attend`               | F        | two-layer ReLU network, then softmax both ways     |
    | `compare`              | G        | two-layer ReLU network                             |
    | `aggregate`            | H        | two-layer ReLU network and a linear layer          |
    | `intra`                | F_intra  | attention within a sentence, biased by distance    |

    Args:
        input_width: features of the (frozen, normalised) word vectors that come in.
        width: of every layer.
        n_classes: what is told apart.
        intra: attend within each sentence first, one bias a distance, shared beyond ten words.
        dropout: before every linear layer.
    """

    def __init__(
        self,
        input_width: int = 300,
        width: int = 200,
        n_classes: int = 3,
        *,
        intra: bool = False,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        inner = 2 * width if intra else width
        self.project = nn.Linear(input_width, width, bias=False)
        self.intra = Decomposable(_two_layers(width, width, dropout)) if intra else None
        self.distance = RelativeBias(1, reach=11) if intra else None
        self.attend = Decomposable(_two_layers(inner, width, dropout))
        self.compare = _two_layers(2 * inner, width, dropout)
        self.aggregate = nn.Sequential(
            _two_layers(2 * width, width, dropout), nn.Linear(width, n_classes)
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.01)

    def forward(
        self,
        first: Float[Tensor, "batch first_word input_width"],
        second: Float[Tensor, "batch second_word input_width"],
        *,
        first_keep: Bool[Tensor, "batch first_word"] | None = None,
        second_keep: Bool[Tensor, "batch second_word"] | None = None,
        weights: bool = False,
    ) -> BlockOutput:
        """Class scores (batch, class), and the attentions `first`, `second` (and `intra_…`).

        Args:
            first: word vectors of the first sentence, a.
            second: word vectors of the second sentence, b.
            first_keep: True where a word of the first sentence is real.
            second_keep: the same for the second.
            weights: keep the weights of every attention.
        """
        a, b = self.project(_zeroed(first, first_keep)), self.project(_zeroed(second, second_keep))
        see_a = None if first_keep is None else masks.padding(first_keep)
        see_b = None if second_keep is None else masks.padding(second_keep)
        attentions = {}
        if self.intra is not None and self.distance is not None:
            bias = self.distance.bias()
            own_a = self.intra(a, mask=see_a, bias=bias, weights=weights)
            own_b = self.intra(b, mask=see_b, bias=bias, weights=weights)
            attentions = {"intra_first": own_a, "intra_second": own_b}
            a, b = torch.cat([a, own_a.output], -1), torch.cat([b, own_b.output], -1)
        beta = self.attend(a, b, mask=see_b, weights=weights)
        alpha = self.attend(b, a, mask=see_a, weights=weights)
        compared_a = _zeroed(self.compare(torch.cat([a, beta.output], -1)), first_keep)
        compared_b = _zeroed(self.compare(torch.cat([b, alpha.output], -1)), second_keep)
        summed = torch.cat([compared_a.sum(1), compared_b.sum(1)], -1)  # a sum, not a mean
        attentions = {**attentions, "first": beta, "second": alpha}
        return BlockOutput(self.aggregate(summed), attentions)


def _two_layers(inputs: int, width: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(dropout),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
    )


def _zeroed(features: Tensor, keep: Tensor | None) -> Tensor:
    return features if keep is None else masks.clean(features, keep[:, None])
