"""What people call the parts and sizes of an attention."""

from __future__ import annotations

import re
from typing import Any

_SPELLINGS = (
    "{}", "{}_proj", "{}_lin", "{}_linear", "{}_head", "linear_{}", "to_{}", "project_{}", "fc_{}",
    "W{}", "W_{}", "w{}", "w_{}",
)  # fmt: skip


def _spelt(*words: str) -> tuple[str, ...]:
    return tuple(spelling.format(word) for spelling in _SPELLINGS for word in words)


# Projections.
QUERY = _spelt("q", "query", "queries")
KEY = _spelt("k", "key", "keys")
VALUE = _spelt("v", "value", "values")
OUTPUT = (
    *_spelt("o", "out", "output"), "c_proj", "dense", "proj", "projection", "projection_layer",
    "attention_out", "post_proj", "proj_out",
)  # fmt: skip
#: Queries together with keys and values, or from a smaller projection.
PACKED = (
    *_spelt("qkv"), "c_attn", "query_key_value", "att_proj", "q_b_proj", "q_attn", "W_pack",
)  # fmt: skip

# Sizes.
HEAD_COUNTS = (
    "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "num_head",
    "head_num",
)  # fmt: skip
#: Also a height: believed only where nothing else gives the number of heads.
SHORT_HEAD_COUNTS = ("h",)
HEAD_WIDTHS = (
    "head_dim", "attention_head_size", "head_size", "head_width", "key_value_proj_dim", "d_k",
)  # fmt: skip
VALUE_WIDTHS = ("v_head_dim", "value_width", *HEAD_WIDTHS)
GROUP_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_groups", "n_head_kv")
GROUP_SIZES = ("num_key_value_groups", "n_rep", "num_groups")
ALL_HEADS_WIDTHS = ("all_head_size", "inner_dim", "split_size")

#: Modules and classes that attend.
ATTENTION = re.compile("attn|attention", re.IGNORECASE)
#: Classes that normalise; a scale multiplies, as the end of a norm does.
NORM = re.compile("norm|scale", re.IGNORECASE)


def whole_number(owner: Any, name: str) -> int:
    """A positive whole number among somebody's attributes; 0 where there is none."""
    number = getattr(owner, name, 0)
    return max(number, 0) if isinstance(number, int) and not isinstance(number, bool) else 0


def head_counts(module: Any) -> set[int]:
    """Numbers of heads that a module speaks of."""
    for names in (HEAD_COUNTS, SHORT_HEAD_COUNTS):
        counts = {count for name in names if (count := whole_number(module, name))}
        if counts:
            return counts
    return set()
