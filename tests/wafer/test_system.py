"""Every number of a machine says where it is from."""

from __future__ import annotations

import pytest

from cerebras_tf.errors import ConfigError
from cerebras_tf.wafer.system import GRADES, load_system


@pytest.mark.parametrize("name", ["cs1", "cs2"])
def test_every_number_has_a_unit_and_a_source(name):
    system = load_system(name)
    for quantity in system.quantities.values():
        assert quantity.unit and quantity.source
        assert quantity.grade in (*GRADES, "")
    assert system.rows * system.columns >= system.cores


def test_the_wse2_is_as_published():
    system = load_system("cs2")
    assert system.flops_per_s == pytest.approx(7.48e15, rel=0.001)
    assert system.sram_per_core == pytest.approx(47_000, rel=0.01)
    assert system.io_bytes_per_s == 150e9
    # 20 PB/s of SRAM at 24 bytes a core and cycle.
    moved = system["sram_bytes_read"] + system["sram_bytes_written"]
    assert system.cores * moved * system["clock"] == pytest.approx(20e15, rel=0.15)


def test_a_cs2_is_more_than_twice_a_cs1():
    assert load_system("cs2").flops_per_s > 2 * load_system("cs1").flops_per_s


def test_both_machines_have_the_same_quantities():
    assert load_system("cs1").quantities.keys() == load_system("cs2").quantities.keys()


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="must be one of cs1, cs2. Received: cs3"):
        load_system("cs3")
    with pytest.raises(ConfigError, match="release must be one of .*R1.7.1.* Received: R9"):
        load_system().release("R9")


def test_where_a_release_has_no_measured_kernels_the_default_one_stands_in():
    system = load_system()
    assert system.efficiency(system.release("R1.8")) == system.release("R1.7.1").value
    assert system.host_step_s(system.release("R1.7.1")) == system["host_step_s"]
