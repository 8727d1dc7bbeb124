"""Only what ran for a capture is recorded: threads, other models, and the order of leaving."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from capture_ways import check, every_kind, every_way, in_thread
from process_safety import CountsOperators
from test_process_safety import run_script
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import regard
from regard.tracing import session as session_module


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.slow if seed > 3 else ()) for seed in range(10)],
)
def test_four_threads_capture_one_encoder(seed):
    """In a process of its own: a fault there would end all of them."""
    run_script("thread_safety.py", str(seed))


@every_way
def test_threads_that_capture_one_model_get_their_own(build, path):
    model = build()
    inputs = [words(number + 1, 5, 8, seed=number) for number in range(4)]
    gate, traces = threading.Barrier(4), {}

    def run(number):
        gate.wait(30)
        with regard.capture(model, path=path) as trace:
            for _ in range(5):
                model(inputs[number])
        traces[number] = trace

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    for number, x in enumerate(inputs):
        check(traces[number], model.weigh(x) * 5)
        assert [record.step for record in traces[number]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


@every_way
def test_a_bystander_is_not_recorded(build, path):
    """A thread that was there before, and runs the same model for somebody else."""
    model, x, other = build(), words(2, 5, 8), words(3, 4, 8)
    stop, running = threading.Event(), threading.Event()

    def serves():
        while not stop.is_set():
            model(other)
            running.set()

    thread = threading.Thread(target=serves)
    thread.start()
    try:
        running.wait(30)
        with regard.capture(model, path=path) as trace:
            for _ in range(5):
                model(x)
                running.clear()
                running.wait(30)
    finally:
        stop.set()
        thread.join()
    check(trace, model.weigh(x) * 5)


@every_way
def test_a_pool_that_was_there_before(build, path):
    """A task belongs to the capture of the thread that submits it, whoever works."""
    model, x, other = build(), words(2, 5, 8), words(3, 4, 8)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(model, other).result()
        with regard.capture(model, path=path) as trace:
            pool.submit(model, x).result()
            with ThreadPoolExecutor(1) as stranger:
                stranger.submit(model, x).result()
            started = threading.Thread(target=lambda: pool.submit(model, x).result())
            started.start()
            started.join()
        pool.submit(model, other).result()
    check(trace, model.weigh(x) * 3)
    assert sorted(record.step for record in trace) == [0, 0, 1, 1, 2, 2]


def test_a_pool_shared_with_a_stranger():
    """Its worker was started by the capture's own thread, and works for another thread as well."""
    model, x, other = fused(), words(2, 5, 8), words(3, 4, 8)
    asked, answered = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def stranger():
            asked.wait(30)
            pool.submit(model, other).result()
            answered.set()

        thread = threading.Thread(target=stranger)
        thread.start()
        with regard.capture(model) as trace:
            pool.submit(model, x).result()
            asked.set()
            assert answered.wait(30)
        thread.join()
    check(trace, model.weigh(x))


def test_a_model_that_ran_in_a_strange_thread_alone_is_said():
    model, x = fused(), words(2, 5, 8)
    go, done = threading.Event(), threading.Event()

    def serves():
        go.wait(30)
        model(x)
        done.set()

    def ask():
        go.set()
        assert done.wait(30)

    thread = threading.Thread(target=serves)
    thread.start()
    with (
        pytest.warns(regard.CaptureWarning, match="thread that was started before the capture"),
        regard.capture(model) as trace,
    ):
        ask()
    thread.join()
    assert len(trace) == 0


