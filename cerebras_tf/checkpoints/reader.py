"""Reads the variables of a checkpoint and finds the checkpoints of a folder; writes none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.bundle import index
from cerebras_tf.errors import CheckpointError


class CheckpointReader:
    """The variables of a checkpoint: iterate `(name, array)`, index by name, test with `in`.

    Args:
      checkpoint: path of a checkpoint such as `model_dir/model.ckpt-100`, or a folder, which means
        its latest.

    Attributes:
      var_names: the names of all variables, sorted.

    Raises:
      CheckpointError: there is no checkpoint there.
    """

    def __init__(self, checkpoint: str) -> None:
        try:
            self._reader = tf.train.load_checkpoint(checkpoint)
        except (ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"{checkpoint}: must be a checkpoint or a folder with one. Received: {error} "
                "Give the path without .index or .data-00000-of-00001."
            ) from error
        self.var_names = sorted(self._reader.get_variable_to_shape_map())

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        return ((name, self._reader.get_tensor(name)) for name in self.var_names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise KeyError(name)
        return self._reader.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self.var_names

    def __len__(self) -> int:
        return len(self.var_names)

    @staticmethod
    def is_a_checkpoint(path: str) -> bool:
        """Says whether `path`, such as `model_dir/model.ckpt-100`, has its index and all shards."""
        return index.is_a_checkpoint(path)

    @staticmethod
    def all_checkpoints(model_dir: str) -> list[str]:
        """Returns the paths of the complete checkpoints in a folder, in the order of their steps.

        The files are looked at, not the list TensorFlow keeps beside them, so checkpoints copied
        in are found and deleted ones are not.
        """
        return index.all_checkpoints(model_dir)

    @classmethod
    def latest(cls, model_dir: str) -> Optional[str]:
        """Returns the whole checkpoint that training in a folder goes on from, or None.

        It is the one that the file `checkpoint` there names, whatever else there is.
        """
        found = tf.train.latest_checkpoint(model_dir)
        return found if found and cls.is_a_checkpoint(found) else None

    @staticmethod
    def before(path: str) -> Optional[str]:
        """Returns the last complete checkpoint of an earlier step in the same folder, or None."""
        return index.checkpoint_before(path)

    @staticmethod
    def step_of(path: str) -> int:
        """Returns the step that ends a checkpoint's name, -1 where none does."""
        return index.step_of(path)
