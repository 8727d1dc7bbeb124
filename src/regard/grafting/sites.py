"""Sites in a model: the output of a module, by its path, its call and the field."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError, StateError, UnavailableError

#: The child of a model that holds its grafts, and so the first part of their state-dict keys.
NAMESPACE = "regard_graft"
#: Modules of torch with a `batch_first` of their own, and those built from them.
_BATCH_FIRST = (nn.MultiheadAttention, nn.RNNBase, nn.Transformer)
_OF_TORCH = (
    *_BATCH_FIRST,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
_SYNTAX = re.compile(r"(?P<path>[^#:]*)(?:#(?P<call>[1-9]\d*))?(?::(?P<field>\w+))?")


@dataclasses.dataclass(frozen=True)
class Site:
    """An output in a model: `path`, `path#2` (its second call), `path:field` (one of several).

    The path of the model itself is "". Without a field it is the output itself, or the first
    tensor with two axes or more of a tuple, a mapping or a dataclass.
    """

    path: str
    call: int | None = None
    field: str | None = None

    @classmethod
    def parse(cls, argument: str, text: str) -> Site:
        """The site that `text` names; `argument` is what errors call it."""
        match = _SYNTAX.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise RegardError(
                f"{argument}={text!r}, expected a module's path, as 'encoder.layer.5', "
                "'encoder.layer#2' for its second call, 'encoder:last_hidden_state' for a field"
            )
        call = match["call"]
        return cls(match["path"], None if call is None else int(call), match["field"])

    def __str__(self) -> str:
        call = "" if self.call is None else f"#{self.call}"
        return f"{self.path}{call}" + ("" if self.field is None else f":{self.field}")

    def includes(self, call: int) -> bool:
        """Whether this call of the module belongs to the site."""
        return self.call is None or self.call == call

    def pick(self, output: Any, image: bool = False) -> Tensor:
        """The tensor in a module's output: states, or an image."""
        key = self._key(output)
        tensor = output if key is None else _fields(output)[key]
        if not isinstance(tensor, Tensor):
            raise UnavailableError(f"'{self}' is {type(tensor).__name__}, expected a tensor")
        if tensor.is_nested:
            raise UnavailableError(
                f"'{self}' is a nested tensor, as nn.TransformerEncoder makes of padded batches; "
                "build it with enable_nested_tensor=False"
            )
        if tensor.dim() not in ((4,) if image else (2, 3)):
            states = "(batch, position, width) or (batch, width)"
            expected = "(batch, channel, height, width)" if image else states
            raise ShapeError(
                f"'{self}' has {tensor.dim()} axes {tuple(tensor.shape)}, expected {expected}"
            )
        return tensor

    def put(self, output: Any, tensor: Tensor) -> Any:
        """A copy of the output with `tensor` at the site."""
        if isinstance(output, Tensor):
            return tensor
        key = self._key(output)
        self._refuse_loss(output)
        if isinstance(output, Mapping):
            return type(output)(**{**output, key: tensor})
        if isinstance(output, tuple | list):
            items = [tensor if i == key else item for i, item in enumerate(output)]
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        return dataclasses.replace(output, **{key: tensor})

    def _key(self, output: Any) -> Any:
        """The name or index of the site's tensor in an output; None where it is the output."""
        if isinstance(output, Tensor):
            if self.field is not None:
                raise RegardError(f"'{self}': the output is one tensor, it has no field")
            return None
        fields = _fields(output)
        if self.field is None:
            tensors = [key for key, value in fields.items() if _is_float(value) and value.dim() > 1]
            if not tensors:
                raise UnavailableError(
                    f"'{self}': {type(output).__name__} holds no tensor with two axes or more"
                )
            return tensors[0]
        key: Any = int(self.field) if self.field.isdigit() else self.field
        if key not in fields:
            raise RegardError(
                f"'{self}': {type(output).__name__} has no field {self.field!r}, it has "
                f"{', '.join(map(str, fields))}"
            )
        return key

    def _refuse_loss(self, output: Any) -> None:
        """Raise where the output holds a loss: it was computed before anything is joined."""
        fields = _fields(output)
        loss = fields.get("loss") if isinstance(output, Mapping) else None
        if not self.path and loss is None:
            scalars = (value for value in fields.values() if _is_float(value) and value.dim() == 0)
            loss = next(scalars, None)
        if loss is not None:
            raise UnavailableError(
                f"into='{self}': {type(output).__name__} already holds a loss, computed without "
                "what is joined here; join where the logits are made, as into='classifier', or "
                "compute the loss outside the model"
            )


