"""Fixtures of the tests of the estimator."""

from __future__ import annotations

import pytest


@pytest.fixture
def graph():
    """A graph that is the default one."""
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default() as graph:
        yield graph
