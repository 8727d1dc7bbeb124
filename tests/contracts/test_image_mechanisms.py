"""Every attention over images of the library under every law."""

import inspect

import pytest
from image_members import MEMBERS, NOT_SEEN
from laws_held import hold, members_of
from torch import nn

import regard.vision
from regard.testing import image_checks


def _params():
    classes = set()
    for member, (build, sizes) in MEMBERS.items():
        compiling = [pytest.mark.compiled]
        if type(build()) in classes:  # compiling takes seconds: of each class its first form
            compiling.append(pytest.mark.slow)
        classes.add(type(build()))
        for check in image_checks(build, **sizes):
            marks = compiling if check.law.compiles else []
            yield pytest.param(check, id=f"{member}-{check.name}", marks=marks)


@pytest.mark.parametrize("check", list(_params()))
def test_law(check, request):
    hold(check, request, NOT_SEEN)


def test_every_class_with_a_kind_is_a_member():
    classes = {cls for cls in members_of(regard.vision, nn.Module) if hasattr(cls, "kind")}
    in_vision = {cls for cls in classes if cls.__module__.startswith("regard.vision.")}
    assert in_vision == {type(build()) for build, _ in MEMBERS.values()}
    public = {getattr(regard.vision, name) for name in regard.vision.__all__}
    assert in_vision == {cls for cls in public if cls in in_vision and not inspect.isabstract(cls)}
