"""Batches that a session takes in the thread that runs the step.

TensorFlow hands a step from thread to thread, of its pool and of its iterators: 0.2 to 0.4 ms a
step, and as much again for Python, whose memory is then in another core's cache.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import tensorflow as tf

# Private API of TF 2.15: tf.estimator makes the iterator itself, of any dataset.
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import structure

_NAME = "IteratorGetNext"  # of tf.estimator's operation, which hooks fetch by it


class SynchronousBatches(dataset_ops.DatasetV1Adapter):
    """A dataset whose iterator in a graph gives each batch where it is asked for.

    Args:
        dataset: a tf.data.Dataset.
    """

    def _make_initializable_iterator(self, shared_name: Any = None) -> Any:
        iterator = super()._make_initializable_iterator(shared_name)
        iterator.get_next = functools.partial(_next_batch, iterator)
        return iterator


def _next_batch(iterator: Any, name: str = _NAME) -> Any:
    resource = iterator._iterator_resource
    with tf.compat.v1.get_default_graph().colocate_with(resource.op):
        tensors = tf.raw_ops.IteratorGetNextSync(
            iterator=resource,
            output_types=iterator._flat_tensor_types,
            output_shapes=iterator._flat_tensor_shapes,
            name=name,
        )
        return structure.from_tensor_list(iterator.element_spec, tensors)


def are_synchronous(features: Any) -> bool:
    """Whether a step gets some of the features from SynchronousBatches.

    tf.estimator knows batches by another operation, and warns of predictions from no dataset.
    """
    tensors = [item for item in tf.nest.flatten(features) if isinstance(item, tf.Tensor)]
    return any(tensor.op.type == "IteratorGetNextSync" for tensor in tensors)


def has_threads(batches: Any) -> bool:
    """Whether something is a dataset whose functions have threads of their own.

    That is `options.threading.private_threadpool_size` of tf.data.Options. Functions of others
    share the session's pool.
    """
    if not isinstance(batches, tf.data.Dataset):
        return False
    with warnings.catch_warnings():
        # Options that TensorFlow may add by itself are not read here, of which it warns in a graph.
        warnings.simplefilter("ignore", UserWarning)
        return (batches.options().threading.private_threadpool_size or 0) > 0


def without_pool(config: Any) -> Any:
    """A session's configuration by which operations run where they are asked for.

    Between batches and a wafer's step stands little to compute.

    Args:
        config: a ConfigProto, which stays as it is.

    Returns:
        A copy; None where the configuration asks for threads.
    """
    asked = config.inter_op_parallelism_threads or config.session_inter_op_thread_pool
    if asked or config.use_per_session_threads:
        return None
    found = tf.compat.v1.ConfigProto()
    found.CopyFrom(config)
    found.inter_op_parallelism_threads = -1  # TensorFlow's number for it
    return found
