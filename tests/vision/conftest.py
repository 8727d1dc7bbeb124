"""timm as it comes, for tests that compare with it."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tracing" / "hf"))
from torchvision_stub import imported


@pytest.fixture(scope="session")
def timm():
    """timm, imported without torchvision."""
    return imported("timm")
