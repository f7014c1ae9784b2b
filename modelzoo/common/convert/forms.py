"""In which form a tensor of another program is stored here; every form can be undone bit for bit.

`output_axis` of a form is the axis of a weight there that a bias is added to. Shapes: N input
features, M output features, H heads, D head size, R rotated features of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Same:
    """The variable is the tensor."""

    output_axis = -1

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of `shape`."""
        return [tuple(shape)]

    def to_ours(self, array):
        """Returns the variables made of a tensor."""
        return [array]

    def to_theirs(self, arrays):
        """Returns the tensor made of the variables."""
        return arrays[0]


@dataclass(frozen=True)
class Transposed:
    """The variable is the transpose: a weight [M, N] of PyTorch is a kernel [N, M]."""

    output_axis = 0

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of `shape`."""
        return [tuple(reversed(shape))]

    def to_ours(self, array):
        """Returns the variables made of a tensor."""
        return [array.T]

    def to_theirs(self, arrays):
        """Returns the tensor made of the variables."""
        return arrays[0].T


@dataclass(frozen=True)
class Thirds:
    """Queries, keys and values stand side by side on the last axis, as in GPT-2's ``c_attn``."""

    output_axis = -1

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of `shape`."""
        return [(*shape[:-1], shape[-1] // 3)] * 3

    def to_ours(self, array):
        """Returns the variables made of a tensor."""
        return np.split(array, 3, axis=-1)

    def to_theirs(self, arrays):
        """Returns the tensor made of the variables."""
        return np.concatenate(arrays, axis=-1)


@dataclass(frozen=True)
class FusedHeads:
    """Queries, keys and values alternate head by head, as in GPT-NeoX's ``query_key_value``.

    The weight is [H * 3 * D, N], the bias [H * 3 * D]. Of every head's queries and keys the first
    R features are rotated in pairs. There, the pairs are (j, j + R / 2); here, as in Su et al.
    (RoFormer, 2021, equation 34), they are (2j, 2j + 1). Which is which is a matter of naming:
    with the features put into the other order, the scores are the same.
    """

    heads: int
    rotary_dim: int
    output_axis = 0

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of `shape`."""
        return [tuple(reversed((shape[0] // 3, *shape[1:])))] * 3

    def to_ours(self, array):
        """Returns the variables made of a tensor."""
        fused = array.reshape(self.heads, 3, -1, *array.shape[1:])  # (H, 3, D[, N])
        order = self._order(fused.shape[2])
        parts = (fused[:, 0][:, order], fused[:, 1][:, order], fused[:, 2])
        return [part.reshape(-1, *array.shape[1:]).T for part in parts]

    def to_theirs(self, arrays):
        """Returns the tensor made of the variables."""
        parts = [array.T.reshape(self.heads, -1, *array.shape[:-1]) for array in arrays]
        back = np.argsort(self._order(parts[0].shape[1]))
        fused = np.stack([parts[0][:, back], parts[1][:, back], parts[2]], axis=1)
        return fused.reshape(-1, *arrays[0].shape[:-1])

    def _order(self, head_size):
        order = np.arange(head_size)
        half = self.rotary_dim // 2
        order[0 : self.rotary_dim : 2] = np.arange(half)
        order[1 : self.rotary_dim : 2] = np.arange(half, self.rotary_dim)
        return order


@dataclass(frozen=True)
class Preceded:
    """The tensor has rows of zeros before those of the variable, which nothing reads."""

    rows: int
    output_axis = -1

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of `shape`."""
        return [(shape[0] - self.rows, *shape[1:])]

    def to_ours(self, array):
        """Returns the variables made of a tensor."""
        return [array[self.rows :]]

    def to_theirs(self, arrays):
        """Returns the tensor made of the variables."""
        zeros = np.zeros((self.rows, *arrays[0].shape[1:]), arrays[0].dtype)
        return np.concatenate([zeros, arrays[0]])


@dataclass(frozen=True)
class Zeros:
    """The tensor is of zeros, of the given shape, and there is no variable."""

    shape: tuple[int, ...]
    output_axis = -1

    def our_shapes(self, shape):
        """Returns the shapes of the variables made of a tensor of `shape`: none."""
        return []

    def to_ours(self, array):
        """Returns the variables made of a tensor: none."""
        return []

    def to_theirs(self, arrays):
        """Returns the tensor."""
        return np.zeros(self.shape, np.float32)


SAME, TRANSPOSED, THIRDS = Same(), Transposed(), Thirds()
