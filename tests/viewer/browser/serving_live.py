"""`regard serve` as a process of its own, and what people do on its page."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

from playwright.sync_api import expect


def served(*arguments: str) -> Iterator[str]:
    """Where a server is, until the generator is closed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield found[0]
    finally:
        process.kill()
        process.communicate()


def look(looking, text: str, suffix: str = "") -> None:
    """Type a text and run it."""
    looking.by(f"live-text{suffix}").fill(text)
    looking.by(f"live-run{suffix}").click()
    expect(looking.by(f"live-cancel{suffix}")).to_be_hidden(timeout=60_000)
