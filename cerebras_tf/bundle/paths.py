"""Refuses paths of checkpoints that TensorFlow would not find again."""

from __future__ import annotations

import os
from typing import Union

from cerebras_tf.errors import ConfigError
from cerebras_tf.whole_file import refuse_url

# TensorFlow reads paths of checkpoints as patterns. Paths with ? or * match themselves; paths with
# these letters do not.
PATTERN_LETTERS = "[\\"


def check_checkpoint_path(path: Union[str, os.PathLike[str]], name: str) -> None:
    """Refuses a path whose checkpoints TensorFlow writes but does not find again.

    Raises:
      ConfigError: it has one of `PATTERN_LETTERS`, or is a URL.
    """
    refuse_url(path, name)
    found = [letter for letter in PATTERN_LETTERS if letter in os.fspath(path)]
    if found:
        raise ConfigError(
            f"{name}: must be a path without {' and '.join(PATTERN_LETTERS)}. TensorFlow "
            f"interprets them as patterns and finds no checkpoint. Received: {os.fspath(path)}, "
            f"with {' and '.join(found)}. Rename it, or use another path."
        )
