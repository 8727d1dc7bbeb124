"""`check_mechanism`: every law of the contract, on any module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from torch import nn

from regard.errors import RegardError
from regard.testing import (  # importing a file enters its laws into the list
    laws_compile,
    laws_errors,
    laws_masks,
    laws_recurrent,
    laws_state,
    laws_training,
    laws_weights,
)
from regard.testing.law import LAWS, Law
from regard.testing.subject import Sizes, Subject, Unchecked

#: What goes wrong most plainly is said first, what takes longest last.
_ORDER = [
    file.__name__
    for file in (
        laws_weights,
        laws_masks,
        laws_state,
        laws_recurrent,
        laws_training,
        laws_errors,
        laws_compile,
    )
]


class ContractError(RegardError, AssertionError):
    """A module breaks a law of the contract."""


@dataclass
class Report:
    """What was checked, and what could not be seen and why."""

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
    if isinstance(build, nn.Module):
        raise RegardError("build is a module; pass what makes one: lambda: MyAttention(16)")
    unknown = set(without) - set(LAWS)
    if unknown:
        raise RegardError(f"without={sorted(unknown)}: no such law; there are {', '.join(LAWS)}")
    subject = Subject(build, Sizes(width, key_width, value_width, batch, queries, keys))
    laws = sorted(LAWS.values(), key=lambda law: _ORDER.index(law.check.__module__))
    return [Check(law, subject) for law in laws if law.name not in without]


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
        batch: examples of the inputs.
        queries: positions that look.
        keys: positions looked at.
        without: names of laws to leave out.

    Returns:
        What holds, and what could not be seen and why.

    Raises:
        ContractError: with every law that is broken.

    >>> from regard.mechanisms import DotProduct
    >>> from regard.testing import check_mechanism
    >>> report = check_mechanism(DotProduct, width=8, without=["compiles", "exports"])
    >>> "row_sums" in report.passed
    True
    """
    return reported(
        mechanism_checks(
            build,
            width=width,
            key_width=key_width,
            value_width=value_width,
            batch=batch,
            queries=queries,
            keys=keys,
            without=without,
        )
    )


def reported(checks: Iterable[Check]) -> Report:
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
