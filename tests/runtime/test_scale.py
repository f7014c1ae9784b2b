"""Predicted steps on many wafers: bytes by formula, bounds of any link, waits that it brings."""

from __future__ import annotations

import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.ir.schedule import Run
from cerebras_tf.runtime.collective_plan import EVERYWHERE, GATHER, Work, events, sent_bytes
from cerebras_tf.runtime.scale import Link, scaled_step
from tests.steps import residual_step

BLOCKS = 6
INSTANT = Link(bytes_per_s=1e18, latency_s=0.0)


def program_for(wafers, clip=False):
    return compile_step(residual_step(BLOCKS, clip), Options(wafers=wafers))


def a_second_each(program):
    """One second for every layer and direction."""
    return {(s.layer, s.direction): 1.0 for s in program.schedule if isinstance(s, Run)}


def predicted(wafers, link, clip=False, other_s=0.0):
    return scaled_step(program_for(wafers, clip), a_second_each(program_for(1)), other_s, link)


def test_one_wafer_takes_what_was_measured():
    found = predicted(1, INSTANT, other_s=0.5)
    assert found.step_s == pytest.approx(sum(a_second_each(program_for(1)).values()) + 0.5)
    assert (found.collective_s, found.hidden_share, found.sent_bytes) == (0, 1, [0])


@pytest.mark.parametrize("wafers", [2, 4, 8])
def test_behind_links_that_take_no_time_updates_are_shared_out(wafers):
    program = program_for(wafers)
    alone = {}
    times = a_second_each(program_for(1))
    for item in events(program):
        if isinstance(item, Work):
            step = program.schedule[item.number]
            if item.wafer != EVERYWHERE:
                spent = times[step.layer, step.direction]
                alone[item.wafer] = alone.get(item.wafer, 0.0) + spent
    together = sum(times.values()) - sum(alone.values())
    found = predicted(wafers, INSTANT)
    assert together + max(alone.values()) <= found.step_s + 1e-9
    assert found.step_s < predicted(1, INSTANT).step_s


@pytest.mark.parametrize("ways", [0, 2])
@pytest.mark.parametrize("clip", [False, True])
def test_a_slower_link_never_makes_a_step_faster(ways, clip):
    last = 0.0
    for bytes_per_s in (1e18, 1e6, 1e5, 1e4, 1e3):
        found = predicted(4, Link(bytes_per_s, 1e-6, ways), clip)
        assert found.step_s >= last
        assert 0 <= found.hidden_share <= 1
        last = found.step_s
    # What one wafer sends cannot leave faster than its link allows, on two lanes at once.
    assert last >= max(found.sent_bytes) / 2 / bytes_per_s


def test_a_tree_takes_less_time_than_a_chain_of_many_wafers():
    link = {"bytes_per_s": 1e6, "latency_s": 0.01}
    chain, tree = predicted(64, Link(**link)), predicted(64, Link(**link, ways=8))
    assert tree.step_s < chain.step_s


@pytest.mark.parametrize(
    "wafers, ways, levels", [(1, 8, 1), (8, 8, 1), (9, 8, 2), (125, 5, 3), (216, 6, 3), (217, 6, 4)]
)
def test_a_tree_has_the_levels_that_it_needs(wafers, ways, levels):
    assert Link(1e18, 1.0, ways).through_tree_s(wafers, 0) == levels


@pytest.mark.parametrize("ways", [-1, 1])
def test_a_tree_whose_nodes_serve_one_is_refused(ways):
    with pytest.raises(ValueError, match=f"at least 2 wafers. Received: {ways}"):
        Link(1e9, 0.0, ways)


def test_copying_that_cores_do_takes_their_time():
    free = predicted(2, INSTANT)
    for taken in ({"core_s_per_byte": 1e-5}, {"mean_core_s_per_byte": 1e-5}):
        assert predicted(2, Link(1e18, 0.0, **taken)).step_s > free.step_s


def test_means_may_move_at_a_speed_of_their_own():
    assert predicted(2, Link(1e18, 0.0, mean_bytes_per_s=1e3)).step_s > predicted(2, INSTANT).step_s


@pytest.mark.parametrize("wafers", [2, 3, 7])
def test_all_wafers_together_send_each_weight_and_gradient_to_all_others(wafers):
    program = program_for(wafers)
    weights = sum(program.slots[s].type.bytes for s in program.variables.values()) // 2
    # Streamed forward and backward, but the first and the last layers of a pass only once; the
    # rest of what is sent are gradients, which go to the owner alone.
    assert 2 * weights <= sum(sent_bytes(program)) / (wafers - 1) <= 3 * weights


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("wafers", [2, 3, 7])
def test_to_a_tree_each_wafer_sends_what_it_gives_once(wafers, clip):
    program = program_for(wafers, clip)
    weights = sum(program.slots[s].type.bytes for s in program.variables.values()) // 2
    told = sum(item.bytes for item in events(program) if getattr(item, "kind", "") == GATHER)
    # Along a chain all but one of the wafers send a copy, and a gradient on its way to its owner.
    copies = sum(sent_bytes(program)) // (wafers - 1) - weights - wafers * told
    found = predicted(wafers, Link(1e6, 1e-6, ways=2), clip)
    assert weights < copies <= 2 * weights
    assert sum(found.sent_bytes) == copies + (wafers - 1) * weights + wafers * told
    assert (told > 0) == clip
    assert predicted(wafers, Link(1e6, 1e-6), clip).sent_bytes == sent_bytes(program)
