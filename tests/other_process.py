"""Trains a saved program in a process that has no TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.steps import Arrays

_PROCESS = """
import sys
sys.modules["tensorflow"] = None  # importing it raises ImportError
import numpy as np
from cerebras_tf.ir import Variable
from cerebras_tf.ir.program_file import load_program
from tests.machines import client_of, contents, store_of

program = load_program(sys.argv[1])
variables, features = (dict(np.load(path)) for path in sys.argv[2:4])
specs = [Variable(name, program.slots[slot].type) for name, slot in program.variables.items()]
store = store_of(specs, {name: variables[name] for name in program.variables})
session = client_of(program, store)
steps = [dict(zip(features, arrays)) for arrays in zip(*features.values())]
results = [session.run(step) for step in steps]
found = {name: np.stack([result[name] for result in results]) for name in results[0]}
np.savez(sys.argv[4], **found, **contents(store), global_step=session.global_step)
assert not any(name.partition(".")[0] == "tensorflow" for name in sys.modules if sys.modules[name])
"""


def train_elsewhere(program: Path, folder: Path, variables: Arrays, features: Arrays) -> Arrays:
    """Trains a saved program in another process.

    Args:
        program: the file.
        folder: where arrays are handed over.
        variables: their values before the first step, by name.
        features: their content, the steps along the first axis.

    Returns:
        Results, the steps along the first axis; variables after the last; the global step.
    """
    given, fed, found = (folder / f"{name}.npz" for name in ("given", "fed", "found"))
    np.savez(given, **variables)
    np.savez(fed, **features)
    command = [sys.executable, "-c", _PROCESS, *map(str, (program, given, fed, found))]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1], timeout=120)
    with np.load(found) as arrays:
        return dict(arrays)
