"""The tokens at both ends of a model: source and target embeddings, and the output layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError
from regard.translate.tokens import PAD


class Embeddings(nn.Module):
    """Embeddings of both languages and the output layer, each held once however they are shared.

    `source` and `target` are `nn.Embedding`s. Without an `output` of its own the output layer is
    the target's embedding (Press & Wolf 2017); without a source of its own, so is the source's.
    """

    def __init__(
        self,
        target: nn.Embedding,
        *,
        source: nn.Embedding | None = None,
        output: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.target = target
        self.own_source = source
        self.output = output
        self.bias = nn.Parameter(torch.zeros(target.num_embeddings))
        self.product: Callable[..., Tensor] | None = None  #: of the output layer: see `layout.py`

    @property
    def source(self) -> nn.Embedding:
        """The source's embedding, which may be the target's."""
        return self.target if self.own_source is None else self.own_source

    @property
    def output_weight(self) -> Tensor:
        """The output layer's weight, which may be the target's embedding."""
        return self.target.weight if self.output is None else self.output

    def logits(
        self, features: Float[Tensor, "*position width"]
    ) -> Float[Tensor, "*position vocabulary"]:
        """The output layer, over the target vocabulary."""
        product = F.linear if self.product is None else self.product
        return product(features, self.output_weight, self.bias)


def embeddings(
    source_size: int, target_size: int, width: int, *, features: int, tie: str = "none"
) -> Embeddings:
    """Embeddings of `width` and an output layer that takes `features`.

    `tie`: "none"; "target", the output layer is the target's embedding; "all", the source's
    embedding is it too, which wants one vocabulary for both.
    """
    target = _embedding(target_size, width)
    if tie == "none":
        output = nn.Parameter(torch.empty(target_size, features))
        nn.init.xavier_uniform_(output)
        return Embeddings(target, source=_embedding(source_size, width), output=output)
    if tie not in ("target", "all"):
        raise RegardError(f"tie={tie!r}, expected 'none', 'target' or 'all'")
    if features != width:
        raise RegardError(f"tie={tie!r}: the output takes {features} features, expected {width}")
    if tie == "target":
        return Embeddings(target, source=_embedding(source_size, width))
    if source_size != target_size:
        raise RegardError(
            f"tie='all' wants one vocabulary for both languages, but they have {source_size} and "
            f"{target_size} tokens"
        )
    return Embeddings(target)


def _embedding(size: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(size, width, padding_idx=PAD)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    nn.init.zeros_(embedding.weight.data[PAD])
    return embedding
