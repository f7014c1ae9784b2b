"""Optimizer steps that draw weights towards 0: proximal steps, dual averaging and FTRL.

Legend, names and sources as in `optimizer`; `l1` and `l2` weigh |var| and var^2. Nothing is left
out where l1 is 0: the formulas hold there too.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ops.expression import Expression, Scalar
from cerebras_tf.ops.optimizer import Updates


def _shrunk(x: Expression, threshold: Scalar) -> Expression:
    """sign(x) max(|x| - threshold, 0)"""
    return x.sign() * (abs(x) - threshold).relu()


def _proximal(
    var: Expression, grad: Expression, rate: Scalar, l1: Scalar, l2: Scalar
) -> Expression:
    """The step var - rate grad, shrunk by rate l1, divided by 1 + rate l2.

    Duchi & Singer, Efficient Online and Batch Learning Using Forward Backward Splitting, 2009,
    section 5.
    """
    return _shrunk(var - rate * grad, rate * l1) / (rate * l2 + 1.0)


def proximal_gradient_descent(
    var: Expression, grad: Expression, lr: Scalar, l1: Scalar, l2: Scalar
) -> Updates:
    """var = shrunk(var - lr grad, lr l1) / (1 + lr l2)"""
    return {"var": _proximal(var, grad, lr, l1, l2)}


def proximal_adagrad(
    var: Expression, accum: Expression, grad: Expression, lr: Scalar, l1: Scalar, l2: Scalar
) -> Updates:
    """accum += grad^2, then a proximal step with the rate lr / sqrt(accum) of every element."""
    accum = accum + grad.square()
    return {"var": _proximal(var, grad, lr * accum.rsqrt(), l1, l2), "accum": accum}


def adagrad_da(
    var: Expression,
    gradient_accumulator: Expression,
    gradient_squared_accumulator: Expression,
    grad: Expression,
    lr: Scalar,
    l1: Scalar,
    l2: Scalar,
    global_step: Expression,
) -> Updates:
    """var = -lr shrunk(sum, l1 t) / (l2 t lr + sqrt(squares)) at step t.

    sum and squares add up all gradients and their squares. Duchi et al., Adaptive Subgradient
    Methods, 2011, section 5.1: dual averaging, which does not read var.
    """
    step = global_step.cast_like(grad)
    total = gradient_accumulator + grad
    squares = gradient_squared_accumulator + grad.square()
    below = l2 * (step * lr) + squares.sqrt()
    return {
        "var": -(lr * _shrunk(total, l1 * step) / below),
        "gradient_accumulator": total,
        "gradient_squared_accumulator": squares,
    }


def ftrl(
    var: Expression,
    accum: Expression,
    linear: Expression,
    grad: Expression,
    lr: Scalar,
    l1: Scalar,
    l2: Scalar,
    lr_power: Scalar,
    l2_shrinkage: Optional[Scalar] = None,
    multiply_linear_by_lr: bool = False,
) -> Updates:
    """var = (l1 sign(linear) - linear) / (new^p / lr + 2 l2), and 0 where |linear| <= l1.

    p = -lr_power; new = accum + grad^2; linear += grad - (new^p - accum^p) / lr var. McMahan et
    al., Ad Click Prediction: a View from the Trenches, 2013, algorithm 1 with beta 0; the power,
    0.5 there, and twice the l2 are TensorFlow's.

    Args:
        l2_shrinkage: weighs var^2 in the loss itself: 2 l2_shrinkage var joins the gradient in
            linear, and not in accum.
        multiply_linear_by_lr: linear holds lr times as much.
    """
    new = accum + grad.square()
    if l2_shrinkage is not None:
        grad = grad + l2_shrinkage * 2.0 * var
    root = new**-lr_power
    growth = (root - accum**-lr_power) * var
    l2 = l2 * 2.0
    if multiply_linear_by_lr:
        linear = linear + (grad * lr - growth)
        l1, below = l1 * lr, root + l2 * lr
    else:
        linear = linear + (grad - growth / lr)
        below = root / lr + l2
    weight = (linear.sign() * l1 - linear) / below
    return {"var": (abs(linear) > l1).select(weight, 0.0), "accum": new, "linear": linear}
