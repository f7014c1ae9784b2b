"""Checks that a model too large for this machine is refused with what it needs."""

from __future__ import annotations

import os
from pathlib import Path

from cerebras_tf.ir.program import Layer, Program
from cerebras_tf.runtime.capacity import available_bytes, memory_fault, return_freed_memory


def program(arena_bytes):
    layers = [Layer("small", ("a",), 1), Layer("decoder/ffn", ("b",), 7 * 10**9)]
    return Program(arena_bytes=arena_bytes, layers=layers)


def test_available_memory_is_positive_and_at_most_what_the_machine_has():
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() <= physical


def test_a_model_that_fits_passes():
    assert memory_fault(program(1000), state_bytes=1000) is None


def test_a_model_that_does_not_fit_is_refused_with_numbers_and_remedy():
    message = str(memory_fault(program(2 * 10**15), state_bytes=10**15))
    assert message.startswith("this model needs 3000000.0 GB of memory: 1000000.0 GB of weights")
    assert "2000000.0 GB of activations" in message
    assert "Largest layer: 'decoder/ffn', 7.00 GB of weights." in message
    assert "Lower batch_size" in message


def test_memory_the_model_holds_already_counts_as_free():
    needed = available_bytes() + 10**12
    assert memory_fault(program(0), needed)
    assert not memory_fault(program(0), needed, held_bytes=2 * 10**12)


def test_a_wafer_takes_its_share():
    assert "10.0 GB free for each of its wafers" in str(memory_fault(program(0), 10**11, 0, 10**10))
    assert not memory_fault(program(0), 10**9, 0, 10**10)


def test_freed_memory_goes_back_to_the_system():
    """Small blocks, as a graph's, which glibc keeps when they are freed below one still in use."""
    blocks = [bytes(1000) for _ in range(100_000)]
    last = bytes(1000)
    del blocks
    before = resident_bytes()
    return_freed_memory()
    assert resident_bytes() <= before - 50_000_000
    assert len(last) == 1000


def resident_bytes():
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
