"""The state of a run: settings, the model, its optimizer and the recorded loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch

from cerebras.pb.stack.full_pb2 import FullConfig
from cerebras.pytorch import amp
from cerebras.pytorch.platform import Backend, backend
from cerebras.pytorch.platform import compile as compile_model
from cerebras.pytorch.utils.data import counted
from cerebras.pytorch.utils.tracker import RateTracker
from cerebras_tf.errors import ConfigError
from cerebras_tf.torch_recording.recorded_loop import RecordedLoop


class Environment:
    """Settings of `initialize`.

    Attributes:
        weight_streaming_mode: the wafer always streams weights, so it is True.
        appliance: whether the run was started for a cluster.
    """

    service_workdir = compile_dir = ""
    appliance = compile_only = False
    weight_streaming_mode = True


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
        self.optimizer: Any = None
        self.backend = Backend("CSX")

    @property
    def model(self) -> Optional[torch.nn.Module]:
        """The registered model."""
        return self.backend.model

    @property
    def loop(self) -> RecordedLoop:
        """The recorded loop over the model."""
        return self.backend.loop

    @property
    def has_loop(self) -> bool:
        """Whether batches were read."""
        return self.backend.has_loop

    def register_metric(self, metric: Any) -> None:
        """Accepts a metric; its tensors become known by `core.cb_model.set_metric_state_names`."""

    def track_object(self, nested: Any) -> None:
        """Keeps the recorded tensors of a nested object as outputs of the step."""
        if self.has_loop:
            self.loop.at_end(lambda found: None, nested)


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
    credentials_path: Optional[str] = None,
) -> None:
    """Begins a run on the wafer, before the model is made.

    Args:
        service_workdir: folder of the run's own files.
        compile_dir: folder of compiled programs, which later runs load.
        cs_ip: address of the wafer; without `credentials_path` that of this process.
        compile_only: nothing will run.
        appliance: clusters are not supported.
        use_cbfloat16: products in bfloat16.
        credentials_path: file of a client's credentials for the wafer at `cs_ip`.

    Raises:
        ConfigError: `appliance` is set.
        SystemUnreachableError: `cs_ip` is another computer, without `credentials_path`.
    """
    if appliance:
        raise ConfigError(
            "appliance: must not be set. Received: True. Run with --cs_ip 127.0.0.1 instead; it "
            "streams weights, too."
        )
    _ENVIRONMENT.service_workdir = service_workdir or os.getcwd()
    _ENVIRONMENT.compile_dir = compile_dir or ""
    _ENVIRONMENT.compile_only = compile_only
    _STATE.backend = backend(
        "CSX", compile_dir=compile_dir or None, cs_ip=cs_ip, credentials_path=credentials_path
    )
    if use_cbfloat16:
        amp.use_bfloat16(True)


def module(model: torch.nn.Module, device: Any = None) -> torch.nn.Module:
    """Registers the model of the run and returns it."""
    _STATE.backend.set_model(model)
    return model


def optimizer(inner: torch.optim.Optimizer) -> Any:
    """Registers the optimizer of the run; returns an `optim.RegisteredOptimizer`."""
    from cerebras_pytorch.optim import RegisteredOptimizer

    _STATE.optimizer = RegisteredOptimizer(inner)
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
    _STATE.backend.copy_back()


def compile(
    model: Any = None, backend: Any = None, validate_only: bool = False, **options: Any
) -> Any:
    """Compiles the iteration that has been recorded; returns True.

    With a model, this is `compile` of release 2; see cerebras.pytorch.

    Args:
        options: `fabric_config_file` is accepted, and has no effect.

    Raises:
        UnsupportedOpError: it contains operations without an IR form.
    """
    if isinstance(model, torch.nn.Module):
        return compile_model(model, backend)
    _STATE.loop.compile(validate_only)
    return True


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Iterates over a loader; every batch begins an iteration."""
    loop = _STATE.loop
    if _STATE.rate_tracker is None:
        _STATE.rate_tracker = RateTracker()
    _STATE.is_inside_execution_loop = True
    try:
        yield from loop.batches(counted(loader, _STATE.rate_tracker))
    finally:
        _STATE.is_inside_execution_loop = False


def is_ltc_mlir_mode_enabled() -> bool:
    """Whether a runner of release 1.9 uses `cerebras_pytorch.experimental`; True."""
    return True
