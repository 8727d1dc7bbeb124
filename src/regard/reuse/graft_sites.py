"""Places in a model: what a module puts out, by its path, its call and the field."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError, ShapeError, UnavailableError

#: The child of a model under which grafted parts live, and so the beginning of their keys.
NAMESPACE = "regard_graft"
#: Modules of torch that know which axis is the batch, and those that are made of them.
_ORDERED = (nn.MultiheadAttention, nn.RNNBase, nn.Transformer)
_OF_TORCH = (
    *_ORDERED,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
_PLACE = re.compile(r"(?P<path>[^#:]*)(?:#(?P<call>[1-9]\d*))?(?::(?P<field>\w+))?")


@dataclasses.dataclass(frozen=True)
class Place:
    """What a module puts out: `path`, `path#2` (its second call), `path:field` (one of several).

    The path of the model itself is "". Without a field it is the output itself, or the first
    tensor with two axes or more of a tuple, a mapping or a dataclass.
    """

    path: str
    call: int | None = None
    field: str | None = None

    @classmethod
    def of(cls, argument: str, text: str) -> Place:
        """A place as it is written."""
        found = _PLACE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise RegardError(
                f"{argument}={text!r}, expected a module's path, as 'encoder.layer.5', "
                "'encoder.layer#2' for its second call, 'encoder:last_hidden_state' for a field"
            )
        call = found["call"]
        return cls(found["path"], None if call is None else int(call), found["field"])

    def __str__(self) -> str:
        call = "" if self.call is None else f"#{self.call}"
        return f"{self.path}{call}" + ("" if self.field is None else f":{self.field}")

    def takes(self, call: int) -> bool:
        """Whether this call of the module is meant."""
        return self.call is None or self.call == call

    def pick(self, output: Any, image: bool = False) -> Tensor:
        """The tensor of a module's output: states, or an image."""
        return _tensor(self, output, _key(self, output), image)

    def put(self, output: Any, tensor: Tensor) -> Any:
        """The output with another tensor in that place; what was given is not changed."""
        if isinstance(output, Tensor):
            return tensor
        key = _key(self, output)
        _refuse_loss(self, output)
        if isinstance(output, Mapping):
            return type(output)(**{**output, key: tensor})
        if isinstance(output, tuple | list):
            items = [tensor if i == key else item for i, item in enumerate(output)]
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        return dataclasses.replace(output, **{key: tensor})


def module_at(model: nn.Module, argument: str, path: str) -> nn.Module:
    """The module with this path; an error names those that are nearest."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if path in modules and not inside(path):
        return modules[path]
    names = [name for name in modules if name and not inside(name)]
    raise RegardError(
        f"{argument}={path!r}: {type(model).__name__} has no module of that path; "
        f"{nearest(path, names)}"
    )


def refuse_sequence_first(model: nn.Module, argument: str, path: str) -> None:
    """Raise where a place lies in a module of torch that puts the positions before the batch."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    for name in above(path):
        module = modules[name]
        if isinstance(module, _OF_TORCH) and sequence_first(module) is not None:
            raise UnavailableError(
                f"{argument}={path!r} is (position, batch, width), since batch_first is False in "
                f"'{name}' ({type(module).__name__}), so examples would be mixed; build it with "
                "batch_first=True"
            )


def above(path: str) -> list[str]:
    """The paths of a module and of all that it is in, the model itself first."""
    names = path.split(".") if path else []
    return [".".join(names[:number]) for number in range(len(names) + 1)]


def sequence_first(module: nn.Module) -> str | None:
    """The path of a module of torch whose batch is the second axis; None where there is none."""
    found = (name for name, one in module.named_modules() if isinstance(one, _ORDERED))
    return next((name for name in found if not module.get_submodule(name).batch_first), None)


def width_of(module: nn.Module, place: Place) -> int | None:
    """How many features a module puts out, where it says so."""
    if place.field is not None:
        return None
    if isinstance(module, nn.Linear):
        return module.out_features
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return module.normalized_shape[-1]
    return module.embedding_dim if isinstance(module, nn.Embedding) else None


def inside(path: str) -> bool:
    """Whether this module belongs to a graft."""
    return path == NAMESPACE or path.startswith(f"{NAMESPACE}.")


def nearest(name: str, names: list[str]) -> str:
    """The names that are most like one, in words."""
    found = difflib.get_close_matches(name, names, 5, 0.3)
    ends = [other for other in names if other.endswith(f".{name}")]
    shown = list(dict.fromkeys([*ends[:5], *found]))[:5] or names[:5]
    return f"the nearest are {', '.join(map(repr, shown))}" if shown else "there are none"


def _fields(output: Any) -> dict[Any, Any]:
    """What an output holds, by name or number."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(enumerate(output))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return {}


def _key(place: Place, output: Any) -> Any:
    if isinstance(output, Tensor):
        if place.field is not None:
            raise RegardError(f"'{place}': the output is one tensor, it has no field")
        return None
    fields = _fields(output)
    if place.field is None:
        fitting = [key for key, part in fields.items() if _has_features(part)]
        if not fitting:
            raise UnavailableError(
                f"'{place}': {type(output).__name__} holds no tensor with two axes or more"
            )
        return fitting[0]
    key: Any = int(place.field) if place.field.isdigit() else place.field
    if key not in fields:
        raise RegardError(
            f"'{place}': {type(output).__name__} has no field {place.field!r}, it has "
            f"{', '.join(map(str, fields))}"
        )
    return key


def _refuse_loss(place: Place, output: Any) -> None:
    """A loss beside the logits was computed before anything is joined to them."""
    fields = _fields(output)
    loss = fields.get("loss") if isinstance(output, Mapping) else None
    if not place.path and loss is None:
        loss = next((one for one in fields.values() if _is_number(one)), None)
    if loss is not None:
        raise UnavailableError(
            f"into='{place}': {type(output).__name__} already holds a loss, which would not know "
            "of what is joined here; join where the logits are made, as into='classifier', or "
            "compute the loss outside the model"
        )


def _is_number(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.is_floating_point()


def _has_features(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() >= 2 and part.is_floating_point()


def _tensor(place: Place, output: Any, key: Any, image: bool) -> Tensor:
    part = output if key is None else _fields(output)[key]
    if not isinstance(part, Tensor):
        raise UnavailableError(f"'{place}' is {type(part).__name__}, expected a tensor")
    if part.is_nested:
        raise UnavailableError(
            f"'{place}' is a nested tensor, as nn.TransformerEncoder makes of padded batches; "
            "build it with enable_nested_tensor=False"
        )
    if part.dim() not in ((4,) if image else (2, 3)):
        states = "(batch, position, width) or (batch, width)"
        expected = "(batch, channel, height, width)" if image else states
        raise ShapeError(
            f"'{place}' has {part.dim()} axes {tuple(part.shape)}, expected {expected}"
        )
    return part
