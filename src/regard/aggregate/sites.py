"""Where the output of each head enters the output projection of its attention.

There the heads lie side by side, head by head, and a head is some columns. The places are found
from the structure of the model: `nn.MultiheadAttention`, modules that have both a projection of
queries and one of the output under a usual name, and such modules whose output projection is in
their parent, as in BERT.

>>> from torch import nn
>>> from regard.aggregate import head_sites
>>> layer = nn.TransformerEncoderLayer(16, 4)
>>> head_sites(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
[HeadSite('layers.0.self_attn', 4 heads × 4), HeadSite('layers.1.self_attn', 4 heads × 4)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError, UnavailableError

#: Which attentions: found in the model, some of those, or {path of an output projection: heads}.
Sites = Mapping[str, int] | Sequence["HeadSite"] | None

_SPELLINGS = (
    "{}", "{}_proj", "{}_lin", "{}_linear", "{}_head", "linear_{}", "to_{}", "project_{}", "fc_{}",
    "W{}", "W_{}", "w{}", "w_{}",
)  # fmt: skip


def _spelt(*words: str) -> tuple[str, ...]:
    return tuple(spelling.format(word) for spelling in _SPELLINGS for word in words)


# What people call projections, the number of heads, and the features of one.
QUERY = _spelt("q", "query", "queries")
KEY = _spelt("k", "key", "keys")
VALUE = _spelt("v", "value", "values")
_OUTPUT = (
    *_spelt("o", "out", "output"), "c_proj", "dense", "proj", "projection", "projection_layer",
    "attention_out", "post_proj", "proj_out",
)  # fmt: skip
_PACKED = (  # queries with keys and values, or from a smaller projection
    *_spelt("qkv"), "c_attn", "query_key_value", "att_proj", "q_b_proj", "q_attn", "W_pack",
)  # fmt: skip
COUNTS = (
    "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "num_head",
)  # fmt: skip
WIDTHS = ("head_dim", "attention_head_size", "head_size", "head_width", "key_value_proj_dim", "d_k")
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True, eq=False, repr=False)
class HeadSite:
    """One attention module, and the projection that takes its heads, side by side."""

    name: str  #: path of the attention, as `regard.capture` names it
    attention: nn.Module
    projection: nn.Module
    n_heads: int

    @property
    def head_width(self) -> int:
        """Features of one head where they enter the projection."""
        return _features(self.projection) // self.n_heads

    @property
    def in_torch(self) -> bool:
        """Whether this is torch's own attention, which never calls its projection as a module."""
        return isinstance(self.attention, nn.MultiheadAttention)

    def columns(self, heads: Sequence[int]) -> list[int]:
        """The features of these heads."""
        width = self.head_width
        return [head * width + place for head in heads for place in range(width)]

    def __repr__(self) -> str:
        return f"HeadSite({self.name!r}, {self.n_heads} heads × {self.head_width})"


