"""Operations of the seven Cerebras-GPT models, against every figure published of them.

The figures have two digits: half a unit of the last is 2 % of 2.6e18, and 4.5 % of 1.1e21. A row is
met where the formula rounds to what is printed.
"""

from __future__ import annotations

import pytest

from modelzoo.common.scaling.law import AS_THE_LAW, ONCE, PUBLISHED, training_flops
from modelzoo.common.scaling.plan import FAMILY, SEQUENCE, VOCABULARY

STEPS = (9037, 9468, 21836, 24334, 49041, 62522, 116223)  # of the family's batches
# Dey et al. (2023): figures of pre-training, and those beside the Pile losses of the evaluation.
PRE_TRAINING = ("2.5e+18", "1.1e+19", "5.3e+19", "2.5e+20", "9.8e+20", "5.9e+21", "2.1e+22")
EVALUATION = ("2.6e+18", "1.3e+19", "6.1e+19", "2.8e+20", "1.1e+21", "6.3e+21", "2.3e+22")
LOSSES = (2.608, 2.349, 2.181, 1.997, 1.834, 1.704, 1.572)
# (1 - formula / printed) in percent; more than rounding can be for 111M alone.
RESIDUALS = {
    ONCE: (11.0, 1.4, -0.5, 0.1, 0.3, 0.8, -1.8),
    AS_THE_LAW: (-1.7, 1.8, -0.5, -0.6, 1.5, 0.3, 1.5),
}
# Comments of the published configurations.
FOUR_DIGITS = {"1.3B": "2.498e+20", "2.7B": "9.767e+20", "6.7B": "5.853e+21"}


def tokens_of(member):
    return STEPS[FAMILY.index(member)] * member.batch * SEQUENCE


def flops_of(member, attention):
    sizes = member.hidden, member.layers, member.heads, 4 * member.hidden
    return training_flops(*sizes, VOCABULARY, SEQUENCE, tokens_of(member), attention)


@pytest.mark.parametrize("member", FAMILY, ids=lambda member: member.name)
def test_the_law_s_count_rounds_to_each_figure_of_the_evaluation(member):
    number = FAMILY.index(member)
    found = flops_of(member, AS_THE_LAW)
    assert found == member.flops(tokens_of(member))
    assert f"{found:.1e}" == EVALUATION[number]
    residual = 100 * (1 - found / float(EVALUATION[number]))
    assert residual == pytest.approx(RESIDUALS[AS_THE_LAW][number], abs=0.06)
    assert PUBLISHED.loss(found) == pytest.approx(LOSSES[number], rel=0.01)


@pytest.mark.parametrize("member", FAMILY, ids=lambda member: member.name)
def test_attention_counted_once_rounds_to_the_figures_of_pre_training_but_111m(member):
    number = FAMILY.index(member)
    found = flops_of(member, ONCE)
    residual = 100 * (1 - found / float(PRE_TRAINING[number]))
    assert residual == pytest.approx(RESIDUALS[ONCE][number], abs=0.06)
    assert (f"{found:.1e}" == PRE_TRAINING[number]) == (member.name != "111M")
    if member.name in FOUR_DIGITS:
        assert f"{found:.3e}" == FOUR_DIGITS[member.name]


def test_no_count_of_products_gives_the_pre_training_figure_of_111m_and_two_others():
    """31 x 590M exceeds 45 x 111M + 5 x 2.7B in every product; in what is printed, it cannot."""
    small, middle, large = (FAMILY[number] for number in (0, 2, 4))

    def products(member):
        """Operations of a token in vocabulary, weights and attention, each of them once."""
        size, layers = member.hidden, member.layers
        return VOCABULARY * size, layers * size * size, layers * SEQUENCE * size

    for one, other, third in zip(*map(products, (small, middle, large))):
        assert 31 * other >= 45 * one + 5 * third

    def printed(member, digits):
        """What the figure may have been at most or at least before it was rounded, a token."""
        text = PRE_TRAINING[FAMILY.index(member)]
        return (float(text) + digits * float("1" + text[3:])) / tokens_of(member)

    most = 31 * printed(middle, 0.05)
    assert most < 45 * printed(small, -0.05) + 5 * printed(large, -0.05)
