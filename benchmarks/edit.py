"""What `regard.edit` costs, what its rivals cost for the same ablation, and what it reaches.

Ratios of processor time to the plain run, interleaved in one process on one thread. nnsight and
TransformerLens ablate one head of a GPT-2 with the same weights, after their outputs were compared
with ours; those that are not installed are named. Coverage runs over the targets of capture's
tests: a random bias must arrive in the weights that capture then sees.

    python benchmarks/edit.py [--quick] [--only cost rivals coverage]
"""

from __future__ import annotations

import argparse
import collections
import copy
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers: nothing here is downloaded

import torch
import transformers as hf
from timing import interleaved, table
from torch import Tensor

import regard
from regard.editing import Change, bias, forbid, replace, silence
from regard.errors import UnavailableError
from regard.interception import OPERATORS
from regard.tracing.capture import module_of
from regard.tracing.softmax_axes import NoAxes, softmax_axes

BARS = {"idle": 1.05, "forbid": 1.1, "replace one head": 1.25}
DECODING_BAR = 1.3
COVERAGE_BAR = 0.97


def edited(model: torch.nn.Module, run: Callable[[], object], *changes: Change) -> object:
    with regard.edit(model, *changes):
        return run()


def unseen(model: torch.nn.Module, run: Callable[[], object], *changes: Change) -> object:
    """The same where a change touches nothing, which an edit says at its end."""
    block = regard.edit(model, *changes)
    block.__enter__()
    try:
        return run()
    finally:
        block.__exit__(KeyError, None, None)


@torch.no_grad()
def cost(quick: bool) -> None:
    torch.manual_seed(0)
    layers = 4 if quick else 12
    bert = hf.BertModel._from_config(
        hf.BertConfig(num_hidden_layers=layers), attn_implementation="sdpa"
    ).eval()
    ids = torch.randint(5, 999, (4, 256))
    run = lambda: bert(input_ids=ids)
    ways = {
        "plain": run,
        "idle": lambda: unseen(bert, run, forbid(queries=9999)),
        "forbid": lambda: edited(bert, run, forbid(queries=slice(9, None), keys=[3])),
        "replace one head": lambda: edited(bert, run, replace("uniform", heads=1)),
    }
    report(f"BERT, {layers} layers, 4 × 256 tokens, sdpa", ways, 7 if quick else 15, BARS)
    gpt = hf.GPT2LMHeadModel._from_config(
        hf.GPT2Config(n_layer=layers, eos_token_id=None), attn_implementation="sdpa"
    ).eval()
    gpt.generation_config.eos_token_id = None
    prompt = torch.randint(5, 999, (1, 8))
    decode = lambda: gpt.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
    ways = {
        "plain": decode,
        "idle": lambda: unseen(gpt, decode, forbid(queries=9999)),
        "forbid": lambda: edited(gpt, decode, forbid(queries=slice(9, None), keys=[3])),
        "replace one head": lambda: edited(gpt, decode, replace("uniform", heads=1)),
    }
    bars = {"idle": DECODING_BAR}
    report(f"GPT-2, {layers} layers, decoding 24 tokens", ways, 7 if quick else 15, bars)


def report(
    title: str, ways: dict[str, Callable[[], object]], repeats: int, bars: dict[str, float]
) -> None:
    seconds = interleaved(ways, repeats)
    rows = [
        [
            name,
            f"{seconds[name] / seconds['plain']:.3f}",
            f"{bars[name]:.2f}" if name in bars else "",
        ]
        for name in ways
        if name != "plain"
    ]
    table(f"{title}: ratio to {1000 * seconds['plain']:.0f} ms", ["way", "ratio", "bar"], rows)


@torch.no_grad()
def rivals(quick: bool) -> None:
    """One head of one layer made 0 by each, on the same weights."""
    torch.manual_seed(0)
    layers = 4 if quick else 12
    config = hf.GPT2Config(n_layer=layers, vocab_size=1000, n_positions=128)
    model = hf.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(5, 999, (4, 128))
    width = config.n_embd // config.n_head
    change = silence(heads=1, where="transformer.h.2.attn")
    ways: dict[str, Callable[[], Tensor]] = {
        "regard": lambda: edited(model, lambda: model(ids).logits, change),  # type: ignore[dict-item]
    }
    for name, build in (("nnsight", with_nnsight), ("TransformerLens", with_transformer_lens)):
        try:
            ways[name] = build(model, ids, width)
        except ImportError as error:
            print(f"{name} is not installed: {error}")
    ours = ways["regard"]()
    rows = []
    for name, way in ways.items():
        other = way()
        rows.append([name, f"{(ours.log_softmax(-1) - other.log_softmax(-1)).abs().max():.1e}"])
    seconds = interleaved(ways, 9 if quick else 21)  # type: ignore[arg-type]
    for row in rows:
        row.append(f"{seconds[row[0]] / seconds['regard']:.3f}")
    table(
        f"one head ablated, GPT-2 of {layers} layers, 4 × 128 tokens: regard takes "
        f"{1000 * seconds['regard']:.0f} ms",
        ["package", "difference", "ratio to regard"],
        rows,
    )


def with_nnsight(model: torch.nn.Module, ids: Tensor, width: int) -> Callable[[], Tensor]:
    from nnsight import NNsight

    wrapped = NNsight(model)

    def run() -> Tensor:
        with wrapped.trace(ids):
            wrapped.transformer.h[2].attn.c_proj.input[..., width : 2 * width] = 0
            logits = wrapped.lm_head.output.save()
        return logits  # noqa: RET504  # nnsight fills it when the block ends

    return run


