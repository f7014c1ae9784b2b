"""Workloads from sizes: parameters and operations are those of the published models."""

from __future__ import annotations

import pytest

from cerebras_tf.wafer.transformer import dense_network, transformer


def test_parameters_and_operations_of_gptj():
    found = transformer("gptj", 1, 4096, 28, 16, 16384, 50400, 2048, tied=False)
    assert found.parameters == pytest.approx(6.05e9, rel=0.01)
    assert found.flops == pytest.approx(77.6e12, rel=0.001)
    block = 8 * 4096**2 + 4 * 4096 * 16384 + 4 * 2048 * 4096
    assert found.flops == 3 * 2048 * (28 * block + 2 * 4096 * 50400)


def test_parameters_of_gpt3_xl():
    found = transformer("xl", 1, 2048, 24, 16, 8192, 50257, 2048)
    assert found.parameters == 1_315_723_264


def test_operations_of_bert_large():
    found = transformer("bert", 1, 1024, 24, 16, 4096, 30522, 128, 20)
    assert found.flops == pytest.approx(0.24e12, rel=0.01)


def test_a_batch_scales_what_a_sample_takes_and_no_weights():
    one, ten = (transformer("m", batch, 64, 2, 4, 256, 1000, 32) for batch in (1, 10))
    assert one.with_batch(10) == ten
    assert ten.flops == 10 * one.flops and ten.parameters == one.parameters


def test_blocks_are_segments():
    found = transformer("m", 1, 64, 3, 4, 256, 1000, 32)
    assert [len(segment) for segment in found.segments()] == [1, 2, 2, 2, 1]
    assert not list(dense_network("d", [4, 3], 1).segments())[1:]
