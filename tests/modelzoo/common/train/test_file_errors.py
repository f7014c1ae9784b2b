"""Tests of file_errors.py: what the system and TensorFlow say of files becomes one paragraph."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.config.sections import RunConfigParams
from modelzoo.common.train.file_errors import (
    damaged_checkpoint,
    file_errors_named,
    system_errors_named,
)


def named(folder):
    """The context for a run in a folder, whose training data lies there too."""
    section = SimpleNamespace(data_dir=str(folder))
    runconfig = RunConfigParams(model_dir=str(folder))
    params = SimpleNamespace(train_input=section, runconfig=runconfig)
    return file_errors_named(params, ["train_input"])


def write_records(path):
    """Writes five records of 100 bytes, each 116 bytes in the file."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(5):
            writer.write(bytes([number]) * 100)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_record_is_told_by_file_and_offset(tmp_path, damage):
    write_records(tmp_path / "a.tfrecords")
    data = write_records(tmp_path / "bad.tfrecords")
    if damage == "cut":
        del data[3 * 116 + 50 :]
    else:
        data[3 * 116 + 50] ^= 1
    (tmp_path / "bad.tfrecords").write_bytes(data)
    says = r"bad.tfrecords: must be a whole TFRecord file. Received: .*record at byte 348"
    with pytest.raises(DataError, match=says), named(tmp_path):
        raise tf.errors.DataLossError(None, None, "corrupted record at 360")


def test_a_damaged_source_of_a_run_is_named_where_its_copy_is_gone(tmp_path):
    prefix = str(tmp_path / "source" / "model.ckpt-3")
    write_checkpoint(prefix, [{"global_step": np.int64(3)}])
    runconfig = RunConfigParams(model_dir=str(tmp_path / "new"), mode="train", resume_from=prefix)
    says = f"{prefix}: must be a whole checkpoint."
    assert str(damaged_checkpoint(runconfig)).startswith(says)


def test_a_damaged_warm_start_that_a_folder_names_is_told_with_the_one_before(tmp_path):
    folder = str(tmp_path / "source")
    for step in (3, 5):
        write_checkpoint(f"{folder}/model.ckpt-{step}", [{"a": np.float32(step)}])
    runconfig = RunConfigParams(model_dir=str(tmp_path), mode="train", checkpoint_path=folder)
    said = str(damaged_checkpoint(runconfig))
    assert said.startswith(f"{folder}/model.ckpt-5: must be a whole checkpoint.")
    assert f"--checkpoint_path {folder}/model.ckpt-3 " in said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_file_that_cannot_be_written_is_named(tmp_path, number):
    with pytest.raises(ConfigError) as error, named(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "x.npz"))
    says = f"{tmp_path}/x.npz: must be a place to write to. Received: {os.strerror(number)}."
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    "kind", [IndexError, lambda text: tf.errors.OutOfRangeError(None, None, text)]
)
def test_a_file_beyond_the_limit_of_the_shell_is_named_and_the_end_of_data_is_not(tmp_path, kind):
    """To TensorFlow `ulimit -f` is an error of the range, and to its writer of events, too."""
    path = f"{tmp_path}/graph.pbtxt"
    says = f"{path}: must be .* Received: File too large. Free"
    with pytest.raises(ConfigError, match=says), named(tmp_path):
        raise kind(f"{path}; File too large\n\tmore")
    with pytest.raises(type(kind("x"))), named(tmp_path):
        raise kind("End of sequence")


def test_a_write_that_is_refused_beside_a_like_name_has_its_own_remedy(tmp_path):
    (tmp_path / "run1").mkdir()
    with pytest.raises(ConfigError) as error, system_errors_named("x"):
        raise OSError(errno.EACCES, "Permission denied", str(tmp_path / "run2"))
    assert str(error.value).endswith("Free space, correct the permissions, or name another path.")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    says = "^/x.tfrecords: must be readable, or a place to write to. Received: Permission denied."
    with pytest.raises(ConfigError, match=says), named(tmp_path):
        raise tf.errors.PermissionDeniedError(None, None, "/x.tfrecords; Permission denied")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("done", ["flush", "sync"])
def test_events_that_do_not_fit_on_the_disk_are_told(tmp_path, number, done):
    said, events = os.strerror(number), f"{tmp_path}/events.out"
    says = f"events.out: must be a place to write to. Received: {said}. Free"
    with pytest.raises(ConfigError, match=says), named(tmp_path):
        raise RuntimeError(f"{events}; {said}\n\tFailed to {done} 2 events to {events}")


def test_events_beyond_the_limit_of_the_shell_are_told_as_their_writer_says_it(tmp_path):
    """Each limit in a process of its own, as it is of the whole process."""
    limits = (0, 1, 50, 600)
    script = f"""\
        import os, resource, sys
        import tensorflow.compat.v1 as tf
        from tests.modelzoo.common.train.test_file_errors import named
        tf.disable_eager_execution()
        for limit in {limits}:
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0, limit
                continue
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            folder = os.path.join({str(tmp_path)!r}, str(limit))
            try:
                with named(folder):
                    writer = tf.summary.FileWriter(folder)
                    for step in range(20):
                        writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), step)
                    writer.flush()
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            os._exit(0)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    ).stdout
    for limit in limits:
        place = rf"^ConfigError .*/{limit}/events\.\S+: must be a place to write to."
        assert re.search(f"{place} Received: File too large.", done, re.MULTILINE), done


def test_the_thread_that_writes_events_ends_without_a_traceback(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(str(args.exc_value)))

    def fail(text):
        raise RuntimeError(text)

    with named(tmp_path):
        for text in ("x; No space left on device\n\tFailed to flush 2 events", "another"):
            thread = threading.Thread(target=fail, args=(text,))
            thread.start()
            thread.join()
    assert shown == ["another"]


def test_records_that_do_not_fit_on_the_disk_are_told_by_their_command():
    says = "^o/x: must be readable, or a place to write to. Received: No space left on device."
    with pytest.raises(ConfigError, match=says), system_errors_named("o"):
        raise tf.errors.ResourceExhaustedError(None, None, "o/x; No space left on device")
    with pytest.raises(ConfigError, match="^o: must be readable"), system_errors_named("o"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_an_events_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "eval").write_text("")
    with (
        pytest.raises(
            ConfigError, match="must be a place to write to. Received: .*eval is not a dir"
        ),
        named(tmp_path),
    ):
        tf.gfile.MakeDirs(str(tmp_path / "eval" / "events"))


def test_other_errors_pass(tmp_path):
    with pytest.raises(KeyError), named(tmp_path):
        raise KeyError("x")
    with pytest.raises(FileNotFoundError), named(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "no such file", "x")
