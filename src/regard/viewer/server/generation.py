"""A model that goes on from a text, a token at a time, each with the attention it came from."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.record import Record, Trace
from regard.tracing import capture, stitch
from regard.viewer.chunks import raw

Rows = Float[Tensor, "head query key"]


class Chosen(NamedTuple):
    """One step: the token it chose, and the attention it was chosen by."""

    token: int
    records: list[Record]

    def rows(self) -> dict[str, Rows]:
        """New rows of every site: the whole prompt's in the first step, one in each later one.

        A module that runs twice in a pass is two sites, the second one named `path#2`.
        """
        found: dict[str, Rows] = {}
        runs: Counter[str] = Counter()
        for record in self.records:
            base = record.site.base
            runs[base] += 1
            name = base if runs[base] == 1 else f"{base}#{runs[base]}"
            found[name] = record.weights()[0].float()
        return found


class Whole(NamedTuple):
    """All that was fed, and its attention as one map of each site."""

    fed: list[int]
    trace: Trace


def stepwise(
    model: Callable[..., Any], prompt: Int[Tensor, "1 position"], count: int, ends: Sequence[int]
) -> Generator[Chosen | Whole]:
    """The most likely token each time, until `count` are made or one of `ends` is.

    The model is one of transformers' causal ones, or is called as they are: numbers of tokens and
    `past_key_values` in, `logits` and `past_key_values` out.
    """
    fed = prompt[0].tolist()
    given, cache = prompt, None
    with torch.inference_mode(), capture(model) as trace:
        for step in range(count):
            before = len(trace)
            output = model(input_ids=given, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            token = int(output.logits[0, -1].argmax())
            yield Chosen(token, list(trace)[before:])
            if token in ends or step == count - 1:
                break
            fed.append(token)
            given = prompt.new_tensor([[token]])
    yield Whole(fed, stitch(trace) if len(trace.steps) > 1 else trace)


def encoded(rows: Rows) -> str:
    """Rows as 16-bit floats in base64: within 0.05 % of a weight, or 3e-8 of one below 6e-5."""
    return base64.b64encode(raw(rows.half().cpu().contiguous())).decode()
