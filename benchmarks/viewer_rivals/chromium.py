"""Pages in a real browser: time until the first picture, memory, frames while the mouse moves."""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import CDPSession, Error, Page, TimeoutError, sync_playwright

SECONDS = 120  #: no page is waited for longer
GIBIBYTES = 8.0  #: of all processes of the browser; more, and the page's own is ended
SIZE = {"width": 1280, "height": 800}

#: Marks the frame after the one in which the page first shows what is asked for. A page that has
#: loaded, and ten seconds later shows nothing, will not.
MARK = """
(() => {
  const drawn = () => document.documentElement && DRAWN;
  const note = (name) => document.documentElement.setAttribute(name, performance.now());
  const look = () => requestAnimationFrame(drawn() ? () => note("data-drawn") : look);
  look();
  addEventListener("load", () => setTimeout(() => note("data-over"), 10000));
})()
"""
MARKED = "html[data-drawn], html[data-over]"
OURS = "document.documentElement.dataset.ready === '1'"
#: Both views are drawn by one call, so that a page with its last part has all.
HEAD_VIEW = "document.querySelector('#vis svg #attention')"
MODEL_VIEW = "document.querySelectorAll('#vis svg rect[id^=attn_background]').length === HEADS"

FRAMES = """
() => {
  window.frames_ = [];
  let last = null;
  const tick = now => {
    if (last !== null) window.frames_.push(now - last);
    last = now;
    window.ticking = requestAnimationFrame(tick);
  };
  window.ticking = requestAnimationFrame(tick);
}
"""


@dataclass(frozen=True)
class Opened:
    """What came of opening a page."""

    seconds: float | None  #: from the beginning of the load until the picture; None: there is none
    gibibytes: float  #: the most that the browser held
    stopped: str = ""  #: why there is no picture


def executable() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    raise SystemExit("no browser: tools/browser_setup.sh installs Debian's chromium")


def version() -> str:
    said = subprocess.run([executable(), "--version"], capture_output=True, text=True).stdout
    return said.split(" built")[0].strip()


@contextmanager
def fresh_page() -> Iterator[Page]:
    """A page of a browser that was started for it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            yield browser.new_page(viewport=SIZE)
        finally:
            browser.close()


def opened(path: Path, drawn: str) -> Opened:
    """Open a file in a new browser and wait for its picture.

    Args:
        path: the file.
        drawn: an expression of JavaScript that is true when the picture is there.
    """
    with _Memory(GIBIBYTES) as memory, fresh_page() as page:
        page.add_init_script(MARK.replace("DRAWN", drawn))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(error.message))
        try:
            page.goto(path.as_uri(), wait_until="commit", timeout=1000 * SECONDS)
            page.wait_for_selector(MARKED, state="attached", timeout=1000 * SECONDS)
            at = page.locator("html").get_attribute("data-drawn")
            if at is None:
                return Opened(None, memory.most, errors[0] if errors else "loaded, no picture")
            return Opened(float(at) / 1000, memory.most)
        except TimeoutError:
            return Opened(None, memory.most, f"nothing after {SECONDS} s")
        except Error as error:
            if memory.exceeded:
                return Opened(None, memory.most, f"more than {GIBIBYTES:.0f} GiB")
            return Opened(None, memory.most, str(error).splitlines()[0].split(": ")[-1])


def frame_times(page: Page, place: tuple[float, float], moves: int) -> tuple[list[float], float]:
    """Milliseconds between frames while the mouse drags in circles from a place on the page; and
    milliseconds of processor time that the page's thread takes for a move."""
    x, y = place
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(FRAMES)
    before = _thread_time(session)
    for move in range(moves):
        angle = 2 * math.pi * move / 60
        page.mouse.move(x + 150 * math.sin(angle), y + 100 * (1 - math.cos(angle)))
    times: list[float] = page.evaluate("cancelAnimationFrame(window.ticking), window.frames_")
    busy = _thread_time(session) - before
    page.mouse.up()
    return times, 1000 * busy / moves


def _thread_time(session: CDPSession) -> float:
    """Seconds that the page's thread has worked, by its own clock."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def moves(page: Page, place: tuple[float, float]) -> bool:
    """Whether the picture is another one after the mouse has dragged it."""
    x, y = place
    before = page.screenshot()
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 90, y + 60, steps=5)
    page.mouse.up()
    page.mouse.move(1, 1)
    page.wait_for_timeout(300)
    return page.screenshot() != before


def summary(times: list[float]) -> list[str]:
    """Median and 95th percentile in milliseconds, and the frames a second of the median."""
    median = statistics.median(times)
    late = statistics.quantiles(times, n=20)[-1]
    return [f"{median:.1f}", f"{late:.1f}", f"{1000 / median:.0f}", str(len(times))]


class _Memory:
    """Watches the browser that this process starts, and ends its largest process past a limit."""

    def __init__(self, limit: float) -> None:
        self.limit, self.most, self.exceeded = limit, 0.0, False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.25):
            held = {}
            for process in me.children(recursive=True):
                held[process] = _quietly(lambda process=process: process.memory_info().rss)
            total = sum(held.values()) / 2**30
            self.most = max(self.most, total)
            if total > self.limit:
                self.exceeded = True
                _quietly(max(held, key=lambda process: held[process]).kill)


def _quietly(ask: Callable[[], Any]) -> Any:
    """An answer about a process, or 0 where it has gone meanwhile."""
    try:
        return ask()
    except psutil.Error:
        return 0
