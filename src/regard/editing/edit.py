"""`regard.edit`: change the attention of any model while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import nn

from regard.editing.call import Words
from regard.editing.changes import Change
from regard.editing.session import EditSession
from regard.errors import RegardError
from regard.record import Trace
from regard.record.tokens import Tokens, checked_tokens
from regard.tracing.capture import module_of


class EditWarning(UserWarning):
    """Something that an edit could not see to, such as what a backward pass will run again."""


class Edits:
    """The changes of a block, and what they touched: sites, and how many times each."""

    def __init__(self, session: EditSession) -> None:
        self._session = session

    @property
    def changes(self) -> tuple[Change, ...]:
        return self._session.changes

    @property
    def touched(self) -> list[dict[str, int]]:
        """For each change: the sites that it touched, and how many calls of each."""
        tables: list[dict[str, int]] = [{} for _ in self.changes]
        for (number, site), count in sorted(self._session.touched.items()):
            tables[number][site] = count
        return tables

    def __repr__(self) -> str:
        lines = []
        for change, sites in zip(self.changes, self.touched):
            calls = sum(sites.values())
            lines.append(f"{change}: {_count(len(sites), 'site')}, {_count(calls, 'call')}")
        return "\n".join(lines)


class edit:  # a context manager is written like a function
    """Change the attention of a model while it runs.

    Nothing of the model is edited, and after the block, or an error in it, everything is as before.
    Other threads and other models are not touched; nested blocks add up. The first call of a kind
    runs twice: once under capture, on copies of its inputs, to learn which softmax has which axes.

    Args:
        model: the model, a method of it, or a function that closes over it.
        changes: what to change: `regard.editing.forbid`, `allow`, `bias`, `scale`, `multiply`,
            `replace`, `silence`, `scale_values`, `replace_values`.
        like: a trace of such a call, which saves the captured pass, and tells its tokens.
        tokens: tokens for positions, for changes that name words: one list for the batch, or a
            list per example.

    >>> import torch, regard
    >>> from regard.editing import forbid
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 8)
    >>> with regard.edit(model, forbid(keys=0)) as edits, regard.capture(model) as trace:
    ...     out, _ = model(x, x, x, need_weights=False)
    >>> trace[0].weights()[..., 0].max()
    tensor(0.)
    >>> edits
    forbid(keys=0): 1 site, 1 call
    """

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        *changes: Change,
        like: Trace | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        module = model if isinstance(model, nn.Module) else module_of(model)
        if module is None:
            raise RegardError(
                f"edit: {getattr(model, '__name__', type(model).__name__)}, expected a module, a "
                "method of one, or a function that closes over one; pass the module itself"
            )
        for change in changes:
            if not isinstance(change, Change):
                hint = "as forbid(keys=0)"
                if isinstance(change, list | tuple):
                    hint = "each by itself, as regard.edit(model, *changes)"
                elif callable(change):
                    hint = f"as {getattr(change, '__name__', 'forbid')}(...)"
                raise RegardError(f"edit: {change!r}, expected a change of regard.editing, {hint}")
        if like is not None and not isinstance(like, Trace):
            raise RegardError(f"edit: like={type(like).__name__}, expected a trace")
        words = None if tokens is None else checked_tokens(tokens, "edit: tokens=")
        self._arguments = (module, changes, like, Words(words, words))
        self._open: list[EditSession] = []

    def __repr__(self) -> str:
        state = "open" if self._open else "changes nothing: use it as `with regard.edit(...):`"
        return f"<regard.edit, {state}>"

    def __enter__(self) -> Edits:
        session = EditSession(*self._arguments)
        session.begin()
        self._open.append(session)
        return Edits(session)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        session = self._open.pop()
        session.end()
        if kind is not None:
            return
        for number, change in enumerate(session.changes):
            if not any(touch.change == number for touch in session.touched):
                raise RegardError(_nothing(session, number, change))
        if session.in_checkpoints > session.recomputed:
            warnings.warn(
                f"edit: {session.in_checkpoints} changed attentions ran inside activation "
                f"checkpoints, and {session.recomputed} were run again for a backward pass; a "
                "backward pass after the block runs them unchanged, with wrong gradients: call "
                "backward() inside the block",
                EditWarning,
                stacklevel=2,
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _nothing(session: EditSession, number: int, change: Change) -> str:
    """Why a change touched nothing."""
    if not session.passes:
        return f"{change}: changed nothing: no module of the model was called in the block"
    if number not in session.matched:
        return session.no_match(number)
    call = session.missed.get(number)
    if call is None:
        return f"{change}: changed nothing: its sites did not run in the block"
    queries = call.shape.queries if call.first is None else call.n_queries
    return (
        f"{change}: changed nothing: it selects none of the {queries} queries and "
        f"{call.n_keys} keys of '{call.site.name}'; positions are absolute, from 0, and negative "
        "ones count from the last so far"
    )
