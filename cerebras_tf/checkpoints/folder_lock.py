"""Keeps a second process from training in a folder; evaluation and prediction beside it go on."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from cerebras_tf.bundle.links import remove_begun
from cerebras_tf.errors import ConfigError
from cerebras_tf.memoryx import process_folder

# Folders locked now, with the process and the thread that train in them.
_held: set[tuple[str, int, int]] = set()


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[None]:
    """Makes a folder, and within keeps all others from training in it.

    Whoever has locked it may do so again: a runner before it reads its data, and the estimator when
    it trains. The lock goes away with the process, however that ends. A folder that is not of this
    file system, such as gs://bucket/run, is not locked. Whoever has the lock writes in the folder
    alone: what TensorFlow began there and left goes, at either end.

    Raises:
        ConfigError: the folder cannot be made, or another process or thread trains in it.
    """
    holder = os.path.realpath(model_dir), os.getpid(), threading.get_ident()
    if "://" in model_dir or holder in _held:
        yield
        return
    with _locked_file(model_dir):
        _held.add(holder)
        try:
            yield
        finally:
            _held.discard(holder)


@contextlib.contextmanager
def _locked_file(model_dir: str) -> Iterator[None]:
    """Holds the lock that is a file of the folder, with the number of this process in it."""
    try:
        os.makedirs(model_dir, exist_ok=True)
        file = open(  # noqa: SIM115 - held open by the block below
            os.path.join(model_dir, ".lock"), "ab+", buffering=0
        )
    except OSError as error:
        raise ConfigError(
            f"model_dir: must be a folder to write to. Received: {model_dir!r} "
            f"({error.strerror}). Give another one (-o of the model zoo's runner)."
        ) from error
    with file, process_folder.forgetting(file.fileno()):
        try:
            process_folder.lock(file.fileno())
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().decode().strip() or "unknown"
            raise ConfigError(
                f"model_dir: must not be in use by another run. Received: {model_dir!r}, in which "
                f"process {holder} is training. Wait for it to end, or "
                "give another one (-o of the model zoo's runner)."
            ) from error
        except OSError:  # a file system without locks
            pass
        try:
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        except OSError as error:
            raise ConfigError(
                f"model_dir: must have room for its files. Received: {model_dir!r} "
                f"({error.strerror}). Free disk space, or give another one (-o of the model zoo's "
                "runner)."
            ) from error
        remove_begun(model_dir)
        try:
            yield
        finally:
            remove_begun(model_dir)