class Branches(nn.Module):
    """Runs its parts in threads of its own."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        with ThreadPoolExecutor(len(self.parts)) as pool:
            return sum(pool.map(lambda part: part(x), self.parts))


@pytest.mark.parametrize("fused", [True, False])
def test_concurrent_calls_are_separate_steps(fused):
    """Parts that a call runs in threads of its own have its step, however calls overlap."""
    model = Branches(Attention(fused), Attention(fused))
    inputs = [words(number + 1, 5, 8) for number in range(6)]
    with torch.no_grad(), regard.capture(model) as trace, ThreadPoolExecutor(3) as pool:
        list(pool.map(model, inputs))
    assert len(trace) == 12
    steps = {}
    for record in trace:
        steps.setdefault(record.step, []).append(record)
    assert sorted(steps) == list(range(6))
    for records in steps.values():
        assert len({record.shape.batch for record in records}) == 1
        assert sorted(record.path for record in records) == ["parts.0", "parts.1"]
        for record in records:
            part = model.get_submodule(record.path)
            truth = part.weigh(inputs[record.shape.batch - 1]).detach()
            torch.testing.assert_close(record.weights(), truth)
    assert threading.Thread.start.__module__ == "threading"
    assert ThreadPoolExecutor.submit.__module__ == "concurrent.futures.thread"


def test_a_thread_that_outlives_the_capture():
    """It is in the middle of a call when the capture ends: nothing of torch is left there."""
    inside, go = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fused(1)

        def forward(self, x):
            inside.set()
            go.wait(30)
            return self.inner(x)

    model, x, left = Waits(), words(2, 5, 8), []

    def run():
        model(x)
        left.append(_get_current_dispatch_mode_stack())

    def begin():
        thread = threading.Thread(target=run)
        thread.start()
        assert inside.wait(30)
        return thread

    with pytest.warns(regard.CaptureWarning), regard.capture(model):
        thread = begin()
    go.set()
    thread.join()
    assert left == [[]]
    with regard.capture(model.inner):
        model.inner(x)
    assert not nn.modules.module._global_forward_hooks


# -- other models


class Drafts(nn.Module):
    """A model with a method that runs another model, as assisted decoding does."""

    def __init__(self, build, **parts):
        super().__init__()
        self.inner = build(1)
        self.outside = [build(1)]  # not registered

    def forward(self, x, helped=False):
        return self.outside[0](x) if helped else self.inner(x)

    def generate(self, x, assistant):
        for _ in range(3):
            assistant(x)
            self(x)
        return self(x)


@every_kind
def test_an_assistant_is_another_model(build):
    model, x = Drafts(build), words(2, 5, 8)
    with regard.capture(model) as trace:
        model.generate(x, build(2))
    check(trace, model.inner.weigh(x) * 4)
    assert {record.path for record in trace} == {"inner.layers.0"}


@every_kind
def test_a_part_that_is_not_registered_is_the_models(build):
    model, x = Drafts(build), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x, helped=True)
    check(trace, model.outside[0].weigh(x))


def test_assisted_decoding():
    transformers = pytest.importorskip("transformers")

    def llama(seed):
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1 + seed,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )
        return transformers.LlamaForCausalLM(config).eval()

    model, assistant, ids = llama(1), llama(2), torch.arange(5)[None]
    passes = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    plain = model.generate(ids, assistant_model=assistant, max_new_tokens=8, do_sample=False)
    count = len(passes)
    handle.remove()
    with regard.capture(model) as trace:
        output = model.generate(ids, assistant_model=assistant, max_new_tokens=8, do_sample=False)
    assert torch.equal(output, plain) and trace.notes == []
    assert len(trace) == 2 * count
    layers = {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert {record.path for record in trace} == layers
    assert max(record.step for record in trace) == count - 1


# -- the order of leaving


def states():
    return (
        str(torch._C._dispatch_tls_local_include_set()),
        str(torch._C._dispatch_tls_local_exclude_set()),
        _get_current_dispatch_mode_stack(),
        torch.is_inference_mode_enabled(),
    )


@pytest.mark.parametrize("first", ["auto", "full", "fused"])
@pytest.mark.parametrize("second", ["auto", "full", "fused"])
def test_captures_left_in_the_wrong_order(first, second):
    model, x, before = fused(), words(2, 5, 8), states()
    a, b = regard.capture(model, path=first), regard.capture(model, path=second)
    one, two = a.__enter__(), b.__enter__()
    model(x)
    model(x)
    a.__exit__(None, None, None)
    model(x)
    model(x)
    b.__exit__(None, None, None)
    assert states() == before
    model(x)
    check(one, model.weigh(x) * 2)
    check(two, model.weigh(x) * 4)


class Passes(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_users_that_is_still_there():
    """It stays on top, and its own exit takes it away and nothing else."""
    model, x, before = handmade(), words(2, 5, 8), states()
    a, mode = regard.capture(model), Passes()
    trace = a.__enter__()
    with mode:
        model(x)
        a.__exit__(None, None, None)
        assert _get_current_dispatch_mode_stack() == [mode]
    assert states() == before
    check(trace, model.weigh(x))


def test_inference_mode_that_is_still_there():
    """Popping the mode would break every operator once inference mode is left."""
    model, x, before = fused(), words(2, 5, 8), states()
    a, guard = regard.capture(model), torch.inference_mode()
    trace = a.__enter__()
    guard.__enter__()
    model(x)
    with pytest.raises(regard.RegardError, match=r"left before torch.inference_mode\(\)"):
        a.__exit__(None, None, None)
    model(x)
    guard.__exit__(None, None, None)
    torch.softmax(model(x), -1)
    check(trace, model.weigh(x))
    with regard.capture(model) as trace:  # takes the dead mode away
        model(x)
    check(trace, model.weigh(x))
    assert states() == before


def test_inference_mode_that_is_gone():
    model, x, before = fused(), words(2, 5, 8), states()
    guard = torch.inference_mode()
    guard.__enter__()
    a = regard.capture(model)
    a.__enter__()
    guard.__exit__(None, None, None)
    with pytest.raises(regard.RegardError, match="was left inside it"):
        a.__exit__(None, None, None)
    assert states() == before
    check(regard.trace(model, x), model.weigh(x))


class Opens(Stack):
    """Does something at the beginning of one pass, such as entering a context for its caller."""

    first = None

    def forward(self, x):
        if self.first is not None:
            first, self.first = self.first, None
            first()
        return super().forward(x)


@pytest.mark.parametrize("learned", [0, 1])
@pytest.mark.parametrize("spelled", [False, True])
def test_inference_mode_that_a_pass_leaves_open(spelled, learned):
    """Its end brings back the keys of a learned pass, without the mode's: the next call sees it."""
    model, x, before = Opens(Attention(not spelled), Attention(spelled)), words(2, 5, 8), states()
    guards = ExitStack()
    said = pytest.warns(
        regard.CaptureWarning, match=r"inference_mode\(\) was entered in a call and"
    )
    with said if learned else nullcontext(), regard.capture(model) as trace:
        inside = states()
        for _ in range(learned):
            model(x)
        model.first = lambda: guards.enter_context(torch.inference_mode())
        model(x)
        guards.close()
        model.layers[0](x)
        assert states() == inside
        model(x)
    truth = model.weigh(x)
    check(trace, [*truth * (learned + 1), truth[0], *truth])
    assert states() == before


