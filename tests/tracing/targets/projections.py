"""Self or cross behind projections that are quantised, loaded when needed, or sharded."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from . import Case, Target, contexts, dense, formulas

B, H, N, D = 2, 3, 9, 24


class Attending(nn.Module):
    """Self-attention, and cross-attention to what was encoded, which is as long."""

    projection: type[nn.Module] = nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.q, self.k, self.v = (self.projection(D, D) for _ in range(3))
        self.other_q, self.other_k, self.other_v = (self.projection(D, D) for _ in range(3))

    def forward(self, x, encoded):
        q, k, v = (dense.heads(projection(x), H) for projection in (self.q, self.k, self.v))
        x = x + dense.merged(F.scaled_dot_product_attention(q, k, v))
        q, k, v = (
            dense.heads(tensor, H)
            for tensor in (self.other_q(x), self.other_k(encoded), self.other_v(encoded))
        )
        return x + dense.merged((q @ k.mT * (D // H) ** -0.5).softmax(-1) @ v)


class Projected(Attending, formulas.Model):
    attends = ("self", "cross")

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, N, D), torch.randn(B, N, D)

    def truth(self, x, encoded):
        q, k, v = (dense.heads(projection.exact(x), H) for projection in (self.q, self.k, self.v))
        first = dense.weights(q, k)
        x = x + dense.merged(dense.mix(first, v))
        k, v = (
            dense.heads(projection.exact(encoded), H) for projection in (self.other_k, self.other_v)
        )
        second = dense.weights(dense.heads(self.other_q.exact(x), H), k)
        return [first, second], x + dense.merged(dense.mix(second, v))


class PackedLinear(nn.Module):
    """8-bit weights, by the operator that torch has for them."""

    def __init__(self, _: int, out: int) -> None:
        super().__init__()
        self.register_buffer("integers", torch.randint(-127, 128, (out, D), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(out) / 300)

    def forward(self, x):
        flat = x.reshape(-1, D)
        return torch._weight_int8pack_mm(flat, self.integers, self.scales).view(x.shape)

    def exact(self, x):
        return x @ (self.integers.double() * self.scales.double()[:, None]).mT


class DynamicLinear(PackedLinear):
    """Inputs are rounded to 8 bits as well (torchao)."""

    def forward(self, x):
        flat = x.reshape(-1, D)
        scale = flat.abs().amax(-1, keepdim=True) / 127
        rounded = (flat / scale).round().to(torch.int8)
        product = torch._int_mm(rounded, self.integers.t()).to(x.dtype)
        return (product * scale * self.scales).view(x.shape)

    def exact(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        return super().exact((x / scale).round() * scale)


class LoadedLinear(nn.Module):
    """Offloaded: the weight is a new tensor whenever it is asked for."""

    def __init__(self, _: int, out: int) -> None:
        super().__init__()
        self.stored = (torch.randn(out, D) / 5).numpy()

    def forward(self, x):
        return F.linear(x, torch.from_numpy(self.stored).clone())

    def exact(self, x):
        return x @ torch.from_numpy(self.stored).double().mT


@torch.library.custom_op("regard_targets::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


class CustomLinear(LoadedLinear):
    """An operator of one's own (bitsandbytes, quanto)."""

    def __init__(self, _: int, out: int) -> None:
        super().__init__(D, out)
        self.register_buffer("weight", torch.from_numpy(self.stored).clone())

    def forward(self, x):
        return torch.ops.regard_targets.linear(x, self.weight)


class PlainLinear(nn.Linear):
    exact = nn.Linear.forward


class Plain(Projected):
    projection = PlainLinear


class Packed(Projected):
    projection, around = PackedLinear, torch.no_grad


class Dynamic(Projected):
    projection, around = DynamicLinear, torch.no_grad


class Loaded(Projected):
    projection, around = LoadedLinear, torch.no_grad


class Custom(Projected):
    projection, around = CustomLinear, torch.no_grad


def _fully_sharded(model: nn.Module) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def _tensor_parallel(model: nn.Module) -> None:
    names = [name for name, _ in model.named_children()]
    plan = {name: ColwiseParallel() for name in names}
    parallelize_module(model, init_device_mesh("cpu", (1,)), plan)


def _sharded(shard: Callable[[nn.Module], None]) -> Target:
    """One process, which has all there is."""
    name = f"projections{shard.__name__}"

    def build() -> Case:
        case = formulas.target(Plain, "projections").build()
        shard(case.model)
        return case

    return Target(name, "projections", build, around=contexts.process_group)


KINDS = (Plain, Packed, Dynamic, Loaded, Custom)
TARGETS = [formulas.target(kind, "projections") for kind in KINDS]
TARGETS += [_sharded(_fully_sharded), _sharded(_tensor_parallel)]
