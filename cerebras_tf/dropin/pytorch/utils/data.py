"""The data loader whose batches begin the iterations of a run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import torch

from cerebras.pytorch.platform import Backend, current_backend
from cerebras.pytorch.utils.tracker import RateTracker
from cerebras_tf.capture_torch.internals import flattened, leaves, nested
from cerebras_tf.errors import ConfigError
from cerebras_tf.torch_step.data_order import DataOrder
from cerebras_tf.torch_step.plain_state import from_json, to_json

_LOG = logging.getLogger("cerebras.pytorch")


class _WithoutState:
    """A loader without the state of its own, which has the form of a cluster's workers."""

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, Iterator) or not isinstance(loader, Iterable):
            raise ConfigError(
                "DataLoader: input_fn must return an iterable that starts again, such as a torch "
                f"DataLoader. Received: {type(loader).__name__}."
            )
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class DataLoader:
    """The batches of a loader, epoch after epoch.

    Its state is the position in the data. A run that loads it continues with the next batch.

    Args:
        input_fn: makes the loader, any iterable that starts again.
        args: arguments of `input_fn`.
    """

    def __init__(self, input_fn: Callable[..., Any], *args: Any, **keys: Any) -> None:
        if not callable(input_fn):
            raise ConfigError(
                "DataLoader: input_fn must be a function that returns a loader. Received: "
                f"{type(input_fn).__name__}. Pass the function and its arguments."
            )
        self._loader = input_fn(*args, **keys)
        self._order = DataOrder(_WithoutState(self._loader), log=_LOG.info)

    @property
    def is_restartable(self) -> bool:
        """Whether it has a state; True."""
        return True

    @property
    def batch_size(self) -> Optional[int]:
        """The batch size of the loader; None if it has none."""
        return getattr(self._loader, "batch_size", None)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    @property
    def position(self) -> int:
        """Number of batches taken, those before the state that was loaded included."""
        return self._order.total

    def take(self) -> Any:
        """The next batch, of the next epoch where one ends."""
        return self._order.take()

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch."""
        found: dict[str, Any] = to_json(self._order.state(), "DataLoader")
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the batches that were taken before a state."""
        self._order.restore(from_json(state))


class Profiler:
    """Rates of a loop over an executor."""

    def __init__(self) -> None:
        self.rate_tracker = RateTracker()
        self.rate, self.global_rate = self.rate_tracker.rate, self.rate_tracker.global_rate

    def total_samples(self) -> int:
        """Samples in all."""
        return self.rate_tracker.total_count

    def total_time(self) -> float:
        """Seconds in all."""
        return self.rate_tracker.elapsed_seconds()


