"""Says how a package that is missing is installed where this program runs."""

from __future__ import annotations

import shlex
import sys

PEERS_EXTRA = "-e '.[peers]'"  # PyTorch and transformers, from a checkout


def pip_install(packages):
    """Returns the command that installs packages for the Python that runs this.

    Args:
        packages: what pip takes, such as ``h5py``.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {packages}"
