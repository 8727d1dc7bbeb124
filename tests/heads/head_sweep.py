"""Every transformers architecture that can be built here: are its heads found, and can they go?

    python tests/heads/head_sweep.py                    # all, two processes
    python tests/heads/head_sweep.py bert llama -j out.json

Of each architecture four choices of heads are pruned in all attentions at once, and the output is
compared with that of the model with these heads masked. The verdicts:

    removed     it is the same, and at least some heads were really removed
    masked      it is the same, and all heads were masked
    wrong       it is another, or the pruned model does not run
    none        no output projection of attention was found, or none ran
    unbuilt     the model could not be built or run on this machine
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tracing" / "hf"))

import examine
import sweep
import tiny
import torch
from inputs import Inputs
from overrides import TOO_LARGE

from regard.anatomy.head_sites import head_sites
from regard.errors import RegardError
from regard.heads.head_mask import head_mask, rows_of
from regard.heads.prune import prune

CHOICES = {
    "the second": lambda heads: [1],
    "two neighbours": lambda heads: [0, 1],
    "a half": lambda heads: range(heads // 2, heads),
    "all": range,
}


class Result(dict):
    """What became of one architecture."""

    def as_dict(self) -> dict:
        return dict(self)


def examined(model_type: str) -> Result:
    """Verdict on one architecture."""
    result = Result(architecture=model_type, verdict="unbuilt", reason="", removed=0, masked=0)
    if model_type in TOO_LARGE:
        return result
    try:
        model = tiny.build(model_type, tiny.configuration(model_type))
        tiny.randomise(model)
        given = Inputs(model_type, model, model.config).fitted()
        examine._run(model, given)
    except Exception as error:
        return Result(result, reason=examine._said(error))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rows = rows_of(head_sites(model), lambda: examine._run(model, given))
        except RegardError as error:
            return Result(result, verdict="none", reason=str(error))
        sites = list(dict.fromkeys(row.site for row in rows))
        problems = [_problem(model, sites, given, choice, result) for choice in CHOICES.values()]
    result["reason"] = "; ".join(problem for problem in problems if problem)
    result["verdict"] = (
        "wrong" if result["reason"] else "removed" if result["removed"] else "masked"
    )
    return result


def _problem(model, sites, given, choice, result) -> str:
    heads = {site.name: [h for h in choice(site.n_heads) if h < site.n_heads] for site in sites}
    heads = {name: numbers for name, numbers in heads.items() if numbers}
    if not heads:
        return ""
    masks = {site.name: torch.ones(site.n_heads) for site in sites}
    for name, numbers in heads.items():
        masks[name][numbers] = 0
    with head_mask(model, masks):
        want = _numbers(examine._run(model, given))
    other = copy.deepcopy(model)
    pruned = prune(other, heads, data=[given], run=examine._run)
    result["removed"] += sum(map(len, pruned.removed.values()))
    result["masked"] += sum(map(len, pruned.masked.values()))
    try:
        got = _numbers(examine._run(other, given))
    except Exception as error:
        return examine._said(error)
    for one, two in zip(want, got):
        if one.shape == two.shape and one.numel():
            error = (one - two).nan_to_num(0, 0, 0).abs().max().item()
            scale = max(1.0, one.nan_to_num(0, 0, 0).abs().max().item())
            if error > 1e-4 * scale:
                return f"off by {error / scale:.1e}"
    return ""


def _numbers(output) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
    return [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("-j", "--json", type=Path)
    parser.add_argument("-n", "--processes", type=int, default=2)
    options = parser.parse_args()
    everything = sweep.load()
    examine.examine = examined  # what each process of the sweep calls
    results = sweep.sweep(options.names or everything, options.processes)
    for found in results:
        if found["verdict"] not in ("none", "unbuilt"):
            print(*(found[key] for key in ("architecture", "verdict", "removed", "masked")))
    print(dict(Counter(found["verdict"] for found in results)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
