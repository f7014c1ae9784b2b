"""The index of checkpoints: TensorFlow reads what we write, and we read what it writes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from cerebras_tf.bundle import links, sorted_table
from cerebras_tf.bundle.index import (
    CutFile,
    Entry,
    TensorSlice,
    all_checkpoints,
    checkpoint_before,
    data_path,
    find_cut_files,
    index_path,
    read_index,
    write_index,
)
from cerebras_tf.bundle.links import link_checkpoint
from cerebras_tf.bundle.sorted_table import read_table, write_table
from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.kernels.compiled_crc32c import crc32c, mask_crc, unmask_crc
from cerebras_tf.memoryx.buffers import ALIGNMENT_BYTES
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from cerebras_tf.memoryx.store import write


def test_checksums_are_those_of_the_standard():
    # RFC 3720, B.4: 32 bytes of zeros, of ones, and of 0 to 31.
    for content, wanted in [
        (np.zeros(32, np.uint8), 0x8A9136AA),
        (np.full(32, 255, np.uint8), 0x62A8AB43),
        (np.arange(32, dtype=np.uint8), 0x46DD794E),
    ]:
        assert crc32c(content) == wanted
        assert crc32c(content[7:], crc32c(content[:7])) == wanted, "in parts, not aligned"
        assert unmask_crc(mask_crc(wanted)) == wanted


def test_tables_come_back_over_many_blocks(monkeypatch):
    monkeypatch.setattr(sorted_table, "_BLOCK_BYTES", 200)
    items = [(f"layer_{n:04d}/kernel".encode(), bytes([n % 256]) * (n % 40)) for n in range(500)]
    assert list(read_table(write_table(items))) == items
    assert list(read_table(write_table([]))) == []


def test_damage_anywhere_in_a_table_is_found():
    items = [(f"layer_{n}".encode(), bytes([n])) for n in range(20)]
    table = bytearray(write_table(sorted(items)))
    for at in range(len(table)):
        for bit in (1, 128):
            table[at] ^= bit
            with pytest.raises((ValueError, IndexError)):
                list(read_table(bytes(table)))
            table[at] ^= bit
    assert dict(read_table(bytes(table))) == dict(items)


@pytest.mark.tf
def test_entries_agree_with_tensorflows(tmp_path):
    import tensorflow as tf

    random = np.random.default_rng(0)
    arrays = {f"w_{n}": random.normal(size=(n % 4, 3)).astype(np.float32) for n in range(40)}
    arrays |= {"step": np.array(7, np.int64), "flag": np.array([True, False])}
    prefix = str(tmp_path / "theirs")
    names = [*arrays, "text"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = [*map(tf.constant, arrays.values()), tf.constant(["x", "yy"])]
        session.run(tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
        ))  # fmt: skip
    found = read_index(prefix)
    assert set(found) == set(names)
    assert not found["text"].is_whole
    for name, array in arrays.items():
        entry = found[name]
        assert (entry.dtype, entry.shape, entry.is_whole) == (array.dtype.name, array.shape, True)
        with open(entry.path, "rb") as file:
            file.seek(entry.offset)
            assert file.read(entry.size) == array.tobytes()
        assert entry.checksum == crc32c(array)

    extra = random.normal(size=(5, 2)).astype(np.float32)
    part = tmp_path / "part"
    part.write_bytes(bytes(4096) + extra.tobytes())
    entries = {**found, "extra": Entry("float32", (5, 2), str(part), 4096, 40, crc32c(extra))}
    ours = str(tmp_path / "ours")
    link_checkpoint(ours, entries)
    reader = tf.train.load_checkpoint(ours)
    for name, array in {**arrays, "extra": extra}.items():
        np.testing.assert_array_equal(reader.get_tensor(name), array)
    assert list(reader.get_tensor("text")) == [b"x", b"yy"]
    assert os.path.samefile(part, data_path(ours, 0, 2))


def test_a_checkpoint_on_another_file_system_is_copied(tmp_path, monkeypatch):
    def refuses(*arguments):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuses)
    content = np.arange(6, dtype=np.float32)
    (tmp_path / "part").write_bytes(content.tobytes())
    entry = Entry("float32", (6,), str(tmp_path / "part"), 0, 24, crc32c(content))
    link_checkpoint(str(tmp_path / "model"), {"w": entry})
    (tmp_path / "part").write_bytes(bytes(24))
    found = read_index(str(tmp_path / "model"))["w"]
    with open(found.path, "rb") as file:
        assert file.read() == content.tobytes()


def test_files_that_end_too_early_are_found_with_their_variables(tmp_path):
    entries = {}
    for shard, name in enumerate("ab"):
        path = tmp_path / f"model.data-0000{shard}-of-00002"
        path.write_bytes(bytes(48))
        entries[f"{name}/first"] = Entry("float32", (6,), str(path), 0, 24, 0)
        entries[f"{name}/second"] = Entry("float32", (6,), str(path), 24, 24, 0)
    prefix = str(tmp_path / "model")
    write_index(prefix, entries, 2)
    first, second = data_path(prefix, 0, 2), data_path(prefix, 1, 2)
    assert find_cut_files(prefix) == []
    os.truncate(first, 47)
    assert find_cut_files(prefix) == [CutFile(first, 47, 48, ("a/second",))]
    os.truncate(first, 23)
    os.remove(second)
    assert find_cut_files(prefix) == [
        CutFile(first, 23, 48, ("a/first", "a/second")),
        CutFile(second, 0, 48, ("b/first", "b/second")),
    ]


def test_a_missing_and_a_damaged_index_are_refused(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    with pytest.raises(CheckpointError, match="its index must be readable. Received: No such file"):
        read_index(prefix)
    write_index(prefix, {}, 1)
    with open(index_path(prefix), "rb+") as file:
        file.write(b"\xff")
    with pytest.raises(CheckpointError, match="checksum differs. Restore the file"):
        read_index(prefix)
    shutil.copyfile(__file__, index_path(prefix))
    with pytest.raises(CheckpointError, match="not that of a sorted table"):
        read_index(prefix)


def test_a_checkpoint_of_a_name_that_is_taken_replaces_all_of_it(tmp_path, monkeypatch):
    content = np.arange(6, dtype=np.float32)
    entries = {}
    for name in "abc":
        (tmp_path / name).write_bytes(content.tobytes())
        entries[name] = Entry("float32", (6,), str(tmp_path / name), 0, 24, crc32c(content))
    prefix = str(tmp_path / "model.ckpt-7")
    link_checkpoint(prefix, entries)
    link_checkpoint(prefix, {"a": entries["a"]})
    assert sorted(path.name for path in tmp_path.glob("model*")) == [
        "model.ckpt-7.data-00000-of-00001",
        "model.ckpt-7.index",
    ]

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        link_checkpoint(str(tmp_path / "model.ckpt-8"), entries)
    assert not list(tmp_path.glob("model.ckpt-8*"))


@pytest.mark.tf
def test_slices_of_partitioned_variables_are_tensorflows_own(tmp_path):
    import tensorflow as tf

    random = np.random.default_rng(0)
    sizes = {"table": (300, 5), "long/naïve\x00": (70000,), "flat": (9, 2)}
    slices, arrays = {}, {}
    for name, shape in sizes.items():
        cut = shape[0] // 3
        for start, size in ((0, cut), (cut, shape[0] - cut)):
            whole = len(shape) - 1
            part = f"{name}/part_{start}"
            slices[part] = TensorSlice(name, shape, (start, *[0] * whole), (size, *shape[1:]))
            arrays[part] = random.normal(size=slices[part].size).astype(np.float32)
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    specs = [
        f"{' '.join(map(str, s.shape))} "
        + ":".join(f"{at},{size}" for at, size in zip(s.start, s.size))
        for s in slices.values()
    ]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(tf.raw_ops.SaveV2(
            prefix=theirs,
            tensor_names=[s.name for s in slices.values()],
            shape_and_slices=specs,
            tensors=[tf.constant(array) for array in arrays.values()],
        ))  # fmt: skip
    found = read_index(theirs, slices)
    assert set(found) == {*slices, *sizes}
    assert not any(found[name].is_whole for name in sizes)
    for name, array in arrays.items():
        assert found[name].is_whole and found[name].checksum == crc32c(array)
    for name in slices:
        found[name] = Entry(**{**vars(found[name]), "raw": b""})
    link_checkpoint(ours, {name: found[name] for name in slices}, slices)
    with open(index_path(theirs), "rb") as one, open(index_path(ours), "rb") as other:
        wanted, made = (dict(read_table(file.read())) for file in (one, other))
    del wanted[b""], made[b""]  # of the header, the version of the program that wrote it
    assert made == wanted


PAGE = ALIGNMENT_BYTES
SPECS = [Variable("a", TensorType("float32", (PAGE // 4,)), True)]


def test_the_one_before_is_whole_and_of_the_next_lower_step(tmp_path):
    content = tmp_path / "content"
    content.write_bytes(bytes(4))
    entry = Entry("float32", (1,), str(content), 0, 4, 0)
    prefixes = {step: str(tmp_path / f"model.ckpt-{step}") for step in (2, 9, 10, 11)}
    for prefix in prefixes.values():
        links.link_checkpoint(prefix, {"a": entry})
    (tmp_path / "model.ckpt-10.data-00000-of-00001").unlink()
    assert all_checkpoints(str(tmp_path)) == [prefixes[step] for step in (2, 9, 11)]
    assert checkpoint_before(prefixes[11]) == prefixes[9]
    assert checkpoint_before(prefixes[2]) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_damaged_record_the_checkpoint_before_is_told(tmp_path, is_first):
    first, second = (FileStore(SPECS, FileDisk(str(tmp_path / "store"), PAGE)) for _ in range(2))
    write(first, "a", np.arange(PAGE // 4, dtype=np.float32))
    entries = first.linkable_regions()
    prefixes = [str(tmp_path / f"model.ckpt-{step}") for step in (1, 2)]
    for prefix in prefixes[is_first:]:
        links.link_checkpoint(prefix, entries)
    damaged = Path(f"{prefixes[1]}.data-00000-of-00001")
    content = damaged.read_bytes()
    damaged.unlink()  # a link to the others' file
    damaged.write_bytes(content[:-PAGE] + bytes([content[-PAGE] ^ 1]) + content[1 - PAGE :])
    assert second.link_source("a", read_index(prefixes[1])["a"])
    with pytest.raises(CheckpointError) as error:
        second.acquire(["a"])
    advice = (
        "there is no earlier checkpoint."
        if is_first
        else f"{prefixes[0]}: set the content of {tmp_path}/checkpoint to the line model_"
    )
    assert advice in str(error.value)
    for store in (first, second):
        store.close()
