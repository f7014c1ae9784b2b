"""Runs a module as `python -m` does, but without the current folder in sys.path.

`python cerebras_tf/run_module.py MODULE ARGUMENTS`: a `yaml.py` or a folder `modelzoo` in the
current folder does not replace the package of that name. Nor does a `modelzoo` on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from importlib.machinery import PathFinder


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module in this Python."""
    return [sys.executable, os.path.realpath(__file__), module, *arguments]


def main() -> None:
    """Runs the module that the first argument names."""
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.path[0] == here:  # not if PYTHONSAFEPATH is set
        del sys.path[0]
    del sys.argv[0]
    package = sys.argv[0].partition(".")[0]
    spec = PathFinder.find_spec(package, [os.path.dirname(here)])
    if spec is not None and spec.loader is not None:
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
