"""Positions that a step reads at: those of real tokens of the same sequence, else padding stays."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.errors import PaddingError
from cerebras_tf.ir import print_graph
from cerebras_tf.passes.padding_analysis import HostValues, without_attention
from cerebras_tf.passes.remove_padding import remove_padding
from tests.token_steps import BATCH, LENGTH, WIDTH, TokenStep, arrays_of, computed

# Weights of the tokens that count, wherever they stand; sequence 1 has none.
SCATTERED = np.zeros((BATCH, LENGTH), "f")
SCATTERED[0, [2, 3, 7]], SCATTERED[2, [0, 2]], SCATTERED[3, :5] = 0.5, 1.5, 1.0


def crosswise(weights, position=None, at=None):
    """What builds a decoder whose tokens see the encoder's alone, and the arrays for it.

    Args:
        weights: of the tokens' losses, float32 [B, S].
        position: one whose row of every sequence counts too.
        at: of positions as data, int32 [B, P].
    """

    def build():
        s = TokenStep()
        memory = s.embed(s.tokens(), "memory")
        y = s.attend(s.embed(s.tokens("target_ids")), s.mask_bias(s.tokens("mask")), memory)
        y = s.feed(y)
        losses = s.b.op(
            "mul", s.token_losses(y, s.tokens("labels")), s.tokens("weights", "float32")
        )
        loss = s.total(losses)
        if position is not None:
            sizes = (BATCH, 1, WIDTH)
            row = s.b.op("slice", y, starts=(0, position, 0), sizes=sizes, strides=(1, 1, 1))
            loss = s.b.op("add", loss, s.total(s.b.op("tanh", row)))
        if at is not None:
            indices = s.feature("at", *at.shape, dtype="int32")
            rows = s.b.op("gather", y, indices, axis=1, batch_dims=1)
            loss = s.b.op("add", loss, s.total(s.b.op("tanh", rows)))
        return s.learn(loss)

    given = {**arrays_of(build()), "weights": weights}
    if at is not None:
        given["at"] = at
    return build, given


def check_stripped(build, given):
    step = build()
    assert remove_padding(step) is None
    wanted, found = computed(build(), given), computed(step, given)
    largest = max(np.abs(value).max() for value in wanted.values())
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, 1e-5, 1e-6 * largest, err_msg=name)
    return step


def refused(build, given):
    step = build()
    assert remove_padding(step) is None
    with pytest.raises(PaddingError) as raised:
        computed(step, given)
    return str(raised.value)


def test_tokens_that_count_may_stand_anywhere_and_be_none():
    step = check_stripped(*crosswise(SCATTERED))
    assert [space.kind for space in step.packing.spaces] == ["bias", "list"]


def test_a_position_in_a_list_of_tokens_is_that_of_the_padded_sequence():
    weights = SCATTERED.copy()
    weights[:, 3] = 1.0
    check_stripped(*crosswise(weights, position=3))
    assert "reads at a position that is padding" in refused(*crosswise(SCATTERED, position=3))


def test_the_first_token_with_a_weight_is_not_taken_for_position_0():
    weights = np.ones((BATCH, LENGTH), "f")
    weights[0, 0] = 0
    assert "reads at a position that is padding" in refused(*crosswise(weights, position=0))


@pytest.mark.parametrize("sequence, outside", [(1, -1), (0, LENGTH), (BATCH - 1, LENGTH), (0, -1)])
def test_a_position_outside_of_its_sequence_is_not_one_of_its_neighbour(sequence, outside):
    weights, at = np.ones((BATCH, LENGTH), "f"), np.zeros((BATCH, 2), "int32")
    check_stripped(*crosswise(weights, at=at))
    at[sequence, 1] = outside
    assert "reads at a position that is padding" in refused(*crosswise(weights, at=at))


def test_an_error_of_any_kind_leaves_the_step_as_it_was(monkeypatch):
    def fail(*args):
        raise ZeroDivisionError

    step = crosswise(SCATTERED, position=3)[0]()
    before, inputs = print_graph(step.graph), list(step.graph.inputs)
    monkeypatch.setattr(HostValues, "check_positions", fail)
    with pytest.raises(ZeroDivisionError):
        remove_padding(step)
    assert print_graph(step.graph) == before and step.graph.inputs == inputs


def test_attention_of_another_form_is_named():
    """A mask that chooses among scores is not known."""
    s = TokenStep()
    x = s.embed(s.tokens())
    scores = s.b.op("matmul", x, x, transpose_a=False, transpose_b=True)
    hidden = s.b.op("cast", s.tokens("mask"), dtype="bool")
    hidden = s.b.op("reshape", hidden, shape=(BATCH, 1, LENGTH))
    chosen = s.b.op("select", hidden, s.b.constant(-1e9, "float32"), scores)
    weights = s.b.op("softmax", chosen)
    joined = s.b.op("matmul", weights, x, transpose_a=False, transpose_b=False)
    step = s.done(loss=s.total(s.first(joined)))
    for asked in (False, True):
        reason = without_attention(step.graph, asked)
        assert "softmax" in reason and "attention" in reason


def test_a_model_without_attention_is_told_where_that_was_asked():
    s = TokenStep()
    step = s.done(loss=s.total(s.embed(s.tokens())))
    assert without_attention(step.graph, asked=False) == ""
    assert "no attention" in without_attention(step.graph, asked=True)
