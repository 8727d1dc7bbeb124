"""Traces of trained models that several tests of the viewer draw; each is made once, when asked."""

import os
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
HERE = Path(__file__).parent
collect_ignore = ["conftest.py"]  # has no doctests, and shares its name with those below
sys.path[:0] = [str(HERE), str(HERE.parent / "tracing/pretrained"), str(HERE.parent)]


@pytest.fixture(autouse=True, scope="session")
def _quiet_transformers():
    from regard.cli.packaged import quietly

    with quietly():
        yield


def _trace(name: str):
    """A session's fixture of the trace that `viewer_traces` makes under this name."""

    def made(_quiet_transformers):
        import viewer_traces

        return getattr(viewer_traces, name)()

    return pytest.fixture(made, scope="session", name=f"{name}_trace")


sentence_trace = _trace("sentence")
graded_trace = _trace("graded")
licence_trace = _trace("licence")
story_trace = _trace("story")
translation_trace = _trace("translation")
speech_trace = _trace("speech")
disc_trace = _trace("disc")
reaction_trace = _trace("reaction")
hostile_trace = _trace("hostile")
