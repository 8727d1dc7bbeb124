"""Models of transformers, tiny and random, are those of the capture tests; mechanisms of regard are
the members of the contract tests."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tracing"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tracing" / "hf"))
sys.path.insert(0, str(Path(__file__).parents[1] / "contracts"))

import warnings

import pytest

with warnings.catch_warnings():
    # DeBERTa scripts three functions when it is imported
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    import transformers.models.deberta.modeling_deberta
    import transformers.models.deberta_v2.modeling_deberta_v2  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)
