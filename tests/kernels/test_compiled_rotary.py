"""Compiled rotary position embedding against the plain form in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.compare import check_compiled

RANDOM = np.random.default_rng(5)
NEAR = (1e-6, 1e-6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("table", [(2, 5, 1, 8), (1, 5, 1, 8), (5, 1, 8), (8,), (2, 5, 3, 8)])
def test_every_broadcast_table_equals_the_plain_kernel(table, transposed):
    x = RANDOM.standard_normal((2, 3, 5, 8)).astype("f").transpose(0, 2, 1, 3)
    cos, sin = (RANDOM.standard_normal(table).astype("f") for _ in range(2))
    check_compiled("rotary", [x, cos, sin], NEAR, transposed=transposed)
    check_compiled("rotary", [np.ascontiguousarray(x), cos, sin], NEAR, transposed=transposed)


def test_no_rows_and_many_rows():
    for rows in (0, 3000):
        x, cos, sin = (RANDOM.standard_normal((rows, 64)).astype("f") for _ in range(3))
        check_compiled("rotary", [x, cos, sin], NEAR, transposed=False)
