"""`cerebras-tf bundle`: a folder of wheels, for setting up a checkout without internet."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import modelzoo
from cerebras_tf.api import counted, module_command
from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import CPU_TORCH

LOCKS = {"mpi": "several wafers", "peers": "tests against PyTorch", "docs": "the documentation"}


def add_arguments(parser):
    """Adds the arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="where to write the wheels")
    what = ", ".join(f"{name} ({use})" for name, use in LOCKS.items())
    parser.add_argument(
        "--include",
        nargs="+",
        default=[],
        choices=tuple(LOCKS),
        metavar="NAME",
        help=f"further packages: {what}",
    )


def run(args):
    """Downloads the wheels of the lock files, for this version of Python and this platform.

    Raises:
        ConfigError: there is no lock file here, or a package could not be downloaded.
    """
    checkout = Path(modelzoo.__file__).parents[1]
    locks = [checkout / "scripts" / f"{name}.lock" for name in ("requirements", *args.include)]
    if not locks[0].exists():
        raise ConfigError(
            "bundle: needs a checkout of the source, which has the lock files. Received: a package "
            f"installed in {checkout}. Run scripts/cerebras-tf bundle in a checkout."
        )
    command = module_command("pip", "download", "--no-deps", "--dest", args.folder)
    if "peers" in args.include:  # torch.lock has no hashes of the builds without CUDA
        text = locks[0].with_name("torch.lock").read_text("utf-8")
        torch = re.findall(r"^(torch==.*) \\$", text, re.MULTILINE)
        index = ["--index-url", CPU_TORCH, "--requirement", "/dev/stdin"]
        download([*command, *index], "\n".join(torch))
    command += ["--require-hashes", "--no-build-isolation"]
    for lock in locks:
        command += ["--requirement", str(lock)]
    download(command)
    wheels = list(Path(args.folder).glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) / 1e9
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    print(f"{args.folder}: {counted(len(wheels), 'wheel')}, {size:.1f} GB, for {python}")
    print(f"Without internet: scripts/set_up --offline {shlex.quote(args.folder)}")


def download(command, standard_input=""):
    """Runs pip; raises ConfigError if it fails."""
    if subprocess.run(command, input=standard_input, text=True).returncode:
        raise ConfigError(
            "bundle: every package of the lock files must be downloaded, with a hash that they "
            "list. Received: the error of pip above. Check the network, the package index and the "
            "disk, then run the same command again."
        )
