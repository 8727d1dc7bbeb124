"""Run models for requests: input checks, errors as refusals, generation as events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

from regard.errors import RegardError
from regard.viewer.server.limits import Limits, Refusal, not_found, too_long, wrong
from regard.viewer.server.maps.trace_store import StoredTrace, TraceStore
from regard.viewer.server.models.generation import encoded
from regard.viewer.server.models.model_queue import Ticket, WorkCancelled
from regard.viewer.server.models.served_model import PromptTokens, ServedModel, Step
from regard.viewer.server.models.translation_events import draft_events, line_of_event
from regard.viewer.server.models.uploaded_image import checked_image

logger = logging.getLogger("regard.viewer")


class ModelRequests:
    """The models of a server by name, and the work that a request asks of them."""

    def __init__(self, models: list[ServedModel], traces: TraceStore, limits: Limits) -> None:
        self.models = {model.name: model for model in models}
        self._traces, self._limits = traces, limits

    def look(self, name: Any, text: Any) -> Callable[[Ticket], StoredTrace]:
        """Work that runs a model on a text."""
        model = self.named(name, "text")
        text = self._check_text(text)

        def work(ticket: Ticket) -> StoredTrace:
            with _refusals(model):
                self._check_tokens(model, text, self._limits.tokens, "tokens")
                scene = model.look(text)
                ticket.check()
                return self._traces.add(scene)

        return work

    def image(self, name: Any, data: bytes) -> Callable[[Ticket], StoredTrace]:
        """Work that runs a model on an image file."""
        model = self.named(name, "image")

        def work(ticket: Ticket) -> StoredTrace:
            with _refusals(model):
                scene = model.look(checked_image(data, self._limits))
                ticket.check()
                return self._traces.add(scene)

        return work

    def generate(self, name: Any, text: Any, count: Any) -> Callable[[Ticket], Generator[bytes]]:
        """Work that continues a text; it yields lines of JSON."""
        model, text = self.named(name, "text"), self._check_text(text)
        if model.generate is None:
            raise Refusal(422, "does_not_generate", f"{model.title} does not generate text")
        if type(count) is not int or not 1 <= count <= self._limits.new_tokens:
            limit = self._limits.new_tokens
            refusal = wrong("tokens", count, f"a whole number from 1 to {limit}")
            refusal.limit, refusal.got = limit, count if type(count) is int else None
            raise refusal
        generate = model.generate

        def work(ticket: Ticket) -> Generator[bytes]:
            with _refusals(model):
                longest = self._limits.positions - count
                self._check_tokens(model, text, longest, "tokens")
                with closing(generate(text, count)) as steps:
                    yield from self._events(steps, ticket)

        return work

    def translate(self, name: Any, text: Any) -> Callable[[Ticket], Generator[bytes]]:
        """Work that translates a text; it yields lines of JSON."""
        model, text = self.named(name, "text"), self._check_text(text)
        if model.translate is None:
            raise Refusal(422, "does_not_translate", f"{model.title} does not translate text")
        translate = model.translate
        most = min(self._limits.new_tokens, self._limits.positions // 2)

        def work(ticket: Ticket) -> Generator[bytes]:
            with _refusals(model):
                self._check_tokens(model, text, self._limits.positions - most, "tokens")
                with closing(translate(text, most)) as drafts:
                    yield from draft_events(
                        ticket.checked(drafts), lambda scene: self._traces.add(scene).id
                    )

        return work

    def _events(self, steps: Iterator[Any], ticket: Ticket) -> Iterator[bytes]:
        number = 0
        for step in steps:
            ticket.check()
            if isinstance(step, PromptTokens):
                yield line_of_event("begin", tokens=step.tokens, special=step.special)
            elif isinstance(step, Step):
                if number == 0:
                    yield from _prompt(step)
                number += 1
                likely = [[token, round(share, 6)] for token, share in step.likely]
                yield line_of_event(
                    "step", step=number, token=step.token, likely=likely, **_new_rows(step, number)
                )
            else:
                yield line_of_event("done", id=self._traces.add(step).id)

    def named(self, name: Any, kind: str) -> ServedModel:
        """A model by name, which must take texts or images."""
        if not isinstance(name, str) or name not in self.models:
            choices = f"there are: {', '.join(self.models)}" if self.models else "none runs here"
            raise not_found(f"model {name!r:.60}; {choices}")
        model = self.models[name]
        if model.kind != kind:
            message = f"{model.title} looks at {'images' if model.kind == 'image' else 'texts'}"
            raise Refusal(422, "wrong_kind", message)
        return model

    def _check_text(self, text: Any) -> str:
        if not isinstance(text, str):
            raise wrong("text", text, "a text")
        if len(text) > self._limits.characters:
            raise too_long("the text", len(text), self._limits.characters, "characters")
        if not text.strip():
            raise Refusal(422, "empty_text", "there is no word in the text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"the text has half of a surrogate pair, at character {error.start}"
            raise Refusal(422, "not_unicode", message) from error
        return text

    def _check_tokens(self, model: ServedModel, text: str, limit: int, unit: str) -> None:
        count = 0 if model.tokens is None else model.tokens(text)
        if count > limit:
            raise too_long("the text", count, limit, unit, status=422)


@contextmanager
def _refusals(model: ServedModel) -> Iterator[None]:
    """Turn errors of a model into refusals; details go to the log only."""
    try:
        yield
    except (Refusal, WorkCancelled):
        raise
    except RegardError as error:
        raise Refusal(422, "model_refused", f"{model.title}: {error}") from error
    except Exception as error:
        logger.exception("%s failed", model.name)
        message = f"{model.title} failed ({type(error).__name__}); the server's log says more"
        raise Refusal(500, "model_failed", message) from error


def _prompt(step: Step) -> Iterator[bytes]:
    """The sites of a generation, then the prompt's rows of each."""
    sites = [{"name": name, "heads": rows.shape[0]} for name, rows in step.rows.items()]
    yield line_of_event("sites", sites=sites)
    for number, rows in enumerate(step.rows.values()):
        yield line_of_event("prompt", site=number, shape=list(rows.shape), rows=encoded(rows))


def _new_rows(step: Step, number: int) -> dict[str, Any]:
    if number == 1:  # the prompt's rows were sent before
        return {"keys": None, "rows": None}
    sites = step.rows.values()
    return {"keys": [rows.shape[2] for rows in sites], "rows": [encoded(rows) for rows in sites]}
