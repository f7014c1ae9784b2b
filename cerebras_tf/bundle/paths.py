"""Refuses paths of checkpoints that TensorFlow would not find again."""

from __future__ import annotations

import os
from typing import Union

from cerebras_tf.errors import ConfigError

# Where it opens checkpoints it takes paths for patterns. Of ? and *, which are such too, it finds
# what is called so; of these two it does not.
PATTERN_LETTERS = "[\\"


def check_checkpoint_path(path: Union[str, os.PathLike[str]], name: str) -> None:
    """Refuses a path whose checkpoints TensorFlow writes but does not find again.

    Raises:
      ConfigError: it has one of `PATTERN_LETTERS`.
    """
    found = [letter for letter in PATTERN_LETTERS if letter in os.fspath(path)]
    if found:
        raise ConfigError(
            f"{name}: must be a path without {' and '.join(PATTERN_LETTERS)}, by which TensorFlow "
            f"finds no checkpoint, as it takes them for patterns. Received: {os.fspath(path)}, "
            f"with {' and '.join(found)}. Rename it, or name another."
        )
