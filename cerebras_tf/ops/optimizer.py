"""Optimizers: new values of a variable and its slots from the current ones and a gradient.

Every formula except `lamb` works on whole variables and on rows gathered from them. Formulas are,
up to rounding, those of TensorFlow 2.15's kernels, dense and sparse (core/kernels/training_ops.cc);
parameters are named as in its operation definitions.

Legend: `var` is the variable, of any shape; slots (`m`, `accum`, ...) and `grad` have its shape.
Rates, decays and the like are scalars or Python numbers. All are of one floating dtype, except
`global_step`, int64. `beta1_power` is beta1 to the power of the step's number, from 1;
`beta2_power` likewise. `l1` and `l2` are the weights of |var| and var^2. Every function returns the
new values by the names of its parameters.
"""

from __future__ import annotations

from typing import Optional

from cerebras_tf.ops.expression import Expression, Scalar

Updates = dict[str, Expression]


def _moved(average: Expression, sample: Expression, decay: Scalar) -> Expression:
    """A moving average: decay average + (1 - decay) sample."""
    return average + (sample - average) * (1.0 - decay)


def gradient_descent(var: Expression, grad: Expression, lr: Scalar) -> Updates:
    """var -= lr grad"""
    return {"var": var - lr * grad}


def momentum(
    var: Expression,
    accum: Expression,
    grad: Expression,
    lr: Scalar,
    momentum: Scalar,
    use_nesterov: bool = False,
) -> Updates:
    """accum = momentum accum + grad; var -= lr accum.

    Nesterov's form: var -= lr (grad + momentum accum). Sutskever et al., On the Importance of
    Initialization and Momentum in Deep Learning, 2013, section 2, the rate outside of accum.
    """
    accum = accum * momentum + grad
    step = lr * grad + lr * momentum * accum if use_nesterov else lr * accum
    return {"var": var - step, "accum": accum}


def keras_momentum(
    var: Expression,
    accum: Expression,
    grad: Expression,
    lr: Scalar,
    momentum: Scalar,
    use_nesterov: bool = False,
) -> Updates:
    """accum = momentum accum - lr grad; var += accum.

    Nesterov's form: var += momentum accum - lr grad. Past gradients keep the rate of their step, as
    in Sutskever et al.
    """
    descent = lr * grad
    accum = accum * momentum - descent
    step = accum * momentum - descent if use_nesterov else accum
    return {"var": var + step, "accum": accum}


def adam(
    var: Expression,
    m: Expression,
    v: Expression,
    grad: Expression,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    beta1_power: Expression,
    beta2_power: Expression,
    epsilon: Scalar,
    use_nesterov: bool = False,
    vhat: Optional[Expression] = None,
) -> Updates:
    """m, v: moving averages of grad and grad^2; var -= rate m / (sqrt(v) + epsilon).

    rate = lr sqrt(1 - beta2_power) / (1 - beta1_power). Kingma & Ba, Adam, 2015, algorithm 1 in
    the order at the end of section 2: epsilon is not bias-corrected.

    Args:
        use_nesterov: beta1 m + (1 - beta1) grad instead of m; Dozat, Incorporating Nesterov
            Momentum into Adam, 2016.
        vhat: largest v so far, used instead of v. Reddi et al., On the
            Convergence of Adam and Beyond, 2018, algorithm 2 (AMSGrad).
    """
    rate = lr * ((1.0 - beta2_power).sqrt() / (1.0 - beta1_power))
    m = _moved(m, grad, beta1)
    v = _moved(v, grad.square(), beta2)
    updates = {"m": m, "v": v}
    if vhat is not None:
        v = updates["vhat"] = vhat.maximum(v)
    if use_nesterov:
        m = m * beta1 + (1.0 - beta1) * grad
    return {"var": var - m * rate / (v.sqrt() + epsilon), **updates}


def _corrected_direction(
    m: Expression, v: Expression, beta1_power: Expression, beta2_power: Expression, epsilon: Scalar
) -> Expression:
    """m / (sqrt(v) + epsilon), both averages bias-corrected."""
    return (m / (1.0 - beta1_power)) / ((v / (1.0 - beta2_power)).sqrt() + epsilon)


def adamw(
    var: Expression,
    m: Expression,
    v: Expression,
    grad: Expression,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    beta1_power: Expression,
    beta2_power: Expression,
    epsilon: Scalar,
    weight_decay: Scalar,
) -> Updates:
    """var -= lr (m' / (sqrt(v') + epsilon) + weight_decay var), with v' = v / (1 - beta2_power).

    Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2, the rate
    scaling both terms.
    """
    m, v = _moved(m, grad, beta1), _moved(v, grad.square(), beta2)
    direction = _corrected_direction(m, v, beta1_power, beta2_power, epsilon)
    return {"var": var - lr * (direction + weight_decay * var), "m": m, "v": v}


