"""Analysis of the input's speed, which the original software makes from a log of the system."""

from __future__ import annotations

from typing import Optional


def locate_csperf_log(folder: str) -> Optional[str]:
    """The log of the system; None, as the emulated wafer writes none."""
    return None


class AssessBottlenecks:
    """Names the bottleneck of a log."""

    def __init__(self, file: str) -> None:
        self.file = file

    def assess_bottleneck_main(self) -> str:
        """The name of the bottleneck."""
        return "Not Applicable"
