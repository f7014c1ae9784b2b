"""A conversion's memory is bounded by its largest tensor, not by the model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from modelzoo.common.config import registry
from modelzoo.common.config.params import params_from_dict
from modelzoo.common.convert import gpt
from modelzoo.common.convert.hugging_face import write_hugging_face

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow")

CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 13,
    "n_positions": 7,
    "n_embd": 512,
    "n_head": 8,
    "n_layer": 3,
}
# Prints by how many bytes the process grew, after it has converted a small model.
MEASURE = """
import resource, sys
from modelzoo.commands.main import main

def convert(folder):
    assert main(["convert", "to_tf", folder + "/theirs", folder + "/ours"]) == 0
    assert main(["convert", "from_tf", folder + "/ours", folder + "/back"]) == 0
    assert main(["convert", "verify", folder + "/back", folder + "/ours"]) == 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = convert(sys.argv[1])
print(convert(sys.argv[2]) - before)
"""


def write_zeros(folder, filter_size):
    """Writes a model; returns the bytes of its largest tensor and of all."""
    config = {**CONFIG, "n_inner": filter_size}
    params_class = registry.params_class("gpt3", "test")
    params = params_from_dict(params_class, gpt.gpt2_tree(config, "config.json", ()))
    shapes = {link.theirs: link.shape for link in gpt.gpt2_layout(params).links}
    tensors = ((name, np.zeros(shape, np.float32)) for name, shape in shapes.items())
    folder.mkdir(parents=True)
    write_hugging_face(folder, config, shapes, tensors)
    sizes = [4 * int(np.prod(shape)) for shape in shapes.values()]
    return max(sizes), sum(sizes)


def test_memory_holds_some_tensors_and_not_the_model(tmp_path):
    write_zeros(tmp_path / "small" / "theirs", 64)
    largest_bytes, model_bytes = write_zeros(tmp_path / "large" / "theirs", 12288)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "small"), str(tmp_path / "large")],
        # Else glibc raises the size from which it gives memory back at once, and keeps tensors.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"},
        cwd=Path(__file__).resolve().parents[4],
        capture_output=True,
        text=True,
        check=True,
    )
    limit_bytes = 3 * largest_bytes
    assert model_bytes > 1.5 * limit_bytes
    assert int(ran.stdout.split()[-1]) < limit_bytes
