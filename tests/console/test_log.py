"""Checks that a script sees the lines of its training by default, and can silence them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tf
ROOT = Path(__file__).parents[2]
# Each way to silence in a process that starts with TensorFlow loaded; then a training.
SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
import tensorflow as tf
from cerebras_tf import CerebrasEstimator, CSRunConfig
from cerebras_tf.console.log import log_info
for number, set_up in enumerate({set_ups!r}):
    child = os.fork()
    if not child:
        exec(set_up)
        log_info(f"a silent line {{number}}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, set_up
log_info("a line of progress")
from tests.estimator import regression
regression.build({folder!r}, log_step_count_steps=2).train(regression.dataset, max_steps=3)
"""
SILENT = (
    "tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.WARN)",
    "import logging; logging.disable(logging.INFO)",
    "import logging; logging.basicConfig(level=logging.WARNING)",
    "import logging; logging.getLogger().setLevel(logging.ERROR)",
)


def test_a_plain_script_sees_phases_the_model_and_steps_unless_it_sets_a_level(tmp_path):
    text = SCRIPT.format(tests=str(ROOT), folder=str(tmp_path), set_ups=SILENT)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "a silent line" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("INFO:tensorflow:")]
    text = "\n".join(lines)
    assert "INFO:tensorflow:a line of progress" in lines
    assert re.search(r"INFO:tensorflow:[\d,]+ parameters, \d+ layers, .* available", text)
    assert re.findall(r"global_step = (\d+), loss = ", text) == ["1", "2", "3"]
    assert "Calling model_fn" not in text
