"""Trains in child processes that are killed (SIGKILL), until one gets through: at random moments,
or with one argument at every moment at which a file gets its name.

The parent imports and then only forks, so that a life costs no start of Python.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import regard.translate.training as training
from regard.translate.config import Config


def child(config: Config, out: Path, before: Callable[[], None] = lambda: None) -> None:
    try:
        before()
        training.train(config, out, resume=True)
    except BaseException as error:
        print(f"a life failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def live(config: Config, out: Path, rows: int | None = None, seconds: float = 0.0) -> int:
    """The status of a life that is killed so many seconds after its log has so many rows."""
    number = os.fork()
    if number == 0:
        child(config, out)
    if rows is not None:
        while logged(out) < rows:
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(number, signal.SIGKILL)
    return os.waitpid(number, 0)[1]


def logged(out: Path) -> int:
    """The rows of a log."""
    log = out / "log.csv"
    return len(log.read_text().splitlines()) if log.exists() else 0


def die_at(rename: int, when: str) -> Callable[[], None]:
    """Ends this process before or after its n-th rename."""
    made = Path.replace
    seen = 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal seen
        seen += 1
        if seen == rename and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = made(path, target)
        if seen == rename:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return lambda: setattr(Path, "replace", replace)


def at_every_rename(config: Config, folder: Path) -> None:
    """Prints how often a run died; each time it is resumed, and ends well."""
    assert live(config, folder / "whole") == 0
    died = 0
    for when in ("before", "after"):
        rename, alive = 0, False
        while not alive:
            rename += 1
            out = folder / f"{when}-{rename}"
            number = os.fork()
            if number == 0:
                child(config, out, die_at(rename, when))
            alive = not os.WIFSIGNALED(os.waitpid(number, 0)[1])
            assert live(config, out) == 0, f"{when} rename {rename}"
            died += not alive
    print(died)


if __name__ == "__main__" and len(sys.argv) == 2:
    given = Path(sys.argv[1])
    at_every_rename(Config.from_file(given / "config.toml"), given)
elif __name__ == "__main__":
    folder, seed, deaths = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    read = Config.from_file(folder / "config.toml")
    assert live(read, folder / "whole") == 0
    chooser = random.Random(seed)
    rows = logged(folder / "whole")
    died = 0
    for row in sorted(chooser.choices(range(rows * 3 // 4), k=deaths)):
        status = live(read, folder / "killed", row, chooser.uniform(0, 0.02))
        died += os.WIFSIGNALED(status)
        assert os.WIFSIGNALED(status) or status == 0, status
    assert live(read, folder / "killed") == 0
    print(died)
