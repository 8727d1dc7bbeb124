"""What a grafted model is given: masks by name, the order of axes, caches."""

import pytest
import torch
from graft_models import Small, batch, decoding, pooling, reusing, wake
from torch import nn

from regard.blocks import EncoderBlock, FeedForward, PreNorm, Stack
from regard.errors import (
    RegardError,
    ShapeError,
    UnavailableError,
)
from regard.grafting import GraftWarning, OutputAttention, States, ZeroProjection, graft
from regard.mechanisms import MultiHead


def test_a_mask_that_is_not_declared_must_be_given():
    class Anything(Small):
        def forward(self, x, *rest, attention_mask=None, **others):
            return super().forward(x, attention_mask)

    model, given = Anything(), batch()
    grafted = graft(model, pooling(mask="attention_maks"))
    with pytest.raises(
        RegardError,
        match=r"mask='attention_maks': Anything.forward declares no such input, and this call does "
        r"not give it by that name; the nearest are 'attention_mask'",
    ):
        model(**given)
    grafted.remove()
    part = pooling()
    graft(model, part)
    wake(part)
    named = model(**given)
    assert torch.equal(model(given["x"], given["x"], attention_mask=given["attention_mask"]), named)
    assert not torch.allclose(model(given["x"]), named)


def test_a_wrapper_that_declares_nothing():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Small()

        def forward(self, *given, **named):
            return self.inner(*given, **named)

    model, given = Wrapper(), batch()
    part = pooling(reads="inner.layers.1", into="inner.classifier")
    graft(model, part)
    wake(part)
    assert model(**given).isfinite().all()
    with pytest.raises(RegardError, match="this call does not give it by that name"):
        model(given["x"], given["attention_mask"])


def encoder(batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def test_positions_before_the_batch_are_refused():
    for part in (
        decoding(mask=None),
        reusing(reads="layers.0.self_attn"),
        pooling(reads="layers.1", into="", mask=None),
    ):
        with pytest.raises(
            UnavailableError,
            match=r"is \(position, batch, width\), since batch_first is False in '(layers\.\d)?' "
            r"\(Transformer\w+\), so examples would be mixed",
        ):
            graft(encoder(False), part)
    graft(encoder(True), decoding(mask="~src_key_padding_mask"))
    recurrent = nn.Sequential(nn.LSTM(8, 8), nn.Identity())
    with pytest.raises(UnavailableError, match="batch_first is False in '0'"):
        graft(recurrent, decoding(reads="0", into="1", mask=None))


def test_positions_before_the_batch_elsewhere_are_warned_of_and_seen_by_the_mask():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.encoder, self.last = nn.Linear(8, 8), encoder(False), nn.Linear(8, 8)

        def forward(self, x, attention_mask):
            return self.last(self.encoder(self.embed(x.transpose(0, 1))))

    model = Turned()
    part = decoding(reads="embed", into="last")
    with pytest.warns(
        GraftWarning, match=r"False in 'encoder.layers.0.self_attn'; .* 'embed' and 'last' is"
    ):
        graft(model, part)
    with pytest.raises(
        ShapeError, match=r"'last' \(5, 2, 8\): axis batch has size 5, expected 2 as mask="
    ):
        model(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.long))


def test_a_step_of_cached_decoding_is_refused():
    def block():
        return EncoderBlock(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8)))

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack, self.state = Stack([block(), block()]), None

        def forward(self, x):
            found = self.stack(x, causal=True, state=True if self.state is None else self.state)
            self.state = found.state
            return found.output

    def deciding(before):
        return OutputAttention(
            MultiHead(8, 2), query=States(causal=True), reads=f"{before}blocks.0.feed_forward.part",
            into=f"{before}blocks.1.feed_forward.part", join=ZeroProjection(8, 8),
        )  # fmt: skip

    x = torch.randn(2, 5, 8)
    stack, wrapper = Stack([block(), block()]), Wrapper()
    graft(stack, deciding(""))
    handle = graft(wrapper, deciding("stack."))
    first = stack(x[:, :4], causal=True, state=True)
    with pytest.raises(UnavailableError, match=r"a cache of 4 positions.*without state="):
        stack(x[:, 4:], causal=True, state=first.state)
    wrapper(x[:, :4])
    with pytest.raises(UnavailableError, match="a cache of 4 positions"):
        wrapper(x[:, 4:])
    handle.remove()
    assert all("forward" not in one.__dict__ for one in wrapper.modules())


def test_a_cache_of_plain_tensors_is_refused():
    class Old(Small):
        def forward(self, x, attention_mask=None, past_key_values=None):
            return super().forward(x, attention_mask)

    model = Old()
    graft(model, pooling())
    held = torch.zeros(2, 2, 7, 4)
    assert model(**batch(), past_key_values=()).shape == (2, 3)
    with pytest.raises(UnavailableError, match="a cache of 7 positions"):
        model(**batch(), past_key_values=((held, held), (held, held)))
