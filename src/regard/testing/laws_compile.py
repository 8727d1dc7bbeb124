"""Laws of compiling and exporting."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import masks
from regard.testing.law import law
from regard.testing.subject import Subject, call, close


class _Outputs(nn.Module):
    """Calls a module and hands out plain tensors, which is what a compiled graph returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, keep: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        attended = self.module(*inputs, mask=masks.padding(keep), weights=True)
        return attended.output, attended.weights


@law(
    "torch.compile takes it whole, without a graph break, plain and with mask and weights",
    compiles=True,
)
def compiles(subject: Subject) -> None:
    for argument in ("mask", "weights"):
        subject.takes(argument)
    module, traits = subject.module(), subject.traits
    inputs = subject.arguments(*subject.inputs())
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        for options in ({}, {"causal": True, "weights": True}):
            want = call(module, *inputs, **options)
            got = compiled(*inputs, **options)
            close(got.output, want.output, 1e-6, f"compiled output with {options}")
        with torch._dynamo.config.patch(recompile_limit=4):  # lengths must not each compile anew
            for length in range(3, 3 + min(9, (traits.longest or 99) - 3)):
                queries = 3 if traits.sequential else length  # a loop over queries is unrolled
                more = subject.arguments(
                    *subject.inputs(queries=queries, keys=length + 1, seed=length)
                )
                if traits.self_only or (traits.longest or 99) > length:
                    got = compiled(*more, causal=True, weights=True)
                    want = call(module, *more, causal=True, weights=True)
                    close(got.output, want.output, 1e-6, f"compiled output at length {length}")
        keep = torch.ones(inputs[1].shape[:2], dtype=torch.bool)
        keep[:, -1] = traits.self_only
        whole = torch.compile(_Outputs(module), fullgraph=True, backend="aot_eager")
        for got, want in zip(whole(keep, *inputs), _Outputs(module)(keep, *inputs)):
            close(got, want, 1e-6, "compiled output with a mask")


@law("torch.export takes it with dynamic lengths and returns an Attended", compiles=True)
def exports(subject: Subject) -> None:
    for argument in ("mask", "weights"):
        subject.takes(argument)
    module, traits = subject.module(), subject.traits
    query, key, value = subject.inputs()
    torch.compiler.reset()
    longest = min(64, traits.longest or 64)
    queries = torch.export.Dim("queries", max=longest - 1)
    keys = queries if traits.self_only else torch.export.Dim("keys", max=longest - 1)
    own = {} if traits.sequential else {1: queries}
    inputs = subject.arguments(query, key.clone(), key.clone() if value is key else value)
    lengths = (own, {1: keys}, {1: keys})[: len(inputs)]
    other = query.shape[1] if traits.sequential else min(9, longest - 1)
    more = subject.arguments(*subject.inputs(queries=other, keys=min(12, longest - 1), seed=6))
    program = torch.export.export(module, inputs, dynamic_shapes=lengths, strict=False)
    got, want = program.module()(*more), call(module, *more)
    close(got.output, want.output, 1e-6, "exported output at other lengths")
    exported = torch.export.export(
        _Outputs(module),
        (torch.ones(key.shape[:2], dtype=torch.bool), *inputs),
        dynamic_shapes=({1: keys}, lengths),
        strict=False,
    )
    keep = torch.ones(more[1].shape[:2], dtype=torch.bool)
    keep[:, 0] = traits.self_only
    for got, want in zip(exported.module()(keep, *more), _Outputs(module)(keep, *more)):
        close(got, want, 1e-6, "exported output with a mask at other lengths")
