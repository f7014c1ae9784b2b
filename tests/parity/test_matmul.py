"""Parity of matrix products, bias additions and einsum with TensorFlow."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal

pytestmark = pytest.mark.tf


def _matmul(**transposes):
    return lambda x: tf.matmul(x[0], x[1], **transposes)


PRODUCTS = [
    ("matrices", _matmul(), (5, 7), (7, 3)),
    ("first_transposed", _matmul(transpose_a=True), (7, 5), (7, 3)),
    ("second_transposed", _matmul(transpose_b=True), (5, 7), (3, 7)),
    ("both_transposed", _matmul(transpose_a=True, transpose_b=True), (7, 5), (3, 7)),
    ("batch", _matmul(), (2, 3, 5, 7), (2, 3, 7, 4)),
    ("batch_scores", _matmul(transpose_b=True), (2, 3, 5, 7), (2, 3, 4, 7)),
    ("batch_first_transposed", _matmul(transpose_a=True), (2, 7, 5), (2, 7, 4)),
    ("batch_adjoints", _matmul(transpose_a=True, transpose_b=True), (2, 7, 5), (2, 4, 7)),
    ("batch_by_matrix", _matmul(), (2, 5, 7), (7, 4)),
    ("batch_by_transposed_matrix", _matmul(transpose_b=True), (2, 3, 5, 7), (4, 7)),
    ("transposed_batch_by_matrix", _matmul(transpose_a=True), (2, 7, 5), (7, 4)),
    ("matrix_by_batch", _matmul(), (5, 7), (2, 7, 4)),
    ("broadcast_batch", _matmul(transpose_b=True), (2, 1, 5, 7), (3, 4, 7)),
    ("vector_like", _matmul(), (1, 7), (7, 1)),
]


@pytest.mark.parametrize(
    ("build", "first", "second"), [pytest.param(*row, id=name) for name, *row in PRODUCTS]
)
def test_matmul_agrees_with_tensorflow(build, first, second):
    check_parity(build, [normal(*first), normal(*second, seed=1)], "matmul")


def test_matmul_of_integers_agrees_with_tensorflow():
    inputs = [integers(3, 4, high=9), integers(4, 5, high=9, seed=1)]
    check_parity(_matmul(), inputs, "matmul", gradient=False)


def test_matmul_marked_sparse_agrees_with_tensorflow():
    def build(x):
        return tf.matmul(x[0], x[1], transpose_b=True, a_is_sparse=True)

    check_parity(build, [normal(4, 5), normal(3, 5, seed=1)], "matmul")


BIASES = [
    ("NHWC", (2, 5, 7), 7),
    ("NHWC", (2, 3, 4, 5), 5),
    ("NCHW", (2, 5, 3, 4), 5),
    ("NCHW", (2, 5, 3), 5),
]


@pytest.mark.parametrize(("layout", "shape", "channels"), BIASES)
def test_bias_add_agrees_with_tensorflow(layout, shape, channels):
    def build(x):
        return tf.raw_ops.BiasAdd(value=x[0], bias=x[1], data_format=layout)

    check_parity(build, [normal(*shape), normal(channels)], "matmul")


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_bias_add_grad_agrees_with_tensorflow(layout):
    def build(x):
        return tf.raw_ops.BiasAddGrad(out_backprop=x[0], data_format=layout)

    check_parity(build, [normal(2, 3, 4, 5)], "matmul", gradient=False)


EINSUMS = [
    ("ble,bme->b", (2, 3, 4), (2, 5, 4)),  # sums out a label of each operand alone
    ("ij,jkl->ik", (2, 3), (3, 4, 5)),
    ("ab,bc->ac", (3, 4), (4, 5)),
    ("ab,cb->ac", (3, 4), (5, 4)),
    ("ab,bc->ca", (3, 4), (4, 5)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)),
    ("abc,cde->abde", (2, 3, 4), (4, 5, 6)),
    ("abcd,cde->abe", (2, 3, 4, 5), (4, 5, 6)),
    ("aecd,abcd->acbe", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("acbe,aecd->abcd", (2, 4, 6, 3), (2, 3, 4, 5)),
    ("BTNH,BFNH->BNFT", (2, 3, 4, 5), (2, 6, 4, 5)),
    ("...a,ab->...b", (2, 3, 4), (4, 5)),
    ("...ab,...bc->...ac", (2, 3, 4), (4, 5)),
    ("...ab,...bc->...ac", (3, 1, 3, 4), (2, 4, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("ij,j->i", (3, 4), (4,)),
    ("ijk,il->jl", (3, 4, 5), (3, 6)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bi,bj->bij", (2, 3), (2, 4)),
]


@pytest.mark.parametrize(("equation", "first", "second"), EINSUMS)
def test_einsum_of_two_operands_agrees_with_tensorflow(equation, first, second):
    def build(x):
        return tf.raw_ops.Einsum(inputs=x, equation=equation)

    check_parity(build, [normal(*first), normal(*second, seed=1)], "matmul")


@pytest.mark.parametrize("equation", ["ij->ji", "ij->j", "ij->", "...j->j..."])
def test_einsum_of_one_operand_agrees_with_tensorflow(equation):
    def build(x):
        return tf.raw_ops.Einsum(inputs=x, equation=equation)

    check_parity(build, [normal(3, 4)], "matmul")


@pytest.mark.parametrize("equation", ["ij,jk->ik", "abc,cde->abde", "abcd,cde->abe"])
def test_einsum_of_a_projection_needs_no_transpose(equation):
    shapes = {"ij,jk->ik": [(3, 4), (4, 5)]}.get(equation)
    if shapes is None:
        shapes = [(2, 3, 4, 5)[: len(equation.split(",")[0])], (4, 5, 6)]

    def build(x):
        return tf.raw_ops.Einsum(inputs=x, equation=equation)

    graph = check_parity(build, [normal(*shape) for shape in shapes], "matmul", gradient=False)
    assert "transpose" not in [node.op for node in graph.nodes]
