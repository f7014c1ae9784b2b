"""How many processes make sense on one machine, for Slurm knows its own nodes itself."""

from __future__ import annotations

import os

from cerebras_tf.errors import ConfigError

# Loading TensorFlow and the library takes 2.7 s of a core and 0.26 GB that processes do not share.
_LEAST_BYTES = 0.26e9
_MOST_PER_CORE = 16  # with which a core loads for three quarters of a minute, and then takes turns


def most_processes() -> int:
    """How many processes this machine's cores and memory are enough for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return max(min(_MOST_PER_CORE * cores, int(memory / _LEAST_BYTES)), 1)


def check_processes(wafers: int) -> None:
    """Raises ConfigError for more local processes than make sense."""
    most = most_processes()
    if wafers > most:
        raise ConfigError(
            f"--num_csx: must be at most {most} with local processes: {_MOST_PER_CORE} for each "
            f"core, and {_LEAST_BYTES / 1e9:.2f} GB of memory for each of them. Received: {wafers}."
            " Lower it, and raise the batch size or grad_accum_steps in turn, or use Slurm."
        )
