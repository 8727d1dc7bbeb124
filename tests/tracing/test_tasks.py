"""Coroutines of one thread, signal handlers and forks: a capture sees its own, and harms none."""

import asyncio
import functools
import os
import signal
import threading
from pkgutil import resolve_name

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from capture_ways import check, every_kind, every_way
from torch import nn
from torch.nn import functional as F

import regard

# -- coroutines


@every_way
def test_tasks_that_capture_one_model_get_their_own(build, path):
    model = build()
    inputs = [words(number + 1, 5, 8, seed=number) for number in range(3)]

    async def user(x):
        with regard.capture(model, path=path) as trace:
            for _ in range(3):
                with torch.inference_mode():
                    model(x)
                await asyncio.sleep(0)
        return trace

    async def main():
        return await asyncio.gather(*(user(x) for x in inputs))

    for x, trace in zip(inputs, asyncio.run(main())):
        check(trace, model.weigh(x) * 3)
        assert [record.step for record in trace] == [0, 0, 1, 1, 2, 2]


@every_kind
def test_a_task_beside_a_capture_is_not_recorded(build):
    """Whether it calls the model or a method of it."""
    model, x, other = build(), words(2, 5, 8), words(3, 4, 8)

    async def user():
        with regard.capture(model) as trace:
            for _ in range(3):
                model(x)
                await asyncio.sleep(0)
        return trace

    async def bystander():
        for _ in range(4):
            model(other)
            model.forward(other)
            await asyncio.sleep(0)

    async def main():
        return (await asyncio.gather(user(), bystander()))[0]

    check(asyncio.run(main()), model.weigh(x) * 3)


def test_tasks_and_threads_of_a_task_belong_to_its_capture():
    model, x = fused(), words(2, 5, 8)

    async def work():
        await asyncio.sleep(0)
        model(x)
        await asyncio.to_thread(model, x)

    async def main():
        with regard.capture(model) as trace:
            await asyncio.gather(work(), work())
        return trace

    trace = asyncio.run(main())
    by_pass = sorted(trace, key=lambda record: record.step)  # two may run at the same time
    check(by_pass, model.weigh(x) * 4)
    assert [record.step for record in by_pass] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_capture_outside_the_loop_has_all_its_tasks():
    model, x = fused(), words(2, 5, 8)

    async def work():
        await asyncio.sleep(0)
        model(x)

    loop = asyncio.new_event_loop()
    before = loop.create_task(work())  # its context knows nothing of the capture
    with regard.capture(model) as trace:
        loop.run_until_complete(before)
        loop.run_until_complete(work())
    loop.close()
    check(trace, model.weigh(x) * 2)


def test_a_model_that_ran_in_a_strange_task_alone_is_said():
    model = fused()

    async def user():
        with regard.capture(model) as trace:
            await asyncio.sleep(0.01)
        return trace

    async def bystander():
        model(words(2, 5, 8))

    async def main():
        return (await asyncio.gather(user(), bystander()))[0]

    with pytest.warns(regard.CaptureWarning, match="ran in a task that was started before"):
        assert len(asyncio.run(main())) == 0


def test_a_task_that_writes_into_what_another_holds():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 2, 5, 4))

        def forward(self, x):
            self.keys.copy_(x)
            return F.scaled_dot_product_attention(x, self.keys, self.keys)

    model, inputs = Cache(), [words(1, 2, 5, 4, seed=number) for number in range(2)]

    async def user(x):
        with regard.capture(model) as trace:
            for _ in range(3):
                model(x)
                await asyncio.sleep(0)
        return trace

    async def main():
        return await asyncio.gather(*(user(x) for x in inputs))

    for x, trace in zip(inputs, asyncio.run(main())):
        check(trace, [(x @ x.mT / 2).softmax(-1)] * 3)


# -- signal handlers


class Expired(Exception):
    """What a handler raises that limits the time of a call."""


