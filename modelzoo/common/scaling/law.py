"""The law L(f) = (f / a)^-b + c: loss in nats a token after f floating point operations.

Its form and the published constants are those of Dey et al., Cerebras-GPT (2023), arXiv 2304.03208.
"""

import math
from dataclasses import dataclass

import numpy as np

from cerebras_tf.errors import DataError

# Share of the least loss below which a constant is none.
_NOTHING = 1e-6
# Largest logarithm of a; what falls more slowly than that takes does not fall.
_MOST = 700
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Law:
    """A law.

    Attributes:
        a: operations at which the part that falls is one nat.
        b: how fast it falls.
        c: what is left after any number of operations.
    """

    a: float
    b: float
    c: float

    def loss(self, flops):
        """Loss in nats a token after that many operations."""
        return (flops / self.a) ** -self.b + self.c

    def flops(self, loss):
        """Operations after which the loss is reached; infinite where it never is."""
        return self.a * (loss - self.c) ** (-1 / self.b) if loss > self.c else math.inf

    def __str__(self):
        return f"L(f) = (f / {self.a:.4g})^-{self.b:.4g} + {self.c:.4g}"


# Pile test loss of the Cerebras-GPT family; f are FLOPs as `training_flops` counts them.
PUBLISHED = Law(5.984e22, 0.0737, 0.5066)


def fit_law(flops, losses):
    """Fits a law to runs, by least squares of logarithms.

    For a constant c, a and b are those of the line through log(L - c); c is the one whose law has
    the least squares of log L.
    """
    flops, losses = np.asarray(flops, float), np.asarray(losses, float)
    if len(set(flops)) < 3:
        raise DataError(
            "scaling fit: at least three runs with different compute must be given. Received: "
            f"{len(set(flops))}. Train more sizes."
        )
    if not flops.min() > 0:
        raise DataError(
            f"scaling fit: all runs must be trained. Received: a run of {flops.min():.4g} FLOP. "
            "Remove it."
        )
    slope = np.polyfit(np.log(flops), losses, 1)[0]
    if not slope < 0:
        raise _do_not_fall(flops, losses)
    low, high = 0.0, float(losses.min()) * (1 - 1e-6)
    for _ in range(80):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _line(flops, losses, left)[0] <= _line(flops, losses, right)[0]:
            high = right
        else:
            low = left
    c = 0.0 if high < _NOTHING * losses.min() else (low + high) / 2
    _, b, offset = _line(flops, losses, c)
    if not abs(offset) < _MOST * b:
        raise _do_not_fall(flops, losses)
    return Law(math.exp(offset / b), b, c)


def _do_not_fall(flops, losses):
    return DataError(
        "scaling fit: losses must decrease with compute. Received: "
        f"{', '.join(f'{loss:.4g}' for loss in losses[np.argsort(flops)])}. Train the larger "
        "models longer, or remove runs that were stopped early."
    )


def _line(flops, losses, c):
    """(error, b, b log a) of the best line through log(L - c) over log f, for one c."""
    x, falling = np.log(flops), np.log(losses - c)
    centred = x - x.mean()
    slope = centred @ falling / (centred @ centred)
    offset = falling.mean() - slope * x.mean()
    predicted = np.exp(offset + slope * x) + c
    return float(np.sum(np.log(predicted / losses) ** 2)), -slope, offset


# How often the products of attention count: in figures of pre-training, and in those of the law.
ONCE, AS_THE_LAW = 1, 2


def training_flops(
    hidden: int,
    layers: int,
    heads: int,
    filter: int,
    vocabulary: int,
    sequence: int,
    tokens: float,
    attention: int = AS_THE_LAW,
) -> float:
    """Operations of training a decoder with a tied output layer."""
    weights = 8 * hidden * hidden + 4 * hidden * filter
    scores = attention * 4 * sequence * hidden + 3 * sequence * heads
    return tokens * (10 * vocabulary * hidden + 3 * layers * (weights + scores))
