"""Trains in child processes that are killed (SIGKILL) at random moments, until one gets through.

The parent imports and then only forks, so that a life costs no start of Python.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import regard.translate.training as training
from regard.translate.config import Config


def child(config: Config, out: Path) -> None:
    try:
        training.train(config, out, resume=True)
    except BaseException as error:
        print(f"a life failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def live(config: Config, out: Path, seconds: float | None) -> int:
    number = os.fork()
    if number == 0:
        child(config, out)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(number, signal.SIGKILL)
    return os.waitpid(number, 0)[1]


if __name__ == "__main__":
    folder, seed, deaths = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    read = Config.from_file(folder / "config.toml")
    assert live(read, folder / "whole", None) == 0
    started = time.monotonic()
    assert live(read, folder / "timed", None) == 0
    whole = time.monotonic() - started
    chooser = random.Random(seed)
    died = 0
    for _ in range(deaths):
        status = live(read, folder / "killed", chooser.uniform(0.02, 0.6) * whole)
        died += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or status == 0, status
    assert live(read, folder / "killed", None) == 0
    print(died)
