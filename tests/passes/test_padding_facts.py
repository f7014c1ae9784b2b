"""What is said of padding where no attention is found."""

from __future__ import annotations

from cerebras_tf.passes.padding_facts import without_attention
from tests.token_steps import BATCH, LENGTH, TokenStep


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
        assert "softmax" in reason and "not known" in reason


def test_a_model_without_attention_is_told_where_that_was_asked():
    s = TokenStep()
    step = s.done(loss=s.total(s.embed(s.tokens())))
    assert without_attention(step.graph, asked=False) == ""
    assert "no attention" in without_attention(step.graph, asked=True)
