"""The state of a run: settings, the model, its optimizer and the recorded loop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Optional, Union

import torch

from cerebras.pb.stack.full_pb2 import FullConfig
from cerebras_tf.capture_torch.internals import flattened, leaves, nested
from cerebras_tf.errors import ConfigError
from cerebras_tf.torch_recording.recorded_loop import RecordedLoop
from cerebras_tf.torch_step.settings import TrainingSettings


class RateTracker:
    """Samples per second since it was made, and between two logged steps."""

    def __init__(self) -> None:
        self._count = self._partial_count = 0
        self._start = self._last = time.perf_counter()

    def add(self, count: int) -> None:
        """Counts samples."""
        self._partial_count += count

    def rate(self) -> float:
        """Samples per second since the last call."""
        now = time.perf_counter()
        found = self._partial_count / max(now - self._last, 1e-9)
        self._last, self._count, self._partial_count = now, self._count + self._partial_count, 0
        return found

    def global_rate(self) -> float:
        """Samples per second in all."""
        elapsed = time.perf_counter() - self._start
        return (self._count + self._partial_count) / max(elapsed, 1e-9)


class Environment:
    """Settings of `initialize`.

    Attributes:
        weight_streaming_mode: the wafer always streams weights, so it is True.
        appliance: whether the run was started for a cluster.
    """

    service_workdir = compile_dir = ""
    appliance = compile_only = False
    weight_streaming_mode = True
    precision = "float32"


class State:
    """What a run has made; `state()` returns it.

    Attributes:
        full_config: settings of the original compiler. They are kept, and have no effect.
        rate_tracker: counts samples; None before the first batch.
        is_inside_execution_loop: whether batches are being read.
    """

    def __init__(self) -> None:
        self.full_config = FullConfig()
        self.rate_tracker: Optional[RateTracker] = None
        self.is_inside_execution_loop = False
        self.model: Optional[torch.nn.Module] = None
        self.optimizer: Any = None
        self._loop: Optional[RecordedLoop] = None

    @property
    def loop(self) -> RecordedLoop:
        """The recorded loop over the model."""
        if self._loop is None:
            if self.model is None:
                raise ConfigError(
                    "dataloader: a model must be registered first. Received: none. Call "
                    "cerebras_pytorch.module(model, device)."
                )
            settings = TrainingSettings(precision=_ENVIRONMENT.precision)
            self._loop = RecordedLoop(self.model, settings)
            if self.optimizer is not None:
                self._loop.optimizer = self.optimizer.inner
                self._loop.update = self.optimizer.clip_and_step
        return self._loop

    @property
    def has_loop(self) -> bool:
        """Whether batches were read."""
        return self._loop is not None

    def copy_back(self, *_: Any) -> None:
        """Copies trained values to the model and the optimizer."""
        if self._loop is not None:
            self._loop.copy_back()

    def forget(self, *_: Any) -> None:
        """Lets the next step begin with the values that were loaded into model or optimizer."""
        if self._loop is not None:
            self._loop.forget()

    def register_metric(self, metric: Any) -> None:
        """Accepts a metric; its tensors become known by `core.cb_model.set_metric_state_names`."""

    def track_object(self, nested: Any) -> None:
        """Keeps the recorded tensors of a nested object as outputs of the step."""
        if self._loop is not None:
            self._loop.at_end(lambda found: None, nested)


_ENVIRONMENT, _STATE = Environment(), State()


def env() -> Environment:
    """The settings of `initialize`."""
    return _ENVIRONMENT


def state() -> State:
    """The state of the run."""
    return _STATE


def initialize(
    service_workdir: Optional[str] = None,
    compile_dir: Optional[str] = None,
    cs_ip: Optional[str] = None,
    compile_only: bool = False,
    appliance: bool = False,
    use_appliance_data: bool = False,
    use_cbfloat16: bool = False,
) -> None:
    """Begins a run on the wafer, before the model is made.

    Args:
        service_workdir: folder of the run's own files.
        compile_dir: kept in `env()`.
        cs_ip: address of the machine; this one.
        compile_only: nothing will run.
        appliance: clusters are not supported.
        use_cbfloat16: products in bfloat16.

    Raises:
        ConfigError: `cs_ip` is another machine, or `appliance` is set.
    """
    if appliance:
        raise ConfigError(
            "appliance: must not be set. Received: True. Run with --cs_ip 127.0.0.1 instead; it "
            "streams weights, too."
        )
    if cs_ip and cs_ip.partition(":")[0] not in ("127.0.0.1", "localhost", "0.0.0.0"):
        raise ConfigError(
            f"cs_ip: must be this machine. Received: {cs_ip}. Use 127.0.0.1; the wafer is emulated."
        )
    _ENVIRONMENT.service_workdir = service_workdir or os.getcwd()
    _ENVIRONMENT.compile_dir = compile_dir or ""
    _ENVIRONMENT.compile_only = compile_only
    if use_cbfloat16:
        _ENVIRONMENT.precision = "bfloat16"


def module(model: torch.nn.Module, device: Any = None) -> torch.nn.Module:
    """Registers the model of the run and returns it."""
    _STATE.forget()
    _STATE.model, _STATE._loop = model, None
    model.register_state_dict_pre_hook(_STATE.copy_back)
    model.register_load_state_dict_post_hook(_STATE.forget)
    return model


def optimizer(inner: torch.optim.Optimizer) -> Any:
    """Registers the optimizer of the run; returns an `optim.Optimizer`."""
    from cerebras_pytorch.optim import Optimizer

    _STATE.optimizer = Optimizer(inner)
    return _STATE.optimizer


def dataloader(loader: Any, use_parallel_loader: bool = True) -> Any:
    """The loader whose batches begin the iterations; returns a `data.DataLoader`."""
    from cerebras_pytorch.utils.data.dataloader import DataLoader

    return DataLoader(loader)


@contextlib.contextmanager
def Session(loader: Any, mode: str) -> Iterator[None]:
    """The run of a loader in a mode of `core.modes`."""
    yield
    if _STATE.has_loop and not _ENVIRONMENT.compile_only:
        _STATE.loop.end()
    _STATE.copy_back()


def compile(fabric_config_file: Optional[str] = None, validate_only: bool = False) -> bool:
    """Compiles the iteration that has been recorded; returns True.

    Raises:
        UnsupportedOpError: it contains operations without an IR form.
    """
    _STATE.loop.compile(validate_only)
    return True


def save(state_dict: Any, path: Union[str, os.PathLike[str]]) -> None:
    """Writes a checkpoint that `torch.load` reads, completely or not at all."""
    partial = f"{os.fspath(path)}.{os.getpid()}"
    try:
        torch.save(state_dict, partial)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def load(path: Union[str, os.PathLike[str]], **options: Any) -> Any:
    """Reads a checkpoint as `torch.load` does."""
    return torch.load(path, **options)


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Iterates over a loader; every batch begins an iteration."""
    loop = _STATE.loop
    if _STATE.rate_tracker is None:
        _STATE.rate_tracker = RateTracker()
    _STATE.is_inside_execution_loop = True
    try:
        yield from loop.batches(_counted(loader, _STATE.rate_tracker))
    finally:
        _STATE.is_inside_execution_loop = False


def _counted(loader: Iterable[Any], tracker: RateTracker) -> Iterator[Any]:
    """Counts samples, and converts float16, in which the wafer does not compute, to float32."""
    for batch in loader:
        items = [item for item in leaves(batch) if isinstance(item, torch.Tensor)]
        tracker.add(items[0].shape[0] if items and items[0].ndim else 1)
        yield _without_half(batch)


def _without_half(batch: Any) -> Any:
    items, structure = flattened(batch)
    return nested([item.float() if _is_half(item) else item for item in items], structure)


def _is_half(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype == torch.float16
