"""Finds where an input pipeline continues after a restart, from two counters of a checkpoint.

All pipelines here are a function of their seed, so skipping the batches that a checkpoint has
seen gives the very stream that an uninterrupted run would have seen. How many they are follows from
the step, and from ``data_position.json`` of model_dir where a step had not always as many batches,
or a batch not always as many records.
"""

import json
import os
from pathlib import Path

import tensorflow.compat.v1 as tf

from cerebras_tf.api import read_variable
from cerebras_tf.config.schema import LONG_END
from cerebras_tf.errors import CheckpointError, DataError
from cerebras_tf.user_files import read_json, reason
from cerebras_tf.whole_file import write_whole
from modelzoo.common.model_dir.checkpoint_files import POSITION, advice_instead, latest_checkpoint

PARTS = "accum_step_counter"  # batches of a step that has not ended
COSTS = "accum_step_costs"  # sums over them, see optimizers/training.py
ORDER_DIFFERS = (
    "; until the end of the epoch, some records may be repeated or skipped, because batches of "
    "another size have another order"
)


def checkpoint_step(model_dir):
    """Returns the global step of the latest checkpoint in `model_dir`, 0 without one."""
    return checkpoint_counts(model_dir)[0]


def checkpoint_counts(model_dir):
    """Returns what the latest checkpoint in `model_dir` counts; see `checkpoint_step`.

    Returns:
        The global step, 0 without a checkpoint, and the batches read of a step that has not ended,
        None where steps are made of one batch.
    """
    path = latest_checkpoint(model_dir) if model_dir else None
    if path is None:
        return 0, None
    try:
        reader = tf.train.NewCheckpointReader(path)
    except (tf.OpError, ValueError) as error:
        raise CheckpointError(
            f"{path}: must be a readable checkpoint, because it is the latest that "
            f"{os.path.join(model_dir, 'checkpoint')} names. Received: {error}. "
            f"{advice_instead(path)}"
        ) from error
    step, parts = (
        int(read_variable(reader, path, name)) if reader.has_tensor(name) else None
        for name in ("global_step", PARTS)
    )
    return step or 0, parts


def read_history(model_dir):
    """Returns how many batches steps had: a list of [step, batches read by then, batches a step].

    Each entry holds from its step on; they ascend. There are none without a model_dir. After
    these numbers come, if they were given, the rows of a batch and the tokens of a row, 0 where
    a row has no such length.
    """
    if not model_dir:
        return []
    path = Path(model_dir, POSITION)
    try:
        history = read_json(path, [list])
        if not history or not all(_is_entry(entry) for entry in history):
            raise ValueError(f"{str(history)[:60]}, not entries of 3 or 5 numbers")
        for (step, batches, rate, *_), after in zip(history, history[1:]):
            expected = batches + (after[0] - step) * rate
            if after[0] <= step or after[1] != expected:
                raise ValueError(f"{after[1]} batches by step {after[0]}, not {expected}")
        if not history[0][0] and history[0][1]:
            raise ValueError(f"{history[0][1]} batches by step 0")
        return history
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: must contain the number of batches that were read. Received: "
            f"{reason(error)}. Restore it, or remove it if all steps had as many batches as in the "
            "params file."
        ) from error


def _is_entry(value):
    if not isinstance(value, list) or len(value) not in (3, 5):
        return False
    return all(type(n) is int and 0 <= n < LONG_END for n in value) and value[2] > 0


def batches_by(step, history, batches_per_step):
    """Returns how many batches were read by a step; see `read_history`."""
    start, batches, rate = _entry(step, history, batches_per_step)[:3]
    return batches + (step - start) * rate


def stretches_by(step, history, batches_per_step, sizes):
    """Returns what was read by a step, as stretches of equal batches; see `read_history`.

    Args:
        history: of `read_history`.
        sizes: rows of a batch and tokens of a row that the history does not have.

    Returns:
        A list of (batches, rows of a batch, tokens of a row).
    """
    begun = [entry for entry in history if entry[0] < step] or [[0, 0, batches_per_step]]
    ends = [*(entry[0] for entry in begun[1:]), step]
    found = [(begun[0][1], *(begun[0][3:] or sizes))]  # before the first was remembered
    for (start, _, rate, *given), end in zip(begun, ends):
        found.append(((end - start) * rate, *(given or sizes)))
    return found


def batches_after(step, history, batches_per_step):
    """Returns how many batches the step after `step` has; arguments as `batches_by` has them."""
    return _entry(step, history, batches_per_step)[2]


def _entry(step, history, batches_per_step):
    """Returns the last entry that has begun by a step."""
    begun = [entry for entry in history if entry[0] <= step]
    return begun[-1] if begun else [0, 0, batches_per_step]


def remember_position(model_dir, step, batches_per_step, sizes=()):
    """Writes how many batches the steps from `step` on have, and the `sizes` of `read_history`."""
    before = read_history(model_dir)
    history = [entry for entry in before if entry[0] <= step]
    if not history or history[-1][2:] != [batches_per_step, *sizes]:
        read = batches_by(step, history, batches_per_step)
        kept = [entry for entry in history if entry[0] < step]
        history = [*kept, [step, read, batches_per_step, *sizes]]
    if history != before:
        write_whole(Path(model_dir, POSITION), json.dumps(history) + "\n")


def batches_to_skip(section, runconfig, batches_per_step=1):
    """Returns how many batches training has read before, counted in those of `section`.

    Where their size was another, the place where data continue is logged.

    Returns:
        A number of batches.
    """
    if section.skip_steps is not None:
        return section.skip_steps * batches_per_step
    if runconfig.disable_input_pipeline_ckpt:
        return 0
    step, parts = checkpoint_counts(runconfig.model_dir)
    history, size = read_history(runconfig.model_dir), section.batch_size
    stretches = stretches_by(step, history, batches_per_step, (size, 0))
    before = (_entry(step, history, batches_per_step)[3:] or [size])[0]
    records = records_of([*stretches, (parts or 0, before)])
    if before != size:
        tf.logging.warning(
            "train_input.batch_size was %d and is %d: data continue after the %d records read "
            "so far%s%s",
            before,
            size,
            records,
            f", of which the last {records % size} are repeated" if records % size else "",
            ORDER_DIFFERS if order_follows_batch_size(section) else "",
        )
    return records // size


def records_of(stretches):
    """Returns how many records were read in stretches of (batches, records of a batch, ...).

    Each begins after the last of its own batches that was read whole by then. Records that fill no
    batch at the end of an epoch are not counted, as nobody knows here how many an epoch has.
    """
    records = 0
    for batches, size, *_ in stretches:
        if batches:
            records = (records // size + batches) * size
    return records


def order_follows_batch_size(section):
    """Whether records come in another order where a batch has more or fewer of them."""
    # Streams of records draw from a buffer, others make batches of like lengths and mix those.
    mixes = section.shuffle and hasattr(section, "shuffle_buffer")
    return bool(mixes or getattr(section, "buckets", None))
