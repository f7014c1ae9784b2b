"""A system as data: published facts with source and grade, and assumptions with their reason.

The files are configs/wafer/*.yaml; an installed package contains them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import yaml

from cerebras_tf.errors import ConfigError

EFFICIENCY = "efficiency"  # share of the modelled speed that a release's kernels reach
HOST_STEP = "host_step_s"  # seconds per step of a release's host loop
GRADES = {"P": "primary text", "S": "third party citing the primary", "D": "derived"}


@dataclass(frozen=True)
class Quantity:
    """A number of a system.

    Attributes:
        grade: a key of GRADES; "" for an assumption.
        source: source of a fact, or reason of an assumption.
    """

    name: str
    value: float
    unit: str
    grade: str
    source: str


@dataclass(frozen=True)
class Release:
    """A software release, with its one fitted constant.

    Attributes:
        name: such as R1.7.1.
        constant: EFFICIENCY or HOST_STEP, whichever bounds the release's measurements.
    """

    name: str
    constant: str
    value: float


@dataclass(frozen=True)
class System:
    """A system: a wafer and its links. `system[name]` is the value of a fact or assumption.

    Attributes:
        name: such as CS-2.
        default_release: the release of predictions that name none.
    """

    name: str
    quantities: dict[str, Quantity]
    releases: dict[str, Release]
    default_release: str

    def __getitem__(self, name: str) -> float:
        return self.quantities[name].value

    @property
    def cores(self) -> int:
        return int(self["cores"])

    @property
    def rows(self) -> int:
        return int(self["rows"])

    @property
    def columns(self) -> int:
        return int(self["columns"])

    @property
    def flops_per_s(self) -> float:
        """Dense fp16 peak; multiply and add count as two."""
        return self.cores * self["simd"] * 2 * self["clock"]

    @property
    def io_bytes_per_s(self) -> float:
        """Bytes per second and direction over the system's links."""
        return self["io_bits_per_s"] / 8

    @property
    def sram_per_core(self) -> float:
        """Bytes of SRAM per core."""
        return self["sram_bytes"] / self.cores

    def release(self, name: Optional[str] = None) -> Release:
        """A release by name; None: the default.

        Raises:
            ConfigError: the name is unknown.
        """
        found = self.releases.get(name or self.default_release)
        if found is None:
            raise ConfigError(
                f"{self.name}: release must be one of {', '.join(self.releases)}. "
                f"Received: {name}. Choose one of them."
            )
        return found

    def efficiency(self, release: Release) -> float:
        """Share of the modelled speed that a release's kernels reach.

        If the release's measurements are bound by the host, that of the default release.
        """
        if release.constant == EFFICIENCY:
            return release.value
        return self.release().value

    def host_step_s(self, release: Release) -> float:
        """Seconds per step of a release's host loop."""
        return release.value if release.constant == HOST_STEP else self["host_step_s"]


def system_folder() -> Path:
    """Folder of the systems' files."""
    installed = Path(__file__).parent / "systems"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs" / "wafer"


def read_yaml(name: str) -> Any:
    """The content of a file of the systems' folder.

    Raises:
        ConfigError: the name is unknown.
    """
    path = system_folder() / f"{name}.yaml"
    if not path.is_file():
        names = sorted(item.stem for item in system_folder().glob("cs*.yaml"))
        raise ConfigError(
            f"system: must be one of {', '.join(names)}. Received: {name}. Choose one of them."
        )
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def load_system(name: str = "cs2") -> System:
    """A system by the name of its file.

    Raises:
        ConfigError: the name is unknown, or a value is not positive.
    """
    tree = read_yaml(name)
    quantities = {}
    for key, item in tree["facts"].items():
        quantities[key] = Quantity(
            key, float(item["value"]), item["unit"], item["grade"], item["source"]
        )
    for key, item in tree["assumptions"].items():
        quantities[key] = Quantity(key, float(item["value"]), item["unit"], "", item["why"])
    faults = [q.name for q in quantities.values() if not (math.isfinite(q.value) and q.value > 0)]
    if faults:
        raise ConfigError(
            f"{name}.yaml: values must be above zero. Received: {', '.join(faults)}. Correct them."
        )
    releases = {
        key: Release(key, item["constant"], float(item["value"]))
        for key, item in tree["releases"].items()
    }
    return System(tree["name"], quantities, releases, tree["default_release"])
