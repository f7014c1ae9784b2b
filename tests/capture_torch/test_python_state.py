"""Values that traced code changes are found, also where several have one name."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is an extra")

from cerebras_tf.capture_torch.python_state import keeping_values
from cerebras_tf.errors import UnsupportedOpError
from tests.messages import raises


def counter():
    count = 0

    def function():
        nonlocal count
        count += 1

    return function


@pytest.mark.parametrize("changing", [0, 1])
def test_each_of_two_variables_of_one_name_must_keep_its_value(changing):
    counters = counter(), counter()
    with keeping_values("model", "", *counters):
        pass
    with raises(UnsupportedOpError, "count", 0, 1), keeping_values("model", "", *counters):
        counters[changing]()
