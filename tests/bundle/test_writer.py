"""Checkpoints written a variable at a time: TensorFlow reads them, and stores take them over."""

import io

import numpy as np
import pytest

from cerebras_tf.bundle import writer as writer_module
from cerebras_tf.bundle.index import read_index
from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.ir import TensorType, Variable
from cerebras_tf.memoryx.disk import FileDisk
from cerebras_tf.memoryx.file_store import FileStore
from tests.machines import content_of

RANDOM = np.random.default_rng(0)
CONTENTS = {
    "b/kernel": RANDOM.standard_normal((300, 40)).astype(np.float32),
    "a/kernel": RANDOM.standard_normal((40, 300)).astype(np.float32).T,
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "odd": RANDOM.standard_normal(1001).astype(np.float32),
}


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "FILE_BYTES", 60_000)
    monkeypatch.setattr(writer_module, "_FLUSH_BYTES", 10_000)
    (tmp_path / "parts").mkdir()
    writer = BundleWriter(str(tmp_path / "parts"))
    for name, array in CONTENTS.items():
        writer.add(name, array)
    writer.add("half", np.arange(100, dtype=np.uint16), "bfloat16")
    writer.finish(str(tmp_path / "model.ckpt-7"))
    assert not list((tmp_path / "parts").iterdir())
    return str(tmp_path / "model.ckpt-7")


@pytest.mark.tf
def test_tensorflow_reads_it(prefix):
    tf = pytest.importorskip("tensorflow")
    reader = tf.train.load_checkpoint(prefix)
    assert set(reader.get_variable_to_shape_map()) == {*CONTENTS, "half"}
    for name, array in CONTENTS.items():
        found = reader.get_tensor(name)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    bits = reader.get_tensor("half").view(np.uint16)
    np.testing.assert_array_equal(bits, np.arange(100))


def test_a_store_takes_it_over_without_reading(prefix, tmp_path):
    entries = read_index(prefix)
    assert len({entry.path for entry in entries.values()}) > 1
    names = ("b/kernel", "a/kernel", "odd")
    specs = [Variable(n, TensorType("float32", CONTENTS[n].shape), True) for n in names]
    store = FileStore(specs, FileDisk(str(tmp_path / "store"), 1 << 20))
    try:
        assert all(store.link_source(name, entries[name]) for name in names)
        assert store.io_stats.bytes_read == 0
        for name in names:
            np.testing.assert_array_equal(content_of(store, name), CONTENTS[name])
    finally:
        store.close()


def test_what_is_discarded_leaves_nothing(tmp_path):
    writer = BundleWriter(str(tmp_path))
    writer.add("a", np.ones(3, np.float32))
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_files_that_take_a_part_of_what_they_are_given_get_all(tmp_path, monkeypatch):
    class ShortFile(io.FileIO):
        def write(self, content):
            return super().write(content[:1000])

    monkeypatch.setattr(
        writer_module, "open", lambda path, mode, buffering: ShortFile(path, mode), raising=False
    )
    writer = BundleWriter(str(tmp_path))
    writer.add("odd", CONTENTS["odd"])
    writer.finish(str(tmp_path / "model.ckpt-7"))
    (path,) = tmp_path.glob("*.data-*")
    assert path.read_bytes() == CONTENTS["odd"].tobytes()


def test_a_checkpoint_whose_writer_was_killed_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.setattr(BundleWriter, "discard", lambda self: None)
    first = BundleWriter(str(tmp_path))
    first.add("odd", CONTENTS["odd"])
    first.finish(str(tmp_path / "first"))
    monkeypatch.undo()
    second = BundleWriter(str(tmp_path))
    second.add("odd", 2 * CONTENTS["odd"])
    (path,) = tmp_path.glob("first.data-*")
    assert path.read_bytes() == CONTENTS["odd"].tobytes()
    second.discard()
