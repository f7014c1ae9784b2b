"""Runs a module as `python -m` does, but without the current folder in sys.path.

`python cerebras_tf/run_module.py MODULE ARGUMENTS`: a `yaml.py` or a folder `modelzoo` in the
current folder does not replace the package of that name. Nor does a `modelzoo` on PYTHONPATH, also
not in the installed program.
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


def program() -> None:
    """Runs the installed `cerebras-tf` program."""
    _run("modelzoo.commands.main")


def main() -> None:
    """Runs the module that the first argument names."""
    if sys.path[0] == os.path.dirname(os.path.realpath(__file__)):  # not if PYTHONSAFEPATH is set
        del sys.path[0]
    del sys.argv[0]
    _run(sys.argv[0])


def _run(module: str) -> None:
    _find_own_first(module.partition(".")[0])
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _find_own_first(package: str) -> None:
    """Puts the folder of cerebras_tf first if another package of this name comes before its own.

    Processes that multiprocessing starts get this `sys.path`, too.
    """
    folder = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    own, first = PathFinder.find_spec(package, [folder]), importlib.util.find_spec(package)
    origin = first and first.origin  # a namespace has none
    if own is not None and own.origin != os.path.realpath(origin or ""):
        sys.path.insert(0, folder)


if __name__ == "__main__":
    main()
