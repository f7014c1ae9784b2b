"""Functions for tensors of layers: 16-bit storage at layer borders, and summaries.

Summaries of tensors on the wafer are off unless they are enabled while the model is built, because
each one sends a tensor from the wafer to the host. Summaries that a model writes with tf.summary
are not affected. These are ordinary TensorFlow operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Optional

import tensorflow as tf

_summaries_enabled: ContextVar[bool] = ContextVar("summaries_enabled", default=False)


@contextlib.contextmanager
def _summaries_set_to(enabled: bool) -> Iterator[None]:
    token = _summaries_enabled.set(enabled)
    try:
        yield
    finally:
        _summaries_enabled.reset(token)


def cs1_enable_summaries() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which models are built with summaries of tensors on the wafer."""
    return _summaries_set_to(True)


def cs1_disable_summaries() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which models are built without summaries of tensors on the wafer."""
    return _summaries_set_to(False)


def summarize_tensor(
    x: Any, is_gradient_tensor: bool = False, op_name_if_grad: Optional[str] = None
) -> Any:
    """Writes a histogram of a tensor if summaries are enabled.

    Args:
      x: a tensor. The histogram is called `NAME/activation` after its operation.
      is_gradient_tensor: the tensor is a gradient; the histogram is called `NAME/gradient`.
      op_name_if_grad: NAME for a gradient.

    Returns:
      `x`.
    """
    if _summaries_enabled.get():
        name, kind = x.op.name, "activation"
        if is_gradient_tensor:
            name, kind = op_name_if_grad or name, "gradient"
        with tf.compat.v1.get_default_graph().name_scope(None):  # tags begin with the scope
            tf.compat.v1.summary.histogram(f"{name}/{kind}", x)
    return x


def summary_layer(x: Any) -> Any:
    """Writes histograms of an activation and of its gradient if summaries are enabled.

    Args:
      x: a floating-point tensor, the output of a layer.

    Returns:
      `x`, or an identity of it that observes its gradient.
    """
    if not _summaries_enabled.get():
        return x
    name = x.op.name

    @tf.custom_gradient
    def observe(activation: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            with cs1_enable_summaries():  # gradients may be built outside the caller's context
                return summarize_tensor(upstream, is_gradient_tensor=True, op_name_if_grad=name)

        return tf.identity(activation), gradient

    summarize_tensor(x)
    return observe(x)


def boundary_cast(x: Any, name: Optional[str] = None, back_cast: bool = True) -> Any:
    """Stores a tensor in 16 bits at the border of a layer that computes in 32.

    The gradient is stored in 16 bits too.

    Args:
      x: a tensor; one that is not float32 is returned as it is.
      back_cast: return float32 again; without it the result is float16.

    Returns:
      `x` rounded to float16, as float32 if `back_cast`.
    """
    if x.dtype != tf.float32:
        return x
    with tf.name_scope(name or "boundary_cast"):
        stored = tf.cast(x, tf.float16)
        return tf.cast(stored, tf.float32) if back_cast else stored