@pytest.mark.parametrize("where", ["after", "before_change", "read_operator", "meet"])
def test_what_a_signal_handler_raises_is_not_taken_for_an_error_of_ours(where, monkeypatch):
    """It comes between any two lines, of ours too, where errors become notes."""

    def expire(*_):
        raise Expired

    model, x = handmade(1), words(2, 5, 8)
    if where == "read_operator":  # of a pass that is learned already
        model = fused(1)
        regard.trace(model, x)
    inner = {
        "after": "regard.tracing.dataflow.tags.TagStore.tag",
        "before_change": "regard.tracing.key_cache.KeyCaches.forget",
        "read_operator": "regard.tracing.module_paths.ModulePaths.call_site",
        "meet": "regard.tracing.dataflow.tags.TagStore.constants",
    }[where]
    if where == "before_change":
        model.register_forward_pre_hook(lambda module, args: (args[0].clone().add_(0.0),))
    real = resolve_name(inner)

    def signalled(*args, **kwargs):
        signal.raise_signal(signal.SIGUSR1)
        return real(*args, **kwargs)

    owner, _, name = inner.rpartition(".")
    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with regard.capture(model):
            monkeypatch.setattr(resolve_name(owner), name, signalled)
            with pytest.raises(Expired):
                model(x)
            monkeypatch.undo()
            model(x)
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGUSR1, before)
    check(regard.trace(model, x), model.weigh(x))


def _expire(limit, number, frame):
    raise Expired(limit)


def _expire_once(number, frame):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise Expired


class _Limit:
    def __call__(self, *args):
        raise Expired


@pytest.mark.parametrize(
    "handler",
    [functools.partial(_expire, 60), _expire_once, _Limit()],
    ids=["partial", "once", "object"],
)
def test_a_signal_handler_of_any_kind(handler):
    """In a function of the user's that is called where errors become notes."""

    def where(site):
        signal.raise_signal(signal.SIGUSR1)
        return True

    model, x = fused(1), words(2, 5, 8)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Expired), regard.capture(model, where=where):
            model(x)
    finally:
        signal.signal(signal.SIGUSR1, before)
    check(regard.trace(model, x), model.weigh(x))


def test_a_signal_handler_that_captures():
    """In the middle of a pass that is followed, or learned."""

    class Signals(Stack):
        def forward(self, x):
            x = super().forward(x)
            signal.raise_signal(signal.SIGUSR1)
            return x

    model, other, x, y = Signals(Attention()), fused(), words(2, 5, 8), words(1, 3, 8)
    traces = []
    before = signal.signal(signal.SIGUSR1, lambda *_: traces.append(regard.trace(other, y)))
    try:
        with regard.capture(model, where="layers.0") as trace:  # the rest runs inside the model too
            for _ in range(3):
                model(x)
    finally:
        signal.signal(signal.SIGUSR1, before)
    check(trace, [model.layers[0].weigh(x)] * 3)
    assert len(traces) == 3
    for inner in traces:
        check(inner, other.weigh(y))


# -- forks


def child(work):
    """The exit status of a forked process that does some work: 0 where nothing was raised."""
    number = os.fork()
    if number == 0:
        status = 1
        try:
            signal.alarm(120)  # it would wait for ever for a lock that nobody holds there
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(number, 0)[1]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_another_thread_captures():
    """The child has neither that thread, nor anything of its capture."""
    model, x = fused(), words(2, 5, 8)
    inside, go = threading.Event(), threading.Event()

    def holds():
        with regard.capture(model):
            model(x)
            inside.set()
            go.wait(60)

    def works():
        assert not nn.modules.module._global_forward_hooks
        assert "_compiled_call_impl" not in model.__dict__
        assert threading.Thread.start.__module__ == "threading"
        check(regard.trace(model, x), model.weigh(x))

    thread = threading.Thread(target=holds)
    thread.start()
    try:
        assert inside.wait(60)
        assert child(works) == 0
    finally:
        go.set()
        thread.join()


def test_a_fork_inside_a_capture():
    model, x = fused(), words(2, 5, 8)

    def works():
        model(x)
        assert len(trace) == 4

    with regard.capture(model) as trace:
        model(x)
        assert child(works) == 0
        model(x)
    check(trace, model.weigh(x) * 2)
