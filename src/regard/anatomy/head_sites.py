"""Where the output of each head enters the output projection of its attention.

There the heads lie side by side, and each head is a block of columns. Sites are found from the
structure of the model: `nn.MultiheadAttention`, modules that have both a query projection and an
output projection under a usual name, and such modules whose output projection is in their parent,
as in BERT.

>>> from torch import nn
>>> from regard.heads import head_sites
>>> layer = nn.TransformerEncoderLayer(16, 4)
>>> head_sites(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
[HeadSite('layers.0.self_attn', 4 heads × 4), HeadSite('layers.1.self_attn', 4 heads × 4)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from regard.anatomy.attribute_names import (
    HEAD_COUNTS,
    HEAD_WIDTHS,
    OUTPUT,
    PACKED,
    QUERY,
    SHORT_HEAD_COUNTS,
    VALUE,
    VALUE_WIDTHS,
    whole_number,
)
from regard.anatomy.wrappers import plain_path
from regard.errors import RegardError, UnavailableError

#: Which attentions: all that are found (None), some of them, or {output projection's path: heads}.
Sites = Mapping[str, int] | Sequence["HeadSite"] | None


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
        return in_features(self.projection) // self.n_heads

    @property
    def in_torch(self) -> bool:
        """Whether this is torch's own attention, which never calls its projection as a module."""
        return isinstance(self.attention, nn.MultiheadAttention)

    def columns(self, heads: Sequence[int]) -> list[int]:
        """The features of these heads."""
        width = self.head_width
        return [head * width + feature for head in heads for feature in range(width)]

    def weight_and_axis(self) -> tuple[Tensor, int]:
        """The projection's weight, and the axis of it along which the heads lie."""
        weight = self.projection._parameters.get("weight")
        if weight is None or not weight.is_floating_point():
            kind = type(self.projection).__name__
            raise UnavailableError(f"{self.name}: the weight of {kind} is not a plain parameter")
        return weight, 0 if is_conv1d(self.projection) else 1

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
        chosen = [_site_at(model, path, heads) for path, heads in sites.items()]
        if len({site.name for site in chosen}) < len(chosen):  # several projections in one module
            chosen = [replace(site, name=path) for site, path in zip(chosen, sites)]
    elif sites is not None:
        chosen = _checked(sites)
    else:
        chosen = list(_search(model))
    if not chosen:
        raise UnavailableError(
            f"no attention with an output projection was found in {type(model).__name__}; say "
            "where they are: sites={'blocks.0.attention.out': 8}, the path of each output "
            "projection and its number of heads"
        )
    return chosen


# -- linear layers


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is the linear layer of GPT-2, whose weight is (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def in_features(module: nn.Module) -> int:
    """Features that a linear layer takes; 0 for other modules."""
    return whole_number(module, "nx" if is_conv1d(module) else "in_features")


def out_features(module: nn.Module) -> int:
    """Features that a linear layer gives; 0 for other modules."""
    return whole_number(module, "nf" if is_conv1d(module) else "out_features")


def projection_named(module: nn.Module, names: Sequence[str]) -> nn.Module | None:
    """The first child with one of these names that is a linear layer."""
    for name in names:
        child = module._modules.get(name)
        if isinstance(child, nn.Sequential) and len(child):
            child = child[0]
        if child is not None and in_features(child):
            return child
    return None


# -- the search


def _search(model: nn.Module) -> Iterator[HeadSite]:
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            yield _torch_site(path, module)
            continue
        packed = (*PACKED, "in_proj") if "attention" in type(module).__name__.lower() else PACKED
        query = projection_named(module, (*QUERY, *packed))
        if query is None:
            continue
        parent = modules.get(path.rpartition(".")[0])
        output = projection_named(module, OUTPUT) or _projection_beside(parent)
        if output is None or output is query:
            continue
        heads = _count_heads(module, output)
        if heads and _fits(module, output, heads):
            yield HeadSite(_name(path, module), module, output, heads)


def _torch_site(path: str, module: nn.MultiheadAttention) -> HeadSite:
    return HeadSite(_name(path, module), module, module.out_proj, module.num_heads)


def _name(path: str, module: nn.Module) -> str:
    return plain_path(path) or type(module).__name__


def _projection_beside(parent: nn.Module | None) -> nn.Module | None:
    """The output projection beside an attention: `attention.self` and `attention.output.dense`."""
    beside = None if parent is None else parent._modules.get("output")
    if beside is None:
        return None
    return beside if in_features(beside) else projection_named(beside, ["dense"])


def _count_heads(module: nn.Module, output: nn.Module) -> int:
    """How many heads enter the projection; 0 where nothing tells."""
    total = in_features(output)
    for name in HEAD_COUNTS:
        if count := whole_number(module, name):
            return count
    for name in HEAD_WIDTHS:
        width = whole_number(module, name)
        if width and total % width == 0:
            return total // width
    config = getattr(module, "config", None)
    counts = [whole_number(config, name) for name in HEAD_COUNTS]
    counts += [whole_number(module, name) for name in SHORT_HEAD_COUNTS]
    return next(filter(None, counts), 0)


def _fits(module: nn.Module, output: nn.Module, heads: int) -> bool:
    """Whether the heads fill the projection, and it takes what the values give."""
    total = in_features(output)
    value = projection_named(module, VALUE)
    if total % heads or value is None:
        return total % heads == 0
    widths = [width for name in VALUE_WIDTHS if (width := whole_number(module, name))]
    features = out_features(value)
    return (not widths or heads * widths[0] == total) and (
        not features or (total % features == 0 and heads % (total // features) == 0)
    )


# -- sites from the caller


def _site_at(model: nn.Module, path: str, heads: int) -> HeadSite:
    modules = dict(model.named_modules())
    if path not in modules:
        raise RegardError(f"sites: the model has no module {path!r}")
    projection = modules[path]
    if isinstance(projection, nn.MultiheadAttention):
        return _torch_site(path, projection)
    features = in_features(projection)
    if not features:
        raise RegardError(
            f"sites: {path!r} is a {type(projection).__name__}, expected a linear layer"
        )
    if not isinstance(heads, int) or heads < 1 or features % heads:
        raise RegardError(
            f"sites: {path!r} takes {features} features, which {heads!r} heads do not share evenly"
        )
    parent = path.rpartition(".")[0]
    return HeadSite(_name(parent, modules[parent]), modules[parent], projection, heads)


def _checked(sites: Any) -> list[HeadSite]:
    chosen = list(sites)
    for site in chosen:
        if not isinstance(site, HeadSite):
            raise RegardError(
                f"sites: {site!r}, expected {{path of an output projection: heads}} or a list of "
                "head_sites(model)"
            )
    return chosen
