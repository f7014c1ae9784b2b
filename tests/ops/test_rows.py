"""Row rules against the plain kernels: rows that an op calls its own do not feel other rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from cerebras_tf.ir import Graph, TensorType
from cerebras_tf.kernels.codegen_source import POSITIONAL
from cerebras_tf.kernels.registry import evaluate
from cerebras_tf.ops import OPS, Builder, lookup
from cerebras_tf.ops.rows import Rows, across

RANDOM = np.random.default_rng(4)


def real(*shape: int) -> np.ndarray:
    """Numbers in (0.1, 0.9), in the domain of every op."""
    return RANDOM.uniform(0.1, 0.9, shape).astype(np.float32)


def whole(high: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, high, shape)


class Sample(NamedTuple):
    """A node, the number of row axes asked for, and what its rule must say."""

    op: str
    operands: tuple[np.ndarray, ...]
    attrs: dict[str, Any]
    over: int
    expected: Any


def sample(op: str, *operands: np.ndarray, over: int, expected: Any, **attrs: Any) -> Sample:
    return Sample(op, operands, attrs, over, expected)


FIRST = Rows((0,))
BOTH = Rows((0, 1))
SUM = Rows((0, 1), (), (0,))
LEFT = {"transpose_a": True, "transpose_b": False}
PLAIN_PRODUCT = {"transpose_a": False, "transpose_b": False}
IMAGE = {"strides": (1, 1), "padding": ((0, 0), (0, 0))}
CONV = {**IMAGE, "dilations": (1, 1)}
ONE_HOT = {"on_value": 1.0, "off_value": 0.0, "dtype": "float32"}
POOL = {"window": (2, 2), **IMAGE}
X = real(3, 5, 4)
SPECIAL = ["lgamma", "digamma", "erfinv", "ndtri"]
SPECIAL += [f"bessel_{kind}e" for kind in ("i0", "i1", "k0", "k1")]
SPECIAL_OF_TWO = ["igamma", "igammac", "igamma_grad_a", "polygamma", "zeta"]
SAMPLES = [
    sample("matmul", X, real(4, 6), over=2, expected=FIRST, **PLAIN_PRODUCT),
    sample("matmul", X, real(4, 6), over=1, expected=FIRST, **PLAIN_PRODUCT),
    sample("matmul", X, real(3, 4, 6), over=1, expected=BOTH, **PLAIN_PRODUCT),
    sample("matmul", X, real(3, 4, 6), over=2, expected=None, **PLAIN_PRODUCT),
    sample("matmul", real(5, 3), real(5, 4), over=1, expected=SUM, **LEFT),
    sample("matmul", real(5, 3), real(5, 4), over=2, expected=None, **LEFT),
    sample("layer_norm", X, real(4), real(4), over=2, expected=Rows((0,), (0, 1, 2)), epsilon=0.1),
    sample(
        "layer_norm_grad",
        *(X, real(3, 5, 4), real(4), real(3, 5), real(3, 5)),
        over=2,
        expected=Rows((0, 1, 3, 4), (0,), (1, 2)),
    ),
    sample("rms_norm", X, real(4), over=2, expected=Rows((0,), (0, 1)), epsilon=0.1),
    sample(
        *("rms_norm_grad", X, real(3, 5, 4), real(4), real(3, 5), real(3, 5, 4)),
        over=2,
        expected=Rows((0, 1, 3, 4), (0,), (1,)),
    ),
    sample(
        *("rotary", real(3, 5, 2, 4), real(1, 5, 1, 4), real(1, 5, 1, 4)),
        over=2,
        expected=Rows((0,), spread=(1, 2)),
        transposed=False,
    ),
    sample(
        *("rotary", real(3, 5, 2, 4), real(3, 5, 1, 4), real(3, 5, 1, 4)),
        over=2,
        expected=Rows((0, 1, 2)),
        transposed=True,
    ),
    *(sample(op, X, over=2, expected=FIRST) for op in ("softmax", "log_softmax")),
    *(sample(op, X, X, over=2, expected=BOTH) for op in ("softmax_grad", "log_softmax_grad")),
    sample("softmax", X, over=3, expected=None),
    *(
        sample(op, X, over=2, expected=FIRST, axis=2, **attrs)
        for op, attrs in {
            "argmax": {"dtype": "int64"},
            "argmin": {"dtype": "int64"},
            "cumsum": {"exclusive": False, "reverse": False},
            "cumprod": {"exclusive": False, "reverse": False},
            "cumulative_logsumexp": {"exclusive": False, "reverse": False},
        }.items()
    ),
    *(
        sample(op, X, over=2, expected=FIRST, keepdims=False, axes=(2,))
        for op in ("sum", "mean", "max", "min", "prod")
    ),
    *(
        sample(op, X > 0.5, over=2, expected=FIRST, keepdims=True, axes=(2,))
        for op in ("all", "any")
    ),
    sample("gather", real(9, 4), whole(9, 3, 5), over=2, expected=Rows((1,)), axis=0, batch_dims=0),
    sample("gather", X, whole(4, 2), over=2, expected=FIRST, axis=2, batch_dims=0),
    sample("gather", X, whole(5, 3, 2), over=1, expected=BOTH, axis=1, batch_dims=1),
    sample("gather", X, whole(5, 3, 2), over=2, expected=None, axis=1, batch_dims=1),
    sample("gather_nd", real(9, 4), whole(4, 3, 5, 2), over=2, expected=Rows((1,))),
    sample("scatter_add_rows", whole(6, 5), real(5, 4), over=1, expected=SUM, num_rows=6),
    sample("scatter_nd", whole(6, 5, 1), real(5, 4), over=1, expected=SUM, shape=(6, 4)),
    sample("unsorted_segment_sum", X, whole(2, 3, 5), np.array(2), over=2, expected=SUM),
    sample("top_k", X, over=2, expected=Rows((0,), (0, 1)), k=2, dtype="int32"),
    sample("sparse_softmax_xent", real(5, 4), whole(4, 5), over=1, expected=Rows((0, 1), (0, 1))),
    sample(
        "sparse_softmax_xent_grad",
        *(real(5), real(5, 4), whole(4, 5), real(5)),
        over=1,
        expected=Rows((0, 1, 2, 3)),
    ),
    sample("softmax_xent", real(5, 4), real(5, 4), over=1, expected=BOTH),
    sample("softmax_xent", real(5, 4), real(1, 4), over=1, expected=None),
    sample("softmax_xent_grad", real(5), real(5, 4), real(5, 4), over=1, expected=Rows((0, 1, 2))),
    sample(
        "linear_softmax_xent",
        *(real(5, 3), real(3, 4), whole(4, 5), real(4)),
        over=1,
        expected=Rows((0, 2), (0, 1)),
        transpose_weight=False,
    ),
    sample(
        "linear_softmax_xent_grad",
        *(real(5), real(5, 3), real(4, 3), whole(4, 5), real(5)),
        over=1,
        expected=Rows((0, 1, 3, 4), (0,), (1,)),
        transpose_weight=True,
    ),
    sample(
        "linear_softmax_xent_train",
        *(real(5), real(5, 3), real(4, 3), whole(4, 5), real(4)),
        over=1,
        expected=Rows((0, 1, 3), (0, 1), (2, 3)),
        transpose_weight=True,
    ),
    sample("reshape", X, over=2, expected=FIRST, shape=(3, 5, 2, 2)),
    sample("reshape", X, over=1, expected=None, shape=(15, 4)),
    sample("transpose", real(3, 5, 4, 2), over=2, expected=FIRST, permutation=(0, 1, 3, 2)),
    sample("transpose", real(3, 3), over=1, expected=None, permutation=(1, 0)),
    sample("broadcast_to", real(3, 1), over=1, expected=FIRST, shape=(3, 4)),
    sample("tile", X, over=2, expected=FIRST, multiples=(1, 1, 2)),
    sample("tile", X, over=1, expected=None, multiples=(2, 1, 1)),
    sample("one_hot", whole(4, 3, 5), over=2, expected=FIRST, **dict(ONE_HOT, depth=4, axis=-1)),
    sample("one_hot", whole(3, 3), over=1, expected=None, **dict(ONE_HOT, depth=3, axis=0)),
    sample("band_part", X, over=1, expected=FIRST, lower=1, upper=0),
    sample("band_part", X, over=2, expected=None, lower=1, upper=0),
    sample("diag_part", X, over=1, expected=FIRST),
    sample("slice", X, over=2, expected=FIRST, starts=(0, 0, 1), sizes=(3, 5, 2), strides=(1,) * 3),
    sample(
        "slice", X, over=1, expected=None, starts=(2, 0, 0), sizes=(3, 5, 4), strides=(-1, 1, 1)
    ),
    sample("place", X, over=2, expected=FIRST, shape=(3, 5, 9), starts=(0, 0, 2), strides=(1,) * 3),
    sample("pad", X, over=2, expected=FIRST, paddings=((0, 0), (0, 0), (1, 2)), value=0.0),
    sample("pad", X, over=2, expected=None, paddings=((0, 0), (1, 0), (0, 0)), value=0.0),
    sample("concat", X, real(3, 5, 2), over=2, expected=BOTH, axis=2),
    sample("concat", X, X, over=1, expected=None, axis=0),
    sample("reverse", X, over=2, expected=FIRST, axes=(2,)),
    sample("reverse", X, over=1, expected=None, axes=(0,)),
    sample("sum_of_squares", X, over=2, expected=Rows((0,), (), (0,))),
    sample("sum", X, over=2, expected=Rows((0,), (), (0,)), keepdims=False, axes=(0, 1)),
    sample("mean", X, over=1, expected=None, keepdims=False, axes=(0, 1)),
    sample("conv2d", real(3, 4, 4, 2), real(2, 2, 2, 5), over=1, expected=FIRST, **CONV),
    sample(
        "conv2d_input_grad",
        real(2, 2, 2, 5),
        real(3, 3, 3, 5),
        over=1,
        expected=Rows((1,)),
        size=(4, 4),
        **CONV,
    ),
    sample(
        "conv2d_filter_grad",
        real(3, 4, 4, 2),
        real(3, 3, 3, 5),
        over=1,
        expected=SUM,
        window=(2, 2),
        **CONV,
    ),
    sample("depthwise_conv2d", real(3, 4, 4, 2), real(2, 2, 2, 3), over=1, expected=FIRST, **CONV),
    sample(
        "depthwise_conv2d_input_grad",
        real(2, 2, 2, 3),
        real(3, 3, 3, 6),
        over=1,
        expected=Rows((1,)),
        size=(4, 4),
        **CONV,
    ),
    sample(
        "depthwise_conv2d_filter_grad",
        real(3, 4, 4, 2),
        real(3, 3, 3, 6),
        over=1,
        expected=SUM,
        window=(2, 2),
        **CONV,
    ),
    *(
        sample(op, real(3, 4, 4, 2), over=1, expected=FIRST, **POOL)
        for op in ("max_pool", "avg_pool")
    ),
    *(
        sample(op, real(3, 4, 4, 2), *rest, over=1, expected=Rows((0, 1, 2)), **POOL)
        for op, rest in {
            "max_pool_grad": (real(3, 3, 3, 2), real(3, 3, 3, 2)),
            "max_pool_select": (real(3, 3, 3, 2), real(3, 4, 4, 2)),
        }.items()
    ),
    sample("avg_pool_grad", real(3, 3, 3, 2), over=1, expected=FIRST, size=(4, 4), **POOL),
    sample(
        *("attention", *(real(3, 5, 2, 4) for _ in range(3)), real(3, 1, 1, 5)),
        over=1,
        expected=Rows((0, 1, 2, 3), (0, 1)),
        scale=0.5,
        causal=True,
    ),
    sample(
        *("attention_grad", *(real(3, 5, 2, 4) for _ in range(5)), real(3, 2, 5)),
        over=1,
        expected=Rows((0, 1, 2, 3, 4, 5), (0, 1, 2)),
        scale=0.5,
        causal=False,
    ),
    sample(
        *("attention", *(real(3, 5, 2, 4) for _ in range(3)), np.array(1), np.array([1, 2])),
        over=1,
        expected=None,
        scale=0.5,
        causal=False,
        rate=0.5,
        kept_scale=2.0,
    ),
    *(sample(op, X, over=2, expected=FIRST) for op in SPECIAL),
    *(sample(op, X, X, over=2, expected=BOTH) for op in SPECIAL_OF_TWO),
    sample("betainc", X, X, real(4), over=2, expected=BOTH),
    sample("add", X, real(3, 5, 1), over=2, expected=BOTH),
    sample("add", X, real(5, 4), over=2, expected=Rows((0,), spread=(1,))),
    sample("add", X, real(4), over=2, expected=FIRST),
]
ALIKE = {"cast": {"dtype": "float64"}}


def elementwise_samples() -> list[Sample]:
    """One of every elementwise op, all operands of one shape."""
    found = []
    for name, op in OPS.items():
        if op.elementwise and name not in POSITIONAL:
            count = 1
            logical = name.startswith("logical")
            if op.broadcasts:
                count = 3 if name == "select" else 2
            operands = [X > 0.5 if logical else real(*X.shape) for _ in range(count)]
            if name == "select":
                operands[0] = X > 0.5
            rows = Rows(tuple(range(count)))
            found.append(Sample(name, tuple(operands), ALIKE.get(name, {}), 2, rows))
    return found


def rows_of(case: Sample):
    b = Builder(Graph())
    types = [TensorType(array.dtype.name, array.shape) for array in case.operands]
    operands = [
        b.constant(array) if array.ndim == 0 else b.graph.add_input("x", type)
        for array, type in zip(case.operands, types)
    ]
    node = b.multi(case.op, *operands, **case.attrs)[0].node
    assert node is not None
    return lookup(case.op).rows(node, case.over)


CASES = [*SAMPLES, *elementwise_samples()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.over}")
def test_a_rule_says_what_is_expected(case):
    assert rows_of(case) == case.expected


# Spread operands are written out before rows are taken.
ROW_WISE = [case for case in CASES if case.expected is not None and not case.expected.spread]


@pytest.mark.parametrize("case", ROW_WISE, ids=lambda case: f"{case.op}-{case.over}")
def test_a_row_follows_from_its_own_rows(case):
    """The second row stays what it is when all others change; sums are those of their parts."""
    rows, found = case.expected, evaluate(case.op, case.operands, case.attrs)
    head = case.operands[rows.operands[0]].shape[: case.over]
    kept = np.zeros(head, bool)
    kept.flat[1] = True
    operands = list(case.operands)
    for i in rows.operands:
        mask = kept.reshape(head + (1,) * (operands[i].ndim - case.over))
        operands[i] = np.where(mask, operands[i], operands[i].flat[0])
    changed = evaluate(case.op, operands, case.attrs)
    for i in rows.outputs:
        np.testing.assert_array_equal(changed[i][kept], found[i][kept])
    parts = [with_rows(case, some) for some in (slice(0, 1), slice(1, None))]
    for i in rows.sums:
        np.testing.assert_allclose(parts[0][i] + parts[1][i], found[i], rtol=1e-5)


def with_rows(case, some):
    """Outputs where only some rows of the first axis are there; none where no output is a sum."""
    if not case.expected.sums:
        return None
    having = case.expected.operands
    operands = [x[some] if i in having else x for i, x in enumerate(case.operands)]
    return evaluate(case.op, operands, case.attrs)


def test_unknown_sizes_are_never_taken_to_be_equal():
    b = Builder(Graph())
    x, y = (b.graph.add_input("x", TensorType("float32", (None, 4))) for _ in range(2))
    assert lookup("add").rows(b.op("add", x, y).node, 1) is None


def test_every_op_that_has_rows_is_among_the_samples():
    claimed = {name for name, op in OPS.items() if op.rows is not across}
    assert sorted(claimed - {case.op for case in CASES} - {"fused_elementwise"}) == []
