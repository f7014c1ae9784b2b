"""What the runner keeps in a model's folder besides checkpoints: its name, the parameters' text.

It also looks at the places that a run names, before seconds go by for TensorFlow.
"""

import os
import textwrap
from pathlib import Path

from cerebras_tf.api import all_checkpoints, check_checkpoint_path, require_usable
from cerebras_tf.errors import CheckpointError, ConfigError
from modelzoo.common.files.path_advice import advice_on_checkpoint

LIST = "checkpoint"  # TensorFlow's list of a folder's checkpoints
TRAINED_ON = "trained_on.json"  # see modelzoo/common/train/trained_on.py


def default_model_dir(params_path):
    """Returns ``model_dir/<name>`` for ``params_<name>.yaml``, in the current folder."""
    return os.path.join("model_dir", Path(params_path).stem.replace("params_", "", 1))


def check_places(runconfig, mode):
    """Checks the places that a run names, as far as that needs no TensorFlow."""
    for name in ("model_dir", "checkpoint_path", "resume_from", "memoryx_dir"):
        check_text(getattr(runconfig, name) or "", name)
        if getattr(runconfig, name) and name != "memoryx_dir":  # which is local, see require_usable
            check_checkpoint_path(getattr(runconfig, name), name)
    folder = Path(os.path.abspath(runconfig.model_dir))
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not there.is_dir():
        raise ConfigError(
            f"model_dir: must be a writable folder. Received: {runconfig.model_dir!r}, but {there} "
            "is a file. Use another folder (-o)."
        )
    if runconfig.validate_only and "train" in mode and not os.access(there, os.W_OK):
        raise ConfigError(
            f"model_dir: must be a writable folder. Received: {runconfig.model_dir!r}, but {there} "
            "is not writable. Use another folder (-o)."
        )
    streams = "train" in mode and not (runconfig.device or runconfig.compile_only)
    weights = runconfig.memoryx_dir if streams else None
    if weights:
        require_usable(weights)


def check_text(path, name):
    """Raises a ConfigError for control characters, which logs and scripts take for line ends."""
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ConfigError(
            f"{name}: must be a path without control characters. Received: {path!r}. Use another."
        )


def check_device(device):
    """Raises a ConfigError if TensorFlow has no such device; it would use another."""
    import tensorflow.compat.v1 as tf

    devices = tf.config.list_physical_devices()
    names = [item.name.replace("/physical_device:", "/") for item in devices]
    wanted = (device or names[0]).lower().replace("device:", "").lstrip("/")
    if f"/{wanted}" not in map(str.lower, names):
        raise ConfigError(
            f"device: must be a device that TensorFlow finds on this computer: {', '.join(names)}. "
            f"Received: {device!r}. Remove it to train on the wafer."
        )


def no_checkpoint(path, option):
    """Returns the error for a path where no checkpoint is; names those next to it."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    near = all_checkpoints(folder)
    advice = (
        f"Checkpoints there: {', '.join(near)}."
        if near
        else f"{advice_on_checkpoint(path, '')} Train first, or use another with --{option}."
    ).lstrip()
    return CheckpointError(
        f"{path}: must be a checkpoint, or a folder that contains one. Received: none. {advice}"
    )


def write_text_summary(model_dir, text, step, tag="params"):
    """Shows `text` in TensorBoard's text tab under a tag."""
    import tensorflow.compat.v1 as tf

    tensor = tf.make_tensor_proto(textwrap.indent(text, "    "), tf.string)
    plugin = tf.SummaryMetadata.PluginData(plugin_name="text")
    metadata = tf.SummaryMetadata(plugin_data=plugin)
    value = tf.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
    with tf.Graph().as_default():
        writer = tf.summary.FileWriterCache.get(str(model_dir))
        writer.add_summary(tf.Summary(value=[value]), step)
