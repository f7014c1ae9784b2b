"""Shape and dtype rules that families share."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import GraphError
from cerebras_tf.ops.inference import broadcast_shapes, normalize_axes
from tests.messages import raises


@pytest.mark.parametrize(
    "shapes",
    [[(2, 3), (3,)], [(2, 1), (1, 3)], [(), (4,)], [(5, 1, 3), (4, 1), (3,)], [(0, 1), (3,)]],
)
def test_broadcast_shapes_agrees_with_numpy(shapes):
    assert broadcast_shapes(shapes) == np.broadcast_shapes(*shapes)


def test_a_known_size_wins_over_an_unknown_one_and_that_over_1():
    assert broadcast_shapes([(None, 1), (3, None)]) == (3, None)


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(GraphError):
        broadcast_shapes([(2, 3), (2, 4)])


@pytest.mark.parametrize(
    ("axes", "expected"), [(None, (0, 1, 2)), (-1, (2,)), ([2, 0], (0, 2)), ((1, -2), (1,))]
)
def test_normalize_axes_sorts_and_counts_from_the_front(axes, expected):
    assert normalize_axes(axes, 3) == expected


@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_beyond_the_rank_is_refused(axis):
    with raises(GraphError, "[-3, 3)"):
        normalize_axes(axis, 3)
