"""Predictions compared with measurements; fitting of the releases' constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from cerebras_tf.wafer.pipelined import predict_pipelined
from cerebras_tf.wafer.prediction import STREAMING, Prediction
from cerebras_tf.wafer.streaming import predict_streaming
from cerebras_tf.wafer.system import System, read_yaml
from cerebras_tf.wafer.transformer import dense_network, transformer
from cerebras_tf.wafer.workload import Workload


@dataclass(frozen=True)
class Row:
    """A measurement and its prediction.

    Attributes:
        release: the release whose constant the prediction uses.
        batch: samples per step over all systems.
        rate: measured, in `unit`: samples/s or steps/s.
        fitted: whether the release's constant was fitted on this row.
        about: further facts.
    """

    name: str
    mode: str
    release: str
    csx: int
    batch: int
    rate: float
    unit: str
    fitted: bool
    about: str
    prediction: Prediction

    @property
    def predicted(self) -> float:
        """The predicted rate, in the row's unit."""
        found = self.prediction
        return found.samples_per_s if self.unit == "samples/s" else found.steps_per_s

    @property
    def residual(self) -> float:
        """Relative error of the prediction; positive if it is above the measurement."""
        return self.predicted / self.rate - 1


def workload_of(name: str, sizes: Mapping[str, Any], batch: int, mean_length: float) -> Workload:
    """The workload of an entry of measured.yaml."""
    given = dict(sizes)
    if given.pop("kind") == "dense":
        return dense_network(name, given["sizes"], batch)
    return transformer(name, batch, mean_length=mean_length, **given)


def measured_rows(system: System, release: Optional[str] = None) -> list[Row]:
    """All measurements with their predictions, or those of one release."""
    tree = read_yaml("measured")
    rows = []
    for item in tree["rows"]:
        if release not in (None, item["release"]):
            continue
        batch = item["batch"] // item["csx"]
        sizes, mean_length = tree["models"][item["model"]], item.get("mean_length", 1.0)
        workload = workload_of(item["model"], sizes, batch, mean_length)
        if item["mode"] == STREAMING:
            found = predict_streaming(workload, system, item["release"], item["csx"])
        else:
            found = predict_pipelined(workload, system, item["release"])
        rows.append(
            Row(
                item["model"],
                item["mode"],
                item["release"],
                item["csx"],
                item["batch"],
                float(item["rate"]),
                item["unit"],
                item["fitted"],
                item["about"],
                found,
            )
        )
    return rows
