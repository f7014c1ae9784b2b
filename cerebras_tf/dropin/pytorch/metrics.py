"""Metrics whose state is updated on the wafer in every step."""

from __future__ import annotations

import abc
import weakref
from typing import Any, Optional

import torch

_METRICS: weakref.WeakValueDictionary[str, Metric] = weakref.WeakValueDictionary()


class Metric(torch.nn.Module, abc.ABC):
    """A metric over the batches of an evaluation. Calling it updates it.

    Its state is buffers, so it must be an attribute of the model.

    Args:
        name: by which `compute_all_metrics` returns it; by default that of the class.

    Example:
        class Total(cstorch.metrics.Metric):
            def reset(self):
                self.register_state("total", torch.zeros(()))

            def update(self, values):
                self.total.add_(values.sum())

            def compute(self):
                return float(self.total)
    """

    def __init__(self, name: Optional[str] = None) -> None:
        super().__init__()
        self.name = name or type(self).__name__
        _METRICS[self.name] = self
        self.reset()

    def register_state(self, name: str, tensor: torch.Tensor, persistent: bool = False) -> None:
        """Adds a tensor of the state, or sets it to this value again."""
        if name in self._buffers:
            with torch.no_grad():
                self._buffers[name].copy_(tensor)
        else:
            self.register_buffer(name, tensor, persistent)

    @abc.abstractmethod
    def reset(self) -> None:
        """Registers the state, with its first values."""

    @abc.abstractmethod
    def update(self, *args: Any, **keys: Any) -> None:
        """Adds a batch; changes the state in place."""

    @abc.abstractmethod
    def compute(self) -> Any:
        """The value over all batches."""

    def forward(self, *args: Any, **keys: Any) -> None:
        """Adds a batch."""
        with torch.no_grad():
            self.update(*args, **keys)


def get_all_metrics() -> dict[str, Metric]:
    """All metrics, by name."""
    return dict(_METRICS)


def compute_all_metrics() -> dict[str, Any]:
    """The values of all metrics, by name."""
    return {name: metric.compute() for name, metric in get_all_metrics().items()}


def reset_all_metrics() -> None:
    """Starts all metrics again."""
    for metric in get_all_metrics().values():
        metric.reset()


class _Ratio(Metric):
    """A sum over a number."""

    def reset(self) -> None:
        """Sets both to 0."""
        self.register_state("total", torch.zeros(()))
        self.register_state("count", torch.zeros(()))

    def add(self, total: torch.Tensor, count: torch.Tensor) -> None:
        """Adds to both."""
        self.total.add_(total.float())
        self.count.add_(count.float())

    def add_weighted(self, values: torch.Tensor, weights: Optional[torch.Tensor]) -> None:
        """Adds values by their weights, None for 1."""
        weights = torch.ones_like(values) if weights is None else weights.float()
        self.add((values * weights).sum(), weights.sum())

    def compute(self) -> float:
        """The mean."""
        return float(self.total / self.count)


class AccuracyMetric(_Ratio):
    """The share of predictions that are right."""

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        """Adds a batch.

        Args:
            weights: of the labels' shape, or None for 1.
        """
        self.add_weighted((labels == predictions).float(), weights)


class PerplexityMetric(_Ratio):
    """exp of the loss per label."""

    def update(
        self,
        labels: torch.Tensor,
        loss: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        """Adds a batch.

        Args:
            loss: sum over the batch.
            weights: of the labels' shape, or None for 1.
        """
        count = torch.ones_like(labels) if weights is None else weights
        self.add(loss, count.float().sum())

    def compute(self) -> float:
        """See the class."""
        return float(torch.exp(self.total / self.count))


class MeanMetric(_Ratio):
    """The mean of values."""

    def update(self, value: torch.Tensor, weights: Optional[torch.Tensor] = None) -> None:
        """Adds a batch of values."""
        self.add_weighted(value, weights)


class _Confusion(Metric):
    """How often each class is predicted as each.

    Args:
        num_classes: number of classes.
        ignore_labels: labels that do not count.
    """

    def __init__(
        self, num_classes: int, ignore_labels: Any = None, name: Optional[str] = None
    ) -> None:
        self._size, self._ignored = num_classes, tuple(ignore_labels or ())
        super().__init__(name)

    def reset(self) -> None:
        """Sets all counts to 0."""
        self.register_state("counts", torch.zeros(self._size, self._size))

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: Optional[torch.Tensor] = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        """Adds a batch; a label of `ignore_labels` does not count."""
        classes = torch.arange(self._size)
        rows = (labels.reshape(-1, 1) == classes).float()
        columns = (predictions.reshape(-1, 1) == classes).float()
        if weights is not None:
            rows = rows * weights.reshape(-1, 1).float()
        self.counts.add_(rows.T @ columns)

    def sums(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Right predictions, labels and predictions of each class that counts."""
        kept = torch.tensor([n for n in range(self._size) if n not in self._ignored])
        counts = self.counts.clone()
        counts[list(self._ignored)] = 0  # rows of labels that do not count
        return (counts.diagonal()[kept], counts.sum(1)[kept], counts.sum(0)[kept])


class FBetaScoreMetric(_Confusion):
    """The F-beta score.

    Args:
        beta: weight of recall over precision.
        average_type: "micro" counts all classes together, "macro" averages their scores.
    """

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: str = "micro",
        ignore_labels: Any = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__(num_classes, ignore_labels, name)
        self._beta, self._average = beta**2, average_type

    def compute(self) -> float:
        """See the class."""
        right, labels, predictions = self.sums()
        if self._average == "micro":
            right, labels, predictions = right.sum(), labels.sum(), predictions.sum()
        bottom = self._beta * labels + predictions
        score = (1 + self._beta) * right / bottom.clamp(min=1e-12)
        return float(score.mean())


class DiceCoefficientMetric(_Confusion):
    """The mean of the classes' Dice coefficients."""

    def compute(self) -> float:
        """See the class."""
        right, labels, predictions = self.sums()
        return float((2 * right / (labels + predictions).clamp(min=1e-12)).mean())


class MeanIOUMetric(_Confusion):
    """The mean of the classes' intersections over unions."""

    def compute(self) -> float:
        """See the class."""
        right, labels, predictions = self.sums()
        return float((right / (labels + predictions - right).clamp(min=1e-12)).mean())