class VersionedTensor:
    """A tensor that a graft read, and its version then: in-place changes since are an error."""

    def __init__(self, description: str, tensor: Tensor) -> None:
        self.description, self.tensor = description, tensor
        self.version = self._version()

    def take(self) -> Tensor:
        """The tensor; raises where it was changed in place."""
        now = self._version()
        if now is not None and self.version is not None and now != self.version:
            raise StateError(
                f"graft: {self.description}, {tuple(self.tensor.shape)}, was changed in place "
                "after that module had run; read a module after the change, or write x = x + y "
                "instead of x += y in the model"
            )
        return self.tensor

    def _version(self) -> int | None:
        if torch.compiler.is_compiling() or self.tensor.is_inference():
            return None
        return self.tensor._version


def check_path(model: nn.Module, argument: str, path: str) -> None:
    """Raise where a model has no module of this path; the error names the nearest ones."""
    names = [name for name, _ in model.named_modules() if not in_graft(name)]
    if path not in names:
        raise RegardError(
            f"{argument}={path!r}: {type(model).__name__} has no module of that path; "
            f"{nearest(path, [name for name in names if name])}"
        )


def refuse_sequence_first(model: nn.Module, argument: str, path: str) -> None:
    """Raise where a site is in a module of torch whose outputs are (position, batch, width)."""
    for name in ancestors(path):
        module = model.get_submodule(name)
        if isinstance(module, _OF_TORCH) and sequence_first(module) is not None:
            raise UnavailableError(
                f"{argument}={path!r} is (position, batch, width), since batch_first is False in "
                f"'{name}' ({type(module).__name__}), so examples would be mixed; build it with "
                "batch_first=True"
            )


def sequence_first(module: nn.Module) -> str | None:
    """The path of the first module of torch with batch_first=False; None where there is none."""
    modules: dict[str, nn.Module] = dict(module.named_modules())
    for name, child in modules.items():
        if isinstance(child, _BATCH_FIRST) and not child.batch_first:
            return name
    return None


def ancestors(path: str) -> list[str]:
    """The paths of the model and of all modules down to this one, itself last."""
    names = path.split(".") if path else []
    return [".".join(names[:number]) for number in range(len(names) + 1)]


def output_width(model: nn.Module, site: Site) -> int | None:
    """The number of features at a site; None where the module does not tell."""
    module = model.get_submodule(site.path)
    if site.field is not None:
        return None
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return module.normalized_shape[-1]
    return module.embedding_dim if isinstance(module, nn.Embedding) else None


def in_graft(path: str) -> bool:
    """Whether a module or a tensor of this path belongs to a graft."""
    return path == NAMESPACE or path.startswith(f"{NAMESPACE}.")


def nearest(name: str, names: list[str]) -> str:
    """A phrase with the names most similar to `name`."""
    similar = difflib.get_close_matches(name, names, 5, 0.3)
    ends = [other for other in names if other.endswith(f".{name}")]
    shown = list(dict.fromkeys([*ends[:5], *similar]))[:5] or names[:5]
    return f"the nearest are {', '.join(map(repr, shown))}" if shown else "there are none"


def _fields(output: Any) -> dict[Any, Any]:
    """The items of an output, by name or index."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return {}


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
