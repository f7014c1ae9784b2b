"""Reads what runs and preparations write: checkpoints, events, records and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow.compat.v1 as tf


def variables_of(checkpoint: Any) -> dict[str, np.ndarray]:
    """Content of a checkpoint, or of the latest of a folder, by name."""
    reader = tf.train.load_checkpoint(str(checkpoint))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Same names, types, shapes and bits."""
    assert set(found) == set(wanted)
    for name, content in wanted.items():
        assert (found[name].dtype, found[name].shape) == (content.dtype, content.shape), name
        np.testing.assert_array_equal(found[name], content, err_msg=name)
        assert found[name].tobytes() == content.tobytes(), name


def all_scalars(folder: Any) -> list[tuple[tuple[int, str], float]]:
    """((step, tag), value) of all that a folder's event files hold, in the order of writing."""
    return [
        ((event.step, value.tag), value.simple_value)
        for path in sorted(Path(folder).glob("events*"))
        for event in tf.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def scalars_of(folder: Any) -> dict[tuple[int, str], float]:
    """Value by (step, tag) of a folder's event files."""
    return dict(all_scalars(folder))


def records_of(folder: Any) -> list[dict[str, list[Any]]]:
    """The features of a folder's records by name, in the order of its files."""
    return [
        {
            name: list(feature.int64_list.value or feature.float_list.value)
            for name, feature in tf.train.Example.FromString(data).features.feature.items()
        }
        for path in sorted(Path(folder).glob("*.tfrecord*"))
        for data in tf.io.tf_record_iterator(str(path))
    ]


def batches_of(make: Callable[[], Any], count: Optional[int] = None) -> list[Any]:
    """The first batches of the dataset that `make` returns; all without `count`."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(make())
        session.run(iterator.initializer)
        following, found = iterator.get_next(), []
        while count is None or len(found) < count:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                break
        return found
