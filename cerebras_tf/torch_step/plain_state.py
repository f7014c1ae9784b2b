"""State of Python objects as JSON: numbers, texts, lists, and the tensors and bytes in them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from cerebras_tf.errors import CheckpointError

_TAG = "__kind__"


def to_json(state: Any, what: str) -> Any:
    """A state as values of JSON.

    Args:
        what: whose state it is, for errors.

    Raises:
        CheckpointError: it contains other objects.
    """
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, (list, tuple)):
        items = [to_json(item, what) for item in state]
        return items if type(state) is list else {_TAG: "tuple", "items": items}
    if isinstance(state, Mapping):
        if all(isinstance(key, str) for key in state) and _TAG not in state:
            return {key: to_json(item, what) for key, item in state.items()}
        items = [[to_json(key, what), to_json(item, what)] for key, item in state.items()]
        return {_TAG: "dict", "items": items}
    if isinstance(state, bytes):
        return {_TAG: "bytes", "hex": state.hex()}
    if isinstance(state, torch.Tensor) and state.dtype != torch.bfloat16:
        return {_TAG: "tensor", **_array_to_json(state.detach().cpu().numpy())}
    if isinstance(state, (np.ndarray, np.generic)) and not np.asarray(state).dtype.hasobject:
        return {_TAG: "array", **_array_to_json(np.asarray(state))}
    raise CheckpointError(
        f"{what}: its state must consist of numbers, texts, lists and tensors to be saved. "
        f"Received: {type(state).__module__}.{type(state).__qualname__}. Leave it out of "
        "state_dict."
    )


def from_json(found: Any) -> Any:
    """The state that `to_json` converted."""
    if isinstance(found, list):
        return [from_json(item) for item in found]
    if not isinstance(found, dict):
        return found
    kind = found.get(_TAG)
    if kind is None:
        return {key: from_json(item) for key, item in found.items()}
    if kind == "tuple":
        return tuple(from_json(item) for item in found["items"])
    if kind == "dict":
        return {from_json(key): from_json(item) for key, item in found["items"]}
    if kind == "bytes":
        return bytes.fromhex(found["hex"])
    array = np.frombuffer(bytes.fromhex(found["hex"]), found["dtype"]).reshape(found["shape"])
    return torch.from_numpy(array.copy()) if kind == "tensor" else array.copy()


def _array_to_json(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    content = np.ascontiguousarray(array).tobytes().hex()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "hex": content}


def random_state() -> dict[str, Any]:
    """The states of the global random number generators of torch, NumPy and Python."""
    kind, keys, *others = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": (kind, np.asarray(keys), *others),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


@contextlib.contextmanager
def keeping_random_state() -> Iterator[None]:
    """Within: random numbers may be drawn; afterwards the generators are as before."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
