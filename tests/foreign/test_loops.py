"""Recurrent models in the style of public Estimator code give the host's numbers on the wafer."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from tests.e2e.both_sides import check
from tests.foreign.recurrent_models import MODELS

pytestmark = pytest.mark.tf
v1 = tf.compat.v1


@pytest.mark.parametrize("name", list(MODELS))
def test_wafer_and_host_agree(name, tmp_path):
    if "rnn" in name and not hasattr(v1.nn, "dynamic_rnn"):
        pytest.skip("TensorFlow has no such function")
    check(MODELS[name], tmp_path, False)
