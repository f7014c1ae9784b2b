"""A record after the first that a model cannot read ends the run; the error names its folder."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.config import schema
from cerebras_tf.errors import DataError
from modelzoo.common.config import registry
from modelzoo.common.train.estimator import make_estimator
from modelzoo.common.train.file_errors import file_errors_named
from tests.messages import raises
from tests.modelzoo.made_records import TASKS, S, V, make_params, write_records

BAD = 5  # number of the record


def write_bad(folder, task, feature, number):
    """Writes records, one of them with a number at place 0 of a feature."""

    def spoil(row, record):
        if row == BAD:
            record[feature] = np.array(record[feature])
            record[feature][0] = number

    write_records(folder, task, spoil)


@pytest.mark.parametrize(
    "task, feature, number, use_cs",
    [
        ("gpt3", "input_ids", V, False),
        ("gpt3", "input_ids", V, True),
        ("bert", "masked_lm_positions", S + 1000, False),
        ("bert", "masked_lm_positions", S + 1000, True),
        ("tags", "label_ids", 3, True),
        ("classifier", "label", 2, False),
    ],
)
def test_a_step_with_a_number_that_the_model_lacks(tmp_path, use_cs, task, feature, number):
    write_bad(tmp_path, task, feature, number)
    params = make_params(tmp_path, task, 3)
    model, data = registry.load_model(params.model_name)
    estimator = make_estimator(model.model_fn, params, use_cs)
    with raises(DataError, tmp_path, number), file_errors_named(params, ["train_input"]):
        estimator.train(data.INPUTS.train, max_steps=3)


def test_records_of_pairs_are_checked_when_they_are_read(tmp_path):
    write_bad(tmp_path, "transformer", "target_ids", V)
    params = make_params(tmp_path, "transformer", 3)
    _, data = registry.load_model(params.model_name)
    with raises(DataError, tmp_path, "target_ids", V):
        data.INPUTS.processor(params.eval_input).create_dataset(False, 0)


@pytest.mark.parametrize("task", [task for task in TASKS if task != "transformer"])
def test_a_wrong_mask_ends_reading_though_no_step_fails_for_it(tmp_path, task):
    write_bad(tmp_path, task, "input_mask", -1)
    params = make_params(tmp_path, task, 3)
    with raises(DataError, tmp_path, "input_mask"), file_errors_named(params, ["eval_input"]):
        read_all(params)


@pytest.mark.parametrize(
    "task, feature, number",
    [
        ("gpt3", "input_ids", 2**32 + 1),
        ("gpt3", "labels", 1 - 2**32),
        ("bert", "masked_lm_ids", 2**63 - 1),
        ("tags", "label_ids", 2**31),
        ("classifier", "label", -(2**63)),
    ],
)
def test_a_number_beyond_int32_ends_reading(tmp_path, task, feature, number):
    write_bad(tmp_path, task, feature, number)
    params = make_params(tmp_path, task, 3)
    facts = tmp_path, feature, number, "int32"
    with raises(DataError, *facts), file_errors_named(params, ["eval_input"]):
        read_all(params)


def read_all(params):
    """Reads the batches of an evaluation up to the end."""
    _, data = registry.load_model(params.model_name)
    with tf.Graph().as_default(), tf.Session() as session:
        batches = data.INPUTS.eval(schema.as_tree(params))
        batch = tf.data.make_one_shot_iterator(batches).get_next()
        while True:
            session.run(batch)


def test_a_record_of_another_length_ends_reading(tmp_path):
    def cut(row, record):
        if row == BAD:
            record["labels"] = record["labels"][:-1]

    write_records(tmp_path, "gpt3", cut)
    params = make_params(tmp_path, "gpt3", 3)
    with raises(DataError, tmp_path, "labels"), file_errors_named(params, ["eval_input"]):
        read_all(params)


def test_an_error_of_another_cause_passes(tmp_path):
    write_records(tmp_path, "gpt3")
    params = make_params(tmp_path, "gpt3", 3)
    wrong = tf.errors.InvalidArgumentError(None, None, "x")
    raised = pytest.raises(tf.errors.InvalidArgumentError)
    with raised as caught, file_errors_named(params, ["eval_input"]):
        raise wrong
    assert caught.value is wrong
