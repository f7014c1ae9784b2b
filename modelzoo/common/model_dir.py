"""What the runner keeps in a model's folder besides checkpoints: its name, the parameters' text."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

from cerebras_tf.memoryx.checkpoint_paths import check_checkpoint_path

TRAINED_ON = "trained_on.json"  # see modelzoo/common/trained_on.py


def default_model_dir(params_path):
    """Returns ``model_dir/<name>`` for ``params_<name>.yaml``, in the current folder."""
    return os.path.join("model_dir", Path(params_path).stem.replace("params_", "", 1))


def check_paths(runconfig):
    """Raises a ConfigError for a folder or checkpoint by whose path TensorFlow finds none."""
    for name in ("model_dir", "checkpoint_path", "resume_from"):
        if getattr(runconfig, name):
            check_checkpoint_path(getattr(runconfig, name), name)


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
