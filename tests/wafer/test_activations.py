"""What stays on the wafer, what is computed twice and what spills."""

from __future__ import annotations

import pytest

from cerebras_tf.wafer.activations import largest_batch, plan_activations
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.transformer import transformer

SYSTEM = load_system()
# hidden, layers, heads, vocabulary, batch a system as shipped with R1.7.1
SHIPPED = {
    "gpt3_xl": (2048, 24, 16, 50257, 66),
    "gptj_6b": (4096, 28, 16, 50400, 65),
    "gpt3_6p7b": (4096, 32, 32, 50257, 65),
    "gpt3_13b": (5120, 40, 40, 50257, 60),
    "gpt_neox_20b": (6144, 44, 64, 50432, 50),
}


def model(name, batch=None):
    hidden, layers, heads, vocabulary, shipped = SHIPPED[name]
    return transformer(name, batch or shipped, hidden, layers, heads, 4 * hidden, vocabulary, 2048)


def test_kept_bytes_are_those_of_one_tensor_a_block():
    for name, gigabytes in (("gptj_6b", 30.5), ("gpt3_6p7b", 35.0), ("gpt_neox_20b", 55.4)):
        kept = plan_activations(model(name), SYSTEM)
        assert kept.recomputes
        # One more tensor than blocks, that of the embedding.
        assert kept.kept_bytes / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_batches_that_fit_are_in_the_order_of_those_that_shipped():
    largest = [largest_batch(model(name), SYSTEM) for name in SHIPPED]
    assert largest == sorted(largest, reverse=True)
    assert len(set(largest)) == len(largest)


def test_models_from_6p7b_on_spill_at_their_batches_and_say_how_much():
    spilled = {n: predict_streaming(model(n), SYSTEM).activations.spilled_bytes for n in SHIPPED}
    assert spilled["gpt3_xl"] == 0
    for name in ("gpt3_6p7b", "gpt3_13b", "gpt_neox_20b"):
        assert spilled[name] > 1e9
    assert spilled["gpt3_6p7b"] < spilled["gpt3_13b"] < spilled["gpt_neox_20b"]


def test_spilled_bytes_travel_out_and_back():
    spilling, fitting = (predict_streaming(model("gpt3_13b", b), SYSTEM) for b in (60, 8))
    assert fitting.activations.spilled_bytes == 0
    weights = 4 * spilling.workload.parameters
    spilled = spilling.activations.spilled_bytes
    assert sum(item.bytes_out for item in fitting.layers) == pytest.approx(weights)
    assert sum(item.bytes_out for item in spilling.layers) == pytest.approx(weights + spilled)
    assert sum(item.bytes_in for item in spilling.layers) == pytest.approx(2 * weights + spilled)


def test_a_batch_that_fits_is_not_recomputed():
    small = plan_activations(model("gpt3_xl", 1), SYSTEM)
    assert not small.recomputes and small.spilled_bytes == 0
    assert largest_batch(model("gpt3_xl"), SYSTEM) > 66


def test_nothing_is_kept_without_a_backward_pass():
    from dataclasses import replace

    training = model("gpt3_xl")
    layers = tuple(replace(layer, backward=()) for layer in training.layers)
    found = plan_activations(replace(training, layers=layers), SYSTEM)
    assert found.kept_bytes == 0 and not found.recomputes


def test_no_batch_fits_where_one_sample_spills():
    one = transformer("long", 1, 5120, 40, 40, 20480, 50257, 131072)
    assert plan_activations(one, SYSTEM).spilled_bytes and largest_batch(one, SYSTEM) == 0
