"""What the runner keeps in a model's folder besides checkpoints: a lock, the parameters' text."""

from __future__ import annotations

import contextlib
import fcntl
import os
import textwrap
from pathlib import Path

from cerebras_tf.errors import ConfigError


def default_model_dir(params_path):
    """Returns ``model_dir/<name>`` for ``params_<name>.yaml``, in the current folder."""
    return os.path.join("model_dir", Path(params_path).stem.replace("params_", "", 1))


@contextlib.contextmanager
def locked(model_dir):
    """Makes `model_dir` and keeps other processes from training in it.

    The lock goes away with the process, however that ends.

    Raises:
        ConfigError: if the folder cannot be made or another process trains in it.
    """
    path = os.path.join(model_dir, ".lock")
    try:
        os.makedirs(model_dir, exist_ok=True)
        file = open(path, "a+", encoding="ascii")  # noqa: SIM115 - held open by the block below
    except OSError as error:
        raise ConfigError(
            f"model_dir: must be a folder to write to. Received: {model_dir!r} "
            f"({error.strerror}). Give another after -o."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise ConfigError(
                f"model_dir: must not be in use by another run. Received: {model_dir!r}, in which "
                f"process {file.read().strip() or 'unknown'} is training. Wait for it to end, or "
                "give another folder after -o."
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def write_text_summary(model_dir, text, step):
    """Shows `text` in TensorBoard's text tab under the tag ``params``.

    Args:
        model_dir: folder of the events; the writer is the one that tf.estimator uses.
        text: plain text, shown as code.
        step: global step it stands at.
    """
    import tensorflow.compat.v1 as tf

    tensor = tf.make_tensor_proto(textwrap.indent(text, "    "), tf.string)
    plugin = tf.SummaryMetadata.PluginData(plugin_name="text")
    metadata = tf.SummaryMetadata(plugin_data=plugin)
    value = tf.Summary.Value(tag="params", metadata=metadata, tensor=tensor)
    with tf.Graph().as_default():
        writer = tf.summary.FileWriterCache.get(str(model_dir))
        writer.add_summary(tf.Summary(value=[value]), step)
