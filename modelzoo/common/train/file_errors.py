"""Turns errors of files, and of records in them, into one paragraph that names the file."""

import contextlib
import errno
import os
import re
import threading

from cerebras_tf.errors import BoundsError, CerebrasError, CheckpointError, ConfigError, DataError
from modelzoo.common.files.path_advice import advice_on_path

# Errors of the system that a user can fix: no space, no permission, something else in the way.
FIXABLE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.EIO,
)
# Classes of TensorFlow's errors for these.
KINDS = (
    "AlreadyExistsError",
    "FailedPreconditionError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnknownError",
)
# TensorFlow raises OutOfRangeError at a limit of the shell (ulimit -f) and at the end of data; the
# event writer raises Python's errors. Only their texts distinguish them.
_OTHER_KINDS = ("IndexError", "OutOfRangeError", "RuntimeError")
# Texts of TensorFlow's errors for records that the model cannot read.
OF_RECORDS = (
    "input_mask must contain",
    "must contain numbers of int32",
    "is not in [0, ",
    "outside the valid range",
    "Name: <unknown>, ",
    "Could not parse example",
    "each record must have at most",
)
# Names of files that are renamed once they are written: ``graph.pbtxt.tmp...``, ``.params.yaml.7``.
TEMPORARY = re.compile(r"(/|^)(?:\.([^/]+)\.[0-9]+|([^/]+)\.(?:tmp[0-9a-f]{32}|tempstate[0-9]+))$")
_ENDINGS = tuple(f"; {os.strerror(number)}" for number in FIXABLE)


@contextlib.contextmanager
def file_errors_named(params, sections):
    """Within: errors of files become CerebrasErrors that name the file."""
    show = threading.excepthook
    # Errors of the event writer's thread are raised again when events are flushed.
    threading.excepthook = lambda args: None if refused(args.exc_value) else show(args)
    try:
        yield
    except BoundsError as error:
        named = unreadable_record(params, sections, str(error))
        if named is None:
            raise
        raise named from error
    except CerebrasError:
        raise
    except Exception as error:
        if getattr(getattr(error, "op", None), "type", "") == "RestoreV2":
            named = damaged_checkpoint(params.runconfig)
        elif lines := [x for x in str(error).splitlines() if any(m in x for m in OF_RECORDS)]:
            named = unreadable_record(params, sections, f"{lines[0].strip()}.")
        elif type(error).__name__ == "DataLossError":
            named = damaged_input(params, sections, error)
        else:
            named = unwritten(error, params.runconfig.model_dir)
        if named is None:
            raise
        raise named from error
    finally:
        threading.excepthook = show


@contextlib.contextmanager
def system_errors_named(output):
    """Within: errors of the system become ConfigErrors that name the file; for commands."""
    try:
        yield
    except CerebrasError:
        raise
    except Exception as error:
        found = refused(error, (*FIXABLE, errno.ENOENT))
        if found is None:
            raise
        raise ConfigError(
            f"{found[0] or output}: must be readable or writable. Received: {found[1]}. "
            f"{_advice(found[0], error)}"
        ) from error


def _advice(path, error):
    fix = "Free space, correct the permissions, or use another path."
    is_missing = path and getattr(error, "errno", None) == errno.ENOENT
    return advice_on_path(path, fix) if is_missing else fix


def refused(error, numbers=FIXABLE):
    """Returns the file and the fault of an error that a user can fix; None for others.

    Returns:
        The file, None where the error names none, and what is wrong with it.
    """
    if isinstance(error, OSError):
        named = error.filename and _final_name(error.filename)
        return (named, error.strerror) if error.errno in numbers else None
    kind, first = type(error).__name__, str(error).partition("\n")[0]
    is_tensorflows = kind in KINDS and getattr(error, "op", None) is None
    is_tensorflows |= kind in _OTHER_KINDS and first.endswith(_ENDINGS)
    # The thread that writes events raises a RuntimeError of such a text.
    if is_tensorflows or (isinstance(error, RuntimeError) and "Failed to flush" in str(error)):
        where, _, received = first.partition("; ")
        return (_final_name(where), received) if received else (None, where)
    return None


def _final_name(path):
    """Returns the name that a temporary file would have got."""
    return TEMPORARY.sub(r"\1\2\3", path) if isinstance(path, str) else path


def damaged_checkpoint(runconfig):
    """Returns the error for a checkpoint that TensorFlow could not restore."""
    from modelzoo.common.model_dir.checkpoint_files import (
        advice_instead,
        find_checkpoint,
        latest_checkpoint,
    )

    path = latest_checkpoint(runconfig.model_dir)
    if runconfig.checkpoint_path and (path is None or "train" not in runconfig.mode):
        path = find_checkpoint(runconfig.checkpoint_path)
    if path is None:  # the copy that training was to continue from is removed by now
        path = find_checkpoint(runconfig.resume_from, "resume_from")
    return CheckpointError(
        f"{path}: must be a complete checkpoint. Received: files that end too early or fail their "
        f"checksum. {advice_instead(path)}"
    )


def damaged_input(params, sections, error):
    """Returns the error for records that fail their checksum: with file and offset if found."""
    from modelzoo.common.data.tf_records import find_damage

    folders = [getattr(getattr(params, name), "data_dir", None) for name in sections]
    damage = next(filter(None, (find_damage(f) for f in folders if f)), None)
    return DataError(
        damage
        or (
            f"{', '.join(map(str, folders))}: must contain complete TFRecord files. "
            f"Received: {error}. Make or copy the files again."
        )
    )


def unreadable_record(params, sections, failure):
    """Returns the error for records that the model cannot read, None where no records are read.

    Only the first record of each file is checked before training.
    """
    folders = [getattr(getattr(params, name), "data_dir", None) for name in sections]
    named = [str(folder) for folder in folders if folder]
    if not named:
        return None
    return DataError(
        f"{', '.join(named)}: every record must match the model: tokens in its vocabulary, masks "
        f"of 0 and 1, and rows of the configured length. Received: {failure} Correct the record, "
        "or use data prepared for this model."
    )


def unwritten(error, folder):
    """Returns the error for a file that could not be written; None for anything else."""
    found = refused(error)
    if found is None:
        return None
    where = str(found[0] or folder)
    ours = os.path.abspath(where).startswith(os.path.abspath(folder))
    return ConfigError(
        f"{where}: must be {'' if ours else 'readable, or '}a place to write to. Received: "
        f"{found[1]}. Free space, correct the permissions, or use another "
        f"{'folder after -o' if ours else 'path'}."
    )
