"""Writes the page of environment variables from cerebras_tf.environment.

Run `PYTHONPATH=. python docs/environment_variables.py` after a change there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cerebras_tf.environment import FOR_USERS, SET_BY_LAUNCHERS

PAGE = Path(__file__).parent / "reference" / "environment.md"
# Variables that only scripts and tests read.
OF_CHECKOUTS = {
    "CEREBRAS_TF_VENV": ("Folder of the environment that the launchers make.", "`.venv`"),
    "CEREBRAS_TF_PYTHON": (
        "Python that the launchers set up with.",
        "the newest supported one that is found",
    ),
    "CEREBRAS_TF_OFFLINE": (
        "Folder of wheels to set up from, as `scripts/set_up --offline` does.",
        "not set",
    ),
    "TF_CPP_MIN_LOG_LEVEL": ("TensorFlow's native log. The launchers set 2 if it is unset.", "2"),
    "CEREBRAS_TF_PEERS": ("If 1, `run_tests` installs PyTorch and Transformers.", "not set"),
    "CEREBRAS_TF_MPI": ("If 1, `run_tests` installs MPI and tests several wafers.", "not set"),
    "CEREBRAS_TF_DOCS": ("If 1, `run_tests` installs Sphinx and builds this site.", "not set"),
    "CEREBRAS_TF_KILLS": ("How many kills the slow test of kills makes.", "100"),
    "CEREBRAS_TF_DEV_CLUSTER": (
        "Folder of `scripts/dev_cluster`, a small Slurm.",
        "in the user's cache folder",
    ),
    "CEREBRAS_TF_DEV_NODES": ("Number of its nodes.", "4"),
    "CEREBRAS_TF_DEV_PORT": ("Its first port.", "17000"),
    "CEREBRAS_TF_SLURM_CONF": ("Configuration of a Slurm that tests may use.", "not set"),
}


def page() -> str:
    """Returns the text of the page."""
    users, launchers = (
        [(variable.name, variable.meaning, variable.default_text) for variable in variables]
        for variables in (FOR_USERS, SET_BY_LAUNCHERS)
    )
    checkouts = [(name, *texts) for name, texts in OF_CHECKOUTS.items()]
    return f"""\
# Environment variables

None is needed. An empty variable counts as unset; an invalid value is an error.

{table(users)}
## Set by launchers

`csrun_wse`, `mpiexec` and Slurm set these for the processes that they start.

{table(launchers)}
## Read by scripts and tests of a checkout

{table(checkouts)}"""


def table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Returns a Markdown table of names, meanings and defaults."""
    lines = "".join(f"| `{name}` | {text} | {default} |\n" for name, text, default in rows)
    return f"| variable | meaning | default |\n|---|---|---|\n{lines}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
