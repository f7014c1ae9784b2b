"""Multi-head attention with the batch first, against torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from unittest import mock

from cerebras_tf.capture_torch.multi_head_attention import multi_head_attention_forward

LENGTH, OTHER, ROWS, WIDTH, HEADS = 5, 7, 3, 8, 2


def masks(*shape):
    torch.manual_seed(1)
    found = torch.rand(shape) < 0.4
    found[..., 0] = False
    return found


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "kind,settings,given",
    [
        ("self", {}, {}),
        ("self", {"bias": False}, {"key_padding_mask": masks(ROWS, LENGTH)}),
        ("self", {}, {"attn_mask": masks(LENGTH, LENGTH)}),
        ("self", {}, {"attn_mask": torch.randn(ROWS * HEADS, LENGTH, LENGTH)}),
        ("self", {}, {"attn_mask": torch.triu(torch.ones(5, 5), 1).bool(), "is_causal": True}),
        ("cross", {}, {"key_padding_mask": masks(ROWS, OTHER)}),
        ("keys", {}, {"attn_mask": masks(LENGTH, OTHER), "key_padding_mask": masks(ROWS, OTHER)}),
        ("self", {"add_bias_kv": True}, {}),
        ("self", {}, {"need_weights": True}),
    ],
    ids=str,
)
def test_results_and_gradients_equal_torchs(kind, settings, given, batch_first):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **settings)
    query = torch.randn(ROWS, LENGTH, WIDTH)
    key = query if kind == "self" else torch.randn(ROWS, OTHER, WIDTH)
    value = torch.randn(ROWS, OTHER, WIDTH) if kind == "keys" else key
    inputs = [x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
    if kind == "self":
        inputs = [inputs[0]] * 3
    found = []
    name = "multi_head_attention_forward"
    for function in (
        torch.nn.functional.multi_head_attention_forward,
        multi_head_attention_forward,
    ):
        layer.zero_grad()
        with mock.patch.object(torch.nn.functional, name, function):
            output, _ = layer(*inputs, **{"need_weights": False, **given})
        output.square().sum().backward()
        found.append([output, *(p.grad for p in layer.parameters())])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
