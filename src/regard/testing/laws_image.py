"""Laws of attention over images."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from regard.contract import Attended, BlockOutput
from regard.kernel.reducers import HeadMean, ReceivedAttention
from regard.recipe import per_head
from regard.testing.image_law import ImageSubject, all_weights, attentions, image_law, run
from regard.testing.laws_errors import refuses
from regard.testing.subject import Unchecked, close, largest
from regard.types import Kind


@image_law(
    "output is (batch, channel, height, width), weights are (batch, head, query, key), None when "
    "not asked"
)
def shapes(subject: ImageSubject) -> None:
    image, module = subject.image(), subject.module()
    result = run(module, image, weights=True)
    assert result.output.dim() == 4, f"output has {result.output.dim()} axes, expected 4"
    assert len(result.output) == len(image), f"{len(image)} images in, {len(result.output)} out"
    for name, weights in all_weights(result).items():
        assert weights.dim() == 4, (
            f"{name} have {weights.dim()} axes, expected 4: the head axis too"
        )
        assert len(weights) == len(image), f"{name} of {len(weights)} images, expected {len(image)}"
    for name, attended in attentions(run(module, image)).items():
        assert attended.weights is None, f"{name} came although they were not asked for"
        assert attended.recipe is None, f"{name}: a recipe was kept although nothing was asked"


@image_law("images that are not square, odd, or as small as the module says have their answer")
def sizes(subject: ImageSubject) -> None:
    module = subject.module()
    rows, columns = getattr(module, "smallest", (1, 1))
    for height, width in ((rows, columns), (rows, columns + 3), (rows + 4, columns)):
        image = subject.image(height=height, width=width)
        result = run(module, image, weights=True)
        for name, part in (("output", result.output), *all_weights(result).items()):
            assert part.isfinite().all(), f"{name} of a {height} × {width} image is not finite"
        if subject.kind == "gate":
            close_to_gates(result, image, 1e-9, f"a {height} × {width} image")


@image_law(
    "weights are as the declared kind says: gates from 0 to 1, rows of a distribution sum to 1"
)
def declared_kind(subject: ImageSubject) -> None:
    for scale in (3.0, 1e3):  # a gate function without a bound may stay below 1 on a tame image
        _of_kind(subject.kind, run(subject.module(), scale * subject.image(), weights=True))


def _of_kind(kind: Kind, result: Attended | BlockOutput) -> None:
    for name, attended in attentions(result).items():
        if attended.recipe is not None:
            got = attended.recipe.kind
            assert got == kind, (
                f"the module declares kind {kind!r}, the recipe of {name} is {got!r}"
            )
    for name, weights in all_weights(result).items():
        if kind != "signed":
            least = float(weights.detach().min())
            assert least >= 0, f"{name}: a {kind} has a negative weight, {least:.3g}"
        sums = weights.sum(-1)
        if kind == "gate":
            most = largest(weights)
            assert most <= 1 + 1e-9, f"{name}: a gate has the weight {most:.3g}, expected at most 1"
        elif kind == "distribution":
            close(sums, torch.ones_like(sums), 1e-6, f"{name}: row sums of a distribution")
        elif kind == "partial":
            assert (sums <= 1 + 1e-6).all(), f"{name}: a row sums to {largest(sums):.6g}, above 1"


@image_law(
    "a gate's output is the image times the returned weights, channel by channel or position"
)
def gates_multiply(subject: ImageSubject) -> None:
    if subject.kind != "gate":
        raise Unchecked(f"weights of kind {subject.kind!r} are not factors of the image")
    image = subject.image()
    close_to_gates(run(subject.module(), image, weights=True), image, 1e-9, "the image")


def close_to_gates(result: Any, image: Tensor, tolerance: float, what: str) -> None:
    """Fail unless the output is the image times every gate of the result.

    A gate (batch, 1, 1, channel) is of channels, (batch, 1 or channel, 1, height · width) of
    positions; which of the two the recipe's grid says, or else the number of keys.
    """
    batch, channels, height, width = image.shape
    want = image
    for name, attended in attentions(result).items():
        weights = all_weights(result)[name]
        grid = getattr(attended.recipe, "grid", None)
        of_positions = weights.shape[3] != channels if attended.recipe is None else grid is not None
        if of_positions:
            assert grid is None or tuple(grid) == (height, width), (
                f"{name}: the grid is {grid}, expected {(height, width)}"
            )
            expected: tuple[int, ...] = (batch, weights.shape[1], 1, height * width)
        else:
            expected = (batch, 1, 1, channels)
        assert weights.shape == expected and weights.shape[1] in (1, channels), (
            f"{name} are {tuple(weights.shape)}, expected (batch, 1, 1, channel), or (batch, 1 or "
            f"channel, 1, height · width): {expected}"
        )
        whole = (batch, -1, height, width) if of_positions else (batch, channels, 1, 1)
        want = want * weights.reshape(whole)
    close(result.output, want, tolerance, f"{what}: output against the image times the gates")


def _mixing(
    subject: ImageSubject, image: Tensor
) -> tuple[Attended | BlockOutput, dict[str, Attended]]:
    """A result, and those of its attentions whose recipes have values to mix."""
    if subject.kind == "gate":
        raise Unchecked("a gate multiplies; it has no values that it mixes")
    result = run(subject.module(), image, weights=True)
    found = {
        name: attended
        for name, attended in attentions(result).items()
        if attended.recipe is not None and attended.recipe.value is not None
    }
    if not found:
        raise Unchecked("no recipe with values is kept, so the mixed values cannot be seen")
    return result, found


@image_law("the returned weights times the recipe's values are its mixed values")
def mixes(subject: ImageSubject) -> None:
    _, found = _mixing(subject, subject.image())
    for name, attended in found.items():
        recipe, weights = attended.recipe, attended.weights
        assert recipe is not None and recipe.value is not None and weights is not None
        values = per_head(recipe.value, weights.shape[1])
        close(recipe.mixed(), weights @ values, 1e-9, f"mixed values of {name}")


@image_law("the output of a position is a linear map of its mixed values, beside one of the image")
def output_of_mixed(subject: ImageSubject) -> None:
    image = subject.image(batch=16)
    result, found = _mixing(subject, image)
    if result.output.shape[2:] != image.shape[2:] or len(found) > 1:
        raise Unchecked(f"{len(found)} attentions, output {tuple(result.output.shape)}")
    (attended,) = found.values()
    assert attended.recipe is not None
    mixed = attended.recipe.mixed().detach().transpose(1, 2).flatten(2)
    parts = [mixed, image.flatten(2).mT, mixed.new_ones(*mixed.shape[:2], 1)]
    known = torch.cat(parts, 2).flatten(0, 1)  # (batch · position, features of both, and 1)
    if known.shape[0] < 2 * known.shape[1]:
        raise Unchecked(f"{known.shape[0]} positions are too few for {known.shape[1]} features")
    output = result.output.detach().flatten(2).mT.flatten(0, 1)
    # gelsd: features may depend on each other, as mixed values of a single position on its image
    linear = torch.linalg.lstsq(known, output, driver="gelsd").solution
    close(output, known @ linear, 1e-6, "output against the best linear map of the mixed values")


@image_law("the output does not depend on whether weights or reductions are asked")
def asking_changes_nothing(subject: ImageSubject) -> None:
    image = subject.image(torch.float32)
    asked: list[dict[str, Any]] = [{}, {"weights": True}]
    if subject.reduces:
        asked.append({"reduce": [subject.reducer]})
    for training in (False, True):
        outputs = []
        for options in asked:
            module = subject.module(torch.float32).train(training)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                outputs.append(run(module, image, **options).output)
        for other in outputs[1:]:
            same = torch.equal(outputs[0], other)
            assert same, f"training={training}: the output moved when weights were asked"


@image_law("the recipe gives the weights again, and reductions are those of the weights")
def reductions(subject: ImageSubject) -> None:
    subject.takes("reduce")
    asked = [HeadMean(), subject.reducer]
    result = run(subject.module(), subject.image(), weights=True, reduce=asked)
    for name, attended in attentions(result).items():
        weights = all_weights(result)[name].detach()
        assert attended.recipe is not None, f"{name}: no recipe was kept although it was asked"
        close(attended.recipe.weights(), weights, 1e-9, f"recipe.weights() of {name}")
        mean = attended.reductions[0]
        close(mean, weights.mean(1), 1e-9, f"HeadMean of {name}")
        assert not mean.requires_grad, f"a reduction of {name} is still in the graph"
        if isinstance(asked[1], ReceivedAttention):
            close(attended.reductions[1], weights.sum(2), 1e-9, f"Received of {name}")


@image_law("an image's output and weights do not depend on the others of its batch, in eval mode")
def examples_apart(subject: ImageSubject) -> None:
    module, alone = subject.module(), subject.image()
    beside = torch.cat([alone, 2 * subject.image(seed=8)])
    want, got = (run(module, image, weights=True) for image in (alone, beside))
    batch = len(alone)
    close(got.output[:batch], want.output, 1e-9, "output beside other images")
    for name, weights in all_weights(want).items():
        close(all_weights(got)[name][:batch], weights, 1e-9, f"{name} beside other images")


@image_law("float32, float64 and bfloat16 agree, and the output keeps the dtype")
def dtypes(subject: ImageSubject) -> None:
    truth = run(subject.module(), subject.image(), weights=True)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 6e-2)):
        result = run(subject.module(dtype), subject.image(dtype), weights=True)
        assert result.output.dtype == dtype, f"{dtype} in, {result.output.dtype} out"
        close(result.output, truth.output, tolerance, f"output in {dtype}")
        for name, weights in all_weights(result).items():
            close(weights, all_weights(truth)[name], tolerance, f"{name} in {dtype}")


@image_law("autocast gives finite numbers near those without it")
def autocast(subject: ImageSubject) -> None:
    image, module = subject.image(torch.float32), subject.module(torch.float32)
    want = run(module, image, weights=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(module, image, weights=True)
    close(got.output, want.output, 6e-2, "output under autocast")


@image_law("an empty batch gives empty output and weights, and a gradient")
def empty(subject: ImageSubject) -> None:
    for training in (False, True):
        module, image = subject.module().train(training), subject.image(batch=0).requires_grad_()
        result = run(module, image, weights=True)
        for name, part in (("output", result.output), *all_weights(result).items()):
            assert len(part) == 0, f"{name} of no image is {tuple(part.shape)}"
        result.output.sum().backward()
        for name, tensor in module.state_dict().items():
            assert tensor.isfinite().all(), f"{name} is not finite after an empty batch"


@image_law("gradients are right (gradcheck in float64), of the output and of the weights")
def gradients(subject: ImageSubject) -> None:
    module = subject.module()
    rows, columns = getattr(module, "smallest", (1, 1))
    image = subject.image(height=max(3, rows), width=max(2, columns), batch=1).requires_grad_()

    def parts(image: Tensor) -> tuple[Tensor, ...]:
        result = run(module, image, weights=True)
        return result.output, *all_weights(result).values()

    assert torch.autograd.gradcheck(parts, [image], fast_mode=True), "gradcheck"
    names = ("output", *attentions(run(module, image)))
    for name, part in zip(names, parts(image)):
        assert part.requires_grad, f"{name}: not in the graph"


@image_law("image and parameters get finite gradients in training, also an image of zeros")
def training(subject: ImageSubject) -> None:
    for scale in (1.0, 0.0):
        module, image = subject.module().train(), (scale * subject.image()).requires_grad_()
        result = run(module, image, weights=True)
        loss = result.output.square().sum() + result.output.sum()
        for weights in all_weights(result).values():
            loss = loss + weights.square().sum()
        loss.backward()
        for name, parameter in (("image", image), *module.named_parameters()):
            assert parameter.grad is not None, f"{name} has no gradient"
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"


@image_law("a state dict, deepcopy and pickle carry everything")
def copies(subject: ImageSubject) -> None:
    image, first, second = subject.image(), subject.module(seed=0), subject.module(seed=7)
    want = run(first, image).output
    memory = io.BytesIO()
    torch.save(first.state_dict(), memory)
    memory.seek(0)
    second.load_state_dict(torch.load(memory, weights_only=True))
    twins = (
        ("load_state_dict", second),
        ("deepcopy", copy.deepcopy(first)),
        ("pickle", pickle.loads(pickle.dumps(first))),
    )
    for name, twin in twins:
        assert torch.equal(run(twin, image).output, want), f"the output differs after {name}"


@image_law("a call in eval mode leaves no trace: image, randomness, mode and buffers as before")
def leaves_no_trace(subject: ImageSubject) -> None:
    image, module = subject.image(), subject.module()
    kept, state = image.clone(), copy.deepcopy(module.state_dict())
    before = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state().tolist())
    first = run(module, image, weights=True).output
    now = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state().tolist())
    assert now[:2] == before[:2], f"threads and grad mode are {now[:2]}, were {before[:2]}"
    assert now[2] == before[2], "random numbers were drawn"
    assert torch.equal(image, kept), "the image was changed"
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), f"{name} changed in eval mode"
    assert not module.training, "the module went into training mode"
    assert torch.equal(run(module, image, weights=True).output, first), "the second call differs"


@image_law("wrong images raise an error that names the axis, the size and what was expected")
def wrong_images(subject: ImageSubject) -> None:
    module, image = subject.module(), subject.image()
    refuses(lambda: module(image[0]), "image", "3", "4")
    refuses(lambda: module(image.long()), "image", "int64")
    if next(module.parameters(), None) is not None:
        refuses(lambda: module(image.float()), "image", "float32", "float64")
    rows, columns = getattr(module, "smallest", (1, 1))
    short, narrow = subject.image(height=rows - 1), subject.image(width=columns - 1)
    refuses(lambda: module(short), "image", "height", str(rows - 1), str(rows))
    refuses(lambda: module(narrow), "image", "width", str(columns - 1), str(columns))
    if getattr(module, "channels", None) is not None:
        channels = image.shape[1]
        more = torch.cat([image, image[:, :1]], 1)
        refuses(lambda: module(more), "image", "channel", str(channels + 1), str(channels))


class _Tensors(nn.Module):
    """Calls a module and hands out plain tensors, which is what a graph returns."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        result = self.module(image, weights=True)
        return result.output, *(attended.weights for attended in attentions(result).values())


