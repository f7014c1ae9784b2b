"""Benchmarks and demonstrations of cerebras_tf. They are part of a checkout and are not installed.

Start one with the launcher, which sets up the environment::

    scripts/cerebras-tf bench                      # training: the wafer and the host
    scripts/cerebras-tf bench memory --folder /data
    scripts/cerebras-tf bench scale --measure 1 2

`scripts/cerebras-tf bench -h` lists all of them, and `scripts/cerebras-tf bench NAME -h` shows the
options of one. The docstring of each module says what it measures and how. No
benchmark judges a result.
"""

from __future__ import annotations

from cerebras_tf.api import module_command


def command(name: str, *arguments: str) -> list[str]:
    """The command line of a process that runs a benchmark."""
    return module_command("modelzoo.commands.main", "bench", name, *arguments)
