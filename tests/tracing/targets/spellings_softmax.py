"""One attention, spelled by hand: the softmax, the mask and the dropout."""

import torch
import torch.nn.functional as F

from . import Target
from .spelled import first, scores_of, speller

TARGETS: list[Target] = []
spelled = speller(TARGETS)


def weighted(**options):
    """A spelling of the weights alone; the products are the usual ones."""

    def add(make_weights):
        def attend(self, q, k, v):
            q, k, v = first(q, k, v)
            return (make_weights(self, scores_of(q, k)).to(v.dtype) @ v).transpose(1, 2)

        attend.__name__ = make_weights.__name__
        spelled(**options)(attend)
        return make_weights

    return add


# The softmax.


@weighted()
def softmax_method(self, scores):
    return scores.softmax(-1)


@weighted()
def softmax_child(self, scores):
    return self.softmax(scores)


@weighted()
def softmax_special(self, scores):
    return torch.special.softmax(scores, -1)


@weighted()
def exp_sum_less_max(self, scores):
    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


@weighted()
def exp_sum(self, scores):
    powers = torch.exp(scores)
    return powers / torch.sum(powers, -1, keepdim=True)


@weighted()
def exp_sum_epsilon(self, scores):
    """As in old Keras layers."""
    powers = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    return powers / (powers.sum(-1, keepdim=True) + 1e-9)


@weighted()
def exp_normalize(self, scores):
    return F.normalize(torch.exp(scores), p=1.0, dim=-1)


@weighted(around=torch.no_grad)
def exp_in_place(self, scores):
    scores -= scores.amax(-1, keepdim=True)
    scores.exp_()
    scores /= scores.sum(-1, keepdim=True)
    return scores


@weighted(around=torch.no_grad)
def softmax_out(self, scores):
    return torch.softmax(scores, -1, out=scores)


@weighted()
def exp_less_logsumexp(self, scores):
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


@weighted()
def log_softmax_exp(self, scores):
    return F.log_softmax(scores, dim=-1).exp()


@spelled()
def softmax_of_keys_axis_two(self, q, k, v):
    q, k, v = first(q, k, v)
    weights = torch.softmax(scores_of(k, q), dim=2)  # (batch, head, key, query)
    return (weights.transpose(2, 3) @ v).transpose(1, 2)


@weighted(dtype=torch.bfloat16)
def softmax_float32(self, scores):
    return torch.softmax(scores.float(), dim=-1).to(scores.dtype)


@weighted(dtype=torch.bfloat16)
def softmax_float32_by_dtype(self, scores):
    return F.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores)


@weighted(dtype=torch.bfloat16)
def softmax_bfloat16(self, scores):
    return torch.softmax(scores, dim=-1)


# The mask.


@weighted(masked=True)
def mask_added(self, scores):
    bias = torch.zeros(scores.shape[-2:]).masked_fill(~self.allowed, float("-inf"))
    return (scores + bias).softmax(-1)


@weighted(masked=True)
def mask_added_large(self, scores):
    """As in older BERTs: a large number instead of infinity."""
    return (scores + (1.0 - self.allowed.float()) * -10000.0).softmax(-1)


@weighted(masked=True)
def mask_finfo_min(self, scores):
    return scores.masked_fill(~self.allowed, torch.finfo(scores.dtype).min).softmax(-1)


@weighted(masked=True)
def mask_filled(self, scores):
    return scores.masked_fill(self.allowed == 0, float("-inf")).softmax(-1)


@weighted(masked=True)
def mask_filled_in_place(self, scores):
    scores.masked_fill_(~self.allowed, -torch.inf)
    return scores.softmax(-1)


@weighted(masked=True)
def mask_indexed(self, scores):
    scores[..., ~self.allowed] = -torch.inf
    return scores.softmax(-1)


@weighted(masked=True)
def mask_where(self, scores):
    return torch.where(self.allowed, scores, scores.new_tensor(-1e9)).softmax(-1)


@weighted(masked=True)
def mask_filled_after(self, scores):
    """As in DeBERTa's XSoftmax: filled before and once more after."""
    weights = scores.masked_fill(~self.allowed, -1e9).softmax(-1)
    return weights.masked_fill(~self.allowed, 0.0)


# What happens to the weights afterwards.


@weighted(drops=True)
def dropout_function(self, scores):
    return F.dropout(scores.softmax(-1), 0.4, training=self.training)


@weighted(drops=True)
def dropout_child(self, scores):
    return self.dropout(scores.softmax(-1))


@weighted(drops=True, around=torch.no_grad)
def dropout_in_place(self, scores):
    return F.dropout(scores.softmax(-1), 0.4, training=self.training, inplace=True)


@weighted(drops=True)
def dropout_by_hand(self, scores):
    weights = scores.softmax(-1)
    return weights * torch.empty_like(weights).bernoulli_(0.6) / 0.6


@weighted(drops=True, masked=True)
def dropout_and_mask(self, scores):
    return self.dropout(self.softmax(scores.masked_fill(~self.allowed, -torch.inf)))


@weighted(head_mask=True)
def head_mask(self, scores):
    return scores.softmax(-1) * self.head_mask


@weighted(head_mask=True, around=torch.no_grad)
def scaled_in_place(self, scores):
    weights = scores.softmax(-1)
    weights *= self.head_mask
    return weights


@weighted(head_mask=True)
def copy_scaled_in_place(self, scores):
    weights = scores.softmax(-1).clone()
    weights.mul_(self.head_mask)
    return weights


@spelled()
def overwritten_later(self, q, k, v):
    """A buffer that is used again: what was seen must not change with it."""
    q, k, v = first(q, k, v)
    with torch.no_grad():
        weights = scores_of(q, k).softmax(-1)
        mixed = weights @ v
        weights.zero_(), q.zero_(), k.zero_()
    return mixed.transpose(1, 2)
