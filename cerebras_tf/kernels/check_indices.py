"""The check of what gathers and scatters are told to read or write: nothing wraps, none is clamped.

TensorFlow refuses such positions too; NumPy counts negative ones from the end.
"""

from __future__ import annotations

import numpy as np

from cerebras_tf.errors import BoundsError


def check_positions(indices: np.ndarray, count: int, where: str) -> None:
    """Raises for a position that is not in [0, count).

    Args:
        indices: integers of any shape.
        count: rows of the table.
        where: the operation, for the message.

    Raises:
        BoundsError: names the first such position.
    """
    if not indices.size or (indices.min() >= 0 and indices.max() < count):
        return
    flat = indices.reshape(-1)
    at = int(np.flatnonzero((flat < 0) | (flat >= count))[0])
    raise BoundsError(
        f"{where}: indices must lie in [0, {count}). Received: {flat[at]} at position {at} of "
        f"{flat.size}. Correct the indices or the size of the table."
    )
