"""Errors: each shows the value, the expectation and the place."""


class RegardError(Exception):
    """Anything regard refuses to do; catch this to catch all of them."""


class ShapeError(RegardError, ValueError):
    """A tensor whose axes or sizes do not fit; names the axis, its size and what would fit."""


class DtypeError(RegardError, TypeError):
    """A tensor of the wrong dtype, such as a float mask."""


class MaskError(RegardError, ValueError):
    """A mask whose meaning cannot be told, or that does not fit the attention."""


class StateError(RegardError, ValueError):
    """A state used in a way its mechanism does not support."""


class UnavailableError(RegardError, NotImplementedError):
    """A question the mechanism or reducer cannot answer: it raises, it never guesses."""


class MissingExtraError(RegardError, ImportError):
    """An optional dependency is not installed; the message has the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs {package!r}, which is not installed: pip install 'regard[{extra}]'"
        )