def with_transformer_lens(model: torch.nn.Module, ids: Tensor, width: int) -> Callable[[], Tensor]:
    from transformer_lens.model_bridge import TransformerBridge

    # It changes the modules of the model that it is given.
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=copy.deepcopy(model))
    bridge.eval()

    def ablate(z: Tensor, hook: object) -> Tensor:
        z = z.clone()
        z.view(*z.shape[:2], -1)[..., width : 2 * width] = 0  # with or without an axis of heads
        return z

    hooks = [("blocks.2.attn.o.hook_in", ablate)]
    return lambda: bridge.run_with_hooks(ids, fwd_hooks=hooks)


# -- coverage

NOISE = torch.randn(1, 1, 700, 700, generator=torch.Generator().manual_seed(5))


def coverage(quick: bool) -> None:
    """A bias at each site of each target; the changed weights follow from those before."""
    tests = Path(__file__).parents[1] / "tests" / "tracing"
    sys.path.insert(0, str(tests))
    from targets import targets

    warnings.simplefilter("ignore")
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    misses: list[str] = []
    for target in targets()[:: 8 if quick else 1]:
        with target.around():
            origin, outcome, why = reach(target)
        outcomes[origin][outcome] += 1
        if outcome != ("reached" if origin == SOFTMAX else "raised"):
            misses.append(f"{target.name} ({origin}): {outcome}: {why}")
    for origin, counts in sorted(outcomes.items()):
        print(f"weights by {origin}: {counts.total()} targets, {dict(counts)}")
    ours = outcomes.pop(SOFTMAX)
    share = ours["reached"] / ours.total()
    raised = sum(counts["raised"] for counts in outcomes.values())
    others = sum(counts.total() for counts in outcomes.values())
    print(f"reached by {SOFTMAX}: {share:.3f} (bar {COVERAGE_BAR})")
    print(f"others that raise: {raised} of {others}")
    for line in misses:
        print("  " + line)


SOFTMAX = "one softmax or a fused operator"


def origin_of(model: torch.nn.Module | None, record: regard.Record) -> str:
    """What the weights of a record are the result of, by what capture saw of the unedited model."""
    if record.operator != "softmax":
        return SOFTMAX if record.operator.startswith(OPERATORS) else record.operator
    axes = {} if model is None else softmax_axes(model)
    reason = axes.get((record.path, record.source))
    if reason in (NoAxes.SPELLED, NoAxes.MIXED):
        return f"others: {reason}"
    return SOFTMAX


def reach(target: object) -> tuple[str, str, str]:
    """What the weights of a target are the result of, whether a bias arrives at each of its sites,
    and why not."""
    case = target.case()  # type: ignore[attr-defined]
    with regard.capture(case.model, path="full") as before:
        case.run()
    model = case.model if isinstance(case.model, torch.nn.Module) else module_of(case.model)
    sites: dict[str, regard.Record] = {}
    for record in before:
        sites.setdefault(record.path, record)
    origins = {origin_of(model, record) for record in before}
    # A target counts by its worst site.
    origin = next((each for each in sorted(origins) if each != SOFTMAX), SOFTMAX)
    rounded = any(word in target.name for word in ("float32", "float16", "autocast"))  # type: ignore[attr-defined]
    for path, record in sites.items():
        case = target.case()  # type: ignore[attr-defined]
        shapes = [other.shape for other in before if other.path == path]
        # Positions of queries are those of keys, or nobody knows them: then all are changed alike.
        square = all(shape.queries == shape.keys for shape in shapes)
        noise = NOISE if square else NOISE[:, :, :1]
        change = bias(noise, where=lambda site, path=path: site.path == path)
        try:
            with regard.edit(case.model, change), regard.capture(case.model, path="full") as after:
                case.run()
        except UnavailableError as error:
            return origin, "raised", str(error)[-150:]
        changed = [other for other in after if other.path == path]
        calls = sum(other.path == path for other in before)
        if len(changed) != calls or changed[0].shape != record.shape:
            return origin, "not comparable", f"{record.name} is seen in another form"
        if record.n_edges is None and not arrived(
            record, changed[0], noise, 2e-2 if rounded else 2e-5
        ):
            return origin, "wrong", record.name
    return origin, "reached", ""


def arrived(before: regard.Record, after: regard.Record, noise: Tensor, bound: float) -> bool:
    """Whether the weights after are those before, with the noise; beside sinks and factors."""
    weights, changed = before.weights().double(), after.weights().double()
    queries, keys = weights.shape[2:]
    total = weights.sum(-1, keepdim=True)
    sink = (1 - total).clamp_min(0) if (1 - total).abs().max() > 1e-3 else 0.0
    expected = weights * noise[:, :, :queries, :keys].double().exp()
    scales = (
        1 / (expected.sum(-1, keepdim=True) + sink).clamp_min(1e-30),
        total / expected.sum(-1, keepdim=True).clamp_min(1e-30),
    )
    errors = [torch.nan_to_num(expected * scale - changed).abs().max() for scale in scales]
    return bool(min(errors) <= bound)


SECTIONS = {"cost": cost, "rivals": rivals, "coverage": coverage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller models, every 8th target")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        SECTIONS[name](options.quick)


if __name__ == "__main__":
    main()
