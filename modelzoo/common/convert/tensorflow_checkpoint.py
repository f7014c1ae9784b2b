"""TensorFlow checkpoints, read and written a variable at a time, and renumbered."""

import os
from pathlib import Path

import numpy as np

from cerebras_tf.api import BundleWriter, checkpoint_before, checkpoint_state, whole_folder
from cerebras_tf.errors import CheckpointError
from cerebras_tf.whole_file import write_whole
from modelzoo.common.files.path_advice import CHECKPOINT_END, advice_on_checkpoint
from modelzoo.common.model_dir.source_files import SOURCE_FILES, copy_between, find_source

STATE = "checkpoint"
GLOBAL_STEP = "global_step"


class TensorFlowReader:
    """The variables of a checkpoint.

    Args:
        path: its prefix, such as ``model_dir/model.ckpt-100``, or one of its files; or a folder:
            its latest checkpoint, or the only one where none is recorded.
    """

    def __init__(self, path):
        import tensorflow as tf

        from cerebras_tf.api import warn_of_cut_files

        self._errors = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
        self.path = _find(tf, str(path))
        self.folder = Path(self.path).parent
        try:
            self._reader = tf.train.load_checkpoint(self.path)
        except self._errors as error:
            raise _unreadable(self.path, error) from error
        warn_of_cut_files(self.path)
        shapes = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shapes[name]) for name in sorted(shapes)}
        if not self.shapes:
            raise CheckpointError(
                f"{self.path}: must contain variables. Received: none. Use another checkpoint."
            )

    def read(self, name):
        """Reads one variable."""
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            before = checkpoint_before(self.path)
            advice = (
                (f"or use the earlier checkpoint, {before}")
                if before
                else "there is no earlier checkpoint"
            )
            raise CheckpointError(
                f"{self.path}, variable {name}: must be undamaged. Received: {_first_line(error)}. "
                f"Restore the files; {advice}."
            ) from error

    def where(self, name):
        """Returns the prefix of the checkpoint, which holds every variable."""
        return self.path

    @property
    def global_step(self):
        """The global step, 0 where there is none."""
        return int(self.read(GLOBAL_STEP)) if GLOBAL_STEP in self.shapes else 0


def _find(tf, path):
    if not os.path.isdir(path):
        return CHECKPOINT_END.sub("", path)
    checkpoint_state(path)  # names no checkpoint of another folder
    found = tf.train.latest_checkpoint(path)
    candidates = [str(index.with_suffix("")) for index in Path(path).glob("*.index")]
    if found or len(candidates) == 1:
        return found or candidates[0]
    raise CheckpointError(
        f"{path}: must contain a checkpoint. Received: {len(candidates)} *.index files, and no "
        "list of checkpoints. Use the prefix of its files, such as model_dir/model.ckpt-100."
    )


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _unreadable(where, error):
    advice = (
        "Use the prefix of its files, such as model_dir/model.ckpt-100, and restore damaged ones."
    )
    return CheckpointError(
        f"{where}: must be a complete TensorFlow checkpoint. Received: {_first_line(error)}. "
        f"{advice_on_checkpoint(where, advice)}"
    )


def write_tensorflow(folder, name, tensors, global_step=0):
    """Writes a checkpoint and records it as the folder's latest; needs no TensorFlow."""
    writer = BundleWriter(str(folder))
    try:
        writer.add(GLOBAL_STEP, np.asarray(global_step, np.int64))
        for variable, array in tensors:
            writer.add(variable, array)
            del array  # or it would still be there while the next is read
        writer.finish(os.path.join(folder, name))
    finally:
        writer.discard()
    record_latest(folder, name)


def record_latest(folder, name):
    """Records a checkpoint as the folder's latest, as tf.train.latest_checkpoint reads it."""
    lines = (f'model_checkpoint_path: "{name}"', f'all_model_checkpoint_paths: "{name}"')
    write_whole(Path(folder) / STATE, "".join(f"{line}\n" for line in lines))


def renumber(source, output, step, overwrite=False):
    """Copies a checkpoint, the optimizer's variables included, and calls it another step.

    The files of the model that it began as are copied, too.

    Returns:
        Prefix of the copy.
    """
    reader, name = TensorFlowReader(source), f"model.ckpt-{step}"
    tensors = ((key, reader.read(key)) for key in reader.shapes if key != GLOBAL_STEP)
    with whole_folder(output, (*SOURCE_FILES, "model.ckpt-*", STATE), overwrite) as folder:
        write_tensorflow(folder, name, tensors, step)
        copy_between(find_source(reader.folder), folder)
    return str(Path(output) / name)
