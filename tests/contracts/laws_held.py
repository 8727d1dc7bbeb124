"""What the suites of mechanisms and of blocks share: a test for each law, and members found."""

import importlib
import inspect
import pkgutil


def hold(check, request, not_seen):
    """A law holds, and what cannot be seen of a member is just what is listed."""
    member = request.node.callspec.id.removesuffix(f"-{check.name}")
    reason = check()
    assert (reason is not None) == (check.name in not_seen.get(member, ())), reason


def members_of(package, base):
    """Every class of the library below `base`, found by importing a whole package."""
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return {cls for cls in _subclasses(base) if cls.__module__.startswith("regard.")}


def _subclasses(cls):
    for child in cls.__subclasses__():
        if not inspect.isabstract(child):
            yield child
        yield from _subclasses(child)
