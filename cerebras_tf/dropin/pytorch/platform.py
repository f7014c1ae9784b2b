"""The backend of a run, and the functions that work on its iterations."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Optional, Union

import torch

from cerebras.pytorch import amp
from cerebras_tf.config.address import check_wafer_address
from cerebras_tf.errors import CheckpointError, ConfigError
from cerebras_tf.torch_recording.recorded_loop import RecordedLoop
from cerebras_tf.torch_step.settings import TrainingSettings
from cerebras_tf.user_files import load_torch, reason
from cerebras_tf.whole_file import replacing

# Options of the original cluster that do not change results.
_IGNORED = {
    *("artifact_dir", "cluster_config", "micro_batch_size", "retrace_every_iteration"),
    *("use_cs_grad_accum", "enable_distributed", "main_process_id", "dist_backend", "init_method"),
    "sync_batchnorm",
}
_KINDS = ("CSX", "CPU")


class Backend:
    """Where a run computes: "CSX" is the emulated wafer, "CPU" is eager PyTorch.

    Attributes:
        device: of the tensors that a program sees; also a context in which to make the model.
        compile_only: iterations are compiled, and do not run.
        validate_only: iterations are captured, and neither compiled nor run.
        model: the model that `compile` was called with.
        executor: reads batches; None outside of a loop.
    """

    def __init__(
        self,
        kind: str,
        compile_dir: Optional[str] = None,
        compile_only: bool = False,
        validate_only: bool = False,
        max_checkpoints: Optional[int] = None,
        mixed_precision: bool = False,
        cs_ip: Optional[str] = None,
        credentials_path: Optional[str] = None,
    ) -> None:
        self.backend_type = SimpleNamespace(name=kind, is_csx=kind == "CSX", is_cpu=kind == "CPU")
        self.device = self.torch_device = torch.device("cpu")
        self.compile_dir, self.compile_only = compile_dir, compile_only
        self.validate_only = validate_only
        self.mixed_precision = mixed_precision
        self._cs_ip, self._credentials_path = cs_ip, credentials_path
        self.model: Optional[torch.nn.Module] = None
        self.executor: Any = None
        self._max_checkpoints, self._saved = max_checkpoints, list[str]()
        self._loop: Optional[RecordedLoop] = None

    @property
    def is_csx(self) -> bool:
        """Whether it is the wafer."""
        return bool(self.backend_type.is_csx)

    @property
    def is_cpu(self) -> bool:
        """Whether it is eager PyTorch."""
        return not self.is_csx

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU; False."""
        return False

    @property
    def loop(self) -> RecordedLoop:
        """The recorded loop over the model."""
        if self._loop is None:
            if self.model is None:
                raise ConfigError(
                    "DataExecutor: a model must be compiled first. Received: none. Call "
                    "cerebras.pytorch.compile(model, backend)."
                )
            settings = TrainingSettings(
                precision=amp.precision(),
                compile_dir=self.compile_dir,
                cs_ip=self._cs_ip,
                credentials_path=self._credentials_path,
            )
            self._loop = RecordedLoop(self.model, settings)
        return self._loop

    @property
    def has_loop(self) -> bool:
        """Whether batches were read."""
        return self._loop is not None

    @property
    def is_recording(self) -> bool:
        """Whether PyTorch calls are recorded now."""
        return self._loop is not None and self._loop.is_recording

    def set_model(self, model: torch.nn.Module) -> None:
        """Makes a model the one that runs."""
        if self.model is model:
            return
        self.forget()
        self.model, self._loop = model, None
        keep_current(model, self)

    def copy_back(self, *_: Any) -> None:
        """Copies trained values to the model and the optimizer."""
        if self._loop is not None:
            self._loop.copy_back()

    def forget(self, *_: Any) -> None:
        """Lets the next step begin with the values that were loaded into model or optimizer."""
        if self._loop is not None:
            self._loop.forget()

    def at_end(self, function: Callable[..., Any], *args: Any, **keys: Any) -> None:
        """Calls a function when the iteration has run, or now if there is none."""
        if self.is_recording:
            self.loop.at_end(function, *args, **keys)
        else:
            function(*args, **keys)

    def saved(self, path: str) -> None:
        """Deletes the oldest checkpoint of this run if there are more than `max_checkpoints`."""
        path = os.path.abspath(path)
        self._saved = [*(name for name in self._saved if name != path), path]
        if self._max_checkpoints is not None and len(self._saved) > self._max_checkpoints:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._saved.pop(0))


