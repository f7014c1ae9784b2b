"""Every number of a machine says where it is from."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.wafer.system import GRADES, load_machine


@pytest.mark.parametrize("name", ["cs1", "cs2"])
def test_every_number_has_a_unit_and_a_source(name):
    machine = load_machine(name)
    for quantity in machine.quantities.values():
        assert quantity.unit and quantity.source
        assert quantity.grade in (*GRADES, "")
    assert machine.rows * machine.columns >= machine.cores


def test_the_wse2_is_as_published():
    machine = load_machine("cs2")
    assert machine.flops_per_s == pytest.approx(7.48e15, rel=0.001)
    assert machine.sram_per_core == pytest.approx(47_000, rel=0.01)
    assert machine.io_bytes_per_s == 150e9
    # 20 PB/s of SRAM at 24 bytes a core and cycle.
    moved = machine["sram_bytes_read"] + machine["sram_bytes_written"]
    assert machine.cores * moved * machine["clock"] == pytest.approx(20e15, rel=0.15)


def test_a_cs2_is_more_than_twice_a_cs1():
    assert load_machine("cs2").flops_per_s > 2 * load_machine("cs1").flops_per_s


def test_both_machines_have_the_same_quantities():
    assert load_machine("cs1").quantities.keys() == load_machine("cs2").quantities.keys()


def test_unknown_names_are_told():
    with pytest.raises(ConfigError, match="must be one of cs1, cs2. Received: cs3"):
        load_machine("cs3")
    with pytest.raises(ConfigError, match="release must be one of .*R1.7.1.* Received: R9"):
        load_machine().release("R9")


def test_where_a_release_has_no_measured_kernels_the_default_one_stands_in():
    machine = load_machine()
    assert machine.efficiency(machine.release("R1.8")) == machine.release("R1.7.1").value
    assert machine.host_step_s(machine.release("R1.7.1")) == machine["host_step_s"]