@image_law(
    "torch.compile takes it whole, without a graph break: plain, with weights, and back",
    compiles=True,
)
def compiles(subject: ImageSubject) -> None:
    module, image = subject.module(), subject.image()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    close(compiled(image).output, run(module, image).output, 1e-9, "compiled output")
    whole = torch.compile(_Tensors(module), fullgraph=True, backend="aot_eager", dynamic=True)
    for more in (0, 2):
        other = subject.image(height=subject.height + more, width=subject.width + 2 * more)
        for got, want in zip(whole(other), _Tensors(module)(other)):
            close(got, want, 1e-9, f"compiled, {tuple(other.shape[2:])}")
    gradients = []
    for step in (whole, _Tensors(module)):
        module.zero_grad()
        torch.stack([part.sin().sum() for part in step(image)]).sum().backward()
        named = module.named_parameters()
        gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
    for name, gradient in gradients[1].items():
        close(gradients[0][name], gradient, 1e-6, f"compiled: gradient of {name}")


@image_law("torch.export takes it with any batch, height and width", compiles=True)
def exports(subject: ImageSubject) -> None:
    module = subject.module()
    image = subject.image(height=subject.height + 1, width=subject.width + 1)  # 1 would be frozen
    torch.compiler.reset()
    axes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    more = subject.image(batch=3, height=subject.height + 2, width=subject.width + 4)
    program = torch.export.export(_Tensors(module), (image,), dynamic_shapes=(axes,), strict=False)
    for got, want in zip(program.module()(more), _Tensors(module)(more)):
        close(got, want, 1e-6, "exported, at another size")
    plain = torch.export.export(module, (image,), strict=False)
    close(run(plain.module(), image).output, run(module, image).output, 1e-9, "exported output")
