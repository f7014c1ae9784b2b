"""The store on files: same bits as in memory, within its bytes, and nothing left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cerebras_tf.compiler import spilling
from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CapacityError, CheckpointError, StoreError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.ir.types import parse_type
from cerebras_tf.memoryx import disk_speed, file_store
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES, Buffers
from cerebras_tf.memoryx.disk import FileDisk, PlannedDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.process_folder import folder_of
from cerebras_tf.memoryx.record_file import RecordFile
from cerebras_tf.memoryx.store import FileRegion, MemoryStore, write
from cerebras_tf.quantities import gigabytes_not_below
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.executor import Executor
from cerebras_tf.runtime.null import NullBackend
from cerebras_tf.runtime.protocol import Request
from cerebras_tf.runtime.verify_program import verify_program
from tests.machines import client_of, content_of, contents
from tests.steps import features_of, residual_step, starting_values

PAGE = ALIGNMENT_BYTES


@pytest.fixture
def made(tmp_path):
    """Makes stores in a folder, and closes them."""
    stores = []

    def make(specs, max_bytes):
        stores.append(FileStore(specs, FileDisk(str(tmp_path / "store"), max_bytes)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
    assert not list((tmp_path / "store").glob("*")), "files are left"


@pytest.fixture
def stages_all(monkeypatch):
    """Small gradients are staged too."""
    monkeypatch.setattr(spilling, "_LEAST_BYTES", 0)


def pages(*names, size=PAGE // 4):
    """Variables of a page each."""
    return [Variable(name, TensorType("float32", (size,)), True) for name in names]


def set_all(store):
    """Gives every variable a value of its own; returns them."""
    values = {
        name: np.full(spec.type.shape, number + 0.5, np.float32)
        for number, (name, spec) in enumerate(store.specs.items())
    }
    for name, content in values.items():
        write(store, name, content)
    return values


def trained(step, store, batches=4):
    """Losses of a session on a store, bit by bit, and its program."""
    for name, content in starting_values(step).items():
        write(store, name, content)
    program = compile_step(step, Options(staging=True))
    session = client_of(program, store)
    return [session.run(features_of(step, s))["loss"].tobytes() for s in range(batches)], program


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("most", [9, 14, 30, 1000])
def test_training_from_files_gives_the_bits_of_training_in_memory(clip, most, made, stages_all):
    steps = [residual_step(6, clip) for _ in range(2)]
    memory = MemoryStore(steps[0].specs.values())
    files = made(steps[1].specs.values(), most * PAGE)
    wanted, found = trained(steps[0], memory), trained(steps[1], files)
    assert wanted[0] == found[0]
    verify_program(found[1])
    assert bool(found[1].staged) == clip
    for name, content in contents(memory).items():
        np.testing.assert_array_equal(content_of(files, name), content)
    assert files.resident_bytes <= most * PAGE
    assert (files.io_stats.bytes_read == 0) == (most == 1000)
    assert (files.io_stats.bytes_written == 0) == (most == 1000)


def test_staged_gradients_take_no_activation_memory(stages_all):
    def arena(blocks, staging):
        step = residual_step(blocks, clip=True)
        return compile_step(step, Options(staging=staging)).arena_bytes

    assert arena(24, True) - arena(12, True) < (arena(24, False) - arena(12, False)) / 3


def test_what_a_step_reads_does_not_depend_on_timing(made):
    moved = []
    for _ in range(2):
        step = residual_step(6)
        store = made(step.specs.values(), 12 * PAGE)
        trained(step, store)
        moved.append((store.io_stats.bytes_read, store.io_stats.bytes_written))
    assert moved[0] == moved[1]


@pytest.mark.parametrize("most", [9, 14, 30])
def test_a_planned_disk_tells_what_a_real_one_moves(most, made, stages_all):
    steps = [residual_step(6, clip=True) for _ in range(2)]
    real = made(steps[0].specs.values(), most * PAGE)
    _, program = trained(steps[0], real)
    planned = FileStore(steps[1].specs.values(), PlannedDisk(most * PAGE))
    for name in planned.specs:
        planned.acquire([name], fresh=True)
        planned.release([name], dirty=[name])
    executor = Executor(program, planned, NullBackend(CpuBackend()))
    for batch in range(4):
        planned.set_access_order(executor.acquisitions)
        executor.run(features_of(steps[1], batch))
    assert planned.io_stats.bytes_read == real.io_stats.bytes_read > 0
    assert planned.io_stats.bytes_written == real.io_stats.bytes_written > 0


def test_the_order_that_is_followed_is_read_ahead(made):
    store = made(pages(*"abcdefgh"), 7 * PAGE)
    values = set_all(store)
    order = [[name] for name in "abcdefgh"]
    store.set_access_order(order)
    for _ in range(4):
        for (name,) in order:
            (array,) = store.acquire([name])
            np.testing.assert_array_equal(array, values[name])
            store.release([name])
    # One page is used, one read and one written: four of eight can stay for the next round. A store
    # that dropped what was used longest ago would read all of them in every round.
    assert store.io_stats.bytes_read <= 4 * 5 * PAGE


def test_a_large_group_is_read_beside_all_the_small_ones_before_it():
    """A page of it with each: read whole, it would have to wait until the last of them is used."""
    specs = pages(*"abcdefghij")
    store = FileStore(specs, PlannedDisk(5 * PAGE))
    for spec in specs:
        store.acquire([spec.name], fresh=True)
        store.release([spec.name], dirty=[spec.name])
    order = [["e"], ["f"], ["g"], ["h"], ["a", "b", "c", "d"], ["i"], ["j"]]
    store.set_access_order(order)
    for _ in range(4):
        read = []
        for names in order:
            before = store.io_stats.bytes_read
            store.acquire(names)
            read.append((store.io_stats.bytes_read - before) // PAGE)
            store.release(names)
    assert read == [1, 1, 1, 1, 1, 4, 1]


def test_a_variable_that_many_hold_is_one_memory(made):
    store = made(pages("a", "b"), 2 * PAGE)
    set_all(store)
    first, second = store.acquire(["a", "a"])
    first[0] = 7
    assert second[0] == 7
    store.release(["a"], dirty=["a"])
    store.release(["a"])
    assert content_of(store, "a")[0] == 7
    with pytest.raises(RuntimeError, match="not acquired"):
        store.release(["a"])


def test_a_group_beyond_the_memory_is_refused(made):
    store = made(pages("a", "b", "c"), 2 * PAGE)
    set_all(store)
    most = re.escape(gigabytes_not_below(3 * PAGE))
    with pytest.raises(
        CapacityError, match=f"memoryx_ram_gb: must be large enough.*Set it to {most}"
    ):
        store.require_memory([["a"], ["a", "b"], ["a", "b", "c"], ["b"]])
    with pytest.raises(CapacityError, match="memoryx_ram_gb: must be large enough"):
        store.acquire(["a", "b", "c"])
    assert len(store.acquire(["a", "b"])) == 2, "a refusal holds nothing"
    store.release(["a", "b"])


def test_a_variable_without_a_value_is_refused(made):
    store = made(pages("a", "b"), 2 * PAGE)
    with pytest.raises(CheckpointError, match="variable a: must have a value"):
        store.acquire(["a"])


def test_what_is_taken_fresh_and_not_written_keeps_its_value(made):
    store = made(pages("a", "b"), PAGE)
    values = set_all(store)  # b is here, a in a file
    (array,) = store.acquire(["a"], fresh=True)
    array[:] = 99
    store.release(["a"])
    np.testing.assert_array_equal(content_of(store, "a"), values["a"])


def test_types_and_shapes_of_all_kinds(made):
    types = ["float32[3,5]", "bfloat16[7]", "int64[]", "bool[2,2]", "float16[0,4]"]
    specs = [Variable(text, parse_type(text)) for text in types]
    store = made(specs, PAGE)
    random = np.random.default_rng(0)
    values = {}
    for spec in specs:
        values[spec.name] = random.integers(0, 2, spec.type.shape).astype(spec.type.storage_dtype)
        write(store, spec.name, values[spec.name])
    for name, content in values.items():
        np.testing.assert_array_equal(content_of(store, name), content)


def test_a_full_disk_ends_the_run_with_a_message(made, monkeypatch):
    store = made(pages("a", "b"), PAGE)

    def full(*arguments):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RecordFile, "write", full)
    with pytest.raises(StoreError, match="No space left on device. Free disk space"):
        set_all(store)
        store.acquire(["a"])
        store.linkable_regions()


def test_what_failed_to_be_written_is_not_read(made, monkeypatch):
    store = made(pages("a", "b"), PAGE)
    may_fail = threading.Event()

    def full(*arguments):
        may_fail.wait(10)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RecordFile, "write", full)
    write(store, "a", np.ones(PAGE // 4, np.float32))
    record = store._records["a"]
    store.disk.write([record], keep=False)  # is on its way to the file
    store.disk.read([record])  # waits for it
    may_fail.set()
    assert record.reading is not None
    with pytest.raises(StoreError, match="must be written, .* No space left on device"):
        record.reading.result(10)


def test_settled_contents_are_never_changed(made):
    store = made(pages("a", "b", "c"), PAGE)
    before = set_all(store)
    entries = store.linkable_regions()
    kept = Path(entries["a"].path).read_bytes()
    set_all(store)
    write(store, "a", np.zeros(PAGE // 4, np.float32))
    after = store.linkable_regions()
    assert after["a"].path != entries["a"].path
    entry = entries["b"]
    found = np.frombuffer(kept[entry.offset : entry.offset + entry.size], np.float32)
    np.testing.assert_array_equal(found, before["b"])


def test_files_that_somebody_deletes_are_used_up_to_the_end(made, tmp_path):
    store = made(pages("a", "b", "c"), PAGE)
    set_all(store)
    store.linkable_regions()
    for path in (tmp_path / "store").glob("*/*.bin"):
        path.unlink()
    values = set_all(store)  # into another file: the one that is gone is let go of
    for name, content in values.items():
        np.testing.assert_array_equal(content_of(store, name), content)


def test_adopted_contents_are_read_where_they_lie(made, tmp_path):
    first = made(pages("a", "b", "c"), PAGE)
    values = set_all(first)
    entries = {}
    for name, entry in first.linkable_regions().items():
        kept = tmp_path / os.path.basename(entry.path)
        if not kept.exists():
            os.link(entry.path, kept)
        entries[name] = type(entry)(**{**vars(entry), "path": str(kept)})
    first.close()
    second = made(pages("a", "b", "c"), PAGE)
    assert all(second.link_source(name, entry) for name, entry in entries.items())
    assert second.io_stats.bytes_read == 0
    kept.unlink()  # as a checkpoint that is deleted while its contents are used
    for name, content in values.items():
        np.testing.assert_array_equal(content_of(second, name), content)


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_regions_without_a_checksum_are_read_at_any_offset_from_files_that_stay(
    made, tmp_path, kind
):
    path, offset = tmp_path / "theirs.safetensors", 2 * PAGE + 24
    content = np.arange(3 * PAGE, dtype=np.uint16)
    path.write_bytes(b"x" * offset + content.tobytes())
    specs = [
        Variable(name, TensorType("bfloat16", (size,)))
        for name, size in (("a", PAGE), ("b", 2 * PAGE - 3), ("c", 3))
    ]
    store = made(specs, 6 * PAGE) if kind == "files" else MemoryStore(specs)
    at, regions = 0, {}
    for spec in specs:
        size = spec.type.bytes
        place = str(path), offset + 2 * at, size, None
        regions[spec.name] = FileRegion("bfloat16", spec.type.shape, *place)
        assert store.link_source(spec.name, regions[spec.name])
        at += size // 2
    store.set_access_order([["a"], ["b"], ["c"]])
    for _ in range(3):
        for name, region in regions.items():
            start = (region.offset - offset) // 2
            expected = content[start : start + region.size // 2]
            np.testing.assert_array_equal(content_of(store, name), expected)
    assert store.total_resident_bytes <= (6 * PAGE if kind == "files" else 0)
    if kind == "files":
        assert store.io_stats.bytes_written == 0
        store.acquire(["c"])
        with pytest.raises(RuntimeError, match="c is read from a file"):
            store.release(["c"], dirty=["c"])
    write(store, "b", np.zeros(2 * PAGE - 3, np.float32))
    assert not content_of(store, "b").any()
    store.close()
    assert path.read_bytes() == b"x" * offset + content.tobytes()


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_regions_of_other_types_or_at_odd_offsets_are_not_linked(made, tmp_path, kind):
    path = tmp_path / "theirs.safetensors"
    path.write_bytes(bytes(100))
    specs = [Variable("a", TensorType("float32", (4,)))]
    store = made(specs, 4 * PAGE) if kind == "files" else MemoryStore(specs)
    for dtype, shape, offset in (
        ("bfloat16", (4,), 0),
        ("float32", (2, 2), 0),
        ("float32", (4,), 2),
    ):
        region = FileRegion(dtype, shape, str(path), offset, 16, None)
        assert not store.link_source("a", region)
    short = FileRegion("float32", (4,), str(path), 96, 16, None)
    with pytest.raises(CheckpointError, match=str(path)):
        store.link_source("a", short)
        content_of(store, "a")


def test_a_damaged_record_is_named(made, tmp_path):
    first = made(pages("a", "b"), PAGE)
    set_all(first)
    entry = first.linkable_regions()["b"]
    content = bytearray(Path(entry.path).read_bytes())
    os.truncate(entry.path, 0)
    with pytest.raises(CheckpointError, match="variable a .* shares it raises"):
        content_of(first, "a")
    content[entry.offset + 100] ^= 1
    copy = tmp_path / "model.ckpt-1.data-00000-of-00001"
    copy.write_bytes(content)
    second = made(pages("a", "b"), PAGE)
    assert second.link_source("b", type(entry)(**{**vars(entry), "path": str(copy)}))
    with pytest.raises(CheckpointError, match=f"{copy}: .* variable b .* checksum that differs"):
        content_of(second, "b")


def test_entries_that_do_not_fit_are_not_adopted(made):
    first = made(pages("a"), PAGE)
    set_all(first)
    entry = first.linkable_regions()["a"]
    other = made(pages("a", size=7), PAGE)
    assert not other.link_source("a", entry)
    moved = type(entry)(**{**vars(entry), "offset": 4})
    assert not first.link_source("a", moved)


def test_two_stores_in_one_folder_do_not_meet(made):
    first, second = made(pages("a", "b"), PAGE), made(pages("a", "b"), PAGE)
    values = set_all(first)
    write(second, "a", np.zeros(PAGE // 4, np.float32))
    write(second, "b", np.zeros(PAGE // 4, np.float32))
    for name, content in values.items():
        np.testing.assert_array_equal(content_of(first, name), content)


@pytest.mark.parametrize("ranks", [(None, None), (3, 0), (3, None), (None, 1)])
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(ranks, tmp_path):
    dead, own = (tmp_path if rank is None else folder_of(rank, str(tmp_path)) for rank in ranks)
    script = (
        "import os, sys\n"
        "from cerebras_tf.ir import TensorType, Variable\n"
        "from cerebras_tf.memoryx.disk import FileDisk\n"
        "from cerebras_tf.memoryx.file_store import FileStore\n"
        "disk = FileDisk(sys.argv[1], 1 << 20)\n"
        "store = FileStore([Variable('a', TensorType('float32', (8,)))], disk)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(dead)], check=False)
    assert len(list(tmp_path.rglob("memoryx-*"))) == 1
    living, other = (FileStore(pages("a"), FileDisk(str(own), PAGE)) for _ in range(2))
    assert len(list(tmp_path.rglob("memoryx-*"))) == 2
    set_all(living)
    living.close()
    other.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="must be a writable folder"):
        FileDisk(str(file), PAGE)


@pytest.mark.parametrize("most", [9, 14, 30])
def test_memory_stays_within_its_bytes_at_every_moment(most, made, stages_all, monkeypatch):
    taken = []
    take = Buffers.take

    def watched(self, size):
        buffer = take(self, size)
        taken.append(self.bytes)
        return buffer

    monkeypatch.setattr(Buffers, "take", watched)
    step = residual_step(6, clip=True)
    store = made(step.specs.values(), most * PAGE)
    trained(step, store)
    store.linkable_regions()
    assert most / 2 * PAGE < max(taken) <= most * PAGE


class HeldStore(MemoryStore):
    """Notes which variables are held at once."""

    def __init__(self, specs):
        super().__init__(specs)
        self.held = set()

    def acquire(self, names, fresh=False):
        found = super().acquire(names, fresh)
        self.held.add(frozenset(self._acquired))
        return found


def test_what_a_step_holds_at_once_is_known_before_it(stages_all, made):
    step = residual_step(2, clip=True)
    store = HeldStore(step.specs.values())
    for name, content in starting_values(step).items():
        write(store, name, content)
    store.held.clear()
    program = compile_step(step, Options(staging=True))
    executor = Executor(program, store, CpuBackend())
    executor.run(features_of(step))
    known = {frozenset(names) for names in executor.held_together}
    assert store.held <= known
    assert any(names & set(program.staged) and names & set(step.specs) for names in store.held)
    for most in (9, 7):  # pages that the update of a block takes, and fewer
        session = client_of(program, made(step.specs.values(), most * PAGE))
        request = Request({name: value.type for name, value in step.features.items()})
        if most == 9:
            session.prepare(request)
        else:
            with pytest.raises(CapacityError, match="memoryx_ram_gb: must be large enough"):
                session.prepare(request)


def test_values_that_are_not_finite_are_told_from_what_was_written(made):
    store = made([*pages("a", "b", "c"), Variable("d", pages("d")[0].type)], 2 * PAGE)
    set_all(store)
    bad = np.full(PAGE // 4, 1, np.float32)
    bad[77] = np.nan
    write(store, "b", bad)
    write(store, "d", bad)
    read = store.io_stats.bytes_read
    assert store.not_finite("abc") == ["b"]
    assert store.io_stats.bytes_read == read
    write(store, "b", np.zeros(PAGE // 4, np.float32))
    assert store.not_finite("abc") == []


def test_values_adopted_are_looked_at_when_they_are_read(made, tmp_path):
    first = made(pages("a"), PAGE)
    write(first, "a", np.full(PAGE // 4, np.inf, np.float32))
    entry = first.linkable_regions()["a"]
    kept = tmp_path / "kept.bin"
    os.link(entry.path, kept)
    second = made(pages("a"), PAGE)
    assert second.link_source("a", type(entry)(**{**vars(entry), "path": str(kept)}))
    assert second.not_finite("a") == []
    content_of(second, "a")
    assert second.not_finite("a") == ["a"]


def test_zeros_are_not_written(made, monkeypatch):
    written = []
    real = RecordFile.write

    def watched(self, offset, buffers):
        written.append(sum(buffer.nbytes for buffer in buffers))
        real(self, offset, buffers)

    monkeypatch.setattr(RecordFile, "write", watched)
    store = made(pages(*"abcdef"), PAGE)
    for number, name in enumerate("abcdef"):
        write(store, name, np.full(PAGE // 4, number == 2, np.float32))
    entries = store.linkable_regions()
    assert sum(written) == PAGE
    for number, name in enumerate("abcdef"):
        assert (content_of(store, name) == (number == 2)).all()
    write(store, "c", np.zeros(PAGE // 4, np.float32))  # where something else was
    assert store.linkable_regions()["c"] != entries["c"]
    assert not content_of(store, "c").any()


def test_waiting_for_room_counts_as_stalling(made, monkeypatch):
    class Clock:
        def __init__(self):
            self.now_s, self.was_read = 0.0, threading.Event()

        def perf_counter(self):
            now_s = self.now_s
            self.was_read.set()
            return now_s

    clock, real = Clock(), RecordFile.write

    def slow(self, offset, buffers):
        clock.was_read.wait(10)
        clock.now_s += 5.0
        real(self, offset, buffers)

    monkeypatch.setattr(RecordFile, "write", slow)
    monkeypatch.setattr(file_store, "time", clock)
    store = made(pages("a", "b"), PAGE)
    write(store, "a", np.ones(PAGE // 4, np.float32))
    clock.was_read.clear()
    write(store, "b", np.ones(PAGE // 4, np.float32))  # a must leave first
    assert store.io_stats.stalled_s == 5.0


def test_what_waits_within_a_step_is_held_against_the_free_disk(made, monkeypatch):
    store = made(pages("written", "not_yet"), 4 * PAGE)
    write(store, "written", np.zeros(PAGE // 4, np.float32))
    store.linkable_regions()
    monkeypatch.setattr(disk_speed, "free_bytes", lambda folder: 2 * PAGE)
    store.reserve(pages("one_that_waits"))
    store.reserve(pages("one_that_waits"))  # which is known
    with pytest.raises(StoreError, match="that wait, must fit on it"):
        store.reserve(pages("another"))


PAGE = ALIGNMENT_BYTES


def test_zeros_are_written_over_what_was_there_before_an_adoption(tmp_path):
    type = TensorType("float32", (PAGE // 4,))
    store = FileStore([Variable(name, type) for name in "ab"], FileDisk(str(tmp_path), PAGE))

    def set_all(number):
        for name in "ab":
            write(store, name, np.full(type.shape, number, np.float32))

    set_all(1)
    entry = store.linkable_regions()["a"]
    set_all(2)
    assert store.link_source("a", entry)
    assert (content_of(store, "a") == 1).all()
    write(store, "a", np.zeros(type.shape, np.float32))
    content_of(store, "b")  # which takes its place in memory
    assert not content_of(store, "a").any()
    store.close()
