"""Fixtures that several folders of tests use."""

import jaxtyping
import pytest


@pytest.fixture
def without_shape_checks():
    """For tests of wrong input: the run-time checks of the test run would answer before regard."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
