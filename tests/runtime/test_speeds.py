"""The measured speeds are those of some machine, and measured once."""

from __future__ import annotations

from cerebras_tf.ir.program import Cost
from cerebras_tf.ops.cost import Speeds
from cerebras_tf.runtime.speeds import measured_speeds


def test_speeds_are_measured_once_and_are_a_machines():
    speeds = measured_speeds()
    assert 1e8 < speeds.flops_per_s < 1e14
    assert 1e8 < speeds.bytes_per_s < 1e13
    assert measured_speeds() is speeds


def test_an_instruction_takes_as_long_as_its_slower_side():
    speeds = Speeds(flops_per_s=100.0, bytes_per_s=10.0)
    assert speeds.seconds(Cost(flops=1000, bytes_read=20, bytes_written=10)) == 10.0
    assert speeds.seconds(Cost(flops=100, bytes_read=20, bytes_written=10)) == 3.0


def test_products_in_bfloat16_have_a_speed_of_their_own():
    rounded = measured_speeds(rounded=True)
    assert measured_speeds(rounded=True) is rounded
    assert rounded.flops_per_s != measured_speeds().flops_per_s
