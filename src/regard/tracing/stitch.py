"""One map over prompt and output from the steps of `generate()`.

Step 0 attends from the whole prompt; each later step feeds one token (or a few) and attends from it
to everything before. The last generated token is never fed, so it has no row. Beam search reorders
the batch: `beam_indices` has the row of a sequence at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.masks import causal
from regard.recipe import Dot, Given, Recipe
from regard.record import Record, Trace
from regard.record.stored_attention import StoredRecipe
from regard.tracing.delta_rule import DeltaCall
from regard.tracing.key_cache import GrowingKeys


def stitch(trace: Trace, output: Any = None) -> Trace:
    """Join the steps of `generate()`: one record per module, over prompt and output.

    The result covers every position that was fed: prompt and output without its last token.
    Modules that ran once (an encoder) are unchanged.

    Args:
        trace: the trace of a `generate()`.
        output: what `generate` returned. Required for beam search, which needs
            `return_dict_in_generate=True, output_scores=True` to return `beam_indices`.

    >>> # with regard.capture(model) as trace:
    >>> #     output = model.generate(**inputs, return_dict_in_generate=True)
    >>> # regard.stitch(trace, output)["model.layers.0.self_attn"].weights()
    """
    if not isinstance(trace, Trace):
        raise RegardError(
            f"stitch: {type(trace).__name__}, expected the trace first, then what generate() "
            "returned"
        )
    if not len(trace):
        raise RegardError("stitch: the trace is empty: trace.notes says why")
    sequences = _sequences(output)
    steps: dict[str, list[Record]] = {}
    for record in trace:
        steps.setdefault(record.site.base, []).append(record)
    runs = [records for records in steps.values() if len(records) > 1]
    if not runs and sequences is None:
        raise RegardError(
            "stitch: no module ran more than once; was the trace taken of generate()?"
        )
    for records in runs:
        _check_steps(records)
    beams = getattr(output, "beam_indices", None)
    if sequences is not None:
        _check_length(sequences.shape[1], runs or [[record] for record in trace], beams is not None)
    if not runs:
        return trace  # one step alone is the whole map
    stitched = []
    for records in steps.values():
        if len(records) == 1:
            stitched.append(records[0])
            continue
        rows = _rows(records, sequences, beams)
        recipe = _together(records, rows)
        site = replace(records[0].site, call=1, step=0)
        stitched.append(
            Record(
                site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
            )
        )
    return Trace(stitched, notes=trace.notes, other_softmaxes=trace.other_softmaxes)


def _sequences(output: Any) -> Tensor | None:
    """The token numbers that generate() returned, (sequence, position)."""
    if output is None:
        return None
    tokens = output if isinstance(output, Tensor) else getattr(output, "sequences", None)
    if not isinstance(tokens, Tensor):
        raise RegardError(
            f"stitch: output is {type(output).__name__}, expected what generate() returned: token "
            "numbers (sequence, position), or an object that has them as `sequences`"
        )
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise RegardError(
            f"stitch: output is {tuple(tokens.shape)} of {tokens.dtype}, expected the token "
            "numbers (sequence, position) that generate() returned"
        )
    return tokens


def _check_length(length: int, runs: Sequence[Sequence[Record]], beams: bool) -> None:
    """Check the output's length: the fed positions plus one; without the prompt if the input was
    embeddings; Whisper also drops its end. Beams may end early."""
    fitting = set()
    whisper = any(record.attends == "cross" for records in runs for record in records)
    for records in runs:
        fed = sum(record.shape.queries for record in records)
        new = fed + 1 - records[0].shape.queries
        fitting |= {fed + 1, new, new - whisper}
    if length > max(fitting) or (not beams and length not in fitting):
        raise RegardError(
            f"stitch: the output has {length} positions, the model was fed {max(fitting) - 1}, so "
            f"{max(fitting)} were expected: it is the output of another run, or the trace is not "
            "of one generate() alone"
        )


def _rows(records: Sequence[Record], sequences: Tensor | None, beams: Tensor | None) -> Tensor:
    """(sequence, step): which example of a step's batch belongs to a returned sequence."""
    batch, count = records[0].shape.batch, len(records)
    if beams is not None:  # -1 once a sequence has ended
        if beams.numel() and int(beams.max()) >= batch:
            raise RegardError(
                f"stitch: beam_indices name example {int(beams.max())}, the model ran on {batch}: "
                "it is the output of another run"
            )
        rows: Tensor = beams[:, :count].cpu()
        missing = torch.full((len(rows), count - rows.shape[1]), -1)
        return torch.cat([rows, missing], dim=1)
    counts = batch if sequences is None else sequences.shape[0]
    if counts != batch or any(_reordered(record) for record in records):
        raise RegardError(
            f"stitch: {counts} sequences were returned, the model ran on {batch}: "
            f"{_why(counts, batch)} call generate(..., return_dict_in_generate=True, "
            "output_scores=True) and pass all it returns, so that beam_indices tell which beam "
            "became which sequence"
        )
    return torch.arange(batch)[:, None].expand(-1, count)