def head_sites(model: nn.Module, sites: Sites = None) -> list[HeadSite]:
    """Every attention of a model whose heads can be told apart, in the order of its modules.

    Args:
        model: any module.
        sites: where they are, when the structure does not tell: {path of the output projection:
            number of heads}. Its input must be the heads, side by side.
    """
    if not isinstance(model, nn.Module):
        raise RegardError(f"model is a {type(model).__name__}, expected an nn.Module")
    if isinstance(sites, Mapping):
        found = [_given(model, path, heads) for path, heads in sites.items()]
        if len({site.name for site in found}) < len(found):  # several projections in one module
            found = [replace(site, name=path) for site, path in zip(found, sites)]
    elif sites is not None:
        found = _checked(sites)
    else:
        found = list(_found(model))
    if not found:
        raise UnavailableError(
            f"no attention with an output projection was found in {type(model).__name__}; say "
            "where they are: sites={'blocks.0.attention.out': 8}, the path of each output "
            "projection and its number of heads"
        )
    return found


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is the linear layer of GPT-2, whose weight is (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def child(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    """The first child with one of these names that is a projection."""
    for name in names:
        found = module._modules.get(name)
        if isinstance(found, nn.Sequential) and len(found):
            found = found[0]
        if found is not None and _features(found):
            return found
    return None


def _found(model: nn.Module) -> Iterator[HeadSite]:
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            yield HeadSite(_named(path, module), module, module.out_proj, module.num_heads)
            continue
        packed = (*_PACKED, "in_proj") if "attention" in type(module).__name__.lower() else _PACKED
        query = child(module, (*QUERY, *packed))
        if query is None:
            continue
        output = child(module, _OUTPUT) or _in_parent(modules.get(path.rpartition(".")[0]))
        if output is None or output is query:
            continue
        heads = _heads(module, output)
        if heads and _fits(module, output, heads):
            yield HeadSite(_named(path, module), module, output, heads)


def _in_parent(parent: nn.Module | None) -> nn.Module | None:
    """The output projection beside an attention: `attention.self` and `attention.output.dense`."""
    beside = None if parent is None else parent._modules.get("output")
    if beside is None:
        return None
    return beside if _features(beside) else child(beside, ["dense"])


def _heads(module: nn.Module, output: nn.Module) -> int:
    """How many heads enter the projection; 0 where nothing tells."""
    total = _features(output)
    config = getattr(module, "config", None)
    for name in COUNTS:
        if count := _whole(module, name):
            return count
    for name in WIDTHS:
        width = _whole(module, name)
        if width and total % width == 0:
            return total // width
    for name in COUNTS:
        if count := _whole(config, name):
            return count
    return 0


def _fits(module: nn.Module, output: nn.Module, heads: int) -> bool:
    """Whether the heads fill the projection, and it takes what the values give."""
    total = _features(output)
    value = child(module, VALUE)
    if total % heads or value is None:
        return total % heads == 0
    names = ("v_head_dim", "value_width", *WIDTHS)
    widths = [width for name in names if (width := _whole(module, name))]
    made = _made(value)
    return (not widths or heads * widths[0] == total) and (
        not made or (total % made == 0 and heads % (total // made) == 0)
    )


def _features(module: nn.Module) -> int:
    """Features that a linear layer takes; 0 for other modules."""
    count = getattr(module, "nx" if is_conv1d(module) else "in_features", 0)
    return count if isinstance(count, int) else 0


def _made(module: nn.Module) -> int:
    """Features that a linear layer gives."""
    count = getattr(module, "nf" if is_conv1d(module) else "out_features", 0)
    return count if isinstance(count, int) else 0


def _whole(thing: Any, name: str) -> int:
    number = getattr(thing, name, 0)
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def _named(path: str, module: nn.Module) -> str:
    for wrapper in _WRAPPERS:
        path = path.replace(wrapper, "")
    return path or type(module).__name__


def _given(model: nn.Module, path: str, heads: int) -> HeadSite:
    modules = dict(model.named_modules())
    if path not in modules:
        raise RegardError(f"sites: the model has no module {path!r}")
    projection = modules[path]
    if isinstance(projection, nn.MultiheadAttention):
        return HeadSite(
            _named(path, projection), projection, projection.out_proj, projection.num_heads
        )
    features = _features(projection)
    if not features:
        raise RegardError(
            f"sites: {path!r} is a {type(projection).__name__}, expected a linear layer"
        )
    if not isinstance(heads, int) or heads < 1 or features % heads:
        raise RegardError(
            f"sites: {path!r} takes {features} features, which {heads!r} heads do not share evenly"
        )
    parent = path.rpartition(".")[0]
    return HeadSite(_named(parent, modules[parent]), modules[parent], projection, heads)


def _checked(sites: Any) -> list[HeadSite]:
    found = list(sites)
    for site in found:
        if not isinstance(site, HeadSite):
            raise RegardError(
                f"sites: {site!r}, expected {{path of an output projection: heads}} or a list of "
                "head_sites(model)"
            )
    return found


def weight_of(site: HeadSite) -> tuple[Tensor, int]:
    """The projection's weight, and the axis of it along which the heads lie."""
    weight = site.projection._parameters.get("weight")
    if weight is None or not weight.is_floating_point():
        raise UnavailableError(
            f"{site.name}: the weight of {type(site.projection).__name__} is not a plain parameter"
        )
    return weight, 0 if is_conv1d(site.projection) else 1
