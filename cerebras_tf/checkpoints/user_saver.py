"""Calls a user's own Saver for variables that rest in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf

from cerebras_tf.checkpoints.content import RANDOM_STEP_KEY, named, open_checkpoint, read_variable
from cerebras_tf.checkpoints.stored_variables import StoredVariables
from cerebras_tf.errors import CheckpointError
from cerebras_tf.step.tensorflow_step import TensorFlowStep


class UserSaver:
    """A user's Saver, called as it stands, for variables that rest in the store.

    Args:
        given: the Saver.
        stored: the variables.
        connect: told of a session after a restore.
        training: the step, in training: random ops go on where a checkpoint says they were.
    """

    def __init__(
        self,
        given: Any,
        stored: StoredVariables,
        connect: Callable[[Any], None] = lambda session: None,
        training: Optional[TensorFlowStep] = None,
    ) -> None:
        self._given = given
        self._connect = connect
        self._stored = stored
        self._step = training
        self._has_told_of_draws = False
        if training is not None:
            stored.draws = training.draws_to_save

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def save(self, sess: Any, *args: Any, **kwargs: Any) -> Any:
        """Saves; see tf.train.Saver.save. What was just restored is not written again."""
        with self._stored.serving(sess):
            path = self._given.save(sess, *args, **kwargs)
        lost = set(self._stored.draws()).difference(_saved_draws(path))
        if lost and not self._has_told_of_draws:
            self._has_told_of_draws = True
            tf.compat.v1.logging.warning(
                "Scaffold.saver: %s does not say how often random operations have drawn, and a run "
                "that goes on from it repeats numbers. Let the saver write a TensorFlow checkpoint "
                "of all variables, or leave it out.",
                path,
            )
        return path

    def restore(self, sess: Any, save_path: str) -> None:
        """Restores; see tf.train.Saver.restore.

        Raises:
            CheckpointError: the checkpoint does not fit, or leaves variables without a value.
        """
        with self._stored.serving(sess):
            self._given.restore(sess, save_path)
        self._stored.adopt_all(sess)
        self._stored.restored = save_path
        missing = self._stored.missing()
        if missing:
            raise CheckpointError(
                f"Scaffold.saver: must restore every variable of the model from {save_path}. "
                f"Received: a saver that leaves out {named(missing)}. Add them to its var_list."
            )
        if self._step is not None:
            self._step.restore_draws(_saved_draws(save_path))
        self._connect(sess)


def _saved_draws(path: Optional[str]) -> dict[str, int]:
    """What a user's saver has written of random ops; nothing where that is no checkpoint."""
    if path is None:
        return {}
    try:
        reader = open_checkpoint(path)
    except CheckpointError:
        return {}
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith(RANDOM_STEP_KEY)]
    return {name: int(read_variable(reader, path, name)) for name in names}
