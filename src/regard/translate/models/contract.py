"""The contract of translation models: encode once, then step, or decode a whole target.

Search, training and alignment depend on this file and on no model. A *row* is a hypothesis:
sentence i with `beams` hypotheses has the rows `i * beams … (i + 1) * beams - 1`. What depends on
the source alone is kept once per sentence, never per row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils import _pytree

from regard.types import Kind, Weights, register_pytree


@dataclass(frozen=True, eq=False)
class EncoderOutput:
    """Encoded sources: everything that a decoder needs of them, once per sentence.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `mask`    | (batch, source), True at tokens, False at padding                           |
    | `memory`  | the model's own: any pytree of tensors whose first axis is the sentence     |
    | `weights` | attentions inside the encoder by name, where they were asked for            |
    """

    mask: Bool[Tensor, "batch source"]
    memory: Any
    weights: dict[str, Weights] = field(default_factory=dict)

    def select(self, sentences: Int[Tensor, " chosen"]) -> EncoderOutput:
        """These sentences alone, in this order."""
        chosen: EncoderOutput = select(self, sentences)
        return chosen


@dataclass(frozen=True, eq=False)
class StepOutput:
    """One step of decoding.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `logits`  | (row, vocabulary), before the softmax                                       |
    | `state`   | what the next step needs: a pytree of tensors whose first axis is the row   |
    | `weights` | target-to-source attentions by site, each (row, head, source)               |
    """

    logits: Float[Tensor, "row vocabulary"]
    state: Any
    weights: dict[str, Float[Tensor, "row head source"]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class DecoderOutput:
    """Decoded targets, with teacher forcing.

    | field      | meaning                                                                    |
    |------------|----------------------------------------------------------------------------|
    | `features` | (batch, target, width); `model.logits(features)` are the logits            |
    | `weights`  | target-to-source attentions by site, each (batch, head, target, source)    |
    """

    features: Float[Tensor, "batch target width"]
    weights: dict[str, Weights] = field(default_factory=dict)


register_pytree(EncoderOutput)
register_pytree(StepOutput)
register_pytree(DecoderOutput)


class TranslationModel(nn.Module, ABC):
    """An encoder and a decoder. Tokens are numbers of a vocabulary; 0 is padding.

    `sites` maps the names of target-to-source attentions to their number of heads; it is empty if
    the decoder has no attention. `kind` is that of their rows: a `distribution` sums to 1,
    `partial` rows to at most 1.
    """

    sites: dict[str, int]
    kind: Kind = "distribution"
    #: Which row of the weights belongs to a target word: that of the step that predicts it
    #: ("output"), or of the step that is fed it ("input"), as in Transformers.
    reading: Literal["output", "input"] = "output"
    longest_source: int | None = None  #: maximum number of source tokens

    @abstractmethod
    def encode(
        self,
        source: Int[Tensor, "batch source"],
        mask: Bool[Tensor, "batch source"],
        *,
        weights: bool = False,
    ) -> EncoderOutput:
        """Encode the sources; `mask` is True at tokens. Padding has no effect."""

    @abstractmethod
    def start(self, encoded: EncoderOutput, beams: int = 1) -> Any:
        """The decoder's state before its first token, for `beams` rows of each sentence."""

    @abstractmethod
    def step(
        self,
        encoded: EncoderOutput,
        state: Any,
        tokens: Int[Tensor, " row"],
        *,
        weights: bool = False,
    ) -> StepOutput:
        """The logits of the token after `tokens`, the last of each row (`BEGIN` at first)."""

    @abstractmethod
    def decode(
        self,
        encoded: EncoderOutput,
        target: Int[Tensor, "batch target"],
        *,
        weights: bool | str = False,
        forcing: float = 1.0,
    ) -> DecoderOutput:
        """Decode whole targets; equal to `step` token by token.

        Args:
            encoded: the sources.
            target: what the decoder is given, `BEGIN` first; behind a sentence's end anything.
            weights: also return the target-to-source attentions; of a site, at least its own.
            forcing: the probability with which each next token is the target's; otherwise it is the
                model's own best guess. Below 1 only where `step` is as cheap as this (recurrent).
        """

    @abstractmethod
    def logits(
        self, features: Float[Tensor, "*position width"]
    ) -> Float[Tensor, "*position vocabulary"]:
        """The output layer, over the target vocabulary."""

    def forward(
        self,
        source: Int[Tensor, "batch source"],
        source_mask: Bool[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        chosen: Bool[Tensor, "batch target"],
        forcing: float = 1.0,
        site: str | None = None,
    ) -> Float[Tensor, "position vocabulary"] | tuple[Tensor, Weights]:
        """The logits at the `chosen` target positions, one row each; padding costs nothing.

        With a `site` its weights too, (batch, head, target, source). Training calls this, so that
        wrappers (distribution, compilation) see one forward.
        """
        encoded = self.encode(source, source_mask)
        decoded = self.decode(encoded, target, weights=site or False, forcing=forcing)
        logits = self.logits(decoded.features[chosen])
        return logits if site is None else (logits, decoded.weights[site])


def select(tree: Any, indices: Int[Tensor, " chosen"]) -> Any:
    """A pytree with these entries of the first axis of every tensor, in this order."""
    return _pytree.tree_map_only(Tensor, lambda tensor: tensor.index_select(0, indices), tree)
