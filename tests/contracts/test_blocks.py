"""Every block of the library under every law of blocks."""

import pytest
from block_members import MEMBERS, NOT_SEEN
from laws_held import hold, members_of

import regard.blocks.sets
from regard.blocks import AttentionBlock
from regard.blocks.sets import InducedBlock, Perceiver, Pooling, SetBlock
from regard.testing import block_checks

#: Compiling takes seconds a member; the others run with `make test-all`.
COMPILED = (
    "encoder_post_norm",
    "decoder_additive_concatenated",
    "stack_shared",
    "cross",
    "parallel",
)
#: Cross and encoder blocks behind learned queries: compiled by `make test-all` alone.
COMPOSED = {Pooling, InducedBlock, Perceiver}


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
    hold(check, request, NOT_SEEN)


def test_every_block_is_a_member():
    found = members_of(regard.blocks, AttentionBlock) | members_of(regard.blocks.sets, SetBlock)
    covered = {type(build()) for build, _ in MEMBERS.values()}
    assert found == covered
    assert found - COMPOSED == {type(MEMBERS[member][0]()) for member in COMPILED}
