"""Models that run for a request: checks before, errors after, generation as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

from regard.errors import RegardError
from regard.viewer.server.drafts import draft_events, line_of_event
from regard.viewer.server.generation import encoded
from regard.viewer.server.images import checked_image
from regard.viewer.server.limits import Limits, Refused, not_found, too_long, wrong
from regard.viewer.server.served import Begun, Served, Step
from regard.viewer.server.traces import Kept, Traces
from regard.viewer.server.worker import Stopped, Ticket

logger = logging.getLogger("regard.viewer")


class Models:
    """The models of a server, by name, and what can be asked of them."""

    def __init__(self, served: list[Served], traces: Traces, limits: Limits) -> None:
        self.served = {one.name: one for one in served}
        self._traces, self._limits = traces, limits

    def look(self, name: Any, text: Any) -> Callable[[Ticket], Kept]:
        """Work that looks at a text."""
        served = self.named(name, "text")
        text = self._checked(text)

        def work(ticket: Ticket) -> Kept:
            with _told(served):
                self._check_tokens(served, text, self._limits.tokens, "tokens")
                scene = served.look(text)
                ticket.check()
                return self._traces.add(scene)

        return work

    def image(self, name: Any, data: bytes) -> Callable[[Ticket], Kept]:
        """Work that looks at an image file."""
        served = self.named(name, "image")

        def work(ticket: Ticket) -> Kept:
            with _told(served):
                scene = served.look(checked_image(data, self._limits))
                ticket.check()
                return self._traces.add(scene)

        return work

    def generate(self, name: Any, text: Any, count: Any) -> Callable[[Ticket], Generator[bytes]]:
        """Work that goes on from a text; it yields lines of JSON."""
        served, text = self.named(name, "text"), self._checked(text)
        if served.generate is None:
            raise Refused(422, "does_not_generate", f"{served.title} does not generate text")
        if type(count) is not int or not 1 <= count <= self._limits.new_tokens:
            limit = self._limits.new_tokens
            refused = wrong("tokens", count, f"a whole number from 1 to {limit}")
            refused.limit, refused.got = limit, count if type(count) is int else None
            raise refused
        generate = served.generate

        def work(ticket: Ticket) -> Generator[bytes]:
            with _told(served):
                longest = self._limits.positions - count
                self._check_tokens(served, text, longest, "tokens")
                with closing(generate(text, count)) as steps:
                    yield from self._events(steps, ticket)

        return work

    def translate(self, name: Any, text: Any) -> Callable[[Ticket], Generator[bytes]]:
        """Work that translates a text; it yields lines of JSON."""
        served, text = self.named(name, "text"), self._checked(text)
        if served.translate is None:
            raise Refused(422, "does_not_translate", f"{served.title} does not translate text")
        translate = served.translate
        most = min(self._limits.new_tokens, self._limits.positions // 2)

        def work(ticket: Ticket) -> Generator[bytes]:
            with _told(served):
                self._check_tokens(served, text, self._limits.positions - most, "tokens")
                with closing(translate(text, most)) as drafts:
                    yield from draft_events(
                        ticket.checked(drafts), lambda scene: self._traces.add(scene).id
                    )

        return work

    def _events(self, steps: Iterator[Any], ticket: Ticket) -> Iterator[bytes]:
        number = 0
        for found in steps:
            ticket.check()
            if isinstance(found, Begun):
                yield line_of_event("begin", tokens=found.tokens, special=found.special)
            elif isinstance(found, Step):
                if number == 0:
                    yield from _prompt(found)
                number += 1
                yield line_of_event(
                    "step", step=number, token=found.token, **_new_rows(found, number)
                )
            else:
                yield line_of_event("done", id=self._traces.add(found).id)

    def named(self, name: Any, kind: str) -> Served:
        """A model that looks at texts, or at images."""
        if not isinstance(name, str) or name not in self.served:
            there_are = f"there are: {', '.join(self.served)}" if self.served else "none runs here"
            raise not_found(f"model {name!r:.60}; {there_are}")
        found = self.served[name]
        if found.kind != kind:
            message = f"{found.title} looks at {'images' if found.kind == 'image' else 'texts'}"
            raise Refused(422, "wrong_kind", message)
        return found

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str):
            raise wrong("text", text, "a text")
        if len(text) > self._limits.characters:
            raise too_long("the text", len(text), self._limits.characters, "characters")
        if not text.strip():
            raise Refused(422, "empty_text", "there is no word in the text")
        return text

    def _check_tokens(self, served: Served, text: str, limit: int, unit: str) -> None:
        count = 0 if served.tokens is None else served.tokens(text)
        if count > limit:
            raise too_long("the text", count, limit, unit, status=422)


@contextmanager
def _told(served: Served) -> Iterator[None]:
    """Errors of a model as refusals; what is not meant for strangers goes to the log."""
    try:
        yield
    except (Refused, Stopped):
        raise
    except RegardError as error:
        raise Refused(422, "model_refused", f"{served.title}: {error}") from error
    except Exception as error:
        logger.exception("%s failed", served.name)
        message = f"{served.title} failed ({type(error).__name__}); the server's log says more"
        raise Refused(500, "model_failed", message) from error


def _prompt(step: Step) -> Iterator[bytes]:
    """The sites of a generation, then the prompt's rows of each."""
    sites = [{"name": name, "heads": rows.shape[0]} for name, rows in step.rows.items()]
    yield line_of_event("sites", sites=sites)
    for number, rows in enumerate(step.rows.values()):
        yield line_of_event("prompt", site=number, shape=list(rows.shape), rows=encoded(rows))


def _new_rows(step: Step, number: int) -> dict[str, Any]:
    if number == 1:  # those of the prompt were sent by themselves
        return {"keys": None, "rows": None}
    found = step.rows.values()
    return {"keys": [rows.shape[2] for rows in found], "rows": [encoded(rows) for rows in found]}
