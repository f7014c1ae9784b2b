"""Runs a saved program on a batch from a file, with weights from a checkpoint; no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from cerebras_tf.bundle.index import Entry, read_index
from cerebras_tf.bundle.writer import BundleWriter
from cerebras_tf.errors import CerebrasError, CheckpointError, DataError, GraphError
from cerebras_tf.ir import Array, Variable
from cerebras_tf.ir.program import CONSTANT, Program
from cerebras_tf.kernels.compiled_crc32c import crc32c
from cerebras_tf.memoryx.store import MemoryStore, Store, reading, write
from cerebras_tf.quantities import counted
from cerebras_tf.runtime.client import SavedProgram, SessionClient
from cerebras_tf.runtime.cpu import CpuBackend
from cerebras_tf.runtime.random_streams import RANDOM_STEP_KEY
from cerebras_tf.runtime.session import GLOBAL_STEP, Session
from cerebras_tf.runtime.verify_program import load_verified
from cerebras_tf.user_files import open_regular, read_npz, reason


def read_features(path: str, program: Program) -> dict[str, Array]:
    """Reads the features of a program from an .npz file.

    Raises:
        DataError: the file cannot be read, or arrays are missing.
    """
    try:
        found = read_npz(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"--inputs: must be an .npz file of arrays. Received: {path}; {reason(error)}. "
            "Write one with numpy.savez."
        ) from error
    needed = program.given
    missing = [f"{name} {type}" for name, type in needed.items() if name not in found]
    if missing:
        raise DataError(
            f"{path}: must have an array for each feature of the program. Received: "
            f"{', '.join(found) or 'none'}; missing: {', '.join(missing)}. Add them."
        )
    others = sorted(found.keys() - needed.keys())
    if others:
        raise DataError(
            f"{path}: must have only the features of the program. Received: {', '.join(others)} "
            f"besides {', '.join(needed)}. Remove them."
        )
    return {name: found[name] for name in needed}


def read_variable(name: str, entry: Entry) -> Array:
    """The content of a variable of a checkpoint; of bfloat16 its bits.

    Raises:
        CheckpointError: its bytes are not all there, or not those that were written.
    """
    kind = np.dtype("uint16" if entry.dtype == "bfloat16" else entry.dtype)
    try:
        with open_regular(entry.path) as file:
            content = np.fromfile(file, np.uint8, entry.size, offset=entry.offset)
    except OSError as error:
        content = np.empty(0, np.uint8)
        found = error.strerror or str(error)
    else:
        found = "other bytes"
    if content.nbytes != entry.size or crc32c(content) != entry.checksum:
        raise CheckpointError(
            f"{entry.path}: must contain variable {name} undamaged. Received: {found}. Use another "
            "checkpoint."
        )
    return content.view(kind).reshape(entry.shape)


class BundleFormat:
    """Checkpoints of TensorFlow's format; see CheckpointFormat."""

    def save(self, prefix: str, store: Store, numbers: Mapping[str, int]) -> None:
        folder = Path(prefix).absolute().parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as place:
            writer = BundleWriter(place)
            for name, spec in store.specs.items():
                with reading(store, name) as array:
                    writer.add(name, array, spec.type.dtype)
            for name, number in numbers.items():
                writer.add(name, np.array(number, np.int64))
            writer.finish(os.path.abspath(prefix))

    def restore(self, prefix: str, store: Store) -> dict[str, int]:
        entries = read_index(prefix)
        for name, spec in store.specs.items():
            entry = entries.get(name)
            kind = spec.type.dtype, spec.type.static_shape
            if entry is None or (entry.dtype, entry.shape) != kind:
                found = "no such variable" if entry is None else f"{entry.dtype}{list(entry.shape)}"
                raise CheckpointError(
                    f"{prefix}: must contain variable {name} {spec.type}. Received: {found}. Use a "
                    "checkpoint of the model that was compiled."
                )
            write(store, name, read_variable(name, entry))
        return {
            name: int(read_variable(name, entry))
            for name, entry in entries.items()
            if name == GLOBAL_STEP or name.startswith(RANDOM_STEP_KEY)
        }


def run_saved(
    path: str,
    inputs: str,
    checkpoint: Optional[str] = None,
    steps: int = 1,
    save: Optional[str] = None,
) -> dict[str, Array]:
    """Runs a saved program.

    Args:
        path: the program's file.
        inputs: an .npz file with a batch: an array for each feature.
        checkpoint: prefix of a TensorFlow checkpoint with the variables.
        steps: how often to run it on that batch.
        save: prefix of a checkpoint to write afterwards, of a training program.

    Returns:
        Results of the last step by name, and `global_step`.

    Raises:
        CerebrasError: a file does not fit the program, or the program does not fit into memory.
    """
    program = load_verified(path)
    features = read_features(inputs, program)
    specs = [Variable(name, program.slots[s].type) for name, s in program.variables.items()]
    if checkpoint is None and specs:
        raise CheckpointError(
            f"--checkpoint: the program has {len(specs)} variables. Received: no checkpoint. Use "
            "the prefix of its files, such as model_dir/model.ckpt-100."
        )
    store = MemoryStore(specs)
    try:
        session = Session(store, CpuBackend(), trains=_trains(program), checkpoints=BundleFormat())
        if checkpoint is not None:
            session.restore(checkpoint)
        client = SessionClient(session, SavedProgram(program), session.global_step)
        with running_saved(path):
            for _ in range(steps):
                results = client.run(features)
        if save is not None:
            session.save(save)
        return {**results, GLOBAL_STEP: np.array(session.global_step, np.int64)}
    finally:
        store.close()


@contextlib.contextmanager
def running_saved(path: Union[str, Path]) -> Iterator[None]:
    """Within: what kernels raise for attributes of another kind becomes a GraphError."""
    try:
        yield
    except (CerebrasError, MemoryError, OSError):
        raise
    except Exception as error:
        raise GraphError(
            f"{path}: instructions must have attributes that their kernels know. Received: "
            f"{type(error).__name__}: {error}. Compile the model again."
        ) from error


def _trains(program: Program) -> bool:
    """Whether the program changes variables."""
    return any(entry.kind == "stream_out" for entry in program.schedule)


def describe_saved(path: str) -> str:
    """The inputs and results of a saved program, one per line."""
    program = load_verified(path)
    lines = [
        ", ".join(
            (counted(len(program.layers), "layer"), counted(len(program.variables), "variable"))
        )
    ]
    if program.wafers > 1:
        lines.append(f"runs on {program.wafers} wafers, and not on one")
    lines.extend(f"input   {name} {type}" for name, type in program.given.items())
    for name, slot in program.results.items():
        if program.slots[slot].kind != CONSTANT:
            lines.append(f"result  {name} {program.slots[slot].type}")
    return "\n".join(lines)


def write_results(path: str, results: Mapping[str, Array]) -> None:
    """Writes results to an .npz file."""
    arrays: dict[str, Any] = dict(results)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def shown_results(results: Mapping[str, Array]) -> str:
    """Results as lines: numbers in full, arrays by shape and dtype."""
    lines = []
    for name, array in results.items():
        content = f"{array}" if array.ndim == 0 else f"{array.dtype}{list(array.shape)}"
        lines.append(f"{name}: {content}")
    return "\n".join(lines)
