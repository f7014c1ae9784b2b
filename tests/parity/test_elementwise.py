"""Parity of elementwise ops with TensorFlow, forward and gradient, special values included."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.parity.harness import check_parity, integers, normal, uniform

pytestmark = pytest.mark.tf
raw = tf.raw_ops

UNARY_ON_REALS = [
    "Abs",
    "Asinh",
    "Atan",
    "Cos",
    "Elu",
    "Erf",
    "Erfc",
    "Exp",
    "Expm1",
    "LeakyRelu",
    "Neg",
    "Relu",
    "Relu6",
    "Selu",
    "Sigmoid",
    "Sin",
    "Softplus",
    "Softsign",
    "Square",
    "Tan",
    "Tanh",
]
UNARY_ON_POSITIVE = ["Inv", "Log", "Log1p", "Reciprocal", "Rsqrt", "Sqrt"]
UNARY_ON_UNIT_INTERVAL = ["Acos", "Asin", "Atanh", "Sinh", "Cosh"]
STEPS = ["Ceil", "Floor", "Rint", "Round", "Sign"]
TESTS_OF_VALUES = ["IsFinite", "IsInf", "IsNan"]


def _unary(op_type):
    operand = "features" if op_type in FEATURES else "x"
    return lambda x: getattr(raw, op_type)(**{operand: x[0]})


FEATURES = ("Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Softplus", "Softsign")
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 6.0, 30.0, -30.0, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("op_type", UNARY_ON_REALS)
def test_unary_agrees_with_tensorflow(op_type):
    check_parity(_unary(op_type), [normal(4, 33, scale=2.0)], "elementwise")


@pytest.mark.parametrize("op_type", UNARY_ON_POSITIVE)
def test_unary_on_positive_numbers_agrees_with_tensorflow(op_type):
    check_parity(_unary(op_type), [uniform(4, 33)], "elementwise")


@pytest.mark.parametrize("op_type", UNARY_ON_UNIT_INTERVAL)
def test_unary_on_the_unit_interval_agrees_with_tensorflow(op_type):
    check_parity(_unary(op_type), [uniform(4, 33, low=-0.9, high=0.9)], "elementwise")


def test_acosh_agrees_with_tensorflow():
    check_parity(_unary("Acosh"), [uniform(40, low=1.2, high=9.0)], "elementwise")


@pytest.mark.parametrize("op_type", STEPS)
def test_step_functions_agree_with_tensorflow_at_halves(op_type):
    inputs = [np.arange(-3, 3, 0.25, np.float32)]
    check_parity(_unary(op_type), inputs, "elementwise")


SPECIAL_VALUES_OF = ["Abs", "Elu", "Erf", "Exp", "Expm1", "LeakyRelu", "Log", "Log1p", "Reciprocal"]
SPECIAL_VALUES_OF += [
    "Relu",
    "Relu6",
    "Rsqrt",
    "Selu",
    "Sigmoid",
    "Sign",
    "Softplus",
    "Sqrt",
    "Tanh",
]


@pytest.mark.parametrize("op_type", SPECIAL_VALUES_OF)
def test_special_values_and_their_gradients_agree_with_tensorflow(op_type):
    check_parity(_unary(op_type), [SPECIAL], "elementwise")


@pytest.mark.parametrize("op_type", [*TESTS_OF_VALUES, "Erfc", "Floor", "Round", "Softsign"])
def test_special_values_agree_with_tensorflow(op_type):
    check_parity(_unary(op_type), [SPECIAL], "elementwise", gradient=False)


@pytest.mark.parametrize("op_type", ["Abs", "Relu", "Relu6", "Elu", "Selu", "LeakyRelu"])
def test_gradients_at_kinks_agree_with_tensorflow(op_type):
    kinks = np.array([0.0, -0.0, 6.0, 100.0, -100.0], np.float32)
    check_parity(_unary(op_type), [kinks], "elementwise")


BROADCASTS = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (5,)), ((1,), (3, 4))]
BINARY = [
    "Add",
    "AddV2",
    "Atan2",
    "Div",
    "DivNoNan",
    "FloorMod",
    "Maximum",
    "Minimum",
    "Mul",
    "Pow",
    "RealDiv",
    "SquaredDifference",
    "Sub",
    "Xdivy",
    "Xlog1py",
    "Xlogy",
]


def _binary(op_type):
    first, second = ("y", "x") if op_type == "Atan2" else ("x", "y")
    return lambda x: getattr(raw, op_type)(**{first: x[0], second: x[1]})


@pytest.mark.parametrize(("first", "second"), BROADCASTS)
@pytest.mark.parametrize("op_type", BINARY)
def test_binary_agrees_with_tensorflow(op_type, first, second):
    inputs = [uniform(*first), uniform(*second, seed=1)]
    check_parity(_binary(op_type), inputs, "elementwise")


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Maximum", "Minimum", "DivNoNan"])
def test_binary_of_signed_numbers_agrees_with_tensorflow(op_type):
    check_parity(_binary(op_type), [normal(5, 7), normal(5, 7, seed=1)], "elementwise")


@pytest.mark.parametrize("op_type", ["Maximum", "Minimum"])
def test_equal_operands_share_the_gradient_as_in_tensorflow(op_type):
    check_parity(_binary(op_type), [SPECIAL[:7], SPECIAL[:7].copy()], "elementwise")


@pytest.mark.parametrize("op_type", ["DivNoNan", "Xdivy", "Xlogy", "Xlog1py"])
def test_zeros_agree_with_tensorflow(op_type):
    x = np.array([0.0, 0.0, 0.0, 2.0], np.float32)
    y = np.array([0.0, 1.0, -1.0, 0.5], np.float32)
    check_parity(_binary(op_type), [x, y], "elementwise")


PAIRS = [pair.ravel() for pair in np.meshgrid(SPECIAL, SPECIAL)]


@pytest.mark.parametrize(
    "op_type", ["DivNoNan", "Maximum", "Minimum", "Mul", "RealDiv", "SquaredDifference"]
)
def test_pairs_of_special_values_and_their_gradients_agree_with_tensorflow(op_type):
    check_parity(_binary(op_type), PAIRS, "elementwise")


@pytest.mark.parametrize("op_type", ["Atan2", "FloorDiv", "FloorMod", "Pow"])
def test_pairs_of_special_values_agree_with_tensorflow(op_type):
    check_parity(_binary(op_type), PAIRS, "elementwise", gradient=False)


def test_floor_div_takes_the_rounded_quotient():
    inputs = [np.array([1.0, 0.7, -0.3], np.float32), np.array([0.1, 0.1, 0.1], np.float32)]
    check_parity(_binary("FloorDiv"), inputs, "elementwise", gradient=False)


def test_power_of_zero_and_negative_bases_agrees_with_tensorflow():
    base = np.array([0.0, 0.0, -2.0, -2.0, 3.0], np.float32)
    exponent = np.array([1.0, 2.0, 2.0, 3.0, 0.0], np.float32)
    check_parity(_binary("Pow"), [base, exponent], "elementwise")


def test_power_with_a_constant_exponent_agrees_with_tensorflow():
    check_parity(lambda x: tf.pow(x[0], 3.0), [normal(4, 5)], "elementwise")


INTEGERS = ["Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "Maximum", "Pow"]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op_type", INTEGERS)
def test_integer_arithmetic_agrees_with_tensorflow(op_type, dtype):
    x = np.array([7, -7, 7, -7, 0, 6, 2**31 - 1], dtype)
    y = np.array([2, 2, -2, -2, 3, 3, 10], dtype)
    if op_type == "Pow":
        x, y = np.array([2, -3, 0, 5], dtype), np.array([5, 3, 2, 0], dtype)
    check_parity(_binary(op_type), [x, y], "elementwise", gradient=False)


@pytest.mark.parametrize("op_type", ["FloorDiv", "Mod"])
def test_division_of_signed_floats_agrees_with_tensorflow(op_type):
    inputs = [normal(5, 7, scale=4.0), normal(5, 7, seed=1)]
    check_parity(_binary(op_type), inputs, "elementwise", gradient=False)


COMPARISONS = ["Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"]


@pytest.mark.parametrize("op_type", COMPARISONS)
def test_comparisons_agree_with_tensorflow(op_type):
    check_parity(_binary(op_type), PAIRS, "elementwise", gradient=False)


def test_logic_agrees_with_tensorflow():
    def build(x):
        first, second = x[0] > 0, x[1] > 0
        return [first & second, first | second, ~first, tf.math.logical_xor(first, second)]

    inputs = [normal(4, 5), normal(4, 5, seed=1)]
    check_parity(build, inputs, "elementwise", gradient=False)


CONDITIONS = [((3, 4), (3, 4), (3, 4)), ((3, 1), (3, 4), (4,)), ((), (3, 4), (3, 4))]


@pytest.mark.parametrize(("condition", "first", "second"), CONDITIONS)
def test_select_agrees_with_tensorflow(condition, first, second):
    def build(x):
        return tf.where(x[0] > 0, x[1], x[2])

    inputs = [normal(*condition), normal(*first, seed=1), normal(*second, seed=2)]
    check_parity(build, inputs, "elementwise")


@pytest.mark.parametrize("condition", [(), (3,), (3, 4)])
def test_select_of_version_1_chooses_rows_by_a_vector(condition):
    def build(x):
        return raw.Select(condition=x[0] > 0, x=x[1], y=x[2])

    inputs = [normal(*condition, seed=5), normal(3, 4, seed=1), normal(3, 4, seed=2)]
    check_parity(build, inputs, "elementwise")


CASTS = [("float32", "int32"), ("int32", "float32"), ("bool", "float32"), ("float32", "bool")]
CASTS += [("int64", "int32"), ("float32", "float64"), ("float32", "float32")]


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_cast_agrees_with_tensorflow(source, target):
    array = np.array([0.0, 1.0, 2.7, -2.7, 5.0]).astype(source)
    check_parity(lambda x: tf.cast(x[0], target), [array], "elementwise")


def test_add_n_agrees_with_tensorflow():
    inputs = [normal(3, 4, seed=seed) for seed in range(4)]
    check_parity(lambda x: tf.add_n(x), inputs, "elementwise")


def test_clip_by_value_agrees_with_tensorflow():
    check_parity(lambda x: tf.clip_by_value(x[0], -0.5, 1.0), [normal(5, 7)], "elementwise")


def test_forwarding_ops_add_no_node():
    def build(x):
        y = raw.PreventGradient(input=tf.identity(x[0]))
        return raw.Snapshot(input=y)

    graph = check_parity(build, [normal(3)], "elementwise", gradient=False)
    assert graph.nodes == []


def test_stop_gradient_stops_the_gradient():
    def build(x):
        return x[0] * tf.stop_gradient(tf.tanh(x[0]))

    check_parity(build, [normal(5)], "elementwise")


# Gradient ops: operands that are a cotangent and the forward op's operand or result.
GRADIENTS = [
    ("ReluGrad", "gradients", "features"),
    ("Relu6Grad", "gradients", "features"),
    ("LeakyReluGrad", "gradients", "features"),
    ("EluGrad", "gradients", "outputs"),
    ("SeluGrad", "gradients", "outputs"),
    ("SoftplusGrad", "gradients", "features"),
    ("SoftsignGrad", "gradients", "features"),
    ("TanhGrad", "dy", "y"),
    ("SigmoidGrad", "dy", "y"),
    ("RsqrtGrad", "dy", "y"),
    ("SqrtGrad", "dy", "y"),
    ("InvGrad", "dy", "y"),
    ("ReciprocalGrad", "dy", "y"),
]


@pytest.mark.parametrize(("op_type", "cotangent", "other"), GRADIENTS)
def test_gradient_ops_agree_with_tensorflow(op_type, cotangent, other):
    def build(x):
        return getattr(raw, op_type)(**{cotangent: x[0], other: x[1]})

    features = np.concatenate([normal(30, seed=1), SPECIAL[[0, 2, 3, 4]]])
    inputs = [normal(34), features if other != "y" else uniform(34, seed=1)]
    check_parity(build, inputs, "elementwise", gradient=False)


ACTIVATIONS = ["elu", "exponential", "gelu", "hard_sigmoid", "mish", "selu", "softplus", "softsign"]
ACTIVATIONS += ["swish", "tanh", "sigmoid", "relu"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_keras_activations_agree_with_tensorflow(name):
    check_parity(lambda x: tf.keras.activations.get(name)(x[0]), [normal(6, 9)], "elementwise")


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_agrees_with_tensorflow(approximate):
    """1 + tanh (or erf) cancels for negative numbers: the tolerance is that of sums."""
    inputs = [normal(6, 9, scale=2.0)]
    check_parity(lambda x: tf.nn.gelu(x[0], approximate=approximate), inputs, "reduction")


def test_integers_take_no_gradient():
    inputs = [integers(4, high=5), normal(4)]
    check_parity(lambda x: tf.cast(x[0], tf.float32) * x[1], inputs, "elementwise")
