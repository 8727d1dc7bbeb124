"""Models that the tests of the server run; helpers are imported by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def minilm():
    from regard.cli.serve import _served

    return _served("minilm", set())


@pytest.fixture(scope="session")
def smollm2():
    from regard.cli.serve import _served

    return _served("smollm2", set())
