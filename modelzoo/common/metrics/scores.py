"""Writes the scores of predictions to where TensorBoard shows them and to a file."""

import json
from pathlib import Path

from cerebras_tf.api import EventFile
from cerebras_tf.errors import DataError
from cerebras_tf.user_files import read_json, reason
from cerebras_tf.whole_file import write_whole


def write_scalars(folder, step, values):
    """Writes scores as TensorBoard events and into ``scores.json``, by step.

    Other scores in the file are kept.

    Args:
        folder: created if absent, such as ``model_dir/eval``.
        values: numbers by name. Strings (such as BLEU's signature) are only written to the file.

    Returns:
        The path of the file.

    Raises:
        DataError: if the file exists and has other content.
    """
    path = Path(folder, "scores.json")
    scores = _read(path)
    plain = {
        name: value if isinstance(value, str) else float(value) for name, value in values.items()
    }
    scores[str(int(step))] = {**scores.get(str(int(step)), {}), **plain}
    write_whole(path, _as_text(scores))

    numbers = {name: value for name, value in plain.items() if not isinstance(value, str)}
    EventFile(str(folder)).log(int(step), numbers)
    return path


def drop_scores(folder, step):
    """Removes the scores of a step from ``scores.json``; returns whether there were any."""
    path = Path(folder, "scores.json")
    scores = _read(path)
    if scores.pop(str(int(step)), None) is None:
        return False
    write_whole(path, _as_text(scores))
    return True


def _as_text(scores):
    return json.dumps(scores, indent=2, ensure_ascii=False) + "\n"


def _read(path):
    try:
        return read_json(path, {str: dict})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must contain scores by step. Received: {reason(error)}. Move the file away."
        ) from error
