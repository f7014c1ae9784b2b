"""Derivatives by central differences, the oracle of gradients, for functions in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

STEP = 1e-6


def gradient_of(function: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    """Gradient of a scalar function, element by element."""
    gradient = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        move = np.zeros_like(x)
        move[at] = 1.0
        gradient[at] = slope(lambda moved: function(*moved), [x], 0, move)
    return gradient


def slope(
    function: Callable[[Sequence[np.ndarray]], np.ndarray],
    arrays: Sequence[np.ndarray],
    index: int,
    direction: np.ndarray,
) -> np.ndarray:
    """Derivative of a function of several arrays along a direction of one of them."""
    ahead, behind = (
        function([*arrays[:index], arrays[index] + step * direction, *arrays[index + 1 :]])
        for step in (STEP, -STEP)
    )
    return (ahead - behind) / (2 * STEP)
