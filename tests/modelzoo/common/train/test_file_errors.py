"""What the system and TensorFlow say of files becomes one paragraph."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow.compat.v1")

from cerebras_tf.checkpoints.writer import write_checkpoint
from cerebras_tf.errors import ConfigError, DataError
from modelzoo.common.config.sections import RunConfigParams
from modelzoo.common.train.file_errors import damaged_checkpoint, file_errors_named
from tests.messages import raises


def named(folder):
    """The context for a run in a folder, whose training data lies there too."""
    section = SimpleNamespace(data_dir=str(folder))
    runconfig = RunConfigParams(model_dir=str(folder))
    params = SimpleNamespace(train_input=section, runconfig=runconfig)
    return file_errors_named(params, ["train_input"])


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_record_is_named_by_file_and_offset(tmp_path, damage):
    path = tmp_path / "bad.tfrecords"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(5):  # of 116 bytes in the file
            writer.write(bytes([number]) * 100)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[3 * 116 + 50 :]
    else:
        data[3 * 116 + 50] ^= 1
    path.write_bytes(data)
    with raises(DataError, path, "byte 348"), named(tmp_path):
        raise tf.errors.DataLossError(None, None, "corrupted record at 360")


def test_a_damaged_source_of_a_run_is_named_where_its_copy_is_gone(tmp_path):
    prefix = str(tmp_path / "source" / "model.ckpt-3")
    write_checkpoint(prefix, [{"global_step": np.int64(3)}])
    runconfig = RunConfigParams(model_dir=str(tmp_path / "new"), mode="train", resume_from=prefix)
    assert str(damaged_checkpoint(runconfig)).startswith(f"{prefix}: ")


def out_of_range(text):
    return tf.errors.OutOfRangeError(None, None, text)


PART = f"/x.npz.tmp{'0a' * 16}"


@pytest.mark.parametrize(
    ("raised", "fact"),
    [
        *(
            (OSError(number, os.strerror(number), "/x.npz"), os.strerror(number))
            for number in (errno.ENOSPC, errno.EACCES, errno.EROFS)
        ),
        # To TensorFlow `ulimit -f` is an error of the range, and to its writer of events, too.
        *((kind("/x.npz; File too large\n\tmore"), "large") for kind in (IndexError, out_of_range)),
        (tf.errors.PermissionDeniedError(None, None, "/x.npz; Permission denied"), "denied"),
        # Temporary files are named as they would have been in the end.
        (tf.errors.PermissionDeniedError(None, None, f"{PART}; Permission denied"), "denied"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/.x.npz.27"), "space"),
    ],
)
def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path, raised, fact):
    with raises(ConfigError, "/x.npz: ", fact), named(tmp_path):
        raise raised


@pytest.mark.parametrize(
    "raised",
    [
        KeyError("x"),
        FileNotFoundError(errno.ENOENT, "no such file", "x"),
        IndexError("End of sequence"),
        out_of_range("End of sequence"),
    ],
)
def test_other_errors_pass(tmp_path, raised):
    with pytest.raises(type(raised)), named(tmp_path):
        raise raised


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