def test_inference_mode_that_a_pass_in_a_thread_leaves_open():
    """The thread's mode, which would be gone when its key comes back, stays until the next call."""
    model, x = Opens(Attention(), Attention()), words(2, 5, 8)
    guards = ExitStack()

    def run():
        before = states()
        model.first = lambda: guards.enter_context(torch.inference_mode())
        model(x)
        guards.close()
        torch.softmax(torch.randn(3), -1).add_(1)
        model(x)
        assert states() == before

    with regard.capture(model) as trace:
        in_thread(run)
    check(trace, model.weigh(x) * 2)


def test_inference_mode_that_a_pass_in_a_thread_closes():
    model, x = Opens(Attention(), Attention()), words(2, 5, 8)
    guards = ExitStack()

    def run():
        guards.enter_context(torch.inference_mode())
        model.first = guards.close
        model(x)
        model(x)

    said = pytest.warns(regard.CaptureWarning, match="to the next call may be missing; leave it in")
    with said, regard.capture(model) as trace:
        in_thread(run)
    check(trace[-2:], model.weigh(x))
    assert len(trace) < 4


def test_a_mode_of_the_user_sees_no_operators_of_a_capture():
    """But for those by which a record holds tensors: `detach`, and a question about dtypes."""

    def count(path):
        with CountsOperators() as mode, regard.capture(model, path=path) if path else nullcontext():
            for _ in range(3):
                model(x)
        return mode.count

    model, x = fused(), words(2, 5, 8)
    assert count("full") == count("auto") == count("auto") == count(None)


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
def test_left_in_another_thread(path):
    """As a generator may be that a pool closes: the capture is ended, and nothing stays open."""
    model, x, before = fused(), words(2, 5, 8), states()
    a = regard.capture(model, path=path)
    with ExitStack() as stack:
        trace = stack.enter_context(a)
        model(x)
        with pytest.raises(regard.RegardError, match="did not enter it; it is ended; enter and"):
            in_thread(lambda: a.__exit__(None, None, None))
        assert not nn.modules.module._global_forward_hooks
        assert "_compiled_call_impl" not in model.__dict__
        model(x)
    check(trace, model.weigh(x))
    assert states() == before


