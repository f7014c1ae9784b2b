"""Cycles of products: never below the ideal, and every cause where it belongs."""

from __future__ import annotations

import pytest

from cerebras_tf.wafer.cycles import Cycles, layout, product_cycles, resident_cycles, streamed_bytes
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.transformer import trained
from cerebras_tf.wafer.workload import ACTIVATIONS, GRADIENT, WEIGHTS, Product

SYSTEM = load_system()
SHAPES = [
    (133120, 4096, 16384),
    (247808, 2048, 2048),
    (20, 7, 5),
    (1, 4096, 4096),
    (4096, 100000, 64),
]


@pytest.mark.parametrize("kind", [WEIGHTS, GRADIENT, ACTIVATIONS])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_product_beats_the_peak(kind, shape):
    product = Product(kind, *shape)
    ideal = product.multiply_adds / (SYSTEM.cores * SYSTEM["simd"])
    found = product_cycles(product, SYSTEM)
    assert found.compute == pytest.approx(ideal)
    assert found.bubbles >= 0 and found.fabric >= 0 and found.sram == found.link == 0
    assert resident_cycles(product, SYSTEM.cores, SYSTEM).total > ideal


def test_a_layout_holds_the_product_on_the_wafer():
    for shape in SHAPES:
        found = layout(Product(WEIGHTS, *shape), SYSTEM)
        along = SYSTEM.rows if found.inputs_by_rows else SYSTEM.columns
        across = SYSTEM.columns if found.inputs_by_rows else SYSTEM.rows
        assert found.inputs * found.width >= shape[1]
        assert found.width * found.blocks <= along
        assert found.tokens * across * found.blocks >= shape[0]


def test_zeros_cost_no_cycle():
    dense, sparse = (Product(WEIGHTS, 65536, 12288, 12288, 1, d) for d in (1.0, 0.1))
    faster = product_cycles(dense, SYSTEM).total / product_cycles(sparse, SYSTEM).total
    assert 4 < faster < 10
    layer = trained("l", [sparse], 0, 0, 0)
    assert streamed_bytes(layer, SYSTEM) == pytest.approx(0.1 * 4 * 12288 * 12288)


def test_software_is_what_the_efficiency_leaves():
    found = Cycles(compute=3.0, fabric=1.0).at(0.25)
    assert found.total == pytest.approx(16.0) and found.software == pytest.approx(12.0)


def test_copies_of_a_product_count_as_often():
    one, many = Product(ACTIVATIONS, 128, 64, 128), Product(ACTIVATIONS, 128, 64, 128, 16)
    assert many.flops == 16 * one.flops and many.multiply_adds == 16 * one.multiply_adds
    assert product_cycles(many, SYSTEM).compute == pytest.approx(
        16 * product_cycles(one, SYSTEM).compute
    )


def test_zeros_of_matrices_are_not_sent_and_biases_are():
    dense, sparse = (
        trained("dense", [Product(WEIGHTS, 8, 32, 4, density=density)], 0, 0, 0, others=36)
        for density in (1.0, 0.25)
    )
    weight_bytes = SYSTEM["weight_bits"] / 8
    assert streamed_bytes(dense, SYSTEM) == (128 + 36) * weight_bytes
    assert streamed_bytes(sparse, SYSTEM) == (32 + 36) * weight_bytes
