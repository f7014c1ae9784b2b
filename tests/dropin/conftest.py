"""Makes the drop-in import names importable from a checkout that is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

DROPIN = Path(__file__).parents[2] / "cerebras_tf" / "dropin"

if importlib.util.find_spec("cerebras") is None:
    spec = importlib.util.spec_from_file_location(
        "cerebras", DROPIN / "__init__.py", submodule_search_locations=[str(DROPIN)]
    )
    sys.modules["cerebras"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["cerebras"])
ROOTS = ("cerebras_appliance", "cerebras_pytorch")
if any(importlib.util.find_spec(name) is None for name in ROOTS):
    sys.path.append(str(DROPIN / "roots"))
