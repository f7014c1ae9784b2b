"""Runs a module as `python -m` does, but without the current folder in sys.path.

`python cerebras_tf/run_module.py MODULE ARGUMENTS`: a `yaml.py` or a folder `modelzoo` in the
current folder does not replace the package of that name.
"""

from __future__ import annotations

import os
import runpy
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module in this Python."""
    return [sys.executable, os.path.realpath(__file__), module, *arguments]


def main() -> None:
    """Runs the module that the first argument names."""
    here = os.path.dirname(os.path.realpath(__file__))
    if sys.path[0] == here:  # not if PYTHONSAFEPATH is set
        del sys.path[0]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
