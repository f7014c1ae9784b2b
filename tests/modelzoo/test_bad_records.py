"""A later record that a model cannot read is named, with file, number and feature."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.errors import BoundsError, DataError
from modelzoo.common.config import registry, schema
from modelzoo.common.train.estimator import make_estimator
from modelzoo.common.train.file_errors import file_errors_named
from tests.messages import names, raises
from tests.modelzoo.made_records import TASKS, S, V, make_params, write_records
from tests.reading import batches_of

BAD = 5  # number of the record
NUMBERS = [
    ("gpt3", "input_ids", V, V),
    ("gpt3", "labels", -1, V),
    ("gptj", "input_ids", V + 100, V),
    ("bert", "masked_lm_positions", S, S),
    ("bert", "masked_lm_ids", V, V),
    ("bert", "segment_ids", 2, 2),
    ("bert", "next_sentence_labels", 2, 2),
    ("bert by word", "masked_lm_ids", -2, V),
    ("classifier", "label", 2, 2),
    ("tags", "label_ids", 3, 3),
    ("answers", "end_positions", S, None),
    ("summaries", "labels", 2, 2),
    ("summaries", "cls_indices", S, S),
    ("transformer", "target_ids", V, V),
]
SIDES = [0, 3, 9, 12]  # of NUMBERS: tokens, positions, labels of tokens, sentences


def write_bad(folder, task, feature, number):
    """Writes records, one of them with a number at place 0 of a feature; returns their file."""

    def spoil(row, record):
        if row == BAD:
            record[feature] = np.array(record[feature])
            record[feature][0] = number

    write_records(folder, task, spoil)
    (path,) = folder.glob("*.tfrecord*")
    return path


def check(error, path, feature, number, below):
    """Asserts that an error names a number where it stands, and the numbers allowed."""
    assert str(error.value).startswith(f"{path}, record {BAD} (counted from 0): {feature} ")
    highest = "" if below is None else f"numbers from 0 to {below - 1}"
    assert names(error.value, highest, f"Received: {number} at place 0.")


@pytest.mark.parametrize("task, feature, number, below", NUMBERS)
def test_every_reader_names_it(tmp_path, task, feature, number, below):
    path = write_bad(tmp_path, task, feature, number)
    params = make_params(tmp_path, task, 3)
    _, data = registry.load_model(params.model_name)
    with pytest.raises(DataError) as error, file_errors_named(params, ["eval_input"]):
        data.INPUTS.processor(params.eval_input).create_dataset(False, 0)
        raise BoundsError("gather: indices must lie in [0, 40).")
    check(error, path, feature, number, below)


@pytest.mark.parametrize("use_cs", [False, True])
@pytest.mark.parametrize("task, feature, number, below", [NUMBERS[each] for each in SIDES])
def test_a_step_that_reads_it_names_it(tmp_path, use_cs, task, feature, number, below):
    path = write_bad(tmp_path, task, feature, number)
    params = make_params(tmp_path, task, 3)
    model, data = registry.load_model(params.model_name)
    estimator = make_estimator(model.model_fn, params, use_cs)
    with pytest.raises(DataError) as error, file_errors_named(params, ["train_input"]):
        estimator.train(data.INPUTS.train, max_steps=3)
    check(error, path, feature, number, below)


MASKED = [task for task in TASKS if task != "transformer"]


@pytest.mark.parametrize("task, number", list(zip(MASKED, itertools.cycle([5, -1, 2]))))
def test_a_wrong_mask_is_named_though_no_step_fails(tmp_path, task, number):
    path = write_bad(tmp_path, task, "input_mask", number)
    params = make_params(tmp_path, task, 3)
    with pytest.raises(DataError) as error, file_errors_named(params, ["eval_input"]):
        read_all(params)
    check(error, path, "input_mask", number, 2)


def read_all(params):
    """Reads the batches of an evaluation up to the end."""
    _, data = registry.load_model(params.model_name)
    return batches_of(lambda: data.INPUTS.eval(schema.as_tree(params)))


def test_a_record_of_another_length_is_named(tmp_path):
    def cut(row, record):
        if row == BAD:
            record["labels"] = record["labels"][:-1]

    write_records(tmp_path, "gpt3", cut)
    params = make_params(tmp_path, "gpt3", 3)
    facts = (f"record {BAD} (counted from 0): feature labels", f"{S} values of int64")
    with raises(DataError, *facts), file_errors_named(params, ["eval_input"]):
        read_all(params)


def test_an_error_of_another_cause_passes(tmp_path):
    write_records(tmp_path, "gpt3")
    params = make_params(tmp_path, "gpt3", 3)
    for error in (BoundsError("x"), tf.errors.InvalidArgumentError(None, None, "x")):
        with pytest.raises(type(error)) as raised, file_errors_named(params, ["eval_input"]):
            raise error
        assert raised.value is error
