"""What every test of the tree shares: the closing line about style and type checks.

Fixtures live next to the tests that use them, not here.
"""

from __future__ import annotations

import os
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Repeats what scripts/run_tests found before it started pytest."""
    checks = os.environ.get("CEREBRAS_TF_CHECKS")
    if checks:
        terminalreporter.write_line(checks, red="FAILED" in checks, green="FAILED" not in checks)
