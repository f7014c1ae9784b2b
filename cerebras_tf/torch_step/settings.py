"""How a PyTorch model is trained on the wafer: options that CSRunConfig has too."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator
from typing import Any, Optional

from cerebras_tf.config.run_options import SharedOptions, address_problems
from cerebras_tf.config.schema import Refused, Report, check_value
from cerebras_tf.errors import ConfigError
from cerebras_tf.swarmx import job

_SHARED = {each.name: each for each in dataclasses.fields(SharedOptions)}


def _shared(name: str, default: Any = None) -> Any:
    """A field with the text and the checks that the option has elsewhere."""
    return dataclasses.field(default=default, metadata=_SHARED[name].metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of a training; see docs/guides/pytorch.md.

    Attributes:
        precision: of matrix products: float32, bfloat16 or emulate.
        attention_precision: with bfloat16, of the products of attention; None: bfloat16.
        keep_float32: with bfloat16, regular expressions of module paths whose products stay
            float32.
        memoryx_dir: folder of the files that store weights and optimizer state; None: in memory.
        memoryx_ram_gb: main memory for these with `memoryx_dir`; None: half of what is free.
        memoryx_moment_dtype: storage dtype of the moments of Adam; None: that of the optimizer.
        wafer_memory_gb: memory for activations; None: 90 % of what is free.
        micro_batches: number of equal parts that a batch is split into.
        num_csx: number of wafers; each trains on a batch of its own in every step.
        batches_per_step: number of batches of a step, over all wafers, whose gradients are averaged
            for one update; at least num_csx.
        num_threads: threads of kernels; None: one per core.
        cs_ip: address of the wafer, HOST:PORT; None: in this process.
        credentials_path: file of a client's credentials for the wafer at `cs_ip`.
        remove_padding: whether padding is removed if results do not change.
        compile_dir: folder of compiled programs, which later runs load; None: none.

    Raises:
        ConfigError: a value is invalid.
    """

    precision: str = _shared("precision", "float32")
    attention_precision: Optional[str] = _shared("attention_precision")
    keep_float32: tuple[str, ...] = _shared("keep_float32", ())
    memoryx_dir: Optional[str] = _shared("memoryx_dir")
    memoryx_ram_gb: Optional[float] = _shared("memoryx_ram_gb")
    memoryx_moment_dtype: Optional[str] = _shared("memoryx_moment_dtype")
    wafer_memory_gb: Optional[float] = _shared("wafer_memory_gb")
    micro_batches: int = _shared("micro_batches", 1)
    num_csx: int = _shared("num_csx", 1)
    batches_per_step: int = _shared("num_csx", 1)
    num_threads: Optional[int] = _shared("num_threads")
    cs_ip: Optional[str] = _shared("cs_ip")
    credentials_path: Optional[str] = _shared("credentials_path")
    remove_padding: bool = True
    compile_dir: Optional[str] = None

    def __post_init__(self) -> None:
        report, hints = Report("settings"), typing.get_type_hints(type(self))
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            if each.name == "num_csx" and value == 1:  # the number that the launcher started
                value = job.wafers()
            try:
                if value is not None or each.default is not None:
                    value = check_value(hints[each.name], each.metadata, value)
            except Refused as refused:
                report.add(each.name, f"{each.name} {refused.text}", refused.received)
            object.__setattr__(self, each.name, value)
        if not report.messages:
            for text in self.problems():
                report.add("", text)
        if report.messages:
            raise ConfigError(report.text())

    def problems(self) -> Iterator[str]:
        """What is wrong between settings."""
        for name, text in address_problems(self):
            yield f"{name} {text}"
        if self.memoryx_ram_gb is not None and self.memoryx_dir is None:
            yield (
                "memoryx_ram_gb needs memoryx_dir. Received: "
                f"{self.memoryx_ram_gb} without it. Set that too."
            )
        for name in ("keep_float32", "attention_precision"):
            if getattr(self, name) and self.precision != "bfloat16":
                yield (
                    f"{name} needs precision bfloat16. Received: {self.precision}. Remove it, or "
                    "set that."
                )
        for name in ("num_csx", "batches_per_step"):
            count = getattr(self, name)
            if count % job.wafers() and count > 1:
                yield (
                    f"{name} must be a multiple of the {job.wafers()} processes of this job. "
                    f"Received: {count}. Start with csrun_wse --num_csx {count}."
                )

    @property
    def batches_here(self) -> int:
        """Batches of a step that this process computes."""
        return max(self.num_csx, self.batches_per_step) // job.wafers()
