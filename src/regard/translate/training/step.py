"""One optimiser step: which sentences it sees, their gradients, the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer

from regard.translate.config import OptimiserConfig, TrainingConfig
from regard.translate.data import Batch, Examples, batches, collate
from regard.translate.models.contract import TranslationModel
from regard.translate.training.blocks import Block
from regard.translate.training.guidance import Guidance
from regard.translate.training.loss import last_cross_entropy


@dataclass(frozen=True)
class Step:
    """One optimiser step.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `batches` | numbers of the sentences that this process sees, batch by batch             |
    | `tokens`  | target tokens that all processes see together                               |

    Every process knows `tokens` without asking the others, so each can divide its loss by it: the
    gradient is that of one process with all the sentences.
    """

    batches: list[list[int]]
    tokens: int


def plan_epoch(
    examples: Examples, config: TrainingConfig, epoch: int, rank: int = 0, ranks: int = 1
) -> list[Step]:
    """The steps of an epoch for one of `ranks` processes."""
    by_rank = [
        batches(
            examples,
            tokens=None if config.batch_sentences else config.batch_tokens,
            sentences=config.batch_sentences or None,
            seed=config.seed,
            epoch=epoch,
            rank=other,
            ranks=ranks,
        )
        for other in range(ranks)
    ]
    steps = []
    for start in range(0, len(by_rank[0]), config.accumulate):
        end = start + config.accumulate
        sentences = [
            number
            for rank_batches in by_rank
            for batch in rank_batches[start:end]
            for number in batch
        ]
        tokens = sum(len(examples.target[number]) for number in sentences)
        steps.append(Step(by_rank[rank][start:end], tokens))
    return steps


def new_optimiser(config: OptimiserConfig, model: TranslationModel) -> Optimizer:
    """The (fused) optimiser of a configuration."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.name == "sgd":
        return SGD(parameters, config.rate, weight_decay=config.weight_decay, fused=True)
    kind = AdamW if config.name == "adamw" else Adam
    return kind(
        parameters,
        config.rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


class Stepper:
    """Performs optimiser steps.

    The loss is divided by the target tokens of the whole step, over all processes and batches, so
    the gradient does not depend on how sentences are distributed among them.

    Args:
        fabric: device, precision, distribution.
        model: the model.
        optimiser: its optimiser.
        examples: the training examples, of the first block.
        config: the `[training]` settings.
        guidance: what a head is taught besides.
    """

    def __init__(
        self,
        fabric: Any,
        model: TranslationModel,
        optimiser: Optimizer,
        examples: Examples,
        config: TrainingConfig,
        guidance: Guidance | None = None,
    ) -> None:
        self.fabric = fabric
        self.wrapped, _ = fabric.setup(model, optimiser)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimiser = optimiser
        self.examples = examples
        self.config = config
        self.guidance = guidance

    def enter(self, block: Block) -> None:
        """Continue with the examples of a block, which steps then number."""
        self.examples, self.guidance = block.examples, block.guidance

    def make(self, step: Step, rate: float, forcing: float) -> Tensor:
        """Perform a step; returns the loss of this process, summed over its tokens, as float64.

        That is the cross-entropy, without the loss of guidance. It does not synchronise with the
        device.
        """
        losses = []
        for number, sentences in enumerate(step.batches, start=1):
            batch = collate(self.examples, sentences).to(self.fabric.device)
            if number == len(step.batches):
                losses.append(self._gather(batch, step.tokens, forcing))
            else:
                with self.fabric.no_backward_sync(self.wrapped):
                    losses.append(self._gather(batch, step.tokens, forcing))
        if self.config.optimiser.clip:
            clip_grad_norm_(self.parameters, self.config.optimiser.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return torch.stack(losses).double().sum()

    def _gather(self, batch: Batch, tokens: int, forcing: float) -> Tensor:
        """Accumulate the gradient of a batch; returns its loss, summed over tokens."""
        inputs = batch.source, batch.source_mask, batch.target_in, batch.target_mask, forcing
        guided: Tensor | float = 0.0
        if self.guidance is None:
            logits = self.wrapped(*inputs)
        else:
            logits, weights = self.wrapped(*inputs, self.guidance.head.site)
            guided = self.guidance.loss(weights, batch)
        target = batch.target_out[batch.target_mask]
        loss = last_cross_entropy(logits, target, self.config.label_smoothing)
        # Gradients are averaged over processes, so each counts its own as often as there are.
        self.fabric.backward((loss + guided) * (self.fabric.world_size / tokens))
        return loss.detach()
