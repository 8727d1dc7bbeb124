"""`MultiHead` from and to `nn.MultiheadAttention`, with its masks."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard import RegardError, masks
from regard.mechanisms import Alibi, Heads, MultiHead, RelativeBias, Rotary, Scoring, Sparsemax

BATCH, HEADS, QUERIES, KEYS = 2, 3, 4, 5


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def torch_module(kdim: int = 12, vdim: int = 12, bias: bool = True) -> nn.MultiheadAttention:
    """An `nn.MultiheadAttention` whose biases are not the zeros it starts with."""
    module = nn.MultiheadAttention(
        12, HEADS, kdim=kdim, vdim=vdim, bias=bias, batch_first=True, dtype=torch.float64
    )
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


def inputs(kdim: int = 12, vdim: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    return normal(BATCH, QUERIES, 12), normal(BATCH, KEYS, kdim), normal(BATCH, KEYS, vdim)


WIDTHS = pytest.mark.parametrize("widths", [(12, 12), (7, 12), (7, 5)], ids=str)
BIAS = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


@WIDTHS
@BIAS
def test_outputs_and_weights_of_every_head_are_those_of_torch(
    widths: tuple[int, int], bias: bool
) -> None:
    theirs, given = torch_module(*widths, bias), inputs(*widths)
    expected = theirs(*given, average_attn_weights=False)
    mine = MultiHead.from_torch(theirs)
    for attended in (
        mine(*given, weights=True),
        MultiHead.from_torch(mine.to_torch())(*given, weights=True),
    ):
        torch.testing.assert_close(attended.output, expected[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(attended.weights, expected[1], rtol=0, atol=1e-12)
    back = mine.to_torch()(*given, average_attn_weights=False)
    torch.testing.assert_close(back, expected, rtol=0, atol=0)


@WIDTHS
@BIAS
def test_values_survive_the_round_trip(widths: tuple[int, int], bias: bool) -> None:
    theirs = torch_module(*widths, bias)
    theirs.dropout = 0.25
    back = MultiHead.from_torch(theirs).to_torch()
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for name, values in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], values), name
    assert (back.dropout, back.training, back.batch_first) == (0.25, False, True)
    mine = MultiHead(12, HEADS, inputs=widths, bias=bias)
    again = MultiHead.from_torch(mine.to_torch())
    assert again.state_dict().keys() == mine.state_dict().keys()
    for name, values in mine.state_dict().items():
        assert torch.equal(again.state_dict()[name], values), name
    assert again.training


def test_a_copy_is_a_copy() -> None:
    theirs = torch_module()
    mine = MultiHead.from_torch(theirs)
    nn.init.zeros_(theirs.in_proj_weight)
    assert mine.to_query.weight.any()


def hidden(*shape: int) -> Tensor:
    """True where torch may not attend; the first key stays open, so that torch has no NaN."""
    mask = torch.rand(*shape) < 0.5
    mask[..., 0] = False
    return mask


def minus_infinity(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -math.inf)


MASKS: dict[str, Callable[[], tuple[Tensor | None, Tensor | None]]] = {
    "bool pairs": lambda: (hidden(QUERIES, KEYS), None),
    "bool pairs a head": lambda: (hidden(BATCH * HEADS, QUERIES, KEYS), None),
    "float pairs": lambda: (normal(QUERIES, KEYS), None),
    "float pairs a head": lambda: (normal(BATCH * HEADS, QUERIES, KEYS), None),
    "float pairs with -inf": lambda: (minus_infinity(hidden(QUERIES, KEYS)), None),
    "bool padding": lambda: (None, hidden(BATCH, KEYS)),
    "float padding": lambda: (None, normal(BATCH, KEYS)),
    "bool both": lambda: (hidden(QUERIES, KEYS), hidden(BATCH, KEYS)),
    "bool both a head": lambda: (hidden(BATCH * HEADS, QUERIES, KEYS), hidden(BATCH, KEYS)),
    "float both": lambda: (normal(QUERIES, KEYS), minus_infinity(hidden(BATCH, KEYS))),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_mean_what_they_mean_to_torch(name: str) -> None:
    attn_mask, padding = MASKS[name]()
    theirs, given = torch_module(), inputs()
    output, weights = theirs(
        *given, attn_mask=attn_mask, key_padding_mask=padding, average_attn_weights=False
    )
    mask, bias = masks.from_torch(attn_mask, padding, n_heads=HEADS)
    attended = MultiHead.from_torch(theirs)(*given, mask=mask, bias=bias, weights=True)
    torch.testing.assert_close(attended.weights, weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(attended.output, output, rtol=0, atol=1e-12)
    open_to_all = theirs(*given, average_attn_weights=False)[1]
    assert (weights - open_to_all).abs().max() > 0.01  # the mask matters


def test_a_float_mask_beside_boolean_padding() -> None:
    """Torch warns about mixing the two; here one becomes the bias and the other the mask."""
    theirs, given = torch_module(), inputs()
    added, padding = normal(QUERIES, KEYS), hidden(BATCH, KEYS)
    output, _ = theirs(*given, attn_mask=added, key_padding_mask=minus_infinity(padding))
    mask, bias = masks.from_torch(added, padding)
    attended = MultiHead.from_torch(theirs)(*given, mask=mask, bias=bias)
    torch.testing.assert_close(attended.output, output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("as_float", [False, True], ids=["bool", "float"])
def test_a_query_that_sees_nothing_gets_zeros(as_float: bool) -> None:
    """`nn.MultiheadAttention` answers NaN here."""
    theirs, given = torch_module(), inputs()
    forbidden = hidden(QUERIES, KEYS)
    forbidden[2] = True
    mask, bias = masks.from_torch(minus_infinity(forbidden) if as_float else forbidden)
    attended = MultiHead.from_torch(theirs)(*given, mask=mask, bias=bias, weights=True)
    expected, _ = theirs(*given, attn_mask=forbidden)
    others = [0, 1, 3]
    torch.testing.assert_close(attended.output[:, others], expected[:, others], rtol=0, atol=1e-12)
    assert not attended.weights[:, :, 2].any()
    assert not attended.output[:, 2].any()


UNSAYABLE = {
    "groups": {"heads": Heads(3, n_groups=1)},
    "head width": {"heads": Heads(3, head_width=6)},
    "value width": {"heads": Heads(3, value_width=2)},
    "rotary": {"position": Rotary()},
    "alibi": {"position": Alibi(3)},
    "relative": {"position": RelativeBias(3)},
    "window": {"window": (1, 1)},
    "sinks": {"scoring": Scoring(sinks=True)},
    "norms": {"scoring": Scoring(norms=(nn.RMSNorm(4), nn.RMSNorm(4)))},
    "query norm": {"scoring": Scoring(norms=(nn.RMSNorm(4), nn.Identity()))},
    "key norm": {"scoring": Scoring(norms=(nn.Identity(), nn.RMSNorm(4)))},
    "scale": {"scoring": Scoring(scale=1.0)},
    "softcap": {"scoring": Scoring(softcap=30.0)},
    "normaliser": {"normaliser": Sparsemax()},
    "gate": {"gate": nn.Linear(12, 3)},
}


@pytest.mark.parametrize("name", UNSAYABLE)
def test_to_torch_refuses_what_torch_cannot_say(name: str) -> None:
    message = (
        "MultiHead.to_torch: nn.MultiheadAttention has no grouped heads, other head widths, "
        "positions, windows, scoring, normalisers, mixtures, gates or"
    )
    with pytest.raises(RegardError, match=message):
        MultiHead(12, **{"heads": 3, **UNSAYABLE[name]}).to_torch()


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_refuses_extra_keys(option: str) -> None:
    message = "MultiHead.from_torch: add_bias_kv and add_zero_attn are not supported"
    with pytest.raises(RegardError, match=message):
        MultiHead.from_torch(nn.MultiheadAttention(12, 3, **{option: True}))
    assert isinstance(MultiHead.from_torch(nn.MultiheadAttention(12, 3)), MultiHead)


def test_projections_start_wider_than_torchs_stacked_draw() -> None:
    """Torch draws (3d, d) as one matrix, with bound √(6/4d); each by itself has √(6/2d)."""
    alone, stacked = math.sqrt(6 / 128), math.sqrt(6 / 256)
    torchs = nn.MultiheadAttention(64, 4).in_proj_weight.abs().max()
    assert torchs <= stacked
    for linear in (attn := MultiHead(64, 4)).to_query, attn.to_key, attn.to_value, attn.to_output:
        assert stacked < linear.weight.abs().max() <= alone
