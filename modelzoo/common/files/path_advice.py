"""What to do about a path where nothing is: the path that was probably meant, or other advice."""

import glob
import re

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.suggestions import did_you_mean_path, nearest_path

LOOKED_UP = (
    "Relative paths are searched in the current folder, the folder of the params file and its "
    "parent folders."
)
# How the names of a checkpoint's files end.
CHECKPOINT_END = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def advice_on_path(path, otherwise=LOOKED_UP):
    """Returns `Did you mean ...?` with the nearest path, or else the other advice."""
    return did_you_mean_path(path) or otherwise


def advice_on_checkpoint(prefix, otherwise):
    """Returns the same for the prefix that the files of a checkpoint have in common."""
    near = None if glob.glob(f"{glob.escape(str(prefix))}.*") else nearest_path(prefix)
    return f"Did you mean {CHECKPOINT_END.sub('', str(near))}?" if near else otherwise


def unread(error):
    """Returns the class of error to raise for a file of a params file that cannot be read.

    It is a DataError where nothing is at the path, because models are compiled without such files,
    and else a ConfigError.
    """
    absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return DataError if absent else ConfigError


def advice_on_vocabulary(path, error, algorithm):
    """Returns what to do about the file of a vocabulary that cannot be read."""
    if unread(error) is ConfigError:
        return "Use another file."
    advice = (
        f"`cerebras-tf prepare vocab --algorithm {algorithm}` makes one. For a trained model, use "
        "the vocabulary that it was trained with."
    )
    return f"{advice_on_path(path, '')} {advice}".strip()
