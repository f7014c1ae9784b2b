"""Commands that install a missing package for the Python that runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

# PyTorch's builds without CUDA. On Linux the package index has the builds with CUDA, which require
# 7 GB of further packages.
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def run_python(arguments: str) -> str:
    """Returns the command that runs this Python with arguments such as ``-m pip list``."""
    return f"{shlex.quote(sys.executable)} {arguments}"


def pip_install(packages: str) -> str:
    """Returns the command that installs packages, such as ``h5py``, for this Python."""
    return run_python(f"-m pip install {packages}")


def install_peers() -> str:
    """Returns the command that installs PyTorch without CUDA and transformers, from any folder.

    In a checkout, it installs the versions of the extra ``peers``.
    """
    root = Path(__file__).resolve().parents[1]
    is_checkout = (root / "setup.py").is_file()
    packages = f"-e {shlex.quote(f'{root}[peers]')}" if is_checkout else "torch transformers"
    return pip_install(f"--extra-index-url {CPU_TORCH} {packages}")
