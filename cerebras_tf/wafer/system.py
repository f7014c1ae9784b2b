"""The machine as data: published facts with source and grade, assumptions with their reason.

The files are configs/wafer/*.yaml; an installed package holds them itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import yaml

from cerebras_tf.errors import ConfigError

EFFICIENCY = "efficiency"  # share of the modelled speed that kernels of a release reach
HOST_STEP = "host_step_s"  # seconds that the host's loop of a release takes a step
GRADES = {"P": "primary text", "S": "third party citing the primary", "D": "derived"}


@dataclass(frozen=True)
class Quantity:
    """A number of the machine.

    Attributes:
        name: its key in the file.
        value: the number.
        unit: what it counts.
        grade: a key of GRADES; "" for an assumption.
        source: where a fact is from, or why an assumption is as it is.
    """

    name: str
    value: float
    unit: str
    grade: str
    source: str


@dataclass(frozen=True)
class Release:
    """A release of the software, with the one constant that was fitted for it.

    Attributes:
        name: such as R1.7.1.
        constant: EFFICIENCY or HOST_STEP, whichever bounds the measured rows of the release.
        value: the constant.
    """

    name: str
    constant: str
    value: float


@dataclass(frozen=True)
class Machine:
    """A system: a wafer and its links.

    Attributes:
        name: such as CS-2.
        quantities: facts and assumptions, by name; their values are `machine[name]`.
        releases: by name.
        default_release: the release that predictions name where none is asked for.
    """

    name: str
    quantities: dict[str, Quantity]
    releases: dict[str, Release]
    default_release: str

    def __getitem__(self, name: str) -> float:
        return self.quantities[name].value

    @property
    def cores(self) -> int:
        """Cores of the wafer."""
        return int(self["cores"])

    @property
    def rows(self) -> int:
        """Rows of cores."""
        return int(self["rows"])

    @property
    def columns(self) -> int:
        """Columns of cores."""
        return int(self["columns"])

    @property
    def flops_per_s(self) -> float:
        """Dense fp16 peak; multiply and add count two."""
        return self.cores * self["simd"] * 2 * self["clock"]

    @property
    def io_bytes_per_s(self) -> float:
        """Bytes a second and direction over the system's links."""
        return self["io_bits_per_s"] / 8

    @property
    def sram_per_core(self) -> float:
        """Bytes of SRAM a core."""
        return self["sram_bytes"] / self.cores

    def release(self, name: Optional[str] = None) -> Release:
        """A release by name; the default one for None.

        Raises:
            ConfigError: there is none of that name.
        """
        found = self.releases.get(name or self.default_release)
        if found is None:
            raise ConfigError(
                f"{self.name}: release must be one of {', '.join(self.releases)}. "
                f"Received: {name}. Choose one of them."
            )
        return found

    def efficiency(self, release: Release) -> float:
        """Share of the modelled speed that kernels of a release reach.

        Where the release's rows are bound by the host, that of the default release.
        """
        if release.constant == EFFICIENCY:
            return release.value
        return self.release().value

    def host_step_s(self, release: Release) -> float:
        """Seconds that the host's loop of a release takes a step."""
        return release.value if release.constant == HOST_STEP else self["host_step_s"]


def machine_folder() -> Path:
    """The folder of the machines' files."""
    installed = Path(__file__).parent / "machines"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs" / "wafer"


def read_yaml(name: str) -> Any:
    """The content of a file of the machines' folder.

    Raises:
        ConfigError: there is none of that name.
    """
    path = machine_folder() / f"{name}.yaml"
    if not path.is_file():
        names = sorted(item.stem for item in machine_folder().glob("cs*.yaml"))
        raise ConfigError(
            f"machine: must be one of {', '.join(names)}. Received: {name}. Choose one of them."
        )
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def load_machine(name: str = "cs2") -> Machine:
    """A machine by the name of its file.

    Raises:
        ConfigError: there is none of that name, or the file lacks something.
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
            f"{name}.yaml: values must be above zero. Received: {', '.join(faults)}. Mend the file."
        )
    releases = {
        key: Release(key, item["constant"], float(item["value"]))
        for key, item in tree["releases"].items()
    }
    return Machine(tree["name"], quantities, releases, tree["default_release"])
