"""Takes the batches of a loader, epoch after epoch, and continues at the same batch on resume."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional

import numpy as np
import torch

from cerebras_tf.errors import ConfigError, DataError
from cerebras_tf.swarmx.swarm import Swarm
from cerebras_tf.torch_step.plain_state import random_state, set_random_state

# Where a torch DataLoader keeps its random number generators.
_GENERATORS = (
    ("generator",),
    ("sampler", "generator"),
    ("batch_sampler", "generator"),
    ("batch_sampler", "sampler", "generator"),
)


class DataOrder:
    """The batches of a loader.

    A state holds the random number generators at the start of the epoch, the number of batches
    taken since then, and a hash of the last one. `restore` sets the generators, takes the same
    number of batches again and compares the hash; a loader with `state_dict` and `load_state_dict`
    is restored by these instead.

    Args:
        loader: an iterable of batches, such as a torch DataLoader.
        rank: of this process.
        wafers: number of processes; each takes every N-th batch of the same loader.
        log: logs a line.
        name: of the loader, for errors.
    """

    def __init__(
        self,
        loader: Any,
        rank: int = 0,
        wafers: int = 1,
        log: Callable[[str], Any] = print,
        name: str = "loader",
    ) -> None:
        require_iterable(name, loader)
        self._loader, self._log, self._name = loader, log, name
        self._rank, self._wafers = rank, wafers
        self._batches: Optional[Iterator[Any]] = None
        self._epoch = self._taken = self._total = 0
        self._start: dict[str, Any] = {}
        self._last: Any = None

    @property
    def is_stateful(self) -> bool:
        """Whether the loader saves and restores its own position."""
        return hasattr(self._loader, "state_dict") and hasattr(self._loader, "load_state_dict")

    @property
    def epoch(self) -> int:
        """The number of the current epoch, from 0."""
        return self._epoch

    @property
    def total(self) -> int:
        """The number of batches taken in all epochs, by all processes."""
        return self._total

    def take(self) -> Any:
        """The next batch of this process.

        Raises:
            DataError: an epoch has no batches.
        """
        while self._total % self._wafers != self._rank:
            self._next()
        return self._next()

    def _next(self) -> Any:
        """The next batch of all processes."""
        if self._batches is None:
            self._begin()
        assert self._batches is not None
        try:
            self._last = next(self._batches)
        except StopIteration:
            if not self._taken:
                raise DataError(
                    f"{self._name}: must have at least one batch in every epoch. Received: none in "
                    f"epoch {self._epoch}. Add data, or set drop_last=False."
                ) from None
            self._batches, self._taken = None, 0
            self._epoch += 1
            return self._next()
        self._taken += 1
        self._total += 1
        return self._last

    def _begin(self) -> None:
        sampler: Any = getattr(self._loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._epoch)
        self._start = self._random_state()
        self._batches = iter(self._loader)

    def agree(self, swarm: Swarm) -> None:
        """Sets the random number generators of all processes to those of the first."""
        self._set_random_state(swarm.objects(self._random_state())[0])

    def align(self) -> None:
        """Takes the batches of the other processes of a step, so that all states are equal."""
        while self._total % self._wafers:
            self._next()

    def state(self) -> dict[str, Any]:
        """The position after the last batch."""
        found = {"epoch": self._epoch, "taken": self._taken, "total": self._total}
        if self.is_stateful:
            return {**found, "loader": self._loader.state_dict(), "now": self._random_state()}
        digest = None if self._batches is None else digest_of(self._last)
        return {**found, "start": self._start, "now": self._random_state(), "digest": digest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that were taken before the state.

        Raises:
            DataError: the loader returns other batches than before.
        """
        self._epoch, self._total, self._taken = state["epoch"], state["total"], 0
        if "loader" in state:
            if not self.is_stateful:
                raise DataError(
                    "loader: must have load_state_dict, as in the run that wrote the checkpoint. "
                    f"Received: {type(self._loader).__name__}. Use the same loader."
                )
            self._loader.load_state_dict(state["loader"])
            self._batches, self._taken = iter(self._loader), state["taken"]
        elif state["taken"]:
            self._repeat(state)
        self._set_random_state(state["now"])

    def _repeat(self, state: Mapping[str, Any]) -> None:
        """Takes the batches of the unfinished epoch again."""
        count, total = state["taken"], self._total
        self._set_random_state(state["start"])
        self._log(f"loading the first {count} batches of epoch {self._epoch} again, without steps")
        self._begin()
        while self._taken < count and self._epoch == state["epoch"]:
            self._next()
        self._total = total
        if self._epoch != state["epoch"] or digest_of(self._last) != state["digest"]:
            raise DataError(
                f"loader: batch {count} of epoch {state['epoch']} must be the same as before the "
                "checkpoint. Received: another batch. Use the same data, batch size and workers, "
                "and draw random numbers only from torch, numpy.random and random; or start a new "
                "epoch with resume_data=False."
            )

    def _generators(self) -> list[torch.Generator]:
        """The loader's own generators, each once."""
        found: dict[int, torch.Generator] = {}
        for path in _GENERATORS:
            item: Any = self._loader
            for name in path:
                item = getattr(item, name, None)
            if isinstance(item, torch.Generator):
                found[id(item)] = item
        return list(found.values())

    def _random_state(self) -> dict[str, Any]:
        states = [generator.get_state() for generator in self._generators()]
        return {**random_state(), "generators": states}

    def _set_random_state(self, state: Mapping[str, Any]) -> None:
        set_random_state(state)
        for generator, saved in zip(self._generators(), state["generators"]):
            generator.set_state(saved)


