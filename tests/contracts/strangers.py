"""Other people's attention, called as a mechanism is: an adapter of a few lines each."""

from torch import nn

import regard
from regard import Attended


class TorchAdapter(nn.Module):
    """`nn.MultiheadAttention`. Always asked for weights, so that it takes one path."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, query, key=None, value=None, *, weights=False):
        key = query if key is None else key
        value = key if value is None else value
        output, matrix = self.attention(query, key, value, average_attn_weights=False)
        return Attended(output, matrix if weights else None)


class XTransformersAdapter(nn.Module):
    """`x_transformers.Attention`: keys are values, so forward takes no `value`."""

    def __init__(self):
        super().__init__()
        from x_transformers.x_transformers import Attention

        self.attention = Attention(dim=16, heads=4, dim_head=4)

    def forward(self, query, key=None, *, weights=False):
        output, between = self.attention(query, context=key, return_intermediates=True)
        return Attended(output, between.post_softmax_attn if weights else None)


class CaptureAdapter(nn.Module):
    """Any self-attention that gives no weights, as timm's: `regard.capture` reads them."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, query, *, weights=False):
        with regard.capture(self.attention, attached=True) as trace:
            output = self.attention(query)
        return Attended(output, trace[0].weights() if weights else None)
