"""Checkpoints of a PyTorch training: folders that are complete or absent.

A folder has `model.safetensors` (parameters and buffers by the names of `state_dict`),
`optimizer.safetensors` (optimizer state, named PARAMETER/KEY) and `state.json`, which is written
last and has the checksum of every tensor.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Optional

from cerebras_tf.errors import CheckpointError
from cerebras_tf.ir import Variable
from cerebras_tf.kernels.half_precision import to_float32
from cerebras_tf.memoryx.safetensors_file import TensorFile, write_tensors
from cerebras_tf.memoryx.store import Store, reading, write
from cerebras_tf.torch_step.plain_state import from_json, to_json
from cerebras_tf.user_files import parsing, read_json, reason

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{6,})")
_UNFINISHED = ".unfinished-"
_STATE_TYPES = {"checksums": {MODEL: {str: int}, OPTIMIZER: {str: int}}, "state": object}
_VERSION = 1


def folder_of_step(model_dir: str, step: int) -> Path:
    """The folder of a checkpoint."""
    return Path(model_dir) / f"step-{step:06d}"


def step_of(folder: Path) -> int:
    """The step of a checkpoint, from the name of its folder."""
    return int(folder.name.partition("-")[2])


def checkpoints(model_dir: str) -> list[Path]:
    """The checkpoints of a model folder, the newest last; damaged ones are among them."""
    with contextlib.suppress(OSError):
        found = [path for path in Path(model_dir).iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=step_of)
    return []


def remove_unfinished(model_dir: str) -> None:
    """Removes what a killed process left. No process may write in the folder."""
    for path in Path(model_dir).glob(f"{_UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def keep_newest(model_dir: str, count: int) -> None:
    """Removes the oldest checkpoints; 0 keeps all."""
    for path in checkpoints(model_dir)[:-count] if count else []:
        if not path.is_symlink():  # a link is the user's
            _remove(path)


def _remove(folder: Path) -> None:
    """Removes a checkpoint; if this process is killed, what is left is no checkpoint."""
    part = folder.with_name(f"{_UNFINISHED}{folder.name}")
    folder.rename(part)
    shutil.rmtree(part)


def save_checkpoint(
    folder: Path,
    store: Store,
    model: Iterable[str],
    ties: Mapping[str, str],
    state: Mapping[str, Any],
    left_out: Collection[str] = (),
    writes: bool = True,
) -> None:
    """Writes a checkpoint; one of the same name is replaced.

    Args:
        model: names of parameters and buffers; other variables are optimizer state.
        ties: name of the variable that each further name of a parameter stands for.
        state: see plain_state.to_json.
        left_out: names of variables that are not saved, because they do not change.
        writes: False for a process that only takes part in reading the store.

    Raises:
        CheckpointError: the state contains what cannot be saved.
        OSError: the folder cannot be written.
    """
    types = {name: spec.type for name, spec in store.specs.items() if name not in left_out}
    own = {name: types.pop(name) for name in model}
    files = {MODEL: own, OPTIMIZER: types}
    if not writes:
        for name in [*own, *types]:
            with reading(store, name):
                pass
        return
    found = to_json(dict(state), folder.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        os.chmod(part, 0o777 & ~_umask())
        metadata = {"format": "pt", "ties": json.dumps(dict(ties))}
        checksums = {
            name: write_tensors(part / name, kinds, lambda each: reading(store, each), metadata)
            for name, kinds in files.items()
        }
        text = json.dumps({"version": _VERSION, "checksums": checksums, "state": found})
        with open(part / STATE, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _sync(part)
        if folder.exists():
            _remove(folder)
        part.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(folder: Path, store: Optional[Store], left_out: Collection[str] = ()) -> Any:
    """Reads a checkpoint into a store; returns its state.

    Args:
        store: None to read only the state.
        left_out: names of variables that are not saved.

    Raises:
        CheckpointError: it is incomplete or damaged, or of another model.
    """
    try:
        content = read_json(folder / STATE, _STATE_TYPES)
        checksums = content["checksums"]
        with parsing():
            state = from_json(content["state"])
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: must be a complete checkpoint. Received: {STATE}, {reason(error)}. "
            "Remove the folder to continue from the checkpoint before, or restore it."
        ) from error
    if store is None:
        return state
    files = {name: TensorFile(folder / name) for name in (MODEL, OPTIMIZER)}
    where = {tensor: file for file in files.values() for tensor in file.regions}
    specs = {name: spec for name, spec in store.specs.items() if name not in left_out}
    _check_names(folder, specs, where)
    for name, spec in specs.items():
        file = where[name]
        array = file.read(name)
        file.check(name, array, checksums[file.path.name].get(name, -1))
        if file.regions[name].type.dtype == "bfloat16" != spec.type.dtype:
            array = to_float32(array)
        write(store, name, array)
    return state


def _check_names(
    folder: Path, specs: Mapping[str, Variable], where: Mapping[str, TensorFile]
) -> None:
    """Raises CheckpointError if the checkpoint has other variables than the store."""
    faults = [f"{name} is missing" for name in specs if name not in where]
    faults += [f"{name} is not in the model" for name in where if name not in specs]
    for name, spec in specs.items():
        if name not in where:
            continue
        found, wanted = where[name].regions[name].type, spec.type
        both = {found.dtype, wanted.dtype}
        if found.shape != wanted.shape or len(both) > 1 and both != {"float32", "bfloat16"}:
            faults.append(f"{name} is {found} and not {wanted}")
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(
            f"{folder}: must be a checkpoint of this model and optimizer. Received: "
            f"{'; '.join(faults[:3])}{more}. Use another model_dir, or the same model and "
            "optimizer."
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system that syncs no folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