def keep_current(holder: Any, backend: Backend) -> None:
    """Copies trained values before a model's or an optimizer's state is read or loaded."""
    holder.register_state_dict_pre_hook(backend.copy_back)
    holder.register_load_state_dict_pre_hook(backend.copy_back)
    holder.register_load_state_dict_post_hook(backend.forget)


_CURRENT: list[Backend] = []


def current_backend() -> Optional[Backend]:
    """The backend that was made last; None for none."""
    return _CURRENT[-1] if _CURRENT else None


def _recording() -> Optional[Backend]:
    """The current backend while calls are recorded."""
    found = current_backend()
    return found if found is not None and found.is_recording else None


def backend(
    backend_type: str,
    *,
    compile_dir: Optional[str] = None,
    compile_only: bool = False,
    validate_only: bool = False,
    drop_data: bool = False,
    max_checkpoints: Optional[int] = None,
    mixed_precision: bool = False,
    cs_ip: Optional[str] = None,
    credentials_path: Optional[str] = None,
    **others: Any,
) -> Backend:
    """Begins a run.

    Args:
        backend_type: "CSX" for the emulated wafer, "CPU" for eager PyTorch.
        compile_dir: folder of compiled programs, which later runs load.
        compile_only: compile the first iteration, and run nothing.
        validate_only: capture the first iteration, and neither compile nor run it.
        drop_data: must be False.
        max_checkpoints: number of checkpoints of this run that `save` keeps; None for all.
        mixed_precision: on the CPU, compute the model under autocast to bfloat16.
        cs_ip: address of the wafer; None for that of this process.
        credentials_path: file of a client's credentials for the wafer at `cs_ip`.
        others: options of the original cluster, which do not change results.

    Raises:
        ConfigError: an option is invalid.
        SystemUnreachableError: `cs_ip` is another computer, without `credentials_path`.
    """
    kind = backend_type.upper()
    if kind not in _KINDS:
        raise ConfigError(f"backend: must be CSX or CPU. Received: {backend_type}.")
    unknown = sorted(set(others) - _IGNORED)
    if unknown:
        raise ConfigError(f"backend: must have known options. Received: {', '.join(unknown)}.")
    if drop_data:
        raise ConfigError("drop_data: must be False. Received: True. Remove it.")
    TrainingSettings(cs_ip=cs_ip, credentials_path=credentials_path)  # checks them
    if kind == "CPU" and cs_ip:
        raise ConfigError(
            f"cs_ip: must be used with the backend CSX. Received: {cs_ip} with CPU. Remove it."
        )
    check_wafer_address(cs_ip, credentials_path)
    only = compile_only or validate_only
    made = Backend(
        *(kind, compile_dir, only, validate_only, max_checkpoints, mixed_precision),
        *(cs_ip, credentials_path),
    )
    _CURRENT[:] = [made]
    return made


def use_cs() -> bool:
    """Whether the current backend is the wafer."""
    found = current_backend()
    return found is not None and found.is_csx


def current_executor() -> Any:
    """The DataExecutor whose batches are read now; None outside of a loop."""
    found = current_backend()
    return None if found is None else found.executor


def compile(model: torch.nn.Module, backend: Optional[Backend] = None) -> torch.nn.Module:
    """Makes a model the one that runs on a backend; returns it.

    Args:
        backend: by default the current one.
    """
    backend = backend or current_backend() or globals()["backend"]("CPU")
    if not hasattr(model, "device"):
        model.device = backend.device
    if backend.is_csx:
        backend.set_model(model)
    elif backend.mixed_precision:
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return model


def trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that is called in every iteration, and returns tensors of it.

    The function is returned: all calls in an iteration are recorded.
    """
    return function


def step_closure(function: Callable[..., Any]) -> Callable[..., None]:
    """Decorates a function that runs at the end of an iteration, when tensors have values.

    If the executor has `activation_steps`, the function runs in these iterations only.
    """
    return _closure(function, "is_activation_step")


def checkpoint_closure(function: Callable[..., Any]) -> Callable[..., None]:
    """Decorates a function that runs at the end of those iterations that write a checkpoint.

    Outside of a loop over an executor it runs at once.
    """
    return _closure(function, "is_checkpoint_step")


def _closure(function: Callable[..., Any], due: str) -> Callable[..., None]:
    """A function that runs at the end of the iterations in which the executor's `due` is true."""

    @functools.wraps(function)
    def wrapped(*args: Any, **keys: Any) -> None:
        found = current_backend()
        if found is None or found.executor is None or getattr(found.executor, due):
            _at_end(found, function, *args, **keys)

    return wrapped


def _at_end(
    found: Optional[Backend], function: Callable[..., Any], *args: Any, **keys: Any
) -> None:
    if found is None:
        function(*args, **keys)
    else:
        found.at_end(function, *args, **keys)


def save(state_dict: Any, path: Union[str, os.PathLike[str]]) -> None:
    """Writes a checkpoint that `torch.load` reads, completely or not at all."""
    path = os.fspath(path)
    with replacing(path) as partial:
        torch.save(state_dict, partial)
    found = current_backend()
    if found is not None:
        found.saved(path)


def load(path: Union[str, os.PathLike[str]], map_location: Any = None, **options: Any) -> Any:
    """Reads a checkpoint as `torch.load` does.

    Raises:
        CheckpointError: it is no file of `torch.save`, or damaged.
    """
    try:
        return load_torch(path, map_location=map_location, **options)
    except ValueError as error:
        raise CheckpointError(
            f"{os.fspath(path)}: must be a complete file of save. Received: {reason(error)}. Copy "
            "it again, or use another."
        ) from error


def summarize_scalar(name: str, value: Any) -> None:
    """Writes a scalar to the executor's writer at the end of the iteration."""
    _summarize("add_scalar", name, value)


def summarize_tensor(name: str, value: torch.Tensor) -> None:
    """Writes a tensor's histogram to the executor's writer at the end of the iteration."""
    _summarize("add_histogram", name, value)


def _summarize(kind: str, name: str, value: Any) -> None:
    found = current_backend()
    executor = None if found is None else found.executor
    if found is None or executor is None or executor.writer is None:
        return
    step = executor.writer.base_step + executor.iteration - 1
    _at_end(found, lambda given: getattr(executor.writer, kind)(name, given, step), value)


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """The value of a tensor that is the same in every iteration, which a model may keep.

    Raises:
        UnsupportedOpError: it depends on the batch or on parameters.
    """
    found = _recording()
    return tensor if found is None else found.loop.constant(tensor)


def from_numpy(array: Any) -> torch.Tensor:
    """A tensor with the values of an array."""
    return torch.from_numpy(array.copy())


def to_numpy(tensor: torch.Tensor) -> Any:
    """An array with the values of a tensor; bfloat16 becomes float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def manual_seed(seed: int) -> None:
    """Sets the seed of PyTorch's random numbers."""
    torch.manual_seed(seed)


def add_debug_name(module: torch.nn.Module, root_name: Optional[str] = None) -> None:
    """Names modules by their paths, for `get_debug_name`."""
    for name, each in module.named_modules():
        each.debug_name = ".".join(filter(None, [root_name or "model", name]))


def get_debug_name(module: torch.nn.Module) -> str:
    """The name that `add_debug_name` gave a module; "" for none."""
    return str(getattr(module, "debug_name", ""))


def set_debug_scope(name: Optional[str]) -> None:
    """Accepts a name for the operations that follow; names of modules are used instead."""


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Accepts a name for the operations within; names of modules are used instead."""
    yield
