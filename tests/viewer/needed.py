"""What tests need beyond Python. Nothing is skipped in silence: without it a run of CI fails."""

import os

import pytest


def missing(what: str) -> None:
    """Skip a test on a desk, fail it in CI."""
    said = f"{what}; tools/browser_setup.sh installs it"
    if os.environ.get("CI"):
        pytest.fail(said, pytrace=False)
    pytest.skip(said)
