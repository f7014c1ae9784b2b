"""Invariants of the memory plan on random schedules."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.memory import ALIGNMENT_BYTES, Lifetime, plan_memory


def overlap_in_time(a, b):
    return a.start <= b.end and b.start <= a.end


def check(lifetimes):
    """Asserts the invariants; returns (arena bytes, most bytes alive at one time)."""
    offsets, total = plan_memory(lifetimes)
    ends = [offset + life.bytes for offset, life in zip(offsets, lifetimes)]
    assert all(offset >= 0 and offset % ALIGNMENT_BYTES == 0 for offset in offsets)
    assert max(ends, default=0) <= total
    for i, a in enumerate(lifetimes):
        for j in range(i):
            if overlap_in_time(a, lifetimes[j]):
                assert ends[i] <= offsets[j] or ends[j] <= offsets[i], (i, j)
    rounded = [-(-life.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for life in lifetimes]
    alive = [
        sum(size for size, life in zip(rounded, lifetimes) if life.start <= time <= life.end)
        for time in {life.start for life in lifetimes}
    ]
    return total, max(alive, default=0)


def random_lifetimes(seed, alike):
    """Lifetimes of very different or of few sizes, most of them short."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    found = []
    for _ in range(count):
        start = int(random.integers(0, 40))
        length = int(random.geometric(0.2)) if random.random() < 0.8 else 40
        size = int(random.choice([100, 4096, 65536])) if alike else int(2 ** random.uniform(0, 24))
        found.append(Lifetime(size, start, start + length))
    return found


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("block", range(10))
def test_random_schedules_share_no_bytes_and_waste_few(block, alike):
    for seed in range(30 * block, 30 * block + 30):
        total, needed = check(random_lifetimes(seed, alike))
        assert needed <= total <= 1.5 * needed


def test_reverse_passes_waste_nothing():
    """Activations of a forward pass die in the order reverse to their making: a stack."""
    lifetimes = [Lifetime(1000 * (i % 5 + 1), i, 99 - i) for i in range(50)]
    total, needed = check(lifetimes)
    assert total == needed


def test_values_that_never_meet_share_one_place():
    offsets, total = plan_memory([Lifetime(512, i, i) for i in range(20)])
    assert set(offsets) == {0}
    assert total == 512


def test_a_value_is_alive_at_its_last_time():
    offsets, _ = plan_memory([Lifetime(512, 0, 3), Lifetime(512, 3, 5)])
    assert offsets[0] != offsets[1]


def test_the_plan_does_not_depend_on_anything_but_lifetimes():
    lifetimes = random_lifetimes(5, False)
    assert plan_memory(lifetimes) == plan_memory(list(lifetimes))


def test_no_values_need_no_memory():
    assert plan_memory([]) == ([], 0)


def first_gaps_by_looking_at_all(lifetimes):
    """The same rule without a tree: every value against every other placed before it."""
    offsets = {}
    for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].bytes, lifetimes[i].start)):
        life = lifetimes[i]
        size = -(-life.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        busy = sorted(
            (offset, offset - (-lifetimes[j].bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
            for j, offset in offsets.items()
            if overlap_in_time(life, lifetimes[j])
        )
        gaps, position = [], 0
        for low, high in busy:
            if low - position >= size:
                gaps.append((low - position, position))
            position = max(position, high)
        offsets[i] = min(gaps)[1] if gaps else position
    return [offsets[i] for i in range(len(lifetimes))]


@pytest.mark.parametrize("alike", [False, True])
def test_every_value_takes_the_smallest_gap_that_fits(alike):
    for seed in range(100):
        lifetimes = random_lifetimes(seed, alike)
        assert plan_memory(lifetimes)[0] == first_gaps_by_looking_at_all(lifetimes)
