"""Tensors of sizes, which attributes hold as numbers or Dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import numpy as np

from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Node, Size, TensorType, Value
from cerebras_tf.ir.dimensions import ensure_at_most, whole
from cerebras_tf.ops import rows
from cerebras_tf.ops.builder import Builder
from cerebras_tf.ops.registry import Attrs, Types, element_flops, register


def counts(b: Builder, dims: Union[Size, Sequence[Size]], dtype: str) -> Value:
    """Emits a scalar of one size, or a vector of several."""
    given = tuple(dims) if isinstance(dims, Sequence) else dims
    if all(isinstance(dim, int) for dim in (given if isinstance(given, tuple) else (given,))):
        return b.constant(np.array(given, TensorType(dtype, ()).numpy_dtype), dtype)
    return b.op("sizes", dims=given, dtype=dtype)


def counted(b: Builder, size: Size, step: Size, dtype: str, start: Size = 0) -> Value:
    """Emits the vector start, start + step, ... of `size` elements."""
    if isinstance(size, int) and isinstance(step, int) and isinstance(start, int):
        kind = TensorType(dtype, ()).numpy_dtype
        return b.constant(np.asarray(start + step * np.arange(size), kind), dtype)
    return b.op("iota", size=size, start=start, step=step, dtype=dtype)


def known_count(value: Value) -> Optional[Size]:
    """The size that a scalar holds; None if it depends on data."""
    node = value.node
    if value.constant is not None and value.constant.size == 1:
        return int(value.constant.reshape(()))
    if node is not None and node.op == "sizes" and value.type.rank == 0:
        return whole(node.attrs["dims"])
    return None


def _sizes_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """sizes(; dims, dtype): a scalar that is the size dims, or a vector of the sizes dims"""
    dims = attrs["dims"]
    for dim in dims if isinstance(dims, tuple) else (dims,):
        whole(dim)
    return [TensorType(attrs["dtype"], (len(dims),) if isinstance(dims, tuple) else ())]


def _iota_infer(inputs: Sequence[Value], attrs: Attrs) -> Types:
    """iota(; size, start, step, dtype): start, start + step, ... of size elements"""
    size = whole(attrs["size"])
    if not ensure_at_most(0, size):
        raise GraphError(
            f"iota: the size must not be negative. Received: {attrs}. Correct the range."
        )
    return [TensorType(attrs["dtype"], (size,))]


def _nothing(node: Node) -> Size:
    return 0


register("sizes", _sizes_infer, rows=rows.across, differentiable=False, flops=_nothing)
register("iota", _iota_infer, rows=rows.across, differentiable=False, flops=element_flops(2))
