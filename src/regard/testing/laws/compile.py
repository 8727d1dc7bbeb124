"""Laws of compiling and exporting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.contract import BlockOutput
from regard.testing.assertions import close
from regard.testing.law import law
from regard.testing.subject import BlockSubject, ImageSubject, MechanismSubject, call

_LIMIT = 4  # graphs for all lengths: each must not compile anew


class _Tensors(nn.Module):
    """Calls a module with padding masks made from its last inputs, and returns plain tensors."""

    def __init__(self, module: nn.Module, *mask_names: str) -> None:
        super().__init__()
        self.module, self.mask_names = module, mask_names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        n_inputs = len(inputs) - len(self.mask_names)
        options = dict(zip(self.mask_names, map(masks.padding, inputs[n_inputs:])))
        return _tensors(self.module(*inputs[:n_inputs], **options, weights=True))


def _tensors(result: Any) -> tuple[Tensor, ...]:
    """Output and weights; plain enough to be traced."""
    several = isinstance(result, BlockOutput)
    attentions = result.attentions.values() if several else (result,)
    return result.output, *(attended.weights for attended in attentions)


def _check_tensors(got: tuple[Tensor, ...], want: tuple[Tensor, ...], what: str) -> None:
    assert len(got) == len(want), f"{what}: {len(got)} tensors, expected {len(want)}"
    for index, (tensor, truth) in enumerate(zip(got, want)):
        close(tensor, truth, 1e-6, f"{what}: {f'weights {index}' if index else 'output'}")


def _check_gradients(
    compiled: Callable[..., tuple[Tensor, ...]], module: nn.Module, *inputs: Tensor, what: str
) -> None:
    """Compare the gradients of output and weights by every parameter."""
    gradients = []
    for step in (compiled, module):
        module.zero_grad()
        torch.stack([tensor.sin().sum() for tensor in step(*inputs)]).sum().backward()
        named = module.named_parameters()
        gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
    got, want = gradients
    for name, gradient in want.items():
        own_name = name.removeprefix("module.")
        close(got[name], gradient, 1e-6, f"{what}: gradient of {own_name}")


@law(
    "torch.compile takes it whole, without a graph break, plain and with mask and weights",
    "mechanism",
    compiles=True,
)
def compiles(subject: MechanismSubject) -> None:
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
        with torch._dynamo.config.patch(recompile_limit=_LIMIT):
            for length in range(3, 3 + min(9, (traits.longest or 99) - 3)):
                queries = 3 if traits.sequential else length  # a loop over queries is unrolled
                longer = subject.inputs(queries=queries, keys=length + 1, seed=length)
                if traits.self_only or (traits.longest or 99) > length:
                    arguments = subject.arguments(*longer)
                    got = compiled(*arguments, causal=True, weights=True)
                    want = call(module, *arguments, causal=True, weights=True)
                    close(got.output, want.output, 1e-6, f"compiled output at length {length}")
        keep = _keep(inputs[1], -1, traits.self_only)
        masked = _Tensors(module, "mask")
        whole = torch.compile(masked, fullgraph=True, backend="aot_eager")
        _check_tensors(whole(*inputs, keep), masked(*inputs, keep), "compiled, with a mask")


@law(
    "torch.compile takes it whole, without a graph break: plain, masked, at other lengths, back",
    "block",
    name="compiles",
    compiles=True,
)
def block_compiles(subject: BlockSubject) -> None:
    module, inputs = subject.module(), subject.sides()
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(recompile_limit=_LIMIT):
            for length in range(3, 10):
                longer = subject.sides(length=length, context_length=length + 2, seed=length)
                got, want = (_tensors(step(*longer, weights=True)) for step in (compiled, module))
                _check_tensors(got, want, f"compiled, length {length}")
        masked, inputs = _with_masks(module, inputs)
        whole = torch.compile(masked, fullgraph=True, backend="aot_eager")
        _check_tensors(whole(*inputs), masked(*inputs), "compiled, with masks")
    _check_gradients(whole, masked, *inputs, what="compiled, with masks")


def _with_masks(
    module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[_Tensors, tuple[Tensor, ...]]:
    """A block called with a padding mask for each input, and its arguments."""
    names = ("mask", "context_mask")[: len(inputs)]
    return _Tensors(module, *names), (*inputs, *map(_keep, inputs))


def _keep(features: Tensor, position: int = -1, value: bool = False) -> Tensor:
    keep = torch.ones(features.shape[:2], dtype=torch.bool)
    keep[0, position] = value
    return keep


@law(
    "torch.compile takes it whole, without a graph break: plain, with weights, and back",
    "image",
    name="compiles",
    compiles=True,
)
def image_compiles(subject: ImageSubject) -> None:
    module, image = subject.module(), subject.image()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    close(compiled(image).output, subject.run(module, image).output, 1e-9, "compiled output")
    tensors = _Tensors(module)
    whole = torch.compile(tensors, fullgraph=True, backend="aot_eager", dynamic=True)
    for more in (0, 2):
        other = subject.image(height=subject.height + more, width=subject.width + 2 * more)
        _check_tensors(whole(other), tensors(other), f"compiled, {tuple(other.shape[2:])}")
    _check_gradients(whole, tensors, image, what="compiled")


@law(
    "torch.export takes it with dynamic lengths and returns an Attended", "mechanism", compiles=True
)
def exports(subject: MechanismSubject) -> None:
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
    length = query.shape[1] if traits.sequential else min(9, longest - 1)
    others = subject.inputs(queries=length, keys=min(12, longest - 1), seed=6)
    longer = subject.arguments(*others)
    program = torch.export.export(module, inputs, dynamic_shapes=lengths, strict=False)
    got, want = program.module()(*longer), call(module, *longer)
    close(got.output, want.output, 1e-6, "exported output at other lengths")
    masked, sizes = _Tensors(module, "mask"), ((*lengths, {1: keys}),)
    arguments = (*inputs, torch.ones(key.shape[:2], dtype=torch.bool))
    exported = torch.export.export(masked, arguments, dynamic_shapes=sizes, strict=False)
    longer = (*longer, _keep(longer[1], 0, traits.self_only))
    what = "exported, with a mask, at other lengths"
    _check_tensors(exported.module()(*longer), masked(*longer), what)


@law(
    "torch.export takes it with dynamic lengths and returns a BlockOutput",
    "block",
    name="exports",
    compiles=True,
)
def block_exports(subject: BlockSubject) -> None:
    module, inputs = subject.module(), subject.sides()
    longer = subject.sides(length=9, context_length=12, seed=6)
    torch.compiler.reset()
    axes = [{1: torch.export.Dim(name, max=63)} for name in ("length", "context_length")]
    lengths = tuple(axes[: len(inputs)])
    program = torch.export.export(module, inputs, dynamic_shapes=lengths, strict=False)
    got, want = subject.run(program.module(), *longer), subject.run(module, *longer)
    close(got.output, want.output, 1e-6, "exported, other lengths: output")
    masked, inputs = _with_masks(module, inputs)
    sizes = ((*lengths, *lengths),)
    exported = torch.export.export(masked, inputs, dynamic_shapes=sizes, strict=False)
    _, longer = _with_masks(module, longer)
    what = "exported, with masks, other lengths"
    _check_tensors(exported.module()(*longer), masked(*longer), what)


@law(
    "torch.export takes it with any batch, height and width", "image", name="exports", compiles=True
)
def image_exports(subject: ImageSubject) -> None:
    module, tensors = subject.module(), _Tensors(subject.module())
    image = subject.image(height=subject.height + 1, width=subject.width + 1)  # 1 would be frozen
    torch.compiler.reset()
    axes = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    larger = subject.image(batch=3, height=subject.height + 2, width=subject.width + 4)
    program = torch.export.export(tensors, (image,), dynamic_shapes=((axes,),), strict=False)
    _check_tensors(program.module()(larger), tensors(larger), "exported, at another size")
    plain = torch.export.export(module, (image,), strict=False)
    got, want = subject.run(plain.module(), image), subject.run(module, image)
    close(got.output, want.output, 1e-9, "exported output")
