"""Norms around an attention made linear in their parts: any norm, of the branch and of the sum."""

from dataclasses import replace

import pytest
import torch
from residual_models import encoder, stirred, total, watched
from torch import nn

from regard.aggregate.layers.contributions import contributions, linear_norm
from regard.errors import UnavailableError


class Plain(nn.Module):
    """The norm of the annotated transformer: divided by the standard deviation of a sample."""

    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x):
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (deviation + 1e-6) + self.shift


@pytest.mark.parametrize("width", [8, 7])
@pytest.mark.parametrize(
    "norm", [nn.LayerNorm, nn.RMSNorm, Plain, lambda width: nn.LayerNorm(width, bias=False)]
)
def test_any_norm_is_made_linear(norm, width):
    torch.manual_seed(0)
    norm = stirred(norm(width))
    given = torch.randn(2, 5, width, dtype=torch.float64) * 3 + 1
    found = linear_norm(norm, given)
    truth = norm(given).detach()
    torch.testing.assert_close(found.whole(given), truth, atol=1e-10, rtol=0)
    parts = torch.randn(4, 2, 5, width, dtype=torch.float64)
    parts = torch.cat([parts, (given - parts.sum(0))[None]])
    summed = (found.linear(parts) * found.scale[..., None]).sum(0) + found.shift
    torch.testing.assert_close(summed, truth, atol=1e-10, rtol=0)
    assert found.centred == (not isinstance(norm, nn.RMSNorm))


def test_a_norm_of_the_branch_and_one_of_the_sum():
    model = encoder(norm_first=False, layers=1)
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, residual = watched(model, given)
    branch, norm = stirred(nn.LayerNorm(16)), stirred(nn.RMSNorm(16))
    near = replace(residual.of(trace[0]), branch=branch, norm=norm)
    attended = model.layers[0].self_attn(given, given, given)[0]
    for include, truth in (
        ("attention", attended),
        ("residual", given + branch(attended)),
        ("norm", norm(given + branch(attended))),
    ):
        found = contributions(trace[0], near, include)
        torch.testing.assert_close(total(found), truth.detach(), atol=1e-10, rtol=0)


def test_what_is_no_norm_is_refused():
    given = torch.randn(2, 5, 8)
    with pytest.raises(UnavailableError, match=r"GELU.*cannot be made linear"):
        linear_norm(nn.GELU(), given)
