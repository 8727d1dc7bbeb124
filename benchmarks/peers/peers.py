"""Compare other attention modules with regard: where they agree, and where they do not.

Two kinds of question are asked of every peer:

1. *Probes* (this file): the same queries, keys, values and mask are given to every peer through a
   small adapter (`adapters.py`), and the output and weights are compared with those of
   `regard.attend`, which is itself compared with a float64 formula. `KNOWN` lists every probe
   whose answer is not the same; a probe that is not listed has to be the same.
2. *Cases* (`cases.py`, `cases_others.py`): behaviour of one peer alone, such as an argument that
   is not used.

Run `python peers.py` or `python peers.py --quick`. The exit code is not zero when a peer that
should agree does not, or when a listed difference is gone: then the documentation is out of date.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import NamedTuple

import cases
import cases_others  # noqa: F401  (adds its cases)
import torch
from adapters import ADAPTERS, Answer, Missing, Probe, Unsupported, ask_regard
from torch import Tensor

import regard


class Row(NamedTuple):
    """A line of the printed table."""

    package: str
    case: str
    expected: str
    got: str
    verdict: str
    ok: bool


def probes(seed: int, length: int, heads: int, width: int) -> Iterator[Probe]:
    """The questions, small enough to read."""
    torch.manual_seed(seed)

    def some(positions: int, batch: int = 2, heads: int = heads) -> Tensor:
        return torch.randn(batch, heads, positions, width)

    x, keys, values = some(length), some(length + 3), some(length + 3)
    real = torch.ones(2, length, dtype=torch.bool)
    right, left, gone = real.clone(), real.clone(), real.clone()
    right[1, length // 2 :] = left[1, : length // 2] = gone[1] = False
    poisoned = x.clone()
    poisoned[1, :, length // 2 :] = torch.nan
    yield Probe("plain", x, x, x)
    yield Probe("cross-attention", x, keys, values)
    yield Probe("padding", x, x, x, keep=right)
    yield Probe("causal", x, x, x, causal=True)
    yield Probe("grouped heads", some(length, heads=2 * heads), some(length), some(length))
    yield Probe("no key allowed", x, x, x, keep=gone)
    yield Probe("left padding and causal", x, x, x, keep=left, causal=True)
    yield Probe("NaN at padded keys", poisoned, poisoned, poisoned, right, rows=length // 2)
    yield Probe("causal with fewer queries", x, keys, values, causal=True)
    yield Probe("causal with more queries", keys, x, some(length), causal=True)
    yield Probe("no keys", x, some(0), some(0))
    yield Probe("no queries", some(0), x, some(length))
    empty = some(0)
    yield Probe("empty self-attention", empty, empty, empty)
    large = torch.full((1, 2, 3, 64), 100.0, dtype=torch.float16)
    yield Probe("float16 with large scores", large, large, large)


# Every probe whose answer is not regard's, and what it is instead. "mean" is the mean of all
# values, those of forbidden keys too; its weights are 1 / keys.
NAN_PADDING = dict.fromkeys(ADAPTERS, "NaN")
for _name in ("layers.MultiHeadAttention, scores", "layers.GroupQueryAttention, scores", "Attend"):
    NAN_PADDING[_name] = "output NaN, weights same"
NAN_PADDING["nn.MultiheadAttention, no_grad"] = "output NaN, weights same"
NO_KEY = {
    "nn.MultiheadAttention": "NaN",
    "nn.MultiheadAttention, no_grad": "NaN",
    "nn.MultiheadAttention, no_grad, need_weights=False": "NaN",
    "layers.MultiHeadAttention": "mean",
    "layers.GroupQueryAttention": "mean",
    "layers.Attention": "mean",
    "Attend": "mean",
    "timm.layers.Attention, not fused": "NaN",
}
TOP_LEFT = dict.fromkeys(
    (
        "F.scaled_dot_product_attention",
        "layers.MultiHeadAttention",
        "layers.MultiHeadAttention, scores",
        "layers.GroupQueryAttention",
        "layers.GroupQueryAttention, scores",
        "layers.Attention",
    ),
    "top-left",
)
KNOWN: dict[str, dict[str, str]] = {
    "grouped heads": dict.fromkeys(("Attend", "Attend, flash"), "head h uses group h mod groups"),
    "no key allowed": NO_KEY | {"Attend": "output same, weights mean"},
    "left padding and causal": NO_KEY,
    "NaN at padded keys": NAN_PADDING,
    "causal with fewer queries": TOP_LEFT,
    "causal with more queries": TOP_LEFT | {"Attend": "mean", "Attend, flash": "top-left"},
    "empty self-attention": {"nn.MultiheadAttention, no_grad": "output same, weights none"},
    "float16 with large scores": dict.fromkeys(
        (
            "nn.MultiheadAttention",
            "nn.MultiheadAttention, no_grad",
            "nn.MultiheadAttention, no_grad, need_weights=False",
            "layers.MultiHeadAttention, scores",
            "layers.GroupQueryAttention, scores",
            "layers.Attention",
            "Attend",
            "timm.layers.Attention, not fused",
        ),
        "NaN",
    ),
}


def candidates(probe: Probe) -> dict[str, tuple[Tensor, Tensor]]:
    """Answers to recognise: regard's first, then the ways in which peers differ."""
    output, weights = ask_regard(probe)
    assert weights is not None
    found = {"same": (output, weights)}
    keys, value = probe.key.shape[2], torch.nan_to_num(probe.value)
    if keys and probe.key.shape[1] == probe.query.shape[1]:
        dead = (weights.sum(-1, keepdim=True) == 0) & (probe.name != "no keys")
        mean = torch.where(dead, 1 / keys, weights)
        found["mean"] = (mean.to(value.dtype) @ value, mean)
    if probe.causal and not probe.square:
        early = torch.ones(1, 1, probe.query.shape[2], keys, dtype=torch.bool).tril()
        out = regard.attend(probe.query, probe.key, probe.value, mask=early, weights=True)
        assert out.weights is not None
        found["top-left"] = (out.output, out.weights)
    if probe.key.shape[1] != probe.query.shape[1]:
        times = (1, probe.query.shape[1] // probe.key.shape[1], 1, 1)
        out = regard.attend(
            probe.query, probe.key.repeat(times), probe.value.repeat(times), weights=True
        )
        assert out.weights is not None
        found["head h uses group h mod groups"] = (out.output, out.weights)
    return found


def recognise(got: Tensor | None, known: dict[str, Tensor], rows: int | None) -> str:
    if got is None:
        return "none"
    got = got.detach()[:, :, :rows].double()
    close = 2e-3 if any(part.dtype == torch.float16 for part in known.values()) else 2e-5
    for name, part in known.items():
        part = part.detach()[:, :, :rows].double()
        if got.shape == part.shape and torch.allclose(got, part, atol=close, rtol=0):
            return name
    return "NaN" if got.isnan().any() else "other"


def outcome(probe: Probe, ask: Callable[[Probe], Answer], asked: bool) -> str:
    """One word for the answer, or two when the weights tell another story than the output."""
    output, weights = ask(probe)
    known = candidates(probe)
    first = recognise(output, {name: pair[0] for name, pair in known.items()}, probe.rows)
    if not asked:
        return first
    second = recognise(weights, {name: pair[1] for name, pair in known.items()}, probe.rows)
    return first if first == second else f"output {first}, weights {second}"


def dense(probe: Probe) -> tuple[Tensor, Tensor]:
    """The plain formula in float64: what regard itself is checked against."""
    query, key, value = (part.double() for part in (probe.query, probe.key, probe.value))
    times = query.shape[1] // key.shape[1]
    key, value = (part.nan_to_num().repeat_interleave(times, 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
    queries, keys = scores.shape[2:]
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if probe.causal:
        allowed = allowed.tril(keys - queries)
    if probe.keep is not None:
        allowed = allowed & probe.keep[:, None, None]
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    weights = torch.where(allowed.any(-1, keepdim=True), weights, 0.0)
    return weights @ value, weights


def installed(distribution: str) -> str:
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return distribution


def listed(probe: Probe, name: str) -> str:
    return KNOWN.get(probe.name, {}).get(name, "same")


def verdict(probe: Probe, name: str) -> str:
    """The word for a listed answer; "changes" when a switch of that class changes the output."""
    word = listed(probe, name)
    if word == "same" or word.endswith("weights none"):
        return "same" if word == "same" else "unanswered"
    family = [other for other in ADAPTERS if other.split(",")[0] == name.split(",")[0]]
    outputs = {listed(probe, other).removeprefix("output ").split(",")[0] for other in family}
    return "changes" if len(outputs) > 1 else "differs"


def check_regard(probe: Probe) -> Row:
    """regard itself against the float64 formula."""
    same = all(
        recognise(got, {"same": want}, probe.rows) == "same"
        for got, want in zip(ask_regard(probe), dense(probe), strict=True)
    )
    word = "same" if same else "FAILED"
    return Row("regard", probe.name, "as in float64", word, word, same)


def check_peers(probe: Probe) -> Iterator[Row]:
    for name, (distribution, ask, asked) in ADAPTERS.items():
        package = f"{installed(distribution)} {name}"
        try:
            got = outcome(probe, ask, asked)
        except Unsupported:
            continue
        except Missing as missing:
            yield Row(package, probe.name, "-", str(missing), "NOT INSTALLED", True)
            continue
        word, ok = listed(probe, name), got == listed(probe, name)
        said = verdict(probe, name) if ok else f"CHANGED, documented as {word!r}"
        yield Row(package, probe.name, "same", got, said, ok)


def check_cases() -> Iterator[Row]:
    for case in cases.CASES:
        package = f"{installed(case.distribution)} {case.where}"
        try:
            seen = case.run()
        except Missing as missing:
            yield Row(package, case.name, "-", str(missing), "NOT INSTALLED", True)
            continue
        said = case.verdict if seen.holds else f"CHANGED, documented as {case.verdict!r}"
        yield Row(package, case.name, seen.expected, seen.got, said, seen.holds)


def show(rows: list[Row]) -> None:
    """Print the table; what is the same is gathered in one line a peer."""
    same: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.verdict == "same":
            same.setdefault(row.package, {})[row.case] = None
    print("The same as regard (and regard the same as the formula in float64):")
    for package, names in same.items():
        print(f"  {package}: {', '.join(names)}")
    print("\npackage | case | expected | got | verdict")
    for row in dict.fromkeys(row for row in rows if row.verdict != "same"):
        print(" | ".join(row[:5]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small size and one seed")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    sizes = [(4, 2, 4)] if quick else [(4, 2, 4), (7, 4, 8), (33, 2, 16)]
    seeds = range(1 if quick else 10)
    rows = [
        row
        for size, seed in product(sizes, seeds)
        for probe in probes(seed, *size)
        for row in (check_regard(probe), *check_peers(probe))
    ]
    rows += check_cases()
    show(rows)
    failed = sum(not row.ok for row in rows)
    missing = sum(row.verdict == "NOT INSTALLED" for row in rows)
    print(f"\n{len(rows)} checks, {failed} not as documented, {missing} not run (not installed)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
