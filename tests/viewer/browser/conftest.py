"""A real browser over saved pages: fails a test that logs an error or asks for anything outside.

The browser is started once a test file, not once a session: while Playwright runs, its event loop
belongs to the thread, and tests in other folders could not run one of their own.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from needed import missing

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
AXE = HERE.parents[2] / ".venv/node/node_modules/axe-core/axe.min.js"


def _chromium() -> str:
    named = os.environ.get("REGARD_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        missing(f"no browser named {' or '.join(names)}")
    return found


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = _chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.exists():
        missing("axe-core is not installed")
    return AXE.read_text()


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Where the page of a trace lies; a page is written once."""
    from regard.viewer import page

    folder = tmp_path_factory.mktemp("pages")
    written: dict[tuple, tuple] = {}

    def save(drawn, **more) -> Path:
        key = (id(drawn), *sorted(more.items()))
        if key not in written:  # and `drawn` is kept, so that no other one comes to have its id
            path = folder / f"{len(written)}.html"
            written[key] = page(drawn.trace, **{**drawn.options, **more}).save(path), drawn
        return written[key][0]

    return save


@pytest.fixture
def open_page(browser, saved):
    """Opens a page of a trace, of a file or at an address; checks it when the test is over.

    `open_page(drawn, "view=matrix&layer=3", width=390)` returns a `Looking`.
    """
    from looking import Looking

    opened: list[Looking] = []

    def open_one(
        what,
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        wait: bool = True,
        **page_options,
    ) -> Looking:
        if not isinstance(what, str | Path):
            what = saved(what, **page_options)
        address = what if isinstance(what, str) else what.as_uri()
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            accept_downloads=True,
            locale="en-GB",
        )
        looking = Looking(context, address)
        opened.append(looking)
        looking.open(fragment, wait)
        return looking

    yield open_one
    problems = []
    for looking in opened:
        problems += looking.problems()
        looking.context.close()
    assert not problems, "\n".join(problems)


@pytest.fixture
def live(open_page, address):
    """The live page at the `address` of a test file, with its first picture."""

    def opened(fragment: str = "", **options):
        looking = open_page(address, fragment, wait=False, **options)
        looking.page.wait_for_selector("html[data-ready='1']", timeout=30_000)
        return looking

    return opened
