"""The `where=` filter of a capture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from regard.errors import RegardError
from regard.interception import pass_signals_on
from regard.record.site import Site

Predicate = Callable[[Site], bool]


def everything(site: Site) -> bool:
    """No filter."""
    return True


def _asked(where: Callable[[Site], bool], site: Site) -> bool:
    try:
        return bool(where(site))
    except Exception as error:
        pass_signals_on(error)
        raise RegardError(f"where= failed on {site.path!r}: {error!r}") from error


def shown(where: Any) -> str:
    """A filter as text."""
    name = getattr(where, "__qualname__", None)
    text = repr(where) if name is None else f"the function {name}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def predicate(where: Any) -> Predicate:
    """A predicate of sites from a glob, a regular expression, layer numbers or a function."""
    if where is None:
        return everything
    if isinstance(where, bool | bytes):
        raise RegardError(f"where={where!r}: expected a pattern, layer numbers or a function")
    if isinstance(where, str):
        return lambda site: fnmatchcase(site.path, where)
    if isinstance(where, re.Pattern):
        return lambda site: where.search(site.path) is not None
    if isinstance(where, int):
        return lambda site: site.layer == where
    if isinstance(where, type | nn.Module):
        name = "class" if isinstance(where, type) else type(where).__name__
        raise RegardError(
            f"where= is a {name}, expected a pattern of paths, as 'encoder.*', or a function of a "
            "site"
        )
    if callable(where):
        return lambda site: _asked(where, site)
    if isinstance(where, Iterable):
        choices = [predicate(choice) for choice in where]
        if not choices:
            raise RegardError("where=[] matches nothing")
        return lambda site: any(choice(site) for choice in choices)
    raise RegardError(
        f"where={shown(where)}: expected a glob as 'encoder.*', a compiled regular expression, "
        "layer numbers, a function of a site, or a list of those"
    )
