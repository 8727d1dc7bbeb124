"""One small encoder–decoder: wrapped, quantised, sharded, scripted and compiled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .absent import imported
from .target import Target
from .truth import Run, _dense

WIDTH, HEADS = 24, 3


class Attention(nn.Module):
    """Multi-head attention, by hand or fused."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.num_heads, self.fused = HEADS, fused

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        batch, queries, width = x.shape
        q = self.query(x).view(batch, -1, self.num_heads, width // self.num_heads).transpose(1, 2)
        k = self.key(memory).view(batch, -1, self.num_heads, width // self.num_heads)
        v = self.value(memory).view(batch, -1, self.num_heads, width // self.num_heads)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-2, -1) / (width // self.num_heads) ** 0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, queries, width))


class Pair(nn.Module):
    """One layer of an encoder, one of a decoder: self, self, cross."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.encoder, self.decoder = Attention(fused), Attention(fused)
        self.cross = Attention(fused)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.norms[0](source)
        memory = source + self.encoder(x, x)
        memory = memory + self.down(torch.relu(self.up(memory)))
        x = self.norms[1](target)
        target = target + self.decoder(x, x)
        return target + self.cross(self.norms[2](target), memory)


LABELS = ("self", "self", "cross")


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    source, target = torch.randn(2, 12, WIDTH, generator=generator).split([7, 5], dim=1)
    return source.clone(), target.clone()  # two inputs, not two slices of one


def wrapped(wrap: Callable[[nn.Module], Any], fused: bool = False):
    def build():
        torch.manual_seed(7)
        return wrap(Pair(fused).eval()), inputs(), {}

    return build


def seen(run: Run) -> list[Tensor]:
    """All softmaxes, (batch, head, query, key)."""
    return list(run.weights)


def as_before(run: Run) -> list[Tensor]:
    """Those of the unwrapped model, where a script or a compiler hides the softmaxes."""
    torch.manual_seed(7)
    model, sites = Pair().eval(), []

    def note(module: Attention, args: tuple[Tensor, Tensor], output: Tensor) -> None:
        q, k = module.query(args[0]), module.key(args[1])
        q, k = (t.view(2, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (q, k))
        sites.append(_dense(q, k, k).detach())

    for part in (model.encoder, model.decoder, model.cross):
        part.register_forward_hook(note)
    model(*inputs())
    return sites


# quantised


def torchao_int8(model: nn.Module) -> nn.Module:
    module = imported("torchao.quantization")
    module.quantize_(model, module.Int8WeightOnlyConfig())
    return model


def torchao_int8_dynamic(model: nn.Module) -> nn.Module:
    module = imported("torchao.quantization")
    module.quantize_(model, module.Int8DynamicActivationInt8WeightConfig())
    return model


def quanto(model: nn.Module) -> nn.Module:
    module = imported("optimum.quanto")
    module.quantize(model, weights=module.qint8)
    module.freeze(model)
    return model


def dynamic(model: nn.Module) -> nn.Module:
    torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def bitsandbytes(model: nn.Module) -> nn.Module:
    module = imported("bitsandbytes")
    for part in (model.encoder, model.decoder, model.cross):
        for name in ("query", "key", "value", "out"):
            old = getattr(part, name)
            new = module.nn.Linear4bit(WIDTH, WIDTH, compute_dtype=torch.float32)
            new.load_state_dict(old.state_dict())
            setattr(part, name, new.to("cpu"))
    return model


# sharded


def group() -> None:
    """A process group of one process."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        path = os.path.join(tempfile.mkdtemp(), "store")
        distributed.init_process_group("gloo", f"file://{path}", rank=0, world_size=1)


def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    group()
    return init_device_mesh("cpu", (1,))


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    devices = mesh()
    for part in (model.encoder, model.decoder, model.cross):
        fully_shard(part, mesh=devices)
    fully_shard(model, mesh=devices)
    return model


def tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {f"{part}.{name}": ColwiseParallel()
                            for part in ("encoder", "decoder", "cross")
                            for name in ("query", "key", "value")}  # fmt: skip
    plan |= {f"{part}.out": RowwiseParallel() for part in ("encoder", "decoder", "cross")}
    return parallelize_module(model, mesh(), plan)


def data_parallel(model: nn.Module) -> nn.Module:
    group()
    return nn.parallel.DistributedDataParallel(model)


# wrapped


def lora(model: nn.Module) -> nn.Module:
    module = imported("peft")
    settings = module.LoraConfig(target_modules=["query", "value"], r=2, init_lora_weights=False)
    return module.get_peft_model(model, settings)


def lightning(model: nn.Module) -> nn.Module:
    module = imported("lightning.pytorch")

    class Task(module.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            return self.model(source, target)

    return Task()


def fabric(model: nn.Module) -> nn.Module:
    return imported("lightning.fabric").Fabric(accelerator="cpu", devices=1).setup_module(model)


def accelerated(model: nn.Module) -> nn.Module:
    return imported("accelerate").Accelerator(cpu=True).prepare(model)


def offloaded(model: nn.Module) -> nn.Module:
    """Weights that hooks bring to their layer."""
    return imported("accelerate").cpu_offload(model, execution_device=torch.device("cpu"))


class Exported(nn.Module):
    """An exported model, which refuses `eval()`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = torch.export.export(model, inputs()).module()

    def train(self, mode: bool = True) -> Exported:
        return self

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.graph(source, target)


TORCH = "torch"
TARGETS = [
    Target("int8 weights", "torchao", wrapped(torchao_int8), seen, LABELS, quick=True),
    Target("int8 weights, fused attention", "torchao", wrapped(torchao_int8, True), seen, LABELS),
    Target("int8 weights and activations", "torchao", wrapped(torchao_int8_dynamic), seen, LABELS),
    Target("int8 weights", "optimum-quanto", wrapped(quanto), seen, LABELS),
    Target("int8 weights, fused attention", "optimum-quanto", wrapped(quanto, True), seen, LABELS),
    Target("4-bit weights", "bitsandbytes", wrapped(bitsandbytes), seen, LABELS),
    Target("dynamic quantisation", TORCH, wrapped(dynamic), seen, LABELS),
    Target("FSDP2", TORCH, wrapped(sharded), seen, LABELS),
    Target("FSDP2, fused attention", TORCH, wrapped(sharded, True), seen, LABELS),
    Target("tensor parallel", TORCH, wrapped(tensor_parallel), seen, LABELS),
    Target("DistributedDataParallel", TORCH, wrapped(data_parallel), seen, LABELS),
    Target("torch.jit.script", TORCH, wrapped(torch.jit.script), as_before, LABELS),
    Target("torch.jit.trace", TORCH, wrapped(lambda model: torch.jit.trace(model, inputs())),
           as_before, LABELS),
    Target("torch.export", TORCH, wrapped(Exported), as_before, LABELS),
    Target("torch.compile", TORCH, wrapped(
        lambda model: torch.compile(model, backend="eager")), as_before, LABELS),
    Target("LoRA", "peft", wrapped(lora), seen, LABELS),
    Target("LightningModule", "lightning", wrapped(lightning), seen, LABELS),
    Target("Fabric", "lightning", wrapped(fabric), seen, LABELS),
    Target("Accelerator", "accelerate", wrapped(accelerated), seen, LABELS),
    Target("cpu_offload", "accelerate", wrapped(offloaded), seen, LABELS),
]  # fmt: skip
