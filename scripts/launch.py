"""Lets the scripts of this folder be started by any Python, as `python scripts/NAME.py`.

What they need stands in the checkout's environment, which the launcher `python-ws` makes if need
be. The syntax of this file is kept to what an old Python reads, too.
"""

import os
import sys
import sysconfig
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
# Set for what the launcher starts, so that a damaged environment is not entered again and again.
ENTERED = "CEREBRAS_TF_ENTERED"


def has_packages() -> bool:
    """Was cerebras_tf installed for this Python, and so what it requires?"""
    return any(Path(sysconfig.get_path("purelib")).glob("cerebras_tf-*.dist-info"))


def enter() -> None:
    """Goes on in this process, or starts the script anew in the checkout's environment."""
    if os.environ.pop(ENTERED, None) is None and not has_packages():
        os.environ[ENTERED] = "1"
        launcher = str(SCRIPTS / "python-ws")
        os.execv(launcher, [launcher, *sys.argv])
    sys.path.insert(0, str(SCRIPTS.parent))


def run(*words: str) -> None:
    """Runs a command of `cerebras-tf` with the arguments of this process, and ends it.

    Args:
        *words: the command, such as `prepare gpt`.
    """
    enter()
    from modelzoo.commands.main import main

    sys.exit(main(program=os.path.basename(sys.argv[0]), words=words))