def lamb(
    var: Expression,
    m: Expression,
    v: Expression,
    grad: Expression,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    beta1_power: Expression,
    beta2_power: Expression,
    epsilon: Scalar,
    weight_decay: Scalar,
) -> Updates:
    """var -= lr |var| / |u| u, where u is the sum that `adamw` multiplies by lr.

    You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, 2020,
    algorithm 2, phi the identity. The ratio of the Euclidean norms is 1 where one of them is 0.
    The norms are of a whole variable, so rows of a table are not supported.
    """
    m, v = _moved(m, grad, beta1), _moved(v, grad.square(), beta2)
    update = _corrected_direction(m, v, beta1_power, beta2_power, epsilon) + weight_decay * var
    length, step = var.square().sum().sqrt(), update.square().sum().sqrt()
    ratio = (length > 0.0).select((step > 0.0).select(length / step, 1.0), 1.0)
    return {"var": var - lr * ratio * update, "m": m, "v": v}


def ada_max(
    var: Expression,
    m: Expression,
    v: Expression,
    grad: Expression,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    beta1_power: Expression,
    epsilon: Scalar,
) -> Updates:
    """v = max(beta2 v, |grad|); var -= lr / (1 - beta1_power) m / (v + epsilon).

    Kingma & Ba, Adam, 2015, algorithm 2; epsilon is TensorFlow's.
    """
    m = _moved(m, grad, beta1)
    v = (beta2 * v).maximum(abs(grad))
    step = lr / (1.0 - beta1_power) * (m / (v + epsilon))
    return {"var": var - step, "m": m, "v": v}


def rms_prop(
    var: Expression,
    ms: Expression,
    mom: Expression,
    grad: Expression,
    lr: Scalar,
    rho: Scalar,
    momentum: Scalar,
    epsilon: Scalar,
    mg: Optional[Expression] = None,
) -> Updates:
    """ms: moving average of grad^2; mom = momentum mom + lr grad / sqrt(ms + epsilon); var -= mom.

    Tieleman & Hinton, Neural Networks for Machine Learning, lecture 6.5, 2012.

    Args:
        mg: moving average of grad, whose square is subtracted from ms; Graves, Generating
            Sequences With Recurrent Neural Networks, 2013, equations 38 to 41.
    """
    ms = _moved(ms, grad.square(), rho)
    updates, below = {"ms": ms}, ms + epsilon
    if mg is not None:
        mg = updates["mg"] = _moved(mg, grad, rho)
        below = below - mg.square()
    mom = mom * momentum + lr * grad * below.rsqrt()
    return {"var": var - mom, "mom": mom, **updates}


def adagrad(
    var: Expression,
    accum: Expression,
    grad: Expression,
    lr: Scalar,
    epsilon: Optional[Scalar] = None,
    update_slots: bool = True,
) -> Updates:
    """accum += grad^2; var -= lr grad / (sqrt(accum) + epsilon).

    Duchi et al., Adaptive Subgradient Methods, 2011, section 1.1, with a diagonal matrix.

    Args:
        epsilon: nothing is added if it is None.
        update_slots: whether accum is updated.
    """
    if update_slots:
        accum = accum + grad.square()
    below = accum.sqrt() if epsilon is None else accum.sqrt() + epsilon
    updates = {"var": var - lr * grad / below}
    return {**updates, "accum": accum} if update_slots else updates


def adadelta(
    var: Expression,
    accum: Expression,
    accum_update: Expression,
    grad: Expression,
    lr: Scalar,
    rho: Scalar,
    epsilon: Scalar,
) -> Updates:
    """update = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) grad; var -= lr update.

    accum and accum_update are moving averages of grad^2 and of earlier steps' update^2. Zeiler,
    ADADELTA, 2012, algorithm 1; lr is TensorFlow's.
    """
    accum = _moved(accum, grad.square(), rho)
    update = (accum_update + epsilon).sqrt() * (accum + epsilon).rsqrt() * grad
    return {
        "var": var - update * lr,
        "accum": accum,
        "accum_update": _moved(accum_update, update.square(), rho),
    }


def add_sign(
    var: Expression,
    m: Expression,
    grad: Expression,
    lr: Scalar,
    alpha: Scalar,
    sign_decay: Scalar,
    beta: Scalar,
) -> Updates:
    """m: moving average of grad; var -= lr (alpha + sign_decay sign(grad) sign(m)) grad.

    Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017.
    """
    m = _moved(m, grad, beta)
    agreement = sign_decay * (grad.sign() * m.sign())
    return {"var": var - lr * ((alpha + agreement) * grad), "m": m}


def power_sign(
    var: Expression,
    m: Expression,
    grad: Expression,
    lr: Scalar,
    logbase: Scalar,
    sign_decay: Scalar,
    beta: Scalar,
) -> Updates:
    """m: moving average of grad; var -= lr e^(logbase sign_decay sign(grad) sign(m)) grad.

    Bello et al., Neural Optimizer Search with Reinforcement Learning, 2017.
    """
    m = _moved(m, grad, beta)
    agreement = sign_decay * (grad.sign() * m.sign())
    return {"var": var - lr * ((logbase * agreement).exp() * grad), "m": m}


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
        l2_shrinkage: weight of var^2 in the loss itself: 2 l2_shrinkage var is added to the
            gradient in linear, and not in accum.
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
