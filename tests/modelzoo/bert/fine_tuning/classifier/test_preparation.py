"""Tests of classifier/preparation.py: records give the batches that the files give."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from modelzoo.bert.fine_tuning.classifier.data import PROCESSORS
from modelzoo.bert.fine_tuning.classifier.params import ClassifierInput, GlueRecordsInput
from modelzoo.bert.fine_tuning.classifier.preparation import Settings, prepare
from tests.modelzoo.bert.fine_tuning.made_data import write_mnli, write_vocabulary

SHAPE = {"max_sequence_length": 24, "batch_size": 5, "shuffle": False, "repeat": False}


def batches(section):
    """All batches of an evaluation, as arrays."""
    processor = PROCESSORS[section.data_processor](section)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(processor.create_dataset(False, 1)).get_next()
        found = []
        while True:
            try:
                found.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return found


@pytest.mark.parametrize("buckets", [None, (8, 16)])
def test_records_give_the_batches_that_the_files_give(tmp_path, buckets):
    data, vocab = write_mnli(tmp_path / "mnli"), str(write_vocabulary(tmp_path))
    settings = Settings(vocab, "MnliDataProcessor", max_seq_length=24)
    manifest = prepare(str(data), "eval", str(tmp_path / "records"), settings)
    assert manifest["counts"]["records"] == 48
    keys = {**SHAPE, "buckets": buckets}
    files = ClassifierInput("MnliDataProcessor", str(data), vocab_file=vocab, **keys)
    records = GlueRecordsInput(
        "GlueTfRecordsProcessor",
        str(tmp_path / "records/eval"),
        vocab_size=28,
        has_parts=True,
        n_parallel_reads=1,
        **keys,
    )
    ours, theirs = batches(records), batches(files)
    assert len(ours) == len(theirs) == 9 and len(ours[-1][1]) == 3
    for (features, labels), (expected, expected_labels) in zip(ours, theirs):
        assert set(features) == set(expected)
        np.testing.assert_array_equal(labels, expected_labels)
        for name, value in expected.items():
            np.testing.assert_array_equal(features[name], value, err_msg=name)