def _why(counts: int, batch: int) -> str:
    if counts == batch:
        return "this is beam search;"
    return "it is the output of another run, or this is beam search; then"


def _reordered(record: Record) -> bool:
    """Whether the examples were reordered since the step before."""
    return isinstance(record.parts, GrowingKeys | DeltaCall) and record.parts.reordered


def _together(records: Sequence[Record], rows: Tensor) -> Recipe:
    recipes = [record.recipe for record in records]
    growing = _growing(records)
    if growing and bool((rows >= 0).all()):
        dots = [recipe for recipe in recipes if isinstance(recipe, Dot)]
        lazy = _dot(dots, rows) if len(dots) == len(recipes) else None
        if lazy is not None:
            return lazy
    return _matrix(recipes, rows, growing)


def _dot(recipes: list[Dot], rows: Tensor) -> Dot | None:
    """All queries against the last step's keys, causal; memory linear in the length."""
    last = recipes[-1]
    total = sum(recipe.shape.queries for recipe in recipes)
    same = {(recipe.scale, recipe.softcap, recipe.normalises) for recipe in recipes}
    plain = all(recipe.bias is None and recipe.sink is None for recipe in recipes)
    if not plain or len(same) > 1 or last.shape.keys != total:
        return None
    masked = [recipe for recipe in recipes[1:] if recipe.mask is not None]
    if masked or not _is_causal(recipes[0]):
        return None
    query = torch.cat([recipe.query[rows[:, i]] for i, recipe in enumerate(recipes)], dim=2)
    key = last.key[rows[:, -1]]
    return replace(last, query=query, key=key, value=None, mask=causal(), lse=None)


def _is_causal(recipe: Dot) -> bool:
    """Whether the prompt's mask is causal and nothing else."""
    return recipe.shape.queries == 1 or (
        recipe.mask is not None and repr(recipe.mask) == "causal()"
    )


def _growing(records: Sequence[Record]) -> bool:
    """Whether the keys are the positions fed so far, rather than another sequence."""
    if records[0].attends == "unknown":
        return len({record.shape.keys for record in records}) > 1
    return records[0].attends != "cross"


def _check_steps(records: Sequence[Record]) -> None:
    """Check that later steps attend to the positions before them."""
    for record in records:
        record.check_axes()
    if not _growing(records):
        return
    before, fed = records[0], records[0].shape.queries
    square = [record.shape.queries == record.shape.keys for record in records]
    for number, record in enumerate(records[1:], 1):
        if square[number]:
            why = "a second run begins there; capture each generate() in a `with` of its own"
            if all(square) and record.shape.keys > before.shape.keys:
                why = (
                    "generate() ran without a cache (then its last step alone has the whole map), "
                    "or these are passes over texts of their own"
                )
            raise RegardError(
                f"stitch: step {number} of {record.site.base} attends to its own "
                f"{record.shape.keys} positions only, not to the {fed} before: {why}"
            )
        before, fed = record, fed + record.shape.queries


def _matrix(recipes: Sequence[Recipe], rows: Tensor, growing: bool) -> Given:
    """The weights of all steps in one matrix; rows after the end of a sequence are 0.

    A sliding cache lacks the first keys; one of fixed size is padded at its end.
    """
    total = sum(recipe.shape.queries for recipe in recipes)
    keys = max(total, *(recipe.shape.keys for recipe in recipes)) if growing else 0
    keys = keys or recipes[0].shape.keys
    first = recipes[0]
    matrix = torch.zeros(
        len(rows), first.shape.heads, total, keys, dtype=first.dtype, device=first.device
    )
    top = 0
    for step, recipe in enumerate(recipes):
        fed = rows[:, step] >= 0
        weights = recipe.weights()[rows[fed, step]]
        height, breadth = weights.shape[2:]
        end = max(top + height, breadth) if growing else breadth
        matrix[fed, :, top : top + height, end - breadth : end] = weights
        top += height
    return Given(matrix[..., :total] if growing else matrix, None, first.kind)
