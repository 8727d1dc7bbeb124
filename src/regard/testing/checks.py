"""`check_mechanism`, `check_block`, `check_image_mechanism`: every law, on any module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from torch import nn

from regard.errors import RegardError
from regard.testing import laws as _laws  # noqa: F401  # importing it registers the laws
from regard.testing.assertions import Unchecked
from regard.testing.law import LAWS, Family, Law
from regard.testing.subject import BlockSubject, ImageSubject, MechanismSubject, Sizes, Subject


class ContractError(RegardError, AssertionError):
    """A module breaks a law of the contract."""


@dataclass
class Report:
    """Which laws hold, and which could not be checked and why."""

    passed: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} laws hold: {', '.join(self.passed)}"]
        lines += [f"not checked: {name} ({reason})" for name, reason in self.unchecked.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Check:
    """One law on one module; call it. Its name suits `pytest.param(check, id=check.name)`."""

    law: Law
    subject: Subject

    @property
    def name(self) -> str:
        return self.law.name

    def __call__(self) -> str | None:
        """Raise `ContractError` where the law is broken; return why it could not be checked."""
        try:
            self.law.check(self.subject)
        except Unchecked as reason:
            return str(reason)
        except Exception as error:
            message = f"{self.law.name}: {self.law.sentence}\n  {type(error).__name__}: {error}"
            raise ContractError(message) from error
        return None


def mechanism_checks(
    build: Callable[[], nn.Module],
    *,
    width: int = 16,
    key_width: int | None = None,
    value_width: int | None = None,
    batch: int = 2,
    queries: int = 5,
    keys: int = 7,
    without: Collection[str] = (),
) -> list[Check]:
    """One check for each law, to run by yourself or to give to `pytest.mark.parametrize`."""
    sizes = Sizes(width, key_width, value_width, batch, queries, keys)
    return _checks("mechanism", MechanismSubject(build, sizes), without)


def check_mechanism(
    build: Callable[[], nn.Module],
    *,
    width: int = 16,
    key_width: int | None = None,
    value_width: int | None = None,
    batch: int = 2,
    queries: int = 5,
    keys: int = 7,
    without: Collection[str] = (),
) -> Report:
    """Check every law of the contract on a module, ours or anybody's.

    Args:
        build: makes a new module each time it is called.
        width: features of a query.
        key_width: features of a key; `width` when None.
        value_width: features of a value; the keys themselves are the values when None.
        batch: number of examples.
        queries: number of query positions.
        keys: number of key positions.
        without: names of laws to leave out.

    Returns:
        Which laws hold, and which could not be checked and why.

    Raises:
        ContractError: with every law that is broken.

    >>> from regard.mechanisms import DotProduct
    >>> from regard.testing import check_mechanism
    >>> report = check_mechanism(DotProduct, width=8, without=["compiles", "exports"])
    >>> "row_sums" in report.passed
    True
    """
    sizes = Sizes(width, key_width, value_width, batch, queries, keys)
    return _report(_checks("mechanism", MechanismSubject(build, sizes), without))


def block_checks(
    build: Callable[[], nn.Module],
    *,
    width: int = 16,
    context_width: int | None = None,
    batch: int = 2,
    length: int = 5,
    context_length: int = 7,
    without: Collection[str] = (),
) -> list[Check]:
    """One check for each law, to run by yourself or to give to `pytest.mark.parametrize`."""
    sizes = Sizes(width, context_width, None, batch, length, context_length)
    return _checks("block", BlockSubject(build, sizes), without)


def check_block(
    build: Callable[[], nn.Module],
    *,
    width: int = 16,
    context_width: int | None = None,
    batch: int = 2,
    length: int = 5,
    context_length: int = 7,
    without: Collection[str] = (),
) -> Report:
    """Check every law of blocks on a module, ours or anybody's.

    Args:
        build: makes a new block each time it is called.
        width: features of a position.
        context_width: features of the context; `width` when None. A module that does not say
            whether it `needs_context` is given one where this is set.
        batch: number of examples.
        length: positions of x, at least 4.
        context_length: positions of the context, at least 4.
        without: names of laws to leave out.

    Returns:
        Which laws hold, and which could not be checked and why.

    Raises:
        ContractError: with every law that is broken.

    >>> from regard.blocks import EncoderBlock, FeedForward, PreNorm
    >>> from regard.mechanisms import MultiHead
    >>> from regard.testing import check_block
    >>> def build():
    ...     return EncoderBlock(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8)))
    >>> report = check_block(build, width=8, without=["compiles", "exports"])
    >>> "causality" in report.passed
    True
    """
    sizes = Sizes(width, context_width, None, batch, length, context_length)
    return _report(_checks("block", BlockSubject(build, sizes), without))


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
    subject = ImageSubject(build, Sizes(channels, batch=batch), height, width)
    return _checks("image", subject, without)


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
    they mix, plus one of the image (leave `output_of_mixed` out for a nonlinear output).
    `smallest` is the smallest height and width that the module takes; `channels`, where it is not
    None, the number of channels it takes.

    To bring a class of `regard.vision` under the laws, enter it with a name into
    `tests/contracts/image_members.py`; a class without an entry fails the suite.

    Args:
        build: makes a new module each time it is called.
        channels: channels of the images.
        height: rows of an image.
        width: columns of an image; not the height, or swapped axes go unnoticed.
        batch: number of images.
        without: names of laws to leave out.

    Returns:
        Which laws hold, and which could not be checked and why.

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
    subject = ImageSubject(build, Sizes(channels, batch=batch), height, width)
    return _report(_checks("image", subject, without))


def _checks(family: Family, subject: Subject, without: Collection[str]) -> list[Check]:
    """The laws of a family on one module."""
    if isinstance(subject.build, nn.Module):
        raise RegardError("build is a module; pass a function that makes one: lambda: MyModule(16)")
    unknown, names = sorted(set(without) - set(LAWS[family])), ", ".join(LAWS[family])
    if unknown:
        raise RegardError(f"without={unknown}: no such law; the laws are {names}")
    return [Check(law, subject) for law in LAWS[family].values() if law.name not in without]


def _report(checks: Iterable[Check]) -> Report:
    """Run checks; raise `ContractError` with every law that is broken."""
    report, broken = Report(), []
    for check in checks:
        try:
            reason = check()
        except ContractError as error:
            broken.append(str(error))
            if not isinstance(error.__cause__, AssertionError) and check.name == "shapes":
                break  # a plain call does not even run: the others would say the same
            continue
        if reason is None:
            report.passed.append(check.name)
        else:
            report.unchecked[check.name] = reason
    if broken:
        raise ContractError(f"{len(broken)} laws are broken\n" + "\n".join(broken))
    return report
