"""Laws of blocks: compiling and exporting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.testing.block_law import all_weights, block_law, run, sides
from regard.testing.subject import Subject, close


class _Masked(nn.Module):
    """Calls a block with masks made from tensors, and asks for weights."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        half = len(inputs) // 2
        keeps = dict(zip(("mask", "context_mask"), map(masks.padding, inputs[half:])))
        return self.module(*inputs[:half], **keeps, weights=True)


def _keeps(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    keeps = tuple(torch.ones(features.shape[:2], dtype=torch.bool) for features in inputs)
    for keep in keeps:
        keep[0, -1] = False
    return keeps


def _same(got: Any, want: Any, what: str) -> None:
    close(got.output, want.output, 1e-6, f"{what}: output")
    wanted = all_weights(want)
    for name, weights in all_weights(got).items():
        close(weights, wanted[name], 1e-6, f"{what}: weights of {name}")


def _gradients(module: nn.Module, blocked: Any) -> dict[str, Tensor]:
    """By every parameter, of output and weights."""
    module.zero_grad()
    loss = blocked.output.sin().sum()
    for weights in all_weights(blocked).values():
        loss = loss + weights.sin().sum()
    loss.backward()
    found = module.named_parameters()
    return {name: p.grad.clone() for name, p in found if p.grad is not None}


@block_law(
    "torch.compile takes it whole, without a graph break: plain, masked, at other lengths, back",
    compiles=True,
)
def compiles(subject: Subject) -> None:
    module, inputs = subject.module(), sides(subject)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(recompile_limit=4):  # lengths must not each compile anew
            for length in range(3, 10):
                more = sides(subject, length=length, context_length=length + 2, seed=length)
                got = compiled(*more, weights=True)
                _same(got, run(module, *more, weights=True), f"compiled, length {length}")
        masked = _Masked(module)
        whole = torch.compile(masked, fullgraph=True, backend="aot_eager")
        given = (*inputs, *_keeps(inputs))
        _same(whole(*given), masked(*given), "compiled, with masks")
    got, want = (_gradients(module, step(*given)) for step in (whole, masked))
    for name, gradient in want.items():
        close(got[name], gradient, 1e-6, f"compiled, with masks: gradient of {name}")


@block_law("torch.export takes it with dynamic lengths and returns a BlockOutput", compiles=True)
def exports(subject: Subject) -> None:
    module, inputs = subject.module(), sides(subject)
    more = sides(subject, length=9, context_length=12, seed=6)
    torch.compiler.reset()
    axes = [{1: torch.export.Dim(name, max=63)} for name in ("length", "context_length")]
    lengths = tuple(axes[: len(inputs)])
    program = torch.export.export(module, inputs, dynamic_shapes=lengths, strict=False)
    got, want = run(program.module(), *more), run(module, *more)
    close(got.output, want.output, 1e-6, "exported, other lengths: output")
    masked = _Masked(module)
    exported = torch.export.export(
        masked,
        (*inputs, *_keeps(inputs)),
        dynamic_shapes=((*lengths, *lengths),),
        strict=False,
    )
    given = (*more, *_keeps(more))
    _same(run(exported.module(), *given), masked(*given), "exported, with masks, other lengths")
