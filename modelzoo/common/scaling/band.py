"""How far the loss that a fitted law predicts may be off: its confidence interval.

The law is a regression of log L with three parameters, whose inference band is that of Bates and
Watts (1988), Nonlinear Regression Analysis and Its Applications, section 2.3: the prediction's
standard error, by the parameters' covariance at the fit, times a quantile of Student's t.
"""

import math

import numpy as np

from cerebras_tf.errors import DataError
from modelzoo.common.scaling.law import fit_law

_PARAMETERS = 3
NO_BAND = "no interval: at least four runs with different compute and decreasing losses are needed"


def interval(flops, losses, at, share=0.9):
    """(least, most) losses, which hold that of the true law with a confidence of `share`.

    That is where runs scatter about the law alike, in log L. The constant c counts as free where it
    is 0, too, which widens the interval there rather than making it too narrow.

    Returns:
        The losses, of the shape of `at`; None of fewer than four different FLOPs, or where losses
        do not fall.
    """
    flops, losses, at = (np.asarray(values, float) for values in (flops, losses, at))
    if len(set(flops)) <= _PARAMETERS:
        return None
    try:
        law = fit_law(flops, losses)
    except DataError:
        return None
    freedom = len(flops) - _PARAMETERS
    residuals = np.log(losses / law.loss(flops))
    root = np.asarray(np.linalg.qr(_slopes(law, flops), mode="r"))
    spread = np.linalg.solve(root.T, _slopes(law, at).reshape(-1, _PARAMETERS).T)
    errors = np.sqrt(residuals @ residuals / freedom * np.sum(spread**2, axis=0))
    factor = np.exp(student_quantile(share, freedom) * errors.reshape(at.shape))
    return law.loss(at) / factor, law.loss(at) * factor


def _slopes(law, flops):
    """How log L changes with log a^b, b and c, relative to the loss: [..., 3]."""
    falling = (flops / law.a) ** -law.b
    changes = (falling, -falling * np.log(flops / law.a), np.ones_like(falling))
    return np.stack(changes, axis=-1) / law.loss(flops)[..., None]


def student_quantile(share, freedom):
    """The t for which [-t, t] contains a share of Student's distribution."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _share_within(angle, freedom) < share else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _share_within(angle, freedom):
    """Abramowitz and Stegun (1964), 26.7.3 and 26.7.4, where t is sqrt(freedom) tan(angle)."""
    is_odd = freedom % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    terms = [term] if freedom > 1 else []
    for k in range(3 if is_odd else 2, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        terms.append(term)
    total = math.sin(angle) * sum(terms)
    return 2 / math.pi * (angle + total) if is_odd else total
