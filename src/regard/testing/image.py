"""`check_image_mechanism`: every law of attention over images, on any module."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn

from regard.errors import RegardError
from regard.testing import laws_image  # noqa: F401  # importing it enters its laws into the list
from regard.testing.image_law import IMAGE_LAWS, image_subject
from regard.testing.mechanism import Check, Report, reported


def image_checks(
    build: Callable[[], nn.Module],
    *,
    channels: int = 8,
    height: int = 6,
    width: int = 5,
    batch: int = 2,
    without: Collection[str] = (),
) -> list[Check]:
    """One check for each law, to run by yourself or to give to `pytest.mark.parametrize`."""
    if isinstance(build, nn.Module):
        raise RegardError("build is a module; pass what makes one: lambda: MyGate(8)")
    unknown = set(without) - set(IMAGE_LAWS)
    if unknown:
        names = ", ".join(IMAGE_LAWS)
        raise RegardError(f"without={sorted(unknown)}: no such law; there are {names}")
    subject = image_subject(build, channels, height, width, batch)
    return [Check(law, subject) for law in IMAGE_LAWS.values() if law.name not in without]


def check_image_mechanism(
    build: Callable[[], nn.Module],
    *,
    channels: int = 8,
    height: int = 6,
    width: int = 5,
    batch: int = 2,
    without: Collection[str] = (),
) -> Report:
    """Check every law of attention over images on a module, ours or anybody's.

    The module takes (batch, channel, height, width) and returns an `Attended`, or a `BlockOutput`
    of several. Its `kind` chooses laws: a gate lies between 0 and 1 and the output is the image
    times it; the rows of a distribution sum to 1, and its output is a linear map of the values
    they mix, beside one of the image (leave `output_of_mixed` out where a module bends it).
    `smallest`, a height and a width, says from which size on images are taken; `channels`,
    where it is not None, which number of channels.

    To bring a class of `regard.vision` under the laws, enter it with a name into
    `tests/contracts/image_members.py`; a class without an entry fails the suite.

    Args:
        build: makes a new module each time it is called.
        channels: of the images.
        height: rows of an image.
        width: columns of an image; not the height, or a mistake of axes is not seen.
        batch: images at once.
        without: names of laws to leave out.

    Returns:
        What holds, and what could not be seen and why.

    Raises:
        ContractError: with every law that is broken.

    >>> from regard.testing import check_image_mechanism
    >>> from regard.vision import SqueezeExcitation
    >>> report = check_image_mechanism(
    ...     lambda: SqueezeExcitation(8, reduction=2), without=["compiles", "exports"]
    ... )
    >>> "gates_multiply" in report.passed
    True
    """
    return reported(
        image_checks(
            build, channels=channels, height=height, width=width, batch=batch, without=without
        )
    )
