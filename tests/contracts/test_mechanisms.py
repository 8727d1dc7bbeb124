"""Every mechanism of the library under every law of the contract."""

import pytest
from laws_held import hold, members_of
from members import MEMBERS, NOT_SEEN

import regard.mechanisms
from regard import Mechanism
from regard.testing import mechanism_checks

#: Compiling takes seconds a member: of each class the first form, and these; the others are slow.
COMPILED = ("multi_head_everything", "multi_head_talking_heads", "delta_rule_gated")


def _params():
    classes = set()
    for member, (build, sizes) in MEMBERS.items():
        compiling = [pytest.mark.compiled]
        if type(build()) in classes and member not in COMPILED:
            compiling.append(pytest.mark.slow)
        classes.add(type(build()))
        for check in mechanism_checks(build, **sizes):
            marks = compiling if check.law.compiles else []
            yield pytest.param(check, id=f"{member}-{check.name}", marks=marks)


@pytest.mark.parametrize("check", list(_params()))
def test_law(check, request):
    hold(check, request, NOT_SEEN)


def test_every_mechanism_is_a_member():
    found = members_of(regard.mechanisms, Mechanism)
    covered = {type(build()) for build, _ in MEMBERS.values()}
    assert found == covered
