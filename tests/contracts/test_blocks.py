"""Every block of the library under every law of blocks."""

import importlib
import inspect
import pkgutil

import pytest
from block_members import MEMBERS, NOT_SEEN

import regard.blocks
from regard.blocks import AttentionBlock
from regard.testing import block_checks

#: Compiling takes seconds a member; the others run with `make test-all`.
COMPILED = ("encoder_post_norm", "decoder_additive_concatenated", "stack_shared")


def _marks(member, law):
    if not law.compiles:
        return []
    return [pytest.mark.compiled, *([] if member in COMPILED else [pytest.mark.slow])]


def _params():
    for member, (build, sizes) in MEMBERS.items():
        for check in block_checks(build, **sizes):
            yield pytest.param(check, id=f"{member}-{check.name}", marks=_marks(member, check.law))


@pytest.mark.parametrize("check", list(_params()))
def test_law(check, request):
    member = request.node.callspec.id.removesuffix(f"-{check.name}")
    reason = check()
    assert (reason is not None) == (check.name in NOT_SEEN.get(member, ())), reason


def _subclasses(cls):
    for child in cls.__subclasses__():
        if not inspect.isabstract(child):
            yield child
        yield from _subclasses(child)


def test_every_block_is_a_member():
    for module in pkgutil.iter_modules(regard.blocks.__path__):
        importlib.import_module(f"regard.blocks.{module.name}")
    found = {cls for cls in _subclasses(AttentionBlock) if cls.__module__.startswith("regard.")}
    covered = {type(build()) for build, _ in MEMBERS.values()}
    assert found == covered == {type(MEMBERS[member][0]()) for member in COMPILED}