def require_iterable(name: str, loader: Any) -> None:
    """Raises ConfigError for a loader that cannot start again."""
    if isinstance(loader, Iterator) or not hasattr(loader, "__iter__"):
        raise ConfigError(
            f"{name}: must be an iterable that starts again, such as a DataLoader. Received: "
            f"{type(loader).__name__}. Pass the DataLoader itself."
        )


def first_batch(loader: Any, name: str) -> Any:
    """The first batch of a loader that starts again.

    Loaders for which that is not certain are started twice, with the same random numbers.

    Args:
        name: of the loader, for errors.

    Raises:
        ConfigError: it does not start again.
        DataError: it has no batch.
    """
    order = DataOrder(loader, log=lambda line: None, name=name)
    batch = order.take()
    if order.is_stateful or _starts_again(loader):
        return batch
    try:
        order.restore(order.state())
    except DataError as error:
        raise ConfigError(
            f"{name}: must start again with the same batches whenever it is iterated over. "
            f"Received: {type(loader).__name__}, which continued after its first batch. Pass a "
            "DataLoader or a list, and draw random numbers only from torch, numpy.random and "
            "random."
        ) from error
    return batch


def _starts_again(loader: Any) -> bool:
    data = torch.utils.data
    return (
        isinstance(loader, data.DataLoader)
        and not isinstance(loader.dataset, data.IterableDataset)
        and not isinstance(loader.sampler, Iterator)
        and not isinstance(loader.batch_sampler, Iterator)
    )


def digest_of(batch: Any) -> str:
    """Hash of the tensors, numbers and texts of a batch."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, batch)
    return found.hexdigest()


def _add(found: Any, item: Any) -> None:
    if isinstance(item, Mapping):
        for key, value in item.items():
            found.update(f"{key}:".encode())
            _add(found, value)
    elif isinstance(item, (list, tuple)):
        for value in item:
            _add(found, value)
    elif isinstance(item, torch.Tensor):
        plain = item.detach().cpu().contiguous()
        found.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(item, np.ndarray):
        found.update(f"{item.dtype} {item.shape}".encode() + item.tobytes())
    else:
        found.update(repr(item).encode())
