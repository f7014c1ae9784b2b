"""The device and the steps of a run."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import torch
from cerebras_pytorch import platform

from cerebras.pytorch.distributed import (  # noqa: F401
    get_ordinal,
    get_streaming_batch_size,
    get_streaming_rank,
    is_master_ordinal,
    is_receiver,
    num_receivers,
    num_streamers,
    num_tasks,
    service_resolver,
)
from cerebras.pytorch.platform import manual_seed as set_rng_state  # noqa: F401
from cerebras.pytorch.platform import save as _save
from cerebras.pytorch.utils.tracker import RateTracker  # noqa: F401
from cerebras_tf.errors import ConfigError

METRIC_NAME_PREFIX = "metric"
_LOG = logging.getLogger("cerebras_pytorch")


def use_cs() -> bool:
    """Whether `initialize` was called."""
    return bool(platform.env().service_workdir)


def is_wse_device() -> bool:
    """Whether the model runs on the wafer."""
    return use_cs()


def is_appliance() -> bool:
    """Whether the run is on a cluster; False."""
    return False


is_streamer = is_receiver


def is_sync_mode() -> bool:
    """Whether wafers wait for each other; False, as there is one process."""
    return False


def device() -> torch.device:
    """The device of the tensors of a run."""
    return torch.device("cpu")


def step_closure(function: Callable[..., Any]) -> Callable[..., None]:
    """Decorates a function that runs at the end of an iteration, when tensors have values."""

    @functools.wraps(function)
    def wrapped(*args: Any, **keys: Any) -> None:
        if platform.state().has_loop and use_cs():
            platform.state().loop.at_end(function, *args, **keys)
        else:
            function(*args, **keys)

    return wrapped


def mark_step() -> None:
    """Ends the iteration: the step runs, then its closures."""
    platform.state().loop.end()


def run_step_closures() -> None:
    """Does nothing; closures run when an iteration ends."""


def get_run_step() -> int:
    """Training steps of this run, with the one of this iteration."""
    return platform.state().loop.run_steps if platform.state().has_loop else 0


def set_run_config(total_steps: int, checkpoint_steps: int, fetch_steps: int) -> None:
    """Accepts how often values are read; they are read when a closure needs them."""


def set_state_names(state_dict: Mapping[str, Any]) -> None:
    """Accepts names of parameters; they are those of the model."""


def set_metric_state_names(state_dict: Mapping[str, torch.Tensor], name: str) -> None:
    """Makes the tensors of a metric state that steps may change in place."""
    for key, tensor in state_dict.items():
        platform.state().loop.track(f"{name}/{key}", tensor)


def set_target_num_replicas(number: int) -> None:
    """Accepts 1, or -1 for as many as fit a system: results do not depend on that number.

    Raises:
        ConfigError: another number.
    """
    if number not in (1, -1):
        raise ConfigError(f"num_replicas: must be 1 or -1. Received: {number}. Set 1.")


def to_cpu(nested: Any) -> Any:
    """Returns the tensors, which are on the CPU."""
    return nested


def to_device(nested: Any, device: Any) -> Any:
    """Returns the tensors, which the wafer reads from the CPU."""
    return nested


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """The value of a tensor that is the same in every iteration, which a model may keep.

    Raises:
        UnsupportedOpError: it depends on the batch or on parameters.
    """
    return platform.state().loop.constant(tensor) if platform.state().has_loop else tensor


def save(
    state_dict: Any,
    path: Union[str, os.PathLike[str]],
    master_only: bool = True,
    post_transfer_callback: Optional[Callable[[Any], Any]] = None,
) -> None:
    """Writes a checkpoint that `torch.load` reads.

    Args:
        post_transfer_callback: changes the state before it is written.
    """
    _save(post_transfer_callback(state_dict) if post_transfer_callback else state_dict, path)


def print_update(
    device: torch.device, step: int, loss: float, mode: str, summary_writer: Any = None
) -> None:
    """Logs a line about a step, and writes the rate to TensorBoard."""
    tracker = platform.state().rate_tracker
    rate = 0.0 if tracker is None else tracker.rate()
    total = 0.0 if tracker is None else tracker.global_rate()
    _LOG.info(
        "| %s Device=wafer Step=%d Loss=%.5f Rate=%.2f GlobalRate=%.2f",
        *(mode.title(), step, loss, rate, total),
    )
    write_to_summary(
        summary_writer, step, {"local_samples_per_sec": rate, "avg_samples_per_sec": total}
    )


def write_to_summary(
    writer: Any, global_step: int, dict_to_write: Optional[Mapping[str, float]] = None
) -> None:
    """Writes scalars to TensorBoard."""
    for name, value in (dict_to_write or {}).items():
        if writer is not None:
            writer.add_scalar(name, value, global_step)


def mesh_reduce(name: str, value: Any, function: Callable[[list[Any]], Any]) -> Any:
    """The function of the values of all processes, of which there is one."""
    return function([value])


def rendezvous(tag: str, payload: Any = b"") -> list[Any]:
    """The payloads of the other processes; none."""
    return []


def metrics_counter_value(name: str) -> Optional[int]:
    """The value of a counter of the original software; there are none."""
    return None


def print_metrics_report() -> None:
    """Does nothing; see `metrics_counter_value`."""