class DataExecutor:
    """Iterates over the batches of a loader; each begins an iteration that runs at its end.

    Args:
        dataloader: the loader.
        num_steps: number of iterations; None for one epoch.
        checkpoint_steps: number of iterations between checkpoints, one of which follows the last;
            None or 0 for none.
        activation_steps: number of iterations between those in which step closures run.
        cs_config: settings of the cluster; `num_csx` must be 1.
        writer: where `summarize_scalar` and `summarize_tensor` write; see utils.tensorboard.
        profiler_activities: accepted; rates are always measured.

    Attributes:
        iteration: number of the current iteration, from 1; 0 before the first.
        profiler: see Profiler.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        num_steps: Optional[int] = None,
        checkpoint_steps: Optional[int] = None,
        activation_steps: Optional[int] = None,
        cs_config: Any = None,
        writer: Any = None,
        profiler_activities: Any = None,
    ) -> None:
        wafers = None if cs_config is None else cs_config.num_csx
        if wafers not in (None, 1):
            raise ConfigError(f"num_csx: must be 1. Received: {wafers}. Set 1.")
        self.dataloader, self.num_steps, self.writer = dataloader, num_steps, writer
        self.iteration = 0
        self.profiler = Profiler()
        self._checkpoint_steps, self._activation_steps = checkpoint_steps, activation_steps
        self._is_last = False

    def __len__(self) -> int:
        return len(self.dataloader) if self.num_steps is None else self.num_steps

    @property
    def batch_size(self) -> Optional[int]:
        """The batch size of the loader."""
        return self.dataloader.batch_size

    @property
    def user_iteration(self) -> int:
        """Number of the current iteration, from 0."""
        return max(self.iteration - 1, 0)

    @property
    def on_final_iteration(self) -> bool:
        """Whether the current iteration is the last."""
        return self._is_last

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether the current iteration writes a checkpoint."""
        every = self._checkpoint_steps or 0
        return every > 0 and (self._is_last or self.iteration % every == 0)

    @property
    def is_activation_step(self) -> bool:
        """Whether step closures run in the current iteration."""
        return self._is_last or self.iteration % (self._activation_steps or 1) == 0

    def __iter__(self) -> Iterator[Any]:
        backend = current_backend()
        if backend is None:
            raise ConfigError(
                "DataExecutor: a backend must be made first. Received: none. Call "
                'cerebras.pytorch.platform("CSX").'
            )
        self.profiler, self.iteration, backend.executor = Profiler(), 0, self
        try:
            yield from self._iterations(backend)
        finally:
            backend.executor = None
            backend.copy_back()

    def _iterations(self, backend: Backend) -> Iterator[Any]:
        batches = self._batches(1 if backend.compile_only else self.num_steps)
        if backend.is_cpu:
            yield from batches
            return
        loop = backend.loop
        if not loop.run_steps:
            loop.first_step = self.dataloader.position
        compiling = functools.partial(loop.compile, backend.validate_only)
        end = compiling if backend.compile_only else loop.end
        try:
            yield from loop.batches(batches, end)
        except GeneratorExit:  # after a break, or an error in the loop's body
            if loop.is_complete:
                end()
            raise

    def _batches(self, count: Optional[int]) -> Iterator[Any]:
        if count is None:
            following, done = iter(self.dataloader), object()
            batch = next(following, done)
            while batch is not done:
                later = next(following, done)
                yield self._counted(batch, later is done)
                batch = later
            return
        for index in range(count):
            yield self._counted(self.dataloader.take(), index + 1 == count)

    def _counted(self, batch: Any, is_last: bool) -> Any:
        self.profiler.rate_tracker.add(samples(batch))
        self.iteration, self._is_last = self.iteration + 1, is_last
        return without_half(batch)


def compute_num_steps(
    dataloader: Any,
    initial_step: int = 0,
    num_steps: Optional[int] = None,
    max_steps: Optional[int] = None,
    num_epochs: Optional[int] = None,
    steps_per_epoch: Optional[int] = None,
    grad_accum_steps: int = 1,
) -> int:
    """The number of iterations of a run.

    Args:
        initial_step: steps made in earlier runs.
        num_steps: steps of this run.
        max_steps: steps of all runs.
        num_epochs: epochs of this run; of several limits the lowest counts.
        steps_per_epoch: steps of an epoch, at most those of the loader.
        grad_accum_steps: iterations of a step.

    Raises:
        ConfigError: no step is left, or the loader has no length.
    """
    counts = []
    if num_steps is not None:
        counts.append(num_steps * grad_accum_steps)
    if num_epochs is not None or (num_steps is None and max_steps is None):
        length = [] if steps_per_epoch is None else [steps_per_epoch * grad_accum_steps]
        try:
            length.append(len(dataloader))
        except TypeError:
            if not length:
                raise ConfigError(
                    "num_epochs: the loader must have a length. Received: none. Set "
                    "steps_per_epoch or num_steps."
                ) from None
        counts.append(min(length) * (1 if num_epochs is None else num_epochs))
    if max_steps is not None:
        counts.append((max_steps - initial_step) * grad_accum_steps)
    if min(counts) < 1:
        raise ConfigError(
            f"max_steps: must leave steps for this run. Received: {max_steps}, after "
            f"{initial_step} steps. Raise it."
        )
    return min(counts)


def samples(batch: Any) -> int:
    """The number of samples of a batch."""
    items = [item for item in leaves(batch) if isinstance(item, torch.Tensor)]
    return int(items[0].shape[0]) if items and items[0].ndim else 1


def without_half(batch: Any) -> Any:
    """A batch with float32 in place of float16, in which the wafer does not compute."""
    items, structure = flattened(batch)
    return nested([item.float() if _is_half(item) else item for item in items], structure)


def counted(loader: Iterable[Any], tracker: RateTracker) -> Iterator[Any]:
    """Counts the samples of a loader, and converts float16 to float32."""
    for batch in loader:
        tracker.add(samples(batch))
        yield without_half(batch)


def _is_half(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype == torch.float16
