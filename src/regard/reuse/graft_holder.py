"""The child of a model that holds what was grafted onto it, and joins it."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, nn

from regard.errors import DtypeError, MaskError, ShapeError, StateError, UnavailableError
from regard.masks import Mask
from regard.reuse.graft_forward import Forward
from regard.reuse.graft_inputs import Inputs, padding_of
from regard.reuse.graft_part import Part
from regard.reuse.graft_passes import Kept, Pass, Passes, refuse_reentrant
from regard.reuse.graft_sites import Place

#: Errors about what a part was given; they are told again with the graft's name.
_MISFITS = (ShapeError, DtypeError, MaskError)


class Grafts(nn.Module):
    """Parts by name, the stand-ins they need, and the passes under way.

    As a module it passes on what it is given: `nn.Sequential` runs all of its children.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.passes = Passes()
        self.inputs = Inputs(model)
        self.forwards: dict[str, Forward] = {}
        self.handles: dict[str, Any] = {}
        self.places: dict[str, tuple[Place, Place]] = {}  #: what each graft reads, and joins to
        self.freezers: set[str] = set()
        self.frozen: list[nn.Parameter] = []

    def forward(self, given: Any) -> Any:
        """What was given."""
        return given

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise UnavailableError(
            "graft: nn.DataParallel copies a model without its grafts; use "
            "DistributedDataParallel, or remove the grafts first"
        )

    def part(self, name: str) -> Part:
        """The part of a graft."""
        found = self._modules[name]
        assert isinstance(found, Part)
        return found

    @property
    def trains_base(self) -> bool:
        """Whether some parameter of the model itself wants a gradient."""
        mine = {id(parameter) for parameter in self.parameters()}
        model = self.forwards[""].module
        return any(one.requires_grad and id(one) not in mine for one in model.parameters())

    def asked(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The inputs of the model that parts have named."""
        return self.inputs.asked([self.part(name) for name in self._modules], args, kwargs)

    def join(self, name: str, under_way: Pass, output: Any) -> Any:
        """The output of a site with the part of one graft."""
        reads, into = self.places[name]
        if not into.takes(under_way.calls[into.path]):
            return output
        if under_way.lost_gradient:
            refuse_reentrant(into.path)
        state = into.pick(output, self.part(name).takes_images)
        seen = _seen(name, reads, into, under_way)
        try:
            mask = padding_of(self.part(name), under_way.inputs, into, state)
        except _MISFITS as error:
            raise type(error)(f"graft {name!r}: {error}") from error
        joined = self._joined(name, state, seen, mask)
        under_way.joined.add(name)
        self.passes.keep(Kept(name, under_way.numbers, seen, mask), joined)
        return into.put(output, joined)

    def join_again(self, name: str, output: Any) -> Any:
        """The same, where checkpointing computes a site once more; else the output as it is."""
        kept = self.passes.asked_again(name)
        if kept is None:
            return output
        _, into = self.places[name]
        if into.call is not None:
            raise StateError(
                f"graft {name!r}: into='{into}' counts calls, which gradient checkpointing "
                "repeats; leave the number out, or do not checkpoint this site"
            )
        state = into.pick(output, self.part(name).takes_images)
        return into.put(output, self._joined(name, state, kept.seen, kept.mask))

    def _joined(self, name: str, state: Tensor, seen: Any, mask: Mask | None) -> Tensor:
        try:
            joined: Tensor = self.part(name)(state, seen, mask)
        except _MISFITS as error:
            reads, into = self.places[name]
            where = f"graft {name!r} (reads '{reads}', into '{into}')"
            raise type(error)(f"{where}: {error}") from error
        if joined.shape != state.shape:
            raise StateError(
                f"graft {name!r}: the part made {tuple(joined.shape)} of the output of "
                f"'{self.places[name][1]}', expected {tuple(state.shape)}"
            )
        return joined

    def check_joined(self, under_way: Pass) -> None:
        """Raise where a site never ran, so that its graft did nothing."""
        for name in self._modules:
            if name not in under_way.joined:
                raise StateError(
                    f"graft {name!r}: nothing was joined, since '{self.part(name).into}' did not "
                    "run in this pass; name a module that is called in every pass (torch's fast "
                    "paths do not call the modules inside a layer)"
                )


def _seen(name: str, reads: Place, into: Place, under_way: Pass) -> Any:
    calls = under_way.seen.get(name, [])
    if reads.call is not None and len(calls) >= reads.call:
        return calls[reads.call - 1]
    if len(calls) == 1 and reads.call is None:
        return calls[0]
    if len(calls) > 1 and reads.call is None:
        raise StateError(
            f"graft {name!r}: '{reads}' ran {len(calls)} times before '{into}'; say which, as "
            f"'{reads.path}#{len(calls)}' for the last of them"
        )
    raise StateError(
        f"graft {name!r}: '{reads}' did not run before '{into}' in this pass; it must run inside "
        "the model's own forward, first (torch's fast paths do not call the modules inside a "
        "layer, and generate() runs an encoder by itself)"
    )
