"""Files of a conversion: safetensors, Hugging Face's folders, checkpoints, whole folders."""

from __future__ import annotations

import json
import math
import os
import struct
import threading

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow")

from cerebras_tf.bundle import writer
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.ir import TensorType
from cerebras_tf.memoryx.folder_lock import locked_folder, whole_folder, writer_of
from cerebras_tf.memoryx.safetensors_file import (
    TensorFile,
    rounded_to,
    split_into_shards,
    write_weights,
)
from modelzoo.common.convert.hugging_face import HuggingFaceReader, TorchReader, write_hugging_face
from modelzoo.common.convert.tensorflow_checkpoint import (
    TensorFlowReader,
    renumber,
    write_tensorflow,
)
from modelzoo.common.model_dir.resume import checkpoint_step
from tests.messages import raises
from tests.modelzoo.common.convert.models import random_tensors
from tests.reading import assert_same, variables_of

SHAPES = {"a.weight": (3, 5), "b": (7,), "scalar": (), "c": (2, 0, 4)}


def library():
    return pytest.importorskip("safetensors.numpy", reason="safetensors is a test extra")


def write(path, tensors, dtype="float32"):
    types = {name: TensorType(dtype, x.shape) for name, x in tensors.items()}
    write_weights(path, types, tensors.items())


def test_library_reads_what_is_written(tmp_path):
    tensors = random_tensors(SHAPES)
    write(tmp_path / "m.safetensors", tensors)
    assert_same(library().load_file(tmp_path / "m.safetensors"), tensors)
    from safetensors import safe_open

    with safe_open(tmp_path / "m.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}


def test_reader_reads_what_the_library_writes(tmp_path):
    tensors = random_tensors(SHAPES)
    library().save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    reader = TensorFile(tmp_path / "m.safetensors")
    assert_same({name: reader.read_weight(name) for name in reader.regions}, tensors)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_read_exactly_and_written_rounded(tmp_path, dtype):
    tensors = random_tensors(SHAPES)
    write(tmp_path / "m.safetensors", tensors, dtype)
    reader = TensorFile(tmp_path / "m.safetensors")
    once = {name: reader.read_weight(name) for name in reader.regions}
    bits = {"float16": 10, "bfloat16": 7}[dtype]
    for name, array in tensors.items():
        np.testing.assert_allclose(once[name], array, rtol=2.0 ** -(bits + 1))
    write(tmp_path / "again.safetensors", once, dtype)
    again = TensorFile(tmp_path / "again.safetensors")
    assert_same({name: again.read_weight(name) for name in again.regions}, once)


def test_bfloat16_rounds_to_even_and_keeps_what_is_no_number():
    halfway = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    special = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    even = np.array([0x3F800000, 0x3F820000], np.uint32).view(np.float32)
    np.testing.assert_array_equal(rounded_to(halfway, "bfloat16"), even)
    found = rounded_to(special, "bfloat16")
    np.testing.assert_array_equal(found, special)
    assert np.signbit(found[3])


def with_header(header):
    return struct.pack("<Q", len(header)) + header + b"\0" * 4


SHORT = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()


def header_of(*places):
    """A file with four bytes of tensors at some places."""
    entry = '"{}": {{"dtype": "U8", "shape": [{}], "data_offsets": [{}, {}]}}'
    entries = (entry.format(name, end - start, start, end) for name, start, end in places)
    return with_header(f"{{{', '.join(entries)}}}".encode())


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda whole: whole[:-4], ("a complete safetensors file", "tensor scalar")),
        *((lambda whole, n=n: whole[:n], (f"{n} bytes",)) for n in (0, 7, 8, 40)),
        (lambda whole: with_header(b"no json"), ("invalid header",)),
        (lambda whole: with_header(b"[]"), ("invalid header",)),
        (lambda whole: with_header(b'{"a": 1}'), ("invalid header",)),
        (lambda whole: with_header(SHORT.replace(b"data_", b"")), ("invalid header",)),
        (lambda whole: with_header(SHORT), ("tensor a of 4 bytes instead of 8",)),
        (lambda whole: struct.pack("<Q", struct.unpack("<Q", whole[:8])[0] - 1) + whole[8:], ()),
        (lambda whole: whole + b"\0", ("1 bytes after",)),
        (lambda whole: header_of(("a", 0, 4), ("b", 2, 4)), ("tensor b at bytes 2",)),
        (lambda whole: header_of(("a", 0, 1), ("b", 2, 4)), ("tensor b at bytes 2",)),
        (lambda whole: header_of(("a", 0, 2), ("a", 2, 4)), ("'a' twice",)),
        (lambda whole: header_of(("a", 1, 4)), ("tensor a at bytes 1",)),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, facts):
    path = tmp_path / "m.safetensors"
    write(path, random_tensors(SHAPES))
    path.write_bytes(change(path.read_bytes()))
    with raises(CheckpointError, path, *facts):
        TensorFile(path)
    with pytest.raises(Exception, match=r"(?i)safetensor|header|invalid"):
        library().load_file(path)  # which is as strict


