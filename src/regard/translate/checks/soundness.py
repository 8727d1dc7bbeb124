"""Changes that must not matter: later target words, padding, other sentences of the batch."""

from __future__ import annotations

import torch

from regard.translate.checks.probe import TARGET, Probe, rounding
from regard.translate.tokens import NAMES, PAD


def check_causal(probe: Probe) -> tuple[bool | None, str]:
    """Change the target from each position on: earlier logits must not move."""
    cuts = torch.arange(1, TARGET, device=probe.device)
    source = probe.sources(1, max(probe.lengths)).expand(len(cuts), -1)
    target = probe.targets(1).expand(len(cuts), -1)
    later = torch.arange(TARGET, device=probe.device) >= cuts[:, None]  # (cut, position)
    changed = torch.where(later, probe.others(target, probe.target_size), target)
    before, after = (probe.run(source, source != PAD, tokens)[0] for tokens in (target, changed))
    moved = (after - before).abs().amax(-1)  # (cut, position)
    early, late = float(moved[~later].max()), float(moved[later].max())
    bound = rounding(before)
    if early > bound:
        return False, (
            f"changing later target words moved earlier logits by {early:.2g}: the decoder sees "
            "the future while it learns, and cannot when it translates"
        )
    if late <= bound:
        why = "no logit moved, earlier or later: the decoder does not look at the target at all"
        return None, why
    return True, (
        f"changing later target words moved later logits by {late:.2g} and earlier ones by "
        f"{early:.2g}: the decoder sees the past alone"
    )


def check_padding(probe: Probe) -> tuple[bool | None, str]:
    """Read sentences alone, then padded and together: nothing may move."""
    sources = [probe.sources(1, size) for size in probe.lengths]
    target = probe.targets(1)
    alone = [probe.run(source, source != PAD, target) for source in sources]
    moved, leaked, bound = 0.0, 0.0, 0.0
    paddings = ((0, PAD), (probe.extra, PAD), (probe.extra, len(NAMES)))
    for extra, filler in paddings:
        width = max(probe.lengths) + extra
        batch = torch.full((len(sources), width), filler, device=probe.device)
        mask = torch.zeros_like(batch, dtype=torch.bool)
        for row, source in enumerate(sources):
            batch[row, : source.shape[1]] = source[0]
            mask[row, : source.shape[1]] = True
        targets = target.expand(len(sources), -1)
        logits, decoded = probe.run(batch, mask, targets)
        for row, (expected, _) in enumerate(alone):
            moved = max(moved, float((logits[row] - expected[0]).abs().max()))
            bound = max(bound, rounding(expected))
        for weights in decoded.weights.values():  # (batch, head, target, source)
            behind = weights.masked_fill(mask[:, None, None], 0)
            leaked = max(leaked, float(behind.abs().max()))
    if leaked > 0:
        why = f"padding got attention, {leaked:.2g}: the mask is not applied to it"
        return False, why
    if moved > bound:
        return False, (
            f"padding, or other sentences in the batch, moved the logits by {moved:.2g}: a "
            "translation depends on the company it is in"
        )
    padded = "and no padding got attention" if probe.model.sites else "so padding is not read"
    why = f"padding and other sentences in the batch moved the logits by {moved:.2g}, {padded}"
    return True, why
