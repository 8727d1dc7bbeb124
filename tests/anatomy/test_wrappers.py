"""Wrappers around models, and the names of what is inside them."""

import pytest
from torch import nn

from regard.anatomy.attribute_names import head_counts
from regard.anatomy.head_sites import head_sites
from regard.anatomy.wrappers import inside_parallel, is_wrapper, plain_modules, plain_path


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("", ""),
        ("_orig_mod", ""),
        ("encoder._orig_mod.layer", "encoder.layer"),
        ("layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.attn", "layers.0.attn"),
        ("layers.0._checkpoint_wrapped_module", "layers.0"),
        ("my_orig_module.attn", "my_orig_module.attn"),
    ],
)
def test_paths_have_no_names_of_wrappers(path, plain):
    assert plain_path(path) == plain


def test_a_model_inside_data_parallel_is_looked_at_itself():
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(nn.DataParallel(model))
    assert inside_parallel(wrapped) is model
    assert dict(plain_modules(wrapped)) == dict(model.named_modules())
    assert is_wrapper(wrapped) and not is_wrapper(model)


class OptimizedModule(nn.Module):
    """As `torch.compile` wraps a module."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


def test_a_compiled_attention_has_the_name_that_capture_gives_it():
    layer = nn.TransformerEncoderLayer(8, 2)
    layer.self_attn = OptimizedModule(layer.self_attn)
    assert is_wrapper(layer.self_attn)
    assert [site.name for site in head_sites(layer)] == ["self_attn"]


class Attention(nn.Module):
    """Heads under a name to be chosen, beside other numbers."""

    def __init__(self, **numbers):
        super().__init__()
        self.q_proj, self.v_proj, self.o_proj = (nn.Linear(12, 12) for _ in range(3))
        for name, number in numbers.items():
            setattr(self, name, number)


@pytest.mark.parametrize(
    ("numbers", "heads"),
    [
        ({"head_num": 3}, 3),
        ({"h": 4}, 4),
        ({"h": 7, "head_dim": 3}, 4),  # a height
        ({"h": 6, "num_heads": 2}, 2),
        ({"num_heads": True, "head_size": 2}, 6),
    ],
)
def test_numbers_of_heads_by_their_usual_names(numbers, heads):
    assert head_sites(Attention(**numbers))[0].n_heads == heads


def test_capture_hears_every_name():
    assert head_counts(Attention(h=7, head_num=3, n_head=0, heads=True)) == {3}
    assert head_counts(Attention(h=7)) == {7}
