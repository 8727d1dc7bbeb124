"""Every mechanism of the library under every law of the contract."""

import pytest
from laws_held import hold, members_of
from members import MEMBERS, NOT_SEEN

import regard.mechanisms
from regard import Mechanism
from regard.testing import mechanism_checks


def _params():
    for member, (build, sizes) in MEMBERS.items():
        for check in mechanism_checks(build, **sizes):
            marks = [pytest.mark.compiled] if check.law.compiles else []
            yield pytest.param(check, id=f"{member}-{check.name}", marks=marks)


@pytest.mark.parametrize("check", list(_params()))
def test_law(check, request):
    hold(check, request, NOT_SEEN)


def test_every_mechanism_is_a_member():
    found = members_of(regard.mechanisms, Mechanism)
    covered = {type(build()) for build, _ in MEMBERS.values()}
    assert found == covered