def test_type_that_is_no_weights_is_refused_when_read(tmp_path):
    library().save_file({"a": np.zeros(2, np.int64)}, tmp_path / "m.safetensors")
    reader = TensorFile(tmp_path / "m.safetensors")
    with raises(CheckpointError, "tensor a", "float32, float16, bfloat16", "int64"):
        reader.read_weight("a")


SHARDED = {"a": (4, 5), "b": (30,), "c": (2, 2), "d": (3,)}


def write_folder(folder, max_shard_bytes=10**9):
    folder.mkdir(exist_ok=True)
    tensors = random_tensors(SHARDED)
    config = {"model_type": "gpt2"}
    write_hugging_face(folder, config, SHARDED, tensors.items(), 0, "float32", max_shard_bytes)
    return tensors


def same_folder(reader, tensors):
    assert reader.shapes == {name: array.shape for name, array in tensors.items()}
    assert_same({name: reader.read(name) for name in tensors}, tensors)


def test_one_file_is_written_and_read(tmp_path):
    tensors = write_folder(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    reader = HuggingFaceReader(tmp_path)
    same_folder(reader, tensors)
    assert reader.config == {"model_type": "gpt2", "torch_dtype": "float32"}
    assert reader.where("a") == str(tmp_path / "model.safetensors")


def test_several_files_are_written_with_an_index_and_read(tmp_path):
    tensors = write_folder(tmp_path, max_shard_bytes=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(math.prod(s) for s in SHARDED.values()) * 4}
    assert len(set(index["weight_map"].values())) == 3
    same_folder(HuggingFaceReader(tmp_path), tensors)


@pytest.mark.parametrize("limit", [1, 17, 100, 1000])
def test_shards_keep_all_tensors_in_order_within_the_limit(limit):
    specs = {name: TensorType("float32", shape) for name, shape in SHARDED.items()}
    shards = split_into_shards(specs, limit)
    assert [item for shard in shards for item in shard.items()] == list(specs.items())
    for shard in shards:
        assert len(shard) == 1 or sum(spec.bytes for spec in shard.values()) <= limit


def test_folders_without_a_file_or_a_tensor_are_refused(tmp_path):
    def refused(*facts):
        with raises(CheckpointError, *facts):
            HuggingFaceReader(tmp_path)

    refused("config.json", "No such file")
    (tmp_path / "config.json").write_text("{}")
    refused("model.safetensors")
    (tmp_path / "config.json").write_text("[]")
    refused("config.json")
    write_folder(tmp_path, max_shard_bytes=100)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["e"] = index["weight_map"]["a"]
    path.write_text(json.dumps(index))
    refused("model-00001-of-00003.safetensors", "tensor e")
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused("model-00002-of-00003.safetensors")


def torch_module():
    return pytest.importorskip("torch", reason="torch is a test extra")


@pytest.mark.parametrize("zipped", [True, False])
def test_bin_files_of_pytorch_are_read(tmp_path, zipped):
    torch = torch_module()
    tensors = random_tensors(SHARDED)
    stored = {name: torch.from_numpy(x) for name, x in tensors.items()}
    path = tmp_path / "pytorch_model.bin"
    torch.save(stored, path, _use_new_zipfile_serialization=zipped)
    (tmp_path / "config.json").write_text("{}")
    same_folder(HuggingFaceReader(tmp_path), tensors)


class RunsWhenLoaded:
    """Its pickle calls a function of the author's choice."""

    def __reduce__(self):
        return (print, ("code of the file runs",))


def test_bin_file_that_holds_code_is_refused_and_not_run(tmp_path, capsys):
    torch = torch_module()
    torch.save({"a": RunsWhenLoaded()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    with raises(CheckpointError, "pytorch_model.bin", "weights"):
        HuggingFaceReader(tmp_path)
    assert "code of the file runs" not in capsys.readouterr().out


PATTERNS = ("model*", "last")


def write_whole(target, names, overwrite=False):
    with whole_folder(target, PATTERNS, overwrite) as folder:
        for name in names:
            (folder / name).write_text(f"new {name}")


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def test_files_appear_when_the_block_ends_well(tmp_path):
    with whole_folder(tmp_path / "out", PATTERNS, False) as folder:
        (folder / "model-1").write_text("new")
        (folder / "last").write_text("new")
        assert names_in(tmp_path / "out") == {folder.name, ".lock"}
    assert names_in(tmp_path / "out") == {"model-1", "last"}


def test_a_folder_that_another_process_writes_in_is_refused(tmp_path):
    with whole_folder(tmp_path, PATTERNS, False) as folder:
        (folder / "last").write_text("first")
        refused = []

        def second():
            with raises(ConfigError, "output", os.getpid()), whole_folder(tmp_path, PATTERNS, True):
                pass
            refused.append(writer_of(str(tmp_path)))

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert refused == [str(os.getpid())]
    assert (names_in(tmp_path), writer_of(str(tmp_path))) == ({"last"}, None)
    (tmp_path / ".lock").touch()  # of a process that was killed
    write_whole(tmp_path, ["last"], overwrite=True)
    assert names_in(tmp_path) == {"last"}
    with locked_folder(str(tmp_path)):  # at the end of a training
        write_whole(tmp_path, ["last"], overwrite=True)
        assert names_in(tmp_path) == {"last", ".lock"}


def test_a_block_that_fails_leaves_what_was_there(tmp_path):
    def fail(target, overwrite):
        with pytest.raises(KeyError), whole_folder(target, PATTERNS, overwrite) as folder:
            (folder / "model-1").write_text("half")
            raise KeyError

    fail(tmp_path / "out", False)
    assert not (tmp_path / "out").exists()
    write_whole(tmp_path, ["model-1", "last"])
    fail(tmp_path, True)
    assert names_in(tmp_path) == {"model-1", "last"}
    assert (tmp_path / "model-1").read_text() == "new model-1"


def test_old_files_are_refused_or_replaced_and_others_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write_whole(tmp_path, ["model-1", "last"])
    with raises(CheckpointError, tmp_path, "Received: last.", "--overwrite"):
        write_whole(tmp_path, ["model-2", "last"])
    assert names_in(tmp_path) == {"model-1", "last", "notes.txt"}
    write_whole(tmp_path, ["model-2", "last"], overwrite=True)
    assert names_in(tmp_path) == {"model-2", "last", "notes.txt"}
    with raises(ConfigError, "output", "folder"):
        write_whole(tmp_path / "last" / "out", ["last"])


VARIABLES = {"a/kernel": (4, 5), "b": (30,), "c": ()}


@pytest.mark.parametrize("file_bytes, shards", [(1, 4), (10**6, 1)])
def test_tensorflow_reads_what_is_written(tmp_path, file_bytes, shards, monkeypatch):
    monkeypatch.setattr(writer, "FILE_BYTES", file_bytes)
    tensors = random_tensors(VARIABLES)
    write_tensorflow(tmp_path, "model.ckpt-7", iter(tensors.items()), 7)
    prefix = tf.train.latest_checkpoint(str(tmp_path))
    assert prefix == str(tmp_path / "model.ckpt-7")
    assert len(list(tmp_path.glob("model.ckpt-7.data-*"))) == shards
    assert_same(variables_of(prefix), {**tensors, "global_step": np.array(7)})


def test_checkpoint_is_found_after_its_folder_is_moved(tmp_path):
    (tmp_path / "old").mkdir()
    write_tensorflow(tmp_path / "old", "model.ckpt-0", iter(random_tensors(VARIABLES).items()))
    (tmp_path / "old").rename(tmp_path / "new")
    assert TensorFlowReader(tmp_path / "new").path == str(tmp_path / "new" / "model.ckpt-0")


def test_reader_finds_the_only_checkpoint_of_a_folder_without_a_record(tmp_path):
    write_tensorflow(tmp_path, "bert_model.ckpt", iter(random_tensors(VARIABLES).items()))
    (tmp_path / "checkpoint").unlink()
    reader = TensorFlowReader(tmp_path)
    assert reader.path == str(tmp_path / "bert_model.ckpt")
    assert reader.shapes == {**VARIABLES, "global_step": ()}
    write_tensorflow(tmp_path, "other.ckpt", iter(random_tensors(VARIABLES).items()))
    (tmp_path / "checkpoint").unlink()
    with raises(CheckpointError, tmp_path, "2 *.index files"):
        TensorFlowReader(tmp_path)


def test_missing_and_truncated_checkpoints_are_refused_with_their_path(tmp_path):
    with raises(CheckpointError, "model.ckpt-1:"):
        TensorFlowReader(tmp_path / "model.ckpt-1")
    write_tensorflow(tmp_path, "model.ckpt-2", iter(random_tensors(VARIABLES).items()))
    data = next(tmp_path.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:8])
    with raises(CheckpointError, "model.ckpt-2", "variable b", "Received: "):
        TensorFlowReader(tmp_path).read("b")


def test_copy_has_every_variable_and_another_step(tmp_path):
    (tmp_path / "first").mkdir()
    tensors = {
        "layer/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "layer/kernel/AdamW": np.ones((2, 3), np.float32),
        "accum_step_counter": np.asarray(0, np.int32),
        "cerebras_tf/random_step": np.asarray(7, np.int64),
    }
    write_tensorflow(tmp_path / "first", "model.ckpt-57", iter(tensors.items()), 57)
    path = renumber(tmp_path / "first", tmp_path / "second", 38)
    assert path == str(tmp_path / "second" / "model.ckpt-38")
    assert checkpoint_step(str(tmp_path / "second")) == 38
    found = TensorFlowReader(path)
    assert set(found.shapes) == {*tensors, "global_step"}
    assert_same({name: found.read(name) for name in tensors}, tensors)
    with raises(CheckpointError, "second"):
        renumber(tmp_path / "first", tmp_path / "second", 39)
    renumber(tmp_path / "first", tmp_path / "second", 39, overwrite=True)
    assert checkpoint_step(str(tmp_path / "second")) == 39
    assert not list((tmp_path / "second").glob("model.ckpt-38*"))


def changed_tensor(torch, change):
    weight = torch.arange(6.0).reshape(2, 3)
    if change == "nan":
        weight[1, 2] = math.nan
    kinds = {
        "complex": lambda: weight.to(torch.complex64),
        "integer": lambda: weight.long(),
        "sparse": lambda: weight.to_sparse(),
        "meta": lambda: weight.to("meta"),
        "list": lambda: [1.0],
    }
    return kinds.get(change, lambda: weight)()


@pytest.mark.parametrize(
    "change", ["byte", "nan", "complex", "integer", "sparse", "meta", "list", "nested"]
)
def test_bin_files_that_are_no_weights_are_refused(tmp_path, change):
    torch = torch_module()
    path = tmp_path / "pytorch_model.bin"
    value = {"a": changed_tensor(torch, change)}
    torch.save([value] if change == "nested" else value, path)
    if change == "byte":
        content = bytearray(path.read_bytes())
        content[content.index(torch.arange(6.0).numpy().tobytes()) + 2] ^= 1
        path.write_bytes(content)
    with raises(CheckpointError, path):
        TorchReader(path).read_weight("a")


def test_nan_in_safetensors_is_refused(tmp_path):
    write(tmp_path / "m.safetensors", {"a": np.array([1.0, np.nan], np.float32)})
    with raises(CheckpointError, "tensor a", "NaN"):
        TensorFile(tmp_path / "m.safetensors").read_weight("a")
