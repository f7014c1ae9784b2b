"""Rectangles cover the wafer once, and the slowest layer is as fast as possible."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cerebras_tf.errors import CapacityError
from cerebras_tf.wafer.cycles import stage_cycles
from cerebras_tf.wafer.floorplan import StageTime, balanced_cores, lay_out
from cerebras_tf.wafer.pipelined import predict_pipelined, predict_replicas
from cerebras_tf.wafer.system import load_system
from cerebras_tf.wafer.transformer import dense_network, transformer

SYSTEM = load_system()


def bert(batch=64, layers=6):
    return transformer("bert", batch, 768, layers, 12, 3072, 30522, 128, 20)


def covered(rectangles, width, height):
    """How often every core is covered."""
    found = np.zeros((height, width), int)
    for r in rectangles:
        assert r.width > 0 and r.height > 0
        found[r.y : r.y + r.height, r.x : r.x + r.width] += 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_rectangles_cover_a_region_once(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 90))
    width, height = (int(n) for n in random.integers(20, 300, 2))
    sizes = random.lognormal(0, 2, count)
    plan = lay_out([str(i) for i in range(count)], list(sizes), 3, 5, width, height)
    assert len(plan) == count and {r.name for r in plan} == {str(i) for i in range(count)}
    cover = covered(plan, width + 3, height + 5)
    assert (cover[5:, 3:] == 1).all() and cover.sum() == width * height


def test_sizes_follow_the_work():
    plan = lay_out(["a", "b", "c"], [1.0, 2.0, 5.0], 0, 0, 400, 400)
    assert [r.cores / 160000 for r in plan] == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=0.05)


def test_more_layers_than_cores_are_refused():
    with pytest.raises(CapacityError, match="every layer needs a core"):
        lay_out(["a", "b", "c"], [1.0, 1.0, 1.0], 0, 0, 1, 2)


def test_balanced_stages_take_equally_long():
    stages = [StageTime(1e6, 3e3), StageTime(5e6, 1e3), StageTime(2e5, 9e4)]
    cores = balanced_cores(stages, 100_000)
    assert sum(cores) == pytest.approx(100_000)
    times = [s.parallel / c + s.overhead / c**0.5 for s, c in zip(stages, cores)]
    assert max(times) == pytest.approx(min(times), rel=1e-3)


def test_no_stage_of_a_plan_is_much_slower_than_the_others():
    workload = bert()
    found = predict_pipelined(workload, SYSTEM)
    assert (covered(found.floorplan, SYSTEM.columns, SYSTEM.rows) == 1).all()
    times = [
        stage_cycles(layer, place.cores, workload.batch, SYSTEM).total
        for layer, place in zip(workload.layers, found.floorplan)
    ]
    assert max(times) < 1.05 * np.median(times)


def test_every_copy_has_a_part_of_the_wafer():
    found = predict_replicas(bert(), SYSTEM, None, 3)
    assert (covered(found.floorplan, SYSTEM.columns, SYSTEM.rows) == 1).all()
    assert {place.replica for place in found.floorplan} == {0, 1, 2}
    assert all(0 < place.utilisation < 1 for place in found.floorplan if place.name != "embedding")


def test_a_model_that_does_not_fit_is_refused_with_sizes():
    found = predict_pipelined(transformer("6.7b", 65, 4096, 32, 32, 16384, 50257, 2048), SYSTEM)
    (fault,) = found.faults
    assert re.search(r"need \d+\.\d GB of the wafer's 30\.0 GB", fault)


def test_copies_synchronise_and_waiting_counts_as_bubbles():
    one, two = (predict_replicas(bert(), SYSTEM, None, copies) for copies in (1, 2))
    assert two.cycles.total < 2 * one.cycles.total
    for item in one.layers:
        assert item.cycles.total == pytest.approx(one.cycles.total)


def test_a_dense_network_has_a_plan():
    found = predict_pipelined(dense_network("fc", [784, 500, 300, 10], 256), SYSTEM, "R1.8")
    assert len(found.floorplan) == 3 and found.release.name == "R1.8"


@pytest.mark.parametrize("copies", [1, 8])
def test_every_rectangle_holds_what_its_layer_keeps(copies):
    found = predict_replicas(bert(256, 12), SYSTEM, None, copies)
    assert not found.faults
    # Rounding to whole rows and columns leaves small rectangles a little short.
    capacity = SYSTEM.sram_per_core * (1 - SYSTEM["code_share"])
    assert all(layer.sram_bytes_per_core < 1.1 * capacity for layer in found.layers)
