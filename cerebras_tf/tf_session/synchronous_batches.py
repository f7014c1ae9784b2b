"""How a session takes batches: in the thread that runs the step, and several for one step.

TensorFlow passes a step between threads of its pool and of its iterators. This takes 0.2 to 0.4 ms
per step, and as much again because Python's memory is then in another core's cache.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import tensorflow as tf

from cerebras_tf.tf_compat.internals import dataset_ops, structure

_NAME = "IteratorGetNext"  # of tf.estimator's operation; hooks may fetch it by name


class SynchronousBatches(dataset_ops.DatasetV1Adapter):
    """A dataset whose iterator in a graph returns each batch in the calling thread."""

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


class StepBatches(dataset_ops.DatasetV1Adapter):
    """A dataset whose iterator in a graph takes all batches of a step, in order.

    Args:
        dataset: the batches.
        count: number of batches of a step.
        synchronous: whether they are returned in the calling thread.

    Attributes:
        batches: the batches of a step, once a graph takes them; `get_next` returns the first.
        operations: names of the operations that take them.
    """

    def __init__(self, dataset: Any, count: int, synchronous: bool) -> None:
        super().__init__(dataset)
        self.batches: list[Any] = []
        self.operations: list[str] = []
        self._count, self._synchronous = count, synchronous

    def _make_initializable_iterator(self, shared_name: Any = None) -> Any:
        iterator = super()._make_initializable_iterator(shared_name)
        iterator.get_next = functools.partial(
            self._next_batches,
            functools.partial(_next_batch, iterator) if self._synchronous else iterator.get_next,
        )
        return iterator

    def _next_batches(self, get_next: Any, name: str = _NAME) -> Any:
        before: list[Any] = []
        graph = tf.compat.v1.get_default_graph()
        for _ in range(self._count):
            known = len(graph.get_operations())
            with tf.control_dependencies(before), warnings.catch_warnings():
                # TensorFlow takes more than 32 operations for one that is called in a loop.
                warnings.filterwarnings("ignore", message="An unusually high number of")
                self.batches.append(get_next(name=name))
            new = graph.get_operations()[known:]
            self.operations += [op.name for op in new if op.type.startswith(_NAME)]
            before = tf.nest.flatten(self.batches[-1], expand_composites=True)[:1]
        return self.batches[0]


def are_synchronous(features: Any) -> bool:
    """Whether some of the features come from SynchronousBatches.

    tf.estimator does not recognize these and warns that predictions do not come from a dataset.
    """
    tensors = [item for item in tf.nest.flatten(features) if isinstance(item, tf.Tensor)]
    return any(tensor.op.type == "IteratorGetNextSync" for tensor in tensors)


def has_threads(batches: Any) -> bool:
    """Whether batches are a dataset with its own threads.

    This is `options.threading.private_threadpool_size` of tf.data.Options. The functions of other
    datasets use the session's thread pool.
    """
    if not isinstance(batches, tf.data.Dataset):
        return False
    with warnings.catch_warnings():
        # In a graph, TensorFlow warns that options it may add are not included.
        warnings.simplefilter("ignore", UserWarning)
        return (batches.options().threading.private_threadpool_size or 0) > 0


def without_pool(config: Any) -> Any:
    """A copy of a ConfigProto by which operations run in the calling thread.

    Returns None if the configuration sets threads.
    """
    asked = config.inter_op_parallelism_threads or config.session_inter_op_thread_pool
    if asked or config.use_per_session_threads:
        return None
    found = tf.compat.v1.ConfigProto()
    found.CopyFrom(config)
    found.inter_op_parallelism_threads = -1  # no pool
    return found
