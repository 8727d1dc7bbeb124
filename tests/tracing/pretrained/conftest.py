"""Loaders are imported by name; transformers is told not to look for the hub, and to be quiet."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
sys.path.insert(0, str(Path(__file__).parent))

import pytest


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()