def test_a_capture_of_two_threads_left_in_a_third():
    a, go = regard.capture(fused()), threading.Barrier(3)

    def holds():
        with a:
            go.wait(30)
            go.wait(30)
            a.model(words(2, 5, 8))

    threads = [threading.Thread(target=holds) for _ in range(2)]
    for thread in threads:
        thread.start()
    go.wait(30)
    with pytest.raises(regard.RegardError, match="nothing was ended"):
        a.__exit__(None, None, None)
    go.wait(30)
    for thread in threads:
        thread.join()


class Cancelled(BaseException):
    """As KeyboardInterrupt, GeneratorExit and asyncio.CancelledError are."""


class Interrupts(Stack):
    """Ctrl-C in the middle of some pass; hooks of torch do not see it."""

    count = 0

    def forward(self, x):
        x = super().forward(x)
        self.count += 1
        if self.count == 3:
            raise Cancelled
        return x


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("path", ["auto", "full", "fused"])
@pytest.mark.parametrize("thread", [False, True])
def test_an_interrupt(context, within, path, thread):
    model, x, before = Interrupts(Attention(), Attention()), words(2, 5, 8), states()

    def run():
        for _ in range(3):
            with context():
                model(x)

    def interrupted():
        with pytest.raises(Cancelled):
            run()
        inside = states()
        torch.softmax(torch.randn(3), -1).add_(1)  # works at once, before the next pass
        with Passes() as mode:
            torch.zeros(1).add(1)
        assert mode.count == 2
        with context():
            model(x)
            model(x)
        assert states() == inside

    with ExitStack() as stack:
        if not within:
            stack.enter_context(pytest.raises(Cancelled))
        trace = stack.enter_context(regard.capture(model, path=path))
        if not within:
            in_thread(run) if thread else run()
        else:
            in_thread(interrupted) if thread else interrupted()
    assert states() == before
    torch.softmax(model(x), -1)
    check(trace, model.weigh(x) * (5 if within else 3))


def test_an_interrupt_while_a_learned_pass_begins_or_ends(monkeypatch):
    """It may come at any line of ours: the mode is back, and the key is off."""
    model, x, before = fused(1), words(2, 5, 8), states()
    captured = []
    for name in ("listen", "unlisten"):
        real, calls = getattr(session_module, name), []

        def interrupts(listener, real=real, calls=calls):
            real(listener)
            calls.append(1)
            if len(calls) == 1:
                raise Cancelled

        with torch.inference_mode(), regard.capture(model) as trace:
            model(x)
            inside = states()
            with monkeypatch.context() as patch:
                patch.setattr(session_module, name, interrupts)
                with pytest.raises(Cancelled):
                    model(x)
            assert states() == inside
            model(x)
        captured.append(trace)
        assert states() == before
    assert [len(trace) for trace in captured] == [2, 3]


def test_what_stays_in_a_thread_goes_with_it():
    """Identifiers of threads are used again: nothing may wait under one for its next owner."""
    model = handmade()
    capture, gone = regard.capture(model), weakref.ref(model)
    in_thread(capture.__enter__)
    with pytest.raises(regard.RegardError):
        capture.__exit__(None, None, None)
    del model, capture
    gc.collect()
    assert gone() is None
