"""What torch allocates while something runs."""

from itertools import accumulate

from torch.profiler import ProfilerActivity, profile


def allocated(run):
    """Bytes that torch allocated and freed, in order, while `run` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [
        (event.start_ns(), event.nbytes())
        for event in found.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    assert events
    return [size for _, size in sorted(events)]


def peak_bytes(run):
    """The most that was allocated at once."""
    run()
    return max(accumulate(allocated(run)))


def kept_bytes(run):
    """What is still there afterwards."""
    return sum(allocated(run))
