"""Long inputs: windows and packed sequences beside full causal attention, decode steps beside SDPA.

    .venv/bin/python benchmarks/lengths.py [--quick]

Every figure is a ratio of medians of processor time, taken in turn in one process.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import interleaved, table
from torch import Tensor, nn

from regard import masks
from regard.contract import State
from regard.mechanisms import MultiHead, Rotary

WIDTH, HEADS, WINDOW = 512, 8, 256


def trained(attn: nn.Module, x: Tensor, **options: object) -> Callable[[], None]:
    """One forward and backward pass."""
    x = x.clone().requires_grad_()

    def run() -> None:
        attn(x, causal=True, **options).output.sum().backward()

    return run


def answered(attn: nn.Module, x: Tensor, **options: object) -> Callable[[], None]:
    """One forward pass without gradients."""

    def run() -> None:
        with torch.inference_mode():
            attn(x, causal=True, **options)

    return run


def windows(lengths: list[int], repeats: int) -> None:
    full, local = MultiHead(WIDTH, HEADS), MultiHead(WIDTH, HEADS, window=(WINDOW - 1, 0))
    rows = []
    for length in lengths:
        x = torch.randn(1, length, WIDTH)
        for name, way in (("inference", answered), ("training", trained)):
            times = interleaved({"full": way(full, x), "window": way(local, x)}, repeats)
            ratio = times["window"] / times["full"]
            rows.append([str(length), name, f"{ratio:.2f}", "1.00", f"{times['full'] * 1e3:.0f}"])
    table(
        f"a window of {WINDOW} over full causal attention, MultiHead({WIDTH}, {HEADS})",
        ["tokens", "", "× full", "bar", "full ms"],
        rows,
    )


def packed(count: int, length: int, repeats: int) -> None:
    attn, x = MultiHead(WIDTH, HEADS), torch.randn(count, length, WIDTH)
    row = x.reshape(1, count * length, WIDTH)
    mask = masks.segments(torch.arange(count).repeat_interleave(length)[None])
    rows = []
    for name, way in (("inference", answered), ("training", trained)):
        times = interleaved({"batch": way(attn, x), "row": way(attn, row, mask=mask)}, repeats)
        ratio = times["row"] / times["batch"]
        rows.append([name, f"{ratio:.2f}", "1.30", f"{times['batch'] * 1e3:.0f}"])
    table(
        f"{count} × {length} tokens packed into one row over the batch of {count}",
        ["", "× batch", "bar", "batch ms"],
        rows,
    )


class Plain:
    """What a decode step costs by hand: the same projections, a cache that was made long enough,
    rotary tables computed once."""

    def __init__(self, attn: MultiHead, x: Tensor, longest: int) -> None:
        self.attn, width = attn, attn.head_width
        state = attn(x, causal=True, state=True).state
        shape = (x.shape[0], HEADS, longest, width)
        self.key, self.value = torch.empty(shape), torch.empty(shape)
        self.start = x.shape[1]
        self.key[:, :, : self.start], self.value[:, :, : self.start] = state.key, state.value
        rates = 10000.0 ** (-torch.arange(width // 2) / (width // 2))
        angles = (torch.arange(longest)[:, None] * rates).repeat(1, 2)
        self.cosine, self.sine = angles.cos(), angles.sin()

    def turned(self, x: Tensor, position: int) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return x * self.cosine[position] + turned * self.sine[position]

    def step(self, x: Tensor, position: int) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project in (self.attn.to_query, self.attn.to_key, self.attn.to_value)
        )
        self.key[:, :, position : position + 1] = self.turned(key, position)
        self.value[:, :, position : position + 1] = value
        stop = position + 1
        mixed = F.scaled_dot_product_attention(
            self.turned(query, position), self.key[:, :, :stop], self.value[:, :, :stop]
        )
        return self.attn.to_output(mixed.transpose(1, 2).flatten(2))


def concatenated(state: State) -> State:
    """The state as it would be without a buffer: the next step copies every key."""
    return State(state.key, state.value, True, state.step, state.padding)


def decoding(sizes: list[tuple[int, int, int]], steps: int, repeats: int) -> None:
    rows = []
    for batch, width, held in sizes:
        attn = MultiHead(width, HEADS, position=Rotary()).eval()
        x, new = torch.randn(batch, held, width), torch.randn(batch, steps, width)
        with torch.inference_mode():
            plain = Plain(attn, x, held + steps)
            begun = attn(x[:, 1:], causal=True, state=True).state
            for _ in range(2):  # the second step makes a buffer with spare entries
                begun = attn(new[:, :1], causal=True, state=begun).state

            def by_hand(new: Tensor = new, plain: Plain = plain) -> None:
                for position in range(1, steps):
                    plain.step(new[:, position : position + 1], plain.start + position)

            def ours(
                copies: bool = False,
                attn: MultiHead = attn,
                new: Tensor = new,
                state: State = begun,
            ) -> None:
                state.buffer.taken = state.keys  # each run goes on from here as the first one did
                for position in range(1, steps):
                    state = concatenated(state) if copies else state
                    state = attn(new[:, position : position + 1], causal=True, state=state).state

            calls = {"plain": by_hand, "ours": ours, "copies": functools.partial(ours, True)}
            times = interleaved(calls, repeats)
        rows.append(
            [
                f"{batch} × {width}, {held} keys",
                f"{times['ours'] / times['plain']:.2f}",
                "1.10",
                f"{times['copies'] / times['plain']:.2f}",
                f"{times['plain'] / (steps - 1) * 1e6:.0f}",
            ]
        )
    table(
        "a decode step over the same step by hand with F.scaled_dot_product_attention",
        ["batch × width, cache", "× SDPA", "bar", "(copying all keys)", "SDPA µs"],
        rows,
    )


def memory(length: int, steps: int) -> None:
    """What a cache holds, and what it held at most, in bytes of its buffers."""
    rows = []
    for name, window in (("all keys", None), ("window", (WINDOW - 1, 0))):
        attn = MultiHead(WIDTH, HEADS, position=Rotary(), window=window).eval()
        with torch.inference_mode():
            state = attn(torch.randn(1, length, WIDTH), causal=True, state=True).state
            sizes, buffers = [_bytes(state)], {state.key.untyped_storage().data_ptr()}
            for _ in range(steps):
                state = attn(torch.randn(1, 1, WIDTH), causal=True, state=state).state
                sizes.append(_bytes(state))
                buffers.add(state.key.untyped_storage().data_ptr())
        figures = f"{max(sizes) / 2**20:.1f}", str(len(buffers) - 1)
        rows.append([name, str(state.keys), f"{_bytes(state) / 2**20:.1f}", *figures])
    table(
        f"a cache after a prompt of {length} and {steps} steps",
        ["", "keys held", "MiB held", "at most", "times copied"],
        rows,
    )


def _bytes(state: State) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in (state.key, state.value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under a minute")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    windows([1024] if quick else [1024, 2048, 4096, 8192], 5 if quick else 9)
    packed(16, 128, 7 if quick else 15)
    sizes = [(1, 512, 512), (1, 1024, 1024)]
    more = [(1, 1024, 4096), (8, 512, 1024)]
    decoding(sizes if quick else sizes + more, 16 if quick else 33, 7 if quick else 15)
    memory(2048 if quick else 16384, 64)


if __name__ == "__main__":
    main()
