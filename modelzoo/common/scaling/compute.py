"""Floating point operations of training, counted as the published law of Cerebras-GPT counts them.

Letters: H hidden size, F filter size, A attention heads, L layers, V vocabulary, S sequence.

Dey et al. (2023), arXiv 2304.03208, print two figures for every model of the family. Those of
pre-training follow Hoffmann et al. (2022), arXiv 2203.15556, appendix F: the look-up in the
embedding counts as the product that it stands for, its input needs no gradient, and a token takes
10 V H + 3 L (8 H^2 + 4 H F + 4 S H + 3 S A). Those that stand beside the losses of the evaluation,
which the law is fitted to, come out where the products of attention, 4 S H, count twice.
"""

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
