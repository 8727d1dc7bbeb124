"""Every mechanism of the library under every law of the contract."""

import importlib
import inspect
import pkgutil

import pytest
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
    member = request.node.callspec.id.removesuffix(f"-{check.name}")
    reason = check()
    assert (reason is not None) == (check.name in NOT_SEEN.get(member, ())), reason


def _subclasses(cls):
    for child in cls.__subclasses__():
        if not inspect.isabstract(child):
            yield child
        yield from _subclasses(child)


def test_every_mechanism_is_a_member():
    for module in pkgutil.iter_modules(regard.mechanisms.__path__):
        importlib.import_module(f"regard.mechanisms.{module.name}")
    found = {cls for cls in _subclasses(Mechanism) if cls.__module__.startswith("regard.")}
    covered = {type(build()) for build, _ in MEMBERS.values()}
    assert found == covered
