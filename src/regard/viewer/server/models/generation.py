"""Text generation token by token, each with the attention it was predicted from."""

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

_LIKELY = 5  # tokens of which each step tells the probability

Rows = Float[Tensor, "head query key"]


class GeneratedToken(NamedTuple):
    """One step: its token, the attention of the pass that predicted it, and what it predicted."""

    token: int
    records: list[Record]
    likely: list[tuple[int, float]]  #: the most probable tokens and their probabilities

    def rows(self) -> dict[str, Rows]:
        """New rows of every site: those of the prompt in the first step, one in each later step.

        A module that runs twice in a pass is two sites, the second one named `path#2`.
        """
        rows: dict[str, Rows] = {}
        runs: Counter[str] = Counter()
        for record in self.records:
            base = record.site.base
            runs[base] += 1
            name = base if runs[base] == 1 else f"{base}#{runs[base]}"
            rows[name] = record.weights()[0].float()
        return rows


class GenerationTrace(NamedTuple):
    """All input tokens of a generation, and its attention as one map for each site."""

    fed: list[int]
    trace: Trace


def stepwise(
    model: Callable[..., Any], prompt: Int[Tensor, "1 position"], count: int, ends: Sequence[int]
) -> Generator[GeneratedToken | GenerationTrace]:
    """Greedy decoding, until `count` tokens are generated or one of `ends` is.

    The last token is fed as well, so that it has a row of its own in the trace. The model has the
    interface of transformers' causal models: `input_ids` and `past_key_values` in, `logits` and
    `past_key_values` out.
    """
    fed = prompt[0].tolist()
    inputs, cache = prompt, None
    with torch.inference_mode(), capture(model) as trace:
        for _ in range(count):
            before = len(trace)
            output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            probabilities = output.logits[0, -1].float().softmax(0)
            likely = probabilities.topk(min(_LIKELY, len(probabilities)))
            tokens = list(zip(likely.indices.tolist(), likely.values.tolist()))
            token = tokens[0][0]
            yield GeneratedToken(token, list(trace)[before:], tokens)
            fed.append(token)
            inputs = prompt.new_tensor([[token]])
            if token in ends:
                break
        model(input_ids=inputs, past_key_values=cache, use_cache=True)
    yield GenerationTrace(fed, stitch(trace))


def encoded(rows: Rows) -> str:
    """Rows as 16-bit floats in base64: within 0.05 % of a weight, or 3e-8 of one below 6e-5."""
    return base64.b64encode(raw(rows.half().cpu().contiguous())).decode()
