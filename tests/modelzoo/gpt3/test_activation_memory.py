"""GPT-2 small within less than a third of what its batch needs, and a sibling that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow.compat.v1 as tf

from cerebras_tf.config import schema
from modelzoo.common.config import registry
from modelzoo.common.config.params import load_params
from modelzoo.common.train.estimator import make_estimator
from tests.estimator.regression import assert_equal, models_built, variables_of

pytestmark = pytest.mark.tf
CONFIG = Path(__file__).parents[3] / "configs" / "params_gpt2_small.yaml"
# All but its sizes is GPT-2's: dropout, half precision, dynamic loss scaling, tied embeddings.
SIBLING = {
    "train_input.vocab_size": 97,
    "train_input.max_sequence_length": 64,
    "train_input.batch_size": 8,
    "eval_input": None,
    "model.hidden_size": 32,
    "model.filter_size": 128,
    "model.num_heads": 2,
    "model.num_hidden_layers": 3,
    "runconfig.save_summary_steps": 1000,
}


def estimator_of(folder, **settings):
    """(estimator, its parameters)."""
    given = {"runconfig.mode": "train", "runconfig.model_dir": str(folder), **settings}
    params = load_params(str(CONFIG), given)
    room, _ = registry.load_model(params.model_name)
    return make_estimator(room.model_fn, params, use_cs=True), params


def random_tokens(params):
    """Batches of random tokens, three of them."""
    _, data = registry.load_model(params.model_name)
    vocabulary = params.train_input.vocab_size
    random = np.random.default_rng(5)
    batches = []
    for _ in range(3):
        blank = data.INPUTS.blank(schema.as_tree(params)).element_spec
        batches.append(
            tf.nest.map_structure(
                lambda spec: random.integers(0, vocabulary, spec.shape, dtype=np.int32), blank
            )
        )
        batches[-1][0]["input_mask"][...] = 0
    stacked = tf.nest.map_structure(lambda *arrays: np.stack(arrays), *batches)
    return tf.data.Dataset.from_tensor_slices(stacked)


class Losses(tf.estimator.SessionRunHook):
    """Keeps the loss of every step."""

    def __init__(self):
        self.found = []

    def begin(self):
        (self._loss,) = tf.get_collection(tf.GraphKeys.LOSSES)[-1:]

    def before_run(self, context):
        return tf.estimator.SessionRunArgs(self._loss)

    def after_run(self, context, values):
        self.found.append(values.results)


def trained(folder, **settings):
    """(losses, variables, the step) of three steps."""
    losses = Losses()
    estimator, params = estimator_of(folder, **SIBLING, **settings)
    with models_built() as models:
        estimator.train(lambda: random_tokens(params), hooks=[losses])
    return losses.found, variables_of(folder), models[-1].step


def planned(step):
    """Bytes that activations and scratch memory may take by plan."""
    return step.program.arena_bytes + step.program.scratch_bytes


def measured(step):
    """Bytes that they took at most; what threads took at different times adds up."""
    return step.session.peak_bytes - step.store.resident_bytes


@pytest.mark.slow
def test_a_sibling_trains_alike_in_two_thirds_of_the_memory(tmp_path):
    losses, variables, free = trained(tmp_path / "free")
    budget = 0.65 * planned(free)
    found = trained(tmp_path / "bounded", **{"runconfig.wafer_memory_gb": budget / 1e9})
    assert len(losses) == 3 and found[0] == losses
    assert_equal(found[1], variables, rtol=0)
    assert planned(found[2]) <= budget
    assert measured(found[2]) <= budget + measured(free) - planned(free)


@pytest.mark.slow
def test_gpt2_small_at_its_own_batch_is_compiled_within_6_gb(tmp_path):
    """Shapes only: 21.8 GB without the setting."""
    setting = {"runconfig.wafer_memory_gb": 6.0}
    estimator, params = estimator_of(tmp_path, **setting)
    assert params.train_input.batch_size == 32 and params.train_input.max_sequence_length == 1024
    _, data = registry.load_model(params.model_name)
    program = estimator.compile(data.INPUTS.blank, save=False)
    assert program.arena_bytes + program.scratch_bytes <= 6e9
